"""The log of frames, and workers that read it: new ones, and ones that are behind."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pams_parallel.snapshot import Replica, Source
from pams_parallel.transport import ChainReader, FrameLog

N_WORKERS = 3
# A frame with a few objects, a checkpoint, a keyframe, a task for one of the workers.
EVENTS = st.lists(
    st.sampled_from(["frame", "frame", "checkpoint", "keyframe", *range(N_WORKERS)]), max_size=40
)


class Log:
    """A source, its log, and workers."""

    def __init__(self) -> None:
        self.root: list[Any] = [[0]]
        self.source = Source()
        self.log = FrameLog()
        self.replicas = [Replica() for _ in range(N_WORKERS)]
        self.readers = [ChainReader() for _ in range(N_WORKERS)]
        self.frame()

    def frame(self, *, keyframe: bool = False) -> None:
        self.root.append([len(self.root)])
        self.root[0][0] += 1
        frame = self.source.frame((self.root,), keyframe=keyframe)
        self.chain = self.log.append(
            frame, self.source.sequence, is_keyframe=self.source.is_keyframe
        )

    def checkpoint(self) -> None:
        checkpoint = self.source.checkpoint((self.root,))
        assert checkpoint is not None
        self.log.begin_with(checkpoint, self.source.sequence)

    def work(self, worker: int) -> Any:
        """Have a replica read what it lacks; its root."""
        replica = self.replicas[worker]
        for frame in self.readers[worker].frames_after(self.chain, replica.sequence):
            replica.apply(frame)
        assert replica.sequence == self.source.sequence
        assert replica.roots == [self.root]
        return replica.roots[0]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.log.close()
        self.source.close()


@given(EVENTS)
@settings(deadline=None, max_examples=150)
def test_workers_find_what_they_lack(events: list[Any]) -> None:
    with contextlib.closing(Log()) as log:
        for event in events:
            match event:
                case "frame":
                    log.frame()
                case "checkpoint":
                    log.checkpoint()
                case "keyframe":
                    log.frame(keyframe=True)
                case _:
                    log.work(event)


def test_a_worker_that_is_not_far_behind_a_checkpoint_keeps_its_replica() -> None:
    with contextlib.closing(Log()) as log:
        root = log.work(0)
        log.frame()
        log.checkpoint()
        log.frame()
        assert log.work(0) is root


def test_what_a_checkpoint_made_needless_is_dropped_in_the_end() -> None:
    with contextlib.closing(Log()) as log:
        log.work(0)
        log.frame()
        log.checkpoint()
        for _ in range(100):
            log.frame()
        assert len(log.chain.segments) == 1
        log.work(0)


def test_frames_of_a_file_that_has_been_cut() -> None:
    with contextlib.closing(Log()) as log:
        (segment,) = log.chain.segments
        longer = segment._replace(ends=segment.ends + (1_000_000).to_bytes(8, "little"))
        with pytest.raises(OSError, match="has been cut"):
            list(log.readers[0].frames_after(log.chain._replace(segments=(longer,)), None))

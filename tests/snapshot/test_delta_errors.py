"""What goes wrong on the way out and on the way in, and that all goes on afterwards."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from delta_support import (
    Chain,
)
from pams_parallel.snapshot import Replica, SnapshotDecodeError
from sample_types import (
    Plain,
    Slotted,
    StateOnly,
)

if TYPE_CHECKING:
    pass

LOCK = threading.Lock()

# --- errors on the way out --------------------------------------------------------------------


def test_an_object_that_cannot_be_copied() -> None:
    agents = [Plain(rule=None) for _ in range(5)]
    simulator = Plain(agents=agents)
    chain = Chain(simulator)
    chain.step(names=("simulator",))
    agents[3].rule = LOCK
    for keyframe in (False, False, True):
        with pytest.raises(TypeError, match=r"simulator\.agents\[3\]\.rule") as error:
            chain.send(names=("simulator",), keyframe=keyframe)
        assert "cannot pickle" in str(error.value)
    agents[3].rule = [1]
    chain.step(names=("simulator",))
    assert chain.source.is_keyframe
    agents[3].rule.append(2)
    chain.delta()


@pytest.mark.parametrize(
    ("add", "path"),
    [
        (lambda root: root.agents.append(LOCK), r"simulator\.agents\[2\]"),
        (lambda root: setattr(root, "lock", LOCK), r"simulator\.lock"),
        (lambda root: root.table.update(key=[LOCK]), r"simulator\.table\['key'\]\[0\]"),
        (lambda root: setattr(root.agents[1], "a", (1, LOCK)), r"simulator\.agents\[1\]\.a\[1\]"),
        (lambda root: root.agents.append(Plain(a=LOCK)), r"simulator\.agents\[2\]\.a"),
        (lambda root: setattr(root.slots, "left", [LOCK]), r"simulator\.slots\.left\[0\]"),
        (lambda root: root.stateful.a.append(LOCK), r"simulator\.stateful\.a\[0\]"),
        (lambda root: root.values.__setitem__(0, LOCK), r"simulator\.values"),
    ],
)
def test_path_to_what_cannot_be_copied(add: Any, path: str) -> None:
    simulator = Plain(
        agents=[Plain(), Plain()],
        table={},
        slots=Slotted(),
        stateful=StateOnly(a=[]),
        values=np.array([1, 2], dtype=object),
    )
    chain = Chain(simulator, [1])
    chain.step(names=("simulator", "others"))
    chain.step(names=("simulator", "others"))
    add(simulator)
    with pytest.raises(TypeError, match=path):
        chain.send(names=("simulator", "others"))
    chain.roots = ([1],)
    chain.step()
    assert chain.source.is_keyframe


def test_path_without_names() -> None:
    chain = Chain([1], Plain(a=[2]))
    chain.step()
    chain.roots[1].a.append(LOCK)
    with pytest.raises(TypeError, match=r"\.a\[1\]"):
        chain.send()


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c"), ("a", 1), "ab", ["a", "b"]])
def test_names_that_do_not_fit(names: Any) -> None:
    chain = Chain([1], [2])
    with pytest.raises((TypeError, ValueError)):
        chain.send(names=names)
    chain.step()


class Raises:
    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __getstate__(self) -> Any:
        if self.error is not None:
            raise self.error
        return {"error": None}


@pytest.mark.parametrize(
    "error", [ValueError("text"), KeyboardInterrupt(), SystemExit(3)], ids=repr
)
def test_user_code_that_fails_on_the_way_out(error: BaseException) -> None:
    culprit = Raises()
    chain = Chain([culprit], [1])
    chain.step()
    culprit.error = error
    chain.roots[1].append(2)
    with pytest.raises(type(error)):
        chain.send()
    culprit.error = None
    chain.roots[1].append(3)
    chain.step()
    assert chain.source.is_keyframe


# --- errors on the way in ---------------------------------------------------------------------


def small_chain() -> Chain:
    agents = [Plain(a=[1, "text"], prng=random.Random(1)), {"k": 1.5}, {1, 2}]
    chain = Chain(agents)
    chain.step()
    agents[0].a.append(10**20)
    agents[0].b = ("new", b"bytes", [2.5])
    agents[0].prng.random()
    agents[1]["l"] = agents
    agents[2].add("text")
    agents.append(Slotted(left=1))
    chain.delta()
    return chain


def check_refused(chain: Chain, replica: Replica, frame: bytes) -> None:
    with pytest.raises(SnapshotDecodeError):
        replica.apply(frame)
    assert replica.sequence is None
    with pytest.raises(SnapshotDecodeError):
        replica.apply(chain.frames[1][1])
    chain.catch_up(replica)


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_damaged_bytes(mask: int) -> None:
    chain = small_chain()
    (_, keyframe), (_, delta) = chain.frames
    replica = Replica()
    for position in range(len(delta)):
        replica.apply(keyframe)
        damaged = bytearray(delta)
        damaged[position] ^= mask
        check_refused(chain, replica, bytes(damaged))
    chain.check(replica)


def test_truncated_frames() -> None:
    chain = small_chain()
    (_, keyframe), (_, delta) = chain.frames
    replica = Replica()
    for length in range(len(delta)):
        replica.apply(keyframe)
        check_refused(chain, replica, delta[:length])
    chain.check(replica)


def test_damaged_keyframes() -> None:
    chain = small_chain()
    keyframe = chain.frames[0][1]
    replica = Replica()
    for position in range(0, len(keyframe), 1 + len(keyframe) // 300):
        damaged = bytearray(keyframe)
        damaged[position] ^= 0x10
        check_refused(chain, replica, bytes(damaged))
        check_refused(chain, replica, keyframe[:position])
    chain.check(replica)


@pytest.mark.parametrize(
    "data", [b"", b"P", bytes(24), bytes(1000), b"\xff" * 64, b"\x80\x05]\x94."]
)
def test_foreign_data(data: bytes) -> None:
    chain = small_chain()
    check_refused(chain, chain.replica, data)
    chain.check()


def test_a_snapshot_is_no_frame() -> None:
    from pams_parallel import snapshot

    chain = small_chain()
    check_refused(chain, chain.replica, snapshot.dumps([1]))
    chain.check()
    with pytest.raises(SnapshotDecodeError):
        snapshot.loads(chain.frames[0][1])
    with pytest.raises(SnapshotDecodeError):
        snapshot.loads(chain.frames[1][1])


@pytest.mark.parametrize("frame", [None, 1, "text", [1]])
def test_a_frame_that_is_no_buffer(frame: Any) -> None:
    chain = small_chain()
    with pytest.raises((TypeError, BufferError)):
        chain.replica.apply(frame)
    chain.catch_up(chain.replica)
    chain.check()


def test_a_delta_for_a_fresh_replica() -> None:
    chain = small_chain()
    check_refused(chain, Replica(), chain.frames[1][1])


def test_a_delta_twice() -> None:
    chain = small_chain()
    check_refused(chain, chain.replica, chain.frames[1][1])
    chain.check()


def test_a_delta_that_was_skipped() -> None:
    chain = small_chain()
    chain.roots[0].append(1)
    chain.delta()
    replica = Replica()
    replica.apply(chain.frames[0][1])
    check_refused(chain, replica, chain.frames[2][1])
    chain.check(replica)


def test_an_older_keyframe() -> None:
    """A keyframe is complete, whatever was there before."""
    chain = Chain([1])
    first = chain.step()
    chain.roots[0].append(2)
    delta = chain.step()
    chain.roots[0].append(3)
    chain.step(keyframe=True)
    chain.replica.apply(first)
    assert chain.replica.sequence == 0
    assert chain.replica.roots == [[1]]
    chain.replica.apply(delta)
    assert chain.replica.roots == [[1, 2]]


def test_a_delta_of_another_source() -> None:
    """Same graph, same sequence number."""
    root = [1]
    chains = [Chain(root), Chain(root)]
    for chain in chains:
        chain.step()
    root.append(2)
    deltas = [chain.send() for chain in chains]
    assert deltas
    with pytest.raises(SnapshotDecodeError):
        chains[0].replica.apply(deltas[1])
    assert chains[0].replica.sequence is None
    chains[1].catch_up(chains[0].replica)
    chains[1].check(chains[0].replica)


def test_a_delta_after_another_keyframe() -> None:
    """The replica lacks a keyframe, but has a frame with the number before."""
    chain = Chain([1])
    old = Replica()
    chain.step()
    chain.catch_up(old)
    chain.roots[0].append(2)
    chain.step(keyframe=True)
    chain.roots[0].append(3)
    delta = chain.delta()
    with pytest.raises(SnapshotDecodeError):
        old.apply(delta)
    chain.catch_up(old)
    chain.check(old)


class FailsToLoad:
    fail = False

    def __getstate__(self) -> Any:
        return {"a": 1}

    def __setstate__(self, state: Any) -> None:
        if FailsToLoad.fail:
            raise LookupError("not today")
        self.__dict__.update(state)


def test_user_code_that_fails_on_the_way_in() -> None:
    chain = Chain([1], [2])
    chain.step()
    chain.roots[0].append(FailsToLoad())
    chain.roots[1].append(3)
    chain.send()
    FailsToLoad.fail = True
    try:
        with pytest.raises(LookupError, match="not today"):
            chain.catch_up(chain.replica)
        assert chain.replica.sequence is None
    finally:
        FailsToLoad.fail = False
    with pytest.raises(SnapshotDecodeError):
        chain.replica.apply(chain.frames[-1][1])
    chain.catch_up(chain.replica)
    chain.check()
    chain.roots[0].append(2)
    chain.step()


def test_rolling_back_what_was_never_applied() -> None:
    replica = Replica()
    assert replica.roll_back() is False
    assert replica.sequence is None
    chain = small_chain()
    chain.catch_up(replica)
    chain.check(replica)

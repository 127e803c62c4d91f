"""A source, the frames it has given since its keyframe, and replicas that follow them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from checks import copy_of, pickled_copy
from graph_compare import Graph, match
from graph_describe import atom_key
from pams_parallel.snapshot import Replica, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

UNKNOWN = 0xFFFF_FFFF


def numbers_of(side: Source | Replica, objs: Iterable[object]) -> list[int]:
    """Numbers of objects, :data:`UNKNOWN` for those that the side does not have."""
    data = side.numbers_of(objs)
    assert type(data) is bytes
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def objects(side: Source | Replica, numbers: Sequence[int]) -> list[Any]:
    """The objects that have these numbers."""
    found = side.objects(struct.pack(f"<{len(numbers)}I", *numbers))
    assert type(found) is list
    return found


class Chain:
    """A source, its roots, and one replica that gets every frame.

    Attributes:
        frames: the latest keyframe and the deltas after it, with their sequence numbers.
        oracle: gives the copy that the replica has to be equal to.
    """

    oracle: Callable[[Any], Any]

    def __init__(self, *roots: Any) -> None:
        self.roots: tuple[Any, ...] = roots
        self.source = Source()
        self.replica = Replica()
        self.frames: list[tuple[int, bytes]] = []
        self.oracle = expected_copy

    def send(self, **options: Any) -> bytes:
        """The next frame; the replica does not get it."""
        frame = self.source.frame(self.roots, **options)
        assert type(frame) is bytes
        if self.source.is_keyframe:
            self.frames.clear()
        else:
            assert self.frames, "the first frame is no keyframe"
        self.frames.append((self.source.sequence, frame))
        return frame

    def step(self, **options: Any) -> bytes:
        """The next frame, which the replica gets; both sides are compared."""
        frame = self.send(**options)
        self.catch_up(self.replica)
        self.check()
        return frame

    def delta(self) -> bytes:
        """As :meth:`step`, for a change that has to be expressed as a delta."""
        frame = self.step()
        assert not self.source.is_keyframe
        return frame

    def checkpoint(self) -> bytes | None:
        """A checkpoint, with which new replicas begin from now on, if there can be one."""
        checkpoint = self.source.checkpoint(self.roots)
        if checkpoint is not None:
            assert type(checkpoint) is bytes
            self.frames = [(self.source.sequence, checkpoint)]
        return checkpoint

    def catch_up(self, replica: Replica) -> None:
        """Let a replica that has any of the frames, or none, get all that it lacks."""
        known = [sequence for sequence, _ in self.frames]
        first = known.index(replica.sequence) + 1 if replica.sequence in known else 0
        for sequence, frame in self.frames[first:]:
            replica.apply(frame)
            assert replica.sequence == sequence

    def roll_back(self) -> bool:
        """Roll the replica back, rebuild it if that is what it asks for, and compare."""
        restored = self.replica.roll_back()
        assert type(restored) is bool
        if restored:
            assert self.replica.sequence == self.source.sequence
        else:
            assert self.replica.sequence is None
            self.catch_up(self.replica)
        self.check()
        return restored

    def check(self, replica: Replica | None = None) -> None:
        found = (self.replica if replica is None else replica).roots
        assert type(found) is list
        # Ours is looked at first: pickle materialises the dicts of instances.
        assert_graphs_replicate(self.oracle(self.roots), tuple(found))

    def twin(self, obj: Any) -> Any:
        """The counterpart of an object in the replica."""
        numbers = numbers_of(self.source, [obj])
        assert numbers[0] != UNKNOWN, f"{type(obj)} is not in the latest frame"
        found = objects(self.replica, numbers)[0]
        assert numbers_of(self.replica, [found]) == numbers
        return found


def expected_copy(roots: tuple[Any, ...]) -> Any:
    """What pickle gives, or a snapshot where pickle fails: on very deep graphs, for example."""
    try:
        return pickled_copy(roots)
    except Exception:
        return copy_of(roots)


def assert_graphs_replicate(expected: Any, actual: Any) -> None:
    """Equal in every detail, and every key is found by the hash that it has now."""
    for _, obj in match(expected, actual):
        for base in (dict, set, frozenset):
            if isinstance(obj, base):
                assert all(base.__contains__(obj, key) for key in list(base.__iter__(obj)))


def numbered(side: Source | Replica, root: Any) -> dict[int, Any]:
    """Every object that is reachable from ``root`` and has a number on that side."""
    nodes = [node.obj for node in Graph(root).nodes]
    pairs = zip(numbers_of(side, nodes), nodes, strict=True)
    return {number: obj for number, obj in pairs if number != UNKNOWN}


def has_identity(obj: Any) -> bool:
    """Whether pickle keeps the identity of an object."""
    return atom_key(obj) is None

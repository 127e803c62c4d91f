"""Nothing adds up over thousands of snapshots, frames, rollbacks and failed decodes.

Short versions of these run always; ``-m slow`` runs each of them ten thousand times.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import random
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from pams_parallel import snapshot
from pams_parallel._core import Watch
from pams_parallel.snapshot import Replica, SnapshotDecodeError, Source

if TYPE_CHECKING:
    from collections.abc import Callable


class Node:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("left", "right")


class Keyed:
    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.key == other.key


class Fails:
    """Fails on the way out or on the way in, if it is told to."""

    where = ""

    def __reduce__(self) -> Any:
        if Fails.where == "out":
            raise ValueError("out")
        return make_or_fail, ()


def make_or_fail() -> Any:
    if Fails.where == "in":
        raise ValueError("in")
    return Node(made=[1])


@pytest.fixture(autouse=True)
def _nothing_fails() -> Any:
    yield
    Fails.where = ""


def graph() -> list[Any]:
    node = Node(a=[1.5, 10**30], prng=random.Random(1), history=[n / 3 for n in range(50)])
    node.itself = node
    slotted = Slotted()
    slotted.left = [node]
    return [
        node,
        slotted,
        {"k": [node], 2: "text"},
        {1, "a", (2, "b")},
        {Keyed(1): [1], Keyed(2): [2]},
        collections.deque([1, [2]], 5),
        collections.OrderedDict(a=1, b=[2]),
        collections.defaultdict(list, a=1),
        bytearray(b"bytes"),
        np.arange(30.0),
        np.random.default_rng(1),
        random.Random(2),
        [Node(n=n, prng=random.Random(n)) for n in range(5)],
    ]


def change(objs: list[Any], step: int) -> None:
    """Change something of every kind; sizes stay what they are."""
    node = objs[0]
    node.prng.random()
    node.a = [step / 7, 10**30 + step]
    node.history.append(step / 3)
    del node.history[0]
    objs[1].left = [node, step]
    objs[2]["k"] = [step]
    objs[3].add(step % 7 + 100)
    objs[3].discard((step + 3) % 7 + 100)
    objs[4][Keyed(step % 5 + 10)] = [step]
    objs[4].pop(Keyed((step + 2) % 5 + 10), None)
    objs[5].append([step])
    objs[6].move_to_end("a")
    objs[7]["a"] = [step]
    objs[8][0] = step % 256
    objs[9][step % 30] = step
    objs[10].random()
    if step % 50 == 0:
        objs[11].seed(step)
    other = Node(n=step, prng=random.Random(step % 10))
    other.circle = [other]
    objs[12].append(other)
    del objs[12][0]


class Pair:
    """A source and a replica that follows it."""

    def __init__(self) -> None:
        self.graph = graph()
        self.source = Source()
        self.replica = Replica()
        self.keyframe = self.source.frame((self.graph,))
        self.replica.apply(self.keyframe)
        self.step = 0

    def delta(self) -> bytes:
        self.step += 1
        change(self.graph, self.step)
        frame = self.source.frame((self.graph,))
        assert not self.source.is_keyframe
        return frame

    def close(self) -> None:
        self.source.close()
        self.replica.close()


def frames() -> Callable[[], Any]:
    pair = Pair()

    def use() -> None:
        pair.replica.apply(pair.delta())

    return use


def keyframes() -> Callable[[], Any]:
    pair = Pair()

    def use() -> None:
        pair.step += 1
        change(pair.graph, pair.step)
        pair.replica.apply(pair.source.frame((pair.graph,), keyframe=True))

    return use


def rollbacks() -> Callable[[], Any]:
    pair = Pair()

    def use() -> None:
        pair.step += 1
        (copy,) = pair.replica.roots
        change(copy, pair.step)
        copy[0].__dict__["new"] = Node(circle=copy)
        copy[11].__dict__ = {"gauss_next": None, "more": copy}
        copy[12].clear()
        assert pair.replica.roll_back()

    return use


def rollbacks_that_fail() -> Callable[[], Any]:
    pair = Pair()

    def use() -> None:
        (copy,) = pair.replica.roots
        copy[9].shape = (5, 6)
        assert not pair.replica.roll_back()
        pair.replica.apply(pair.keyframe)

    return use


def agents_that_are_asked() -> Callable[[], Any]:
    pair = Pair()

    def use() -> None:
        agents = pair.replica.roots[0][12]
        numbers = pair.replica.numbers_of(agents)
        prngs = pair.source.prngs_of(numbers)
        with contextlib.closing(pair.replica.random_state_packer(prngs)) as packer:
            watch = Watch(agents, packer, pair.replica, numbers)
            for agent in agents:
                watch.begin()
                agent.prng.random()
                agent.lost = [1]
                watch.end([])
                assert watch.changed == ["lost"]
            packed = packer.finish()
        states = pair.source.random_states(packed, prngs)
        assert states.apply_recorded(0, 5) == 5
        states.getstate(2)
        states.close()
        pair.source.positions_with(numbers, "lost")
        assert pair.replica.roll_back()
        pair.replica.apply(pair.source.frame((pair.graph,)))

    return use


def failed_frames() -> Callable[[], Any]:
    """On the way out."""
    pair = Pair()
    pair.graph.append(Fails())

    def use() -> None:
        pair.step += 1
        change(pair.graph, pair.step)
        Fails.where = "out"
        with pytest.raises(ValueError, match="out"):
            pair.source.frame((pair.graph,))
        Fails.where = ""
        pair.source.frame((pair.graph,))

    return use


def failed_updates() -> Callable[[], Any]:
    """On the way in: user code fails, bytes are damaged, frames do not fit."""
    pair = Pair()
    delta = pair.delta()
    pair.graph.append(Fails())
    failing = pair.source.frame((pair.graph,), keyframe=True)
    # All positions in turn, so that every instruction fails at some time.
    positions = iter(range(10**9))

    def use() -> None:
        replica = pair.replica
        Fails.where = "in"
        with pytest.raises(ValueError, match="in"):
            replica.apply(failing)
        Fails.where = ""
        replica.apply(pair.keyframe)
        with pytest.raises(SnapshotDecodeError):
            replica.apply(cut(delta, next(positions)))
        with pytest.raises(SnapshotDecodeError):
            replica.apply(delta)
        with pytest.raises(SnapshotDecodeError):
            replica.apply(cut(pair.keyframe, next(positions)))
        replica.apply(pair.keyframe)
        replica.apply(delta)

    return use


def cut(frame: bytes, position: int) -> bytes:
    """A frame that ends too early and has a valid checksum."""
    import zlib

    header, preface = 24, 18
    end = header + preface + position % (len(frame) - header - preface - 1)
    body = frame[header:end]
    head = frame[:8] + struct.pack("<Q", len(body)) + frame[16:20]
    return head + struct.pack("<I", zlib.crc32(head, zlib.crc32(body))) + body


def snapshots() -> Callable[[], Any]:
    objs = graph()
    step = 0

    def use() -> None:
        nonlocal step
        step += 1
        change(objs, step)
        snapshot.loads(snapshot.dumps(objs))

    return use


def failed_decodes() -> Callable[[], Any]:
    data = snapshot.dumps(graph())
    positions = iter(range(10**9))

    def use() -> None:
        with pytest.raises(SnapshotDecodeError):
            snapshot.loads(cut(data, next(positions)))
        with pytest.raises(SnapshotDecodeError):
            snapshot.loads(data[:-1])

    return use


def sides() -> Callable[[], Any]:
    """Sources and replicas that are closed, and others that are only dropped."""

    def use() -> None:
        Pair().close()
        Pair().delta()

    return use


USES: list[Callable[[], Callable[[], Any]]] = [
    frames,
    keyframes,
    rollbacks,
    rollbacks_that_fail,
    agents_that_are_asked,
    failed_frames,
    failed_updates,
    snapshots,
    failed_decodes,
    sides,
]


def constants() -> list[Any]:
    """What everything refers to; references to these are counted before Python 3.12."""
    return [
        None,
        True,
        False,
        1,
        "",
        (),
        b"",
        ...,
        int,
        dict,
        list,
        Node,
        Slotted,
        Keyed,
        random.Random,
    ]


def check_flat(use: Callable[[], Any], rounds: int, repetitions: int, grace: int) -> None:
    """The least growth of several rounds: a leak shows in all of them, a full cache in none."""
    process = psutil.Process()
    watched = constants()
    for _ in range(500):
        use()
    gc.collect()
    memory = process.memory_info().rss
    blocks, counts = [], []
    for _ in range(rounds):
        blocks_before = sys.getallocatedblocks()
        counts_before = [sys.getrefcount(obj) for obj in watched]
        for _ in range(repetitions):
            use()
        gc.collect()
        blocks.append(abs(sys.getallocatedblocks() - blocks_before))
        pairs = zip(counts_before, watched, strict=True)
        counts.append([abs(sys.getrefcount(obj) - before) for before, obj in pairs])
    assert min(blocks) < grace, blocks
    for obj, of_obj in zip(watched, zip(*counts, strict=True), strict=True):
        assert min(of_obj) < grace, (obj, of_obj)
    # The smallest leak that counts, one of 16 bytes per use, would be less than what allocators
    # keep; larger ones are seen here if they are outside of the interpreter's own memory.
    assert process.memory_info().rss - memory < 20_000_000 + 200 * repetitions


@pytest.mark.parametrize("make", USES)
def test_nothing_adds_up(make: Callable[[], Callable[[], Any]]) -> None:
    check_flat(make(), rounds=3, repetitions=60, grace=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("make", USES)
def test_nothing_adds_up_over_ten_thousand_uses(make: Callable[[], Callable[[], Any]]) -> None:
    check_flat(make(), rounds=4, repetitions=2500, grace=500)


def test_this_test_sees_leaks() -> None:
    kept: list[Any] = []
    with pytest.raises(AssertionError):
        check_flat(lambda: kept.append([1.5]), rounds=4, repetitions=100, grace=50)
    with pytest.raises(AssertionError):
        check_flat(lambda: kept.append(None), rounds=4, repetitions=100, grace=50)

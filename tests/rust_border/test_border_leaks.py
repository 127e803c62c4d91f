"""Nothing is kept that should be gone, and nothing goes that should be kept."""

from __future__ import annotations

import collections
import gc
import random
import struct
import sys
import weakref
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pams_parallel import snapshot
from pams_parallel._core import (
    Decoder,
    Encoder,
    RandomStatePacker,
    RandomStates,
    changed_attributes,
    chunk_bounds,
    index_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Node:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class WithSlots:
    __slots__ = ("__weakref__", "left", "right")


class Hashed:
    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.key == other.key


class Reduced:
    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> Any:
        return Reduced, self.args, {"state": [1]}, None, None, set_state


def set_state(obj: Any, state: Any) -> None:
    obj.state = state


class Fails:
    """Fails on the way out, or on the way back."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __getstate__(self) -> Any:
        if self.where == "out":
            raise ValueError("out")
        return self.__dict__

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if self.where == "back":
            raise ValueError("back")


def graph(last: Any = None) -> Any:
    node = Node(a=[1.5, 10**30, "te" + str(0), b"bytes" * 3])
    node.itself = node
    slots = WithSlots()
    slots.left = node
    home: dict[Any, Any] = {}
    key = Hashed("key")
    key.home = home
    home[key] = [key]
    recursive: list[Any] = []
    recursive.append((recursive,))
    return [
        node,
        slots,
        home,
        recursive,
        random.Random(1),
        Reduced(1, [2]),
        {1, "a", frozenset([2, "b"])},
        collections.OrderedDict(a=1),
        collections.deque([1, [2]]),
        1 + 2j,
        Node.__init__,
        node,
        last,
    ]


def leaked_blocks(use: Callable[[], Any], repetitions: int) -> int:
    """Blocks of memory that stay after many calls.

    The least of several rounds: caches of the interpreter fill up in the first ones, while a
    leak shows in all of them.
    """
    rounds = []
    gc.collect()
    for _ in range(5):
        before = sys.getallocatedblocks()
        for _ in range(repetitions):
            use()
        gc.collect()
        rounds.append(sys.getallocatedblocks() - before)
    return min(rounds)


def copy_graph() -> None:
    snapshot.loads(snapshot.dumps(graph()))


def fail_on_the_way_out() -> None:
    with pytest.raises(ValueError, match="out"):
        snapshot.dumps([graph(), {"k": (Fails("out"), graph())}])


def fail_on_the_way_back() -> None:
    data = snapshot.dumps([graph(), {"k": (Fails("back"), graph())}])
    with pytest.raises(ValueError, match="back"):
        snapshot.loads(data)


def fail_by_pickle() -> None:
    with pytest.raises(TypeError):
        snapshot.dumps(graph({}.keys()))


def damaged() -> None:
    data = bytearray(snapshot.dumps(graph()))
    data[-5] ^= 0xFF
    with pytest.raises(snapshot.SnapshotDecodeError):
        snapshot.loads(data)
    with pytest.raises(snapshot.SnapshotDecodeError):
        snapshot.loads(data[:-5])


def encoder_left_open() -> None:
    encoder = Encoder(externals=[[], Node()], foreign=[Node()], reducers={Node: Node.__reduce_ex__})
    encoder.add([1])
    encoder.numbers_of([encoder, []])


def externals() -> None:
    shared = Node(a=1)
    encoder = Encoder(externals=[shared])
    encoder.add([graph(), shared])
    data = encoder.finish()
    assert data is not None
    decoder = Decoder(data, [Node()])
    decoder.objects(encoder.numbers_of([shared, []])[:0])
    assert decoder.roots


def foreign() -> None:
    alien = Node()
    encoder = Encoder(foreign=[alien])
    with pytest.raises(snapshot.ForeignReferenceError):
        encoder.add([graph(), alien])


def numbers() -> None:
    root = graph()
    encoder = Encoder()
    encoder.add(root)
    found = encoder.numbers_of(root[:8])
    data = encoder.finish()
    assert data is not None
    decoder = Decoder(data)
    assert decoder.objects(found)
    with pytest.raises(ValueError, match="number"):
        decoder.objects(struct.pack("<I", 10**6))
    decoder.close()


def random_states() -> None:
    encoder = Encoder()
    prngs = [random.Random(seed) for seed in range(3)]
    encoder.add(prngs)
    offsets = encoder.random_offsets(prngs)
    frame = encoder.finish()
    assert frame is not None
    copies = Decoder(frame).roots[0]
    copies[1].seed(5)
    copies[2].gauss(0, 1)
    packer = RandomStatePacker(frame, offsets)
    for prng in copies:
        packer.add(prng)
    states = RandomStates(packer.finish(), frame, offsets)
    for index, prng in enumerate(prngs):
        states.getstate(index)
        states.apply(index, prng)
    with pytest.raises((IndexError, OverflowError)):
        states.getstate(7)


def attributes() -> None:
    before = {"a": 1.5, "b": [1], "c": (1, "text")}
    changed_attributes(before, {"a": 2.5, "b": [1], "d": (1, "te" + "xt")})


def small_functions() -> None:
    chunk_bounds(1000, 7)
    items = [[], []]
    index_of(items, items[1])
    index_of(items, [])


def wrong_arguments() -> None:
    for call in (
        lambda: Encoder(5),  # type: ignore[arg-type]
        lambda: Decoder("text"),  # type: ignore[arg-type]
        lambda: chunk_bounds("a", 1),  # type: ignore[arg-type]
        lambda: Encoder().add(1, 5),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize(
    "use",
    [
        copy_graph,
        fail_on_the_way_out,
        fail_on_the_way_back,
        fail_by_pickle,
        damaged,
        encoder_left_open,
        externals,
        foreign,
        numbers,
        random_states,
        attributes,
        small_functions,
        wrong_arguments,
    ],
)
def test_no_blocks_are_left(use: Callable[[], Any]) -> None:
    assert leaked_blocks(use, repetitions=200) < 100


def test_this_test_sees_leaks() -> None:
    kept: list[Any] = []
    assert leaked_blocks(lambda: kept.append([kept]), repetitions=200) > 100


@pytest.mark.parametrize("payload", [lambda: "x" * 200_000, lambda: b"x" * 200_000])
def test_memory_outside_of_the_interpreter(payload: Callable[[], Any]) -> None:
    process = psutil.Process()

    def use() -> None:
        data = snapshot.dumps([payload(), list(range(20_000))])
        snapshot.loads(data)
        encoder = Encoder()
        encoder.add(payload())
        with pytest.raises(TypeError):
            encoder.add([payload(), {}.keys()])
        with pytest.raises(snapshot.SnapshotDecodeError):
            snapshot.loads(data[:-1])

    for _ in range(10):
        use()
    gc.collect()
    before = process.memory_info().rss
    for _ in range(300):
        use()
    gc.collect()
    # 300 times 600 kB would be 180 MB.
    assert process.memory_info().rss - before < 60_000_000


def counts_of(objs: list[Any]) -> list[int]:
    return [sys.getrefcount(obj) for obj in objs]


def test_reference_counts_of_the_original() -> None:
    for last in (None, {}.keys()):
        root = graph(last)
        # Attribute dicts exist from here on, and classes are known.
        watched = [
            *root[:9],
            root[0].a,
            *root[0].a,
            vars(root[0]),
            Node,
            WithSlots,
            Reduced,
            Hashed,
        ]
        for _ in range(3):
            before = counts_of(watched)
            for _ in range(50):
                try:
                    data = snapshot.dumps(root)
                except TypeError:
                    assert last is not None
                else:
                    snapshot.loads(data)
            gc.collect()
            after = counts_of(watched)
        assert after == before


def test_reference_counts_of_shared_constants() -> None:
    """``None`` and small integers count their references before Python 3.12."""
    constants = [None, True, False, 5, "", (), b"", ..., int, dict]
    root = [constants * 20, dict.fromkeys(range(100)), [None] * 1000, Node(a=None)]
    data = snapshot.dumps(root)
    snapshot.loads(data)
    before = counts_of(constants)
    for _ in range(100):
        snapshot.loads(snapshot.dumps(root))
    gc.collect()
    for count, now in zip(before, counts_of(constants), strict=True):
        assert abs(now - count) < 100


def test_the_encoder_keeps_what_it_has_numbered_until_it_is_gone() -> None:
    node = Node(a=1)
    alive = weakref.ref(node)
    encoder = Encoder()
    encoder.add([node])
    del node
    assert alive() is not None
    del encoder
    gc.collect()
    assert alive() is None


def test_externals_and_foreign_objects_are_kept_and_released() -> None:
    nodes = [Node(), Node()]
    alive = [weakref.ref(node) for node in nodes]
    encoder = Encoder(externals=[nodes[0]], foreign=[nodes[1]])
    nodes.clear()
    gc.collect()
    assert all(ref() is not None for ref in alive)
    with pytest.raises(snapshot.ForeignReferenceError):
        encoder.add([alive[0](), alive[1]()])
    del encoder
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_decoded_objects_are_released_with_the_decoder() -> None:
    decoder = Decoder(snapshot.dumps(graph()))
    alive = [weakref.ref(decoder.roots[0][0]), weakref.ref(decoder.roots[0][1])]
    assert all(ref() is not None for ref in alive)
    del decoder
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_the_collector_sees_cycles_through_an_encoder_and_a_decoder() -> None:
    node = Node()
    node.encoder = Encoder(externals=[node])
    node.encoder.add([Node(a=1)])
    alive = weakref.ref(node)
    del node
    gc.collect()
    assert alive() is None
    decoder = Decoder(snapshot.dumps([Node()]))
    decoder.roots[0].append(decoder)
    alive_root = weakref.ref(decoder.roots[0][0])
    del decoder
    gc.collect()
    assert alive_root() is None


def test_objects_that_are_half_built_when_loading_fails_are_released() -> None:
    data = snapshot.dumps([Node(a=[Node(b=1)]), Fails("back")])
    gc.collect()
    before = sum(type(obj) is Node for obj in gc.get_objects())
    for _ in range(10):
        with pytest.raises(ValueError, match="back"):
            snapshot.loads(data)
    gc.collect()
    assert sum(type(obj) is Node for obj in gc.get_objects()) == before


def test_decoded_containers_are_seen_by_the_collector() -> None:
    copied = snapshot.loads(snapshot.dumps(graph()))
    assert gc.is_tracked(copied)
    for obj in (copied[0], copied[1], copied[2], copied[3]):
        assert gc.is_tracked(obj)
    alive = weakref.ref(copied[0])
    del copied, obj
    gc.collect()
    assert alive() is None

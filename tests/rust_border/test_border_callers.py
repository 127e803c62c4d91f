"""Sinks, reducers, buffers and generators of the caller that misbehave, and threads.

Whatever it does, the outcome is an ordinary exception or a usable result.
"""

from __future__ import annotations

import gc
import io
import pickle
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hostile import Act, HashAct, Node, survives
from pams_parallel import snapshot
from pams_parallel._core import (
    Decoder,
    Encoder,
    RandomStatePacker,
    RandomStates,
    changed_attributes,
    index_of,
)

if TYPE_CHECKING:
    pass


class ReentrantSink(io.BytesIO):
    encoder: Any = None
    action: Any = None

    def write(self, data: Any) -> int:
        if self.action is not None:
            self.action(self, data)
        return super().write(data)


@pytest.mark.parametrize(
    "action",
    [
        lambda sink, data: sink.encoder.add([1]),
        lambda sink, data: sink.encoder.finish(),
        lambda sink, data: sink.encoder.size,
        lambda sink, data: sink.encoder.numbers_of([[]]),
        lambda sink, data: snapshot.dumps([1]),
        lambda sink, data: gc.collect(),
        lambda sink, data: sink.close(),
    ],
)
def test_sinks_that_re_enter(action: Any) -> None:
    sink = ReentrantSink()
    sink.encoder = Encoder(sink=sink, spill_bytes=100)
    sink.action = action

    def use() -> None:
        for number in range(50):
            sink.encoder.add([f"text {number}"] * 10)
        sink.encoder.finish()

    survives(use)
    sink.encoder = None


def test_a_sink_that_keeps_what_it_is_given() -> None:
    """The piece must not change, or even be freed, under a view that is kept."""
    kept = []

    class Keeping(io.BytesIO):
        def write(self, data: Any) -> int:
            kept.append((data, bytes(data)))
            return super().write(data)

    encoder = Encoder(sink=Keeping(), spill_bytes=500)
    encoder.add([[f"text {number}"] for number in range(1000)])
    encoder.finish()
    del encoder
    gc.collect()
    assert kept
    for data, content in kept:
        try:
            now = bytes(data)
        except (ValueError, BufferError):  # released in time
            continue
        assert now == content


def test_reducers_that_re_enter() -> None:
    encoder: Any = None

    def reduce(obj: Any) -> Any:
        survives(lambda: encoder.add([2]))
        return list, ((snapshot.dumps(3),),)

    encoder = Encoder(reducers={Node: reduce})
    survives(lambda: encoder.add([Node()]))


def test_a_reducers_mapping_that_changes() -> None:
    reducers: dict[type, Any] = {}

    def reduce(obj: Any) -> Any:
        reducers.clear()
        gc.collect()
        return list, ()

    reducers[Node] = reduce
    encoder = Encoder(reducers=reducers)
    survives(lambda: encoder.add([Node(), Node(), Node()]))


def test_index_of_a_list_that_changes() -> None:
    items: list[Any] = [[] for _ in range(10)]
    assert index_of(items, items[9]) == 9

    class Key(str):
        """Its comparison changes both dicts."""

        __slots__ = ()

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            before.clear()
            after.clear()
            return False

    before: dict[Any, Any] = {}
    after: dict[Any, Any] = {}
    before["b"] = [2]
    before[Key("a")] = [1]
    after[Key("d")] = [1]
    survives(lambda: changed_attributes(before, after))


class OddPrngs:
    """A sequence of generators that changes while it is read."""

    def __init__(self, prngs: list[Any]) -> None:
        self.prngs = prngs

    def __len__(self) -> int:
        return len(self.prngs)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self.prngs):
            raise IndexError
        prng = self.prngs[index]
        self.prngs = [*self.prngs, random.Random(5)] if len(self.prngs) < 20 else []
        return prng


def test_sequences_of_generators_that_change_while_they_are_read() -> None:
    prngs: Any = [random.Random(1), random.Random(2)]
    encoder = Encoder()
    encoder.add(prngs)
    frame = encoder.finish()
    assert frame is not None
    survives(lambda: encoder.random_offsets(OddPrngs(prngs)))
    survives(lambda: Decoder(frame).random_offsets(OddPrngs(list(prngs))))


class Awkward(float):
    """A gauss value whose type is not what the native code expects."""

    def __float__(self) -> float:
        raise AssertionError


def test_generators_that_are_torn_while_they_are_packed() -> None:
    prngs: Any = [random.Random(seed) for seed in range(6)]
    encoder = Encoder()
    encoder.add(prngs)
    offsets = encoder.random_offsets(prngs)
    frame = encoder.finish()
    assert frame is not None
    prngs[1].__dict__.clear()
    prngs[2].gauss_next = Awkward(1)
    prngs[3].__dict__ = {Awkward(2): 1}
    prngs[4].__class__ = OddRandom
    packer = RandomStatePacker(frame, offsets)
    assert [packer.add(prng) for prng in prngs] == [True, False, False, False, False, True]
    states = RandomStates(packer.finish(), frame, offsets)
    assert [states.apply(index, random.Random()) for index in range(6)] == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]
    for target in prngs:
        survives(lambda target=target: states.apply(0, target))


def test_a_frame_that_changes_under_random_states() -> None:
    prngs: Any = [random.Random(1), random.Random(2)]
    encoder = Encoder()
    encoder.add(prngs)
    offsets = encoder.random_offsets(prngs)
    frame = bytearray(encoder.finish() or b"")
    packer = RandomStatePacker(frame, offsets)
    packer.add(prngs[0])
    with pytest.raises(BufferError):
        frame.clear()
    frame[:] = bytes(reversed(frame))
    packer.add(prngs[1])
    states = RandomStates(packer.finish(), frame, offsets)
    with pytest.raises(BufferError):
        frame.clear()
    frame[:] = bytes(len(frame))
    survives(lambda: states.getstate(0))
    survives(lambda: states.apply(1, random.Random()))
    states.close()
    packer.close()
    frame.clear()


class OddRandom(random.Random):
    """Changes its class in the middle of things."""

    def __getattribute__(self, name: str) -> Any:
        object.__setattr__(self, "touched", name)
        return super().__getattribute__(name)


def test_generators_of_a_subclass_are_never_touched_natively() -> None:
    data = snapshot.dumps([OddRandom(1)])
    assert snapshot.loads(data)[0].random() == random.Random(1).random()


def test_one_encoder_in_two_threads() -> None:
    encoder = Encoder()
    entered, leave = threading.Event(), threading.Event()
    errors: list[Any] = []

    def wait(obj: Any) -> None:
        entered.set()
        leave.wait(60)

    def first() -> None:
        try:
            encoder.add([Act(), [1]])
        except Exception as error:
            errors.append(error)

    Act.out = wait
    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(60)
    for method in (
        lambda: encoder.add([2]),
        lambda: encoder.finish(),
        lambda: encoder.numbers_of([[]]),
        lambda: encoder.size,
    ):
        survives(method)
    leave.set()
    thread.join(60)
    Act.out = None
    assert not thread.is_alive()
    data = survives(encoder.finish)
    if isinstance(data, bytes):
        assert Decoder(data).roots


def test_many_threads_at_once() -> None:
    graph = [Node(a=[1]), {"k": (Act("x"), [2])}, {HashAct(n) for n in range(5)}, random.Random(1)]
    Act.out = Act.back = lambda obj: gc.collect(0)
    expected = pickle.dumps([1])
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                copied = snapshot.loads(snapshot.dumps(graph))
                assert copied[0].a == [1]
                assert len(copied[2]) == 5
                assert pickle.dumps([1]) == expected
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert not failures

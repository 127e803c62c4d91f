"""User code that runs in the middle of encoding and decoding does the worst it can.

Whatever it does, the outcome is an ordinary exception or a usable result.
"""

from __future__ import annotations

import collections
import gc
import io
import pickle
import random
import struct
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
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
    from collections.abc import Callable, Iterator


class Node:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Act:
    """Calls the current action from its hooks."""

    out: Callable[[Any], Any] | None = None
    back: Callable[[Any], Any] | None = None

    def __init__(self, label: Any = None) -> None:
        self.label = label

    def __getstate__(self) -> Any:
        if Act.out is not None:
            Act.out(self)
        return {"label": self.label}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        if Act.back is not None:
            Act.back(self)


class HashAct:
    """Calls the current action when it is hashed or compared."""

    hashed: Callable[[Any], Any] | None = None
    compared: Callable[[Any, Any], Any] | None = None

    def __init__(self, key: Any = 0) -> None:
        self.key = key

    def __hash__(self) -> int:
        if HashAct.hashed is not None:
            HashAct.hashed(self)
        return 7

    def __eq__(self, other: object) -> bool:
        if HashAct.compared is not None:
            HashAct.compared(self, other)
        return isinstance(other, HashAct) and self.key == other.key


@pytest.fixture(autouse=True)
def _no_action() -> Iterator[None]:
    # Objects of other tests would only cost time: the collector looks at all of them.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    Act.out = Act.back = None
    HashAct.hashed = HashAct.compared = None


def survives(use: Callable[[], Any]) -> Any:
    """The result of ``use`` or ``None`` if it raised an ordinary exception."""
    try:
        result = use()
    except Exception:  # a panic of Rust is none
        return None
    finally:
        gc.collect()
    repr(result)
    return result


# ---------------------------------------------------------------------------
# Containers that change while they are walked.


def containers() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    def fill(container: Any) -> None:
        for number in range(2000):
            if isinstance(container, dict):
                container[f"new {number}"] = [number]
            elif isinstance(container, set):
                container.add(f"new {number}")
            else:
                container.append([number])

    def clear(container: Any) -> None:
        container.clear()

    def replace(container: Any) -> None:
        container.clear()
        fill(container)

    def pop(container: Any) -> None:
        if isinstance(container, dict):
            container.popitem()
        elif container:
            container.pop()

    actions: dict[str, Callable[[Any], Any]] = {
        "fill": fill,
        "clear": clear,
        "replace": replace,
        "pop": pop,
    }
    kinds: dict[str, Callable[[], Any]] = {
        "list": lambda: [Act(), [1], Act(), "x" * 50, Act(), [2]],
        "dict": lambda: {"a": Act(), "b": [1], "c": Act(), "d": "x" * 50},
        "dict with such keys": lambda: {Act(): 1, "b": Act(), Act(): [1], "c": 2},
        "set": lambda: {Act(), "b", Act(), ("t", "u"), Act()},
        "deque": lambda: collections.deque([Act(), [1], Act(), [2]]),
        "OrderedDict": lambda: collections.OrderedDict(a=Act(), b=[1], c=Act()),
        "long list": lambda: [Act() if n % 700 == 0 else [n] for n in range(2500)],
        "long dict": lambda: {n: Act() if n % 700 == 0 else [n] for n in range(2500)},
    }
    return {
        f"{action} {kind}": (make, actions[action])
        for action in actions
        for kind, make in kinds.items()
    }


CONTAINERS = containers()


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("every_time", [True, False])
def test_container_changes_while_it_is_encoded(name: str, every_time: bool) -> None:
    make, change = CONTAINERS[name]
    container = make()
    calls = 0

    def act(obj: Any) -> None:
        nonlocal calls
        calls += 1
        if every_time or calls == 2:
            change(container)

    Act.out = act
    data = survives(lambda: snapshot.dumps([container, "after"]))
    assert calls
    Act.out = None
    if data is not None:
        copied = snapshot.loads(data)
        assert copied[1] == "after"
        assert type(copied[0]) is type(container)


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_changes_while_it_is_decoded(name: str) -> None:
    """The objects in it find it by the collector, as nothing refers to it yet."""
    make, change = CONTAINERS[name]
    original = make()
    for member in list(original):
        if isinstance(member, Act):
            member.label = original
    if isinstance(original, dict):
        for member in original.values():
            if isinstance(member, Act):
                member.label = original
    data = snapshot.dumps([original, "after"])
    Act.back = lambda obj: change(obj.label) if obj.label is not None else None
    survives(lambda: snapshot.loads(data))
    Act.back = lambda obj: change(max(gc.get_referrers(obj), key=lambda r: isinstance(r, list)))
    survives(lambda: snapshot.loads(data))


def test_attributes_change_while_an_instance_is_encoded() -> None:
    for action in ("add", "delete", "clear", "replace", "class"):
        node = Node(a=Act(), b=[1], c=Act(), d=2)

        def act(obj: Any, node: Any = node, action: str = action) -> None:
            if action == "add":
                node.__dict__[f"new {len(vars(node))}"] = [1]
            elif action == "delete":
                node.__dict__.pop("b", None)
            elif action == "clear":
                node.__dict__.clear()
            elif action == "replace":
                node.__dict__ = {"e": 5}
            else:
                node.__class__ = Other

        Act.out = act
        data = survives(lambda node=node: snapshot.dumps([node, node, "after"]))
        Act.out = None
        if data is not None:
            copied = snapshot.loads(data)
            assert copied[2] == "after"
            assert copied[0] is copied[1]


class Other:
    pass


class Slots:
    __slots__ = ("a", "b", "c")


def test_slots_change_while_an_instance_is_encoded() -> None:
    obj = Slots()
    obj.a, obj.b, obj.c = Act(), [1], Act()

    def act(actor: Any) -> None:
        if hasattr(obj, "b"):
            del obj.b
        obj.c = Act()

    Act.out = act
    data = survives(lambda: snapshot.dumps([obj, "after"]))
    Act.out = None
    if data is not None:
        assert snapshot.loads(data)[1] == "after"


def test_objects_that_are_dropped_while_the_encoder_still_has_to_write_them() -> None:
    keeper: list[Any] = [Act(), ["x" * 100], Node(a=[1]), {"k": ("v" * 100,)}, (1, [2]), {1, 2}]
    refs = [weakref.ref(keeper[2])]

    def drop(obj: Any) -> None:
        keeper[1:] = [None] * (len(keeper) - 1)
        gc.collect()
        for _ in range(100):  # take the memory that is free now
            keeper.append(["y" * 100])
        del keeper[6:]

    Act.out = drop
    data = survives(lambda: snapshot.dumps(keeper))
    assert data is not None
    del refs
    Act.out = None
    assert len(snapshot.loads(data)) >= 6


def test_reducer_results_that_change_while_they_are_walked() -> None:
    state: dict[str, Any] = {"a": Act(), "b": [1]}
    args: list[Any] = [Act(), [1]]

    class Live:
        def __reduce__(self) -> Any:
            return list, (args,), None, iter(args), None

    Act.out = lambda obj: (state.clear(), args.clear())
    survives(lambda: snapshot.dumps([Live(), state]))


class BadIterator:
    """Items of a reducer that re-enter, fail or never fit."""

    def __init__(self, action: Callable[[int], Any]) -> None:
        self.action = action
        self.count = 0

    def __iter__(self) -> BadIterator:
        return self

    def __next__(self) -> Any:
        self.count += 1
        return self.action(self.count)


def test_iterators_of_a_reducer() -> None:
    def stop(count: int) -> Any:
        raise StopIteration

    def fail(count: int) -> Any:
        if count == 3:
            raise ValueError("in the middle")
        return (count, [count])

    def interrupt(count: int) -> Any:
        raise KeyboardInterrupt

    def dump_again(count: int) -> Any:
        if count > 3:
            raise StopIteration
        return (count, snapshot.dumps([count]))

    class Items:
        def __init__(self, action: Any, dicts: bool) -> None:
            self.action = action
            self.dicts = dicts

        def __reduce__(self) -> Any:
            items = BadIterator(self.action)
            return (dict, (), None, None, items) if self.dicts else (list, (), None, items)

    for dicts in (False, True):
        assert len(snapshot.loads(snapshot.dumps([Items(stop, dicts)]))[0]) == 0
        assert len(snapshot.loads(snapshot.dumps([Items(dump_again, dicts)]))[0]) == 3
        with pytest.raises(ValueError, match="in the middle"):
            snapshot.dumps([Items(fail, dicts)])
        with pytest.raises(KeyboardInterrupt):
            snapshot.dumps([Items(interrupt, dicts)])


# ---------------------------------------------------------------------------
# Re-entering the encoder and the decoder.


@pytest.mark.parametrize(
    "method",
    [
        lambda encoder: encoder.add([1]),
        lambda encoder: encoder.finish(),
        lambda encoder: encoder.size,
        lambda encoder: encoder.numbers_of([encoder]),
        lambda encoder: encoder.random_offsets([random.Random()]),
        lambda encoder: gc.collect(),
        lambda encoder: sys.getsizeof(encoder),
        lambda encoder: repr(encoder),
    ],
)
@pytest.mark.parametrize("swallow", [True, False])
def test_methods_called_from_within_add(method: Any, swallow: bool) -> None:
    encoder = Encoder(externals=[Node()])

    def act(obj: Any) -> None:
        try:
            method(encoder)
        except Exception:
            if not swallow:
                raise

    Act.out = act
    survives(lambda: encoder.add([Act(), [1]]))
    Act.out = None
    # Closed or as good as new, but not torn.
    data = survives(lambda: (encoder.add([2]), encoder.finish())[1])
    if isinstance(data, bytes):
        assert Decoder(data, [None]).roots[-1] == [2]


def test_dumps_and_loads_within_dumps_and_loads() -> None:
    inner = snapshot.dumps([Node(a=1), [2]])
    seen = []

    def nested(obj: Any) -> None:
        Act.out = None
        seen.append(snapshot.loads(snapshot.dumps([obj, inner])))
        Act.out = nested

    Act.out = nested
    data = snapshot.dumps([Act(), Node(b=Act())])
    Act.out = None
    assert len(seen) == 2
    Act.back = lambda obj: seen.append(snapshot.loads(inner))
    copied = snapshot.loads(data)
    assert len(seen) == 4
    assert type(copied[1].b) is Act


def test_the_encoder_within_its_own_graph() -> None:
    encoder = Encoder()
    with pytest.raises(TypeError):
        encoder.add([encoder])
    external = Encoder()
    other = Encoder(externals=[external])
    other.add([external])
    data = other.finish()
    assert data is not None
    assert Decoder(data, [5]).roots == [[5]]


def test_externals_change_while_decoding() -> None:
    external = Node()
    encoder = Encoder(externals=[external, [1]])
    encoder.add([external, Act(), external, (external, Act()), {external: 1}])
    data = encoder.finish()
    assert data is not None
    counterparts: list[Any] = [Node(a=1), Node(b=2)]
    Act.back = lambda obj: (counterparts.clear(), gc.collect())
    result = survives(lambda: Decoder(data, counterparts).roots[0])
    if result is not None:
        assert type(result[0]) is Node


def test_the_data_changes_while_decoding() -> None:
    original = [Act(), ["text " * 20, 1.5, 10**50], Act(), {"k": (1, 2)}, random.Random(1)]
    data = bytearray(snapshot.dumps(original))

    def overwrite(obj: Any) -> None:
        data[20:] = bytes(reversed(data[20:]))

    def zero(obj: Any) -> None:
        data[:] = bytes(len(data))

    def shrink(obj: Any) -> None:
        data.clear()

    pristine = bytes(data)
    for action in (overwrite, zero, shrink):
        data[:] = pristine
        Act.back = action
        survives(lambda: snapshot.loads(data))
        survives(lambda: Decoder(data).roots)
        survives(lambda: snapshot.loads(memoryview(data)))
        data[:] = pristine
    Act.back = None
    assert snapshot.loads(data)[3] == {"k": (1, 2)}


def test_everything_reachable_is_torn_apart_while_decoding() -> None:
    """The objects that are being built, found through the collector, are emptied."""
    original = [[Act(), [1]], {"k": Act(), "l": [2]}, Node(a=Act()), (Act(), [3]), {Act()}]
    data = snapshot.dumps(original)

    def tear(obj: Any) -> None:
        for found in gc.get_objects():
            if type(found) is Node:
                found.__dict__.clear()
        for referrer in gc.get_referrers(obj):
            if type(referrer) in (list, set) and referrer is not original:
                referrer.clear()

    Act.back = tear
    survives(lambda: snapshot.loads(data))


# ---------------------------------------------------------------------------
# Hashing and comparing.


def test_hash_that_changes_the_container_being_filled() -> None:
    for make in (
        lambda: {HashAct(n) for n in range(5)},
        lambda: {HashAct(n): n for n in range(5)},
        lambda: frozenset(HashAct(n) for n in range(5)),
        lambda: collections.OrderedDict((HashAct(n), n) for n in range(5)),
        lambda: collections.Counter(HashAct(n) for n in range(5)),
    ):
        data = snapshot.dumps([make(), [1]])

        def empty(*args: Any) -> None:
            for found in gc.get_objects():
                if type(found) in (set, dict) and any(type(k) is HashAct for k in list(found)):
                    hashed, HashAct.hashed = HashAct.hashed, None
                    compared, HashAct.compared = HashAct.compared, None
                    found.clear()
                    HashAct.hashed, HashAct.compared = hashed, compared

        HashAct.hashed = empty
        survives(lambda data=data: snapshot.loads(data))
        HashAct.hashed = None
        HashAct.compared = empty
        survives(lambda data=data: snapshot.loads(data))
        HashAct.compared = None


def test_hash_that_re_enters() -> None:
    data = snapshot.dumps([{HashAct(n): n for n in range(3)}, {HashAct(5)}])
    depth = 0

    def load_again(obj: Any) -> None:
        nonlocal depth
        if depth < 5:
            depth += 1
            snapshot.loads(data)
            depth -= 1

    HashAct.hashed = load_again
    assert len(snapshot.loads(data)[0]) == 3


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("hook", ["hashed", "compared"])
def test_hash_and_eq_that_fail(error: BaseException, hook: str) -> None:
    data = snapshot.dumps([{HashAct(n) for n in range(3)}, {HashAct(n): n for n in range(3)}])

    def fail(*args: Any) -> None:
        raise error

    setattr(HashAct, hook, fail)
    with pytest.raises(type(error)):
        snapshot.loads(data)
    with pytest.raises(type(error)):
        Decoder(data)
    setattr(HashAct, hook, None)
    assert len(snapshot.loads(data)[1]) == 3


def test_nothing_is_hashed_while_encoding() -> None:
    graph = [{HashAct(n) for n in range(3)}, {HashAct(n): n for n in range(3)}]

    def fail(*args: Any) -> None:
        raise AssertionError

    HashAct.hashed = HashAct.compared = fail
    encoder = Encoder(externals=[HashAct()], foreign=[HashAct()])
    encoder.add(graph)
    assert encoder.numbers_of(graph)
    assert encoder.finish()


# ---------------------------------------------------------------------------
# Exceptions that are not Exception, objects that die at the wrong time.


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("side", ["out", "back"])
def test_base_exceptions(error: type[BaseException], side: str) -> None:
    graph = [Node(a=[1]), {"k": (Act(), [2])}]
    data = snapshot.dumps(graph)

    def fail(obj: Any) -> None:
        raise error

    setattr(Act, side, fail)
    for use in (
        (lambda: snapshot.dumps(graph), lambda: Encoder().add(graph))
        if side == "out"
        else (
            lambda: snapshot.loads(data),
            lambda: Decoder(data),
        )
    ):
        with pytest.raises(error):
            use()
    setattr(Act, side, None)
    assert snapshot.loads(snapshot.dumps(graph))[0].a == [1]


class Dying:
    """Runs code when it dies."""

    died: Callable[[Any], Any] | None = None

    def __init__(self, label: Any = None) -> None:
        self.label = label

    def __del__(self) -> None:
        if Dying.died is not None:
            Dying.died(self)


def test_objects_that_die_while_loading_fails() -> None:
    deaths = []

    def died(obj: Any) -> None:
        deaths.append(obj.label)
        snapshot.loads(snapshot.dumps([1, Node(a=2)]))
        gc.collect()

    data = snapshot.dumps([Dying("first"), [Dying("second")], Act(), Dying("third")])

    def fail(obj: Any) -> None:
        raise ValueError("no")

    Act.back = fail
    Dying.died = died
    try:
        with pytest.raises(ValueError, match="no"):
            snapshot.loads(data)
        gc.collect()
        assert sorted(deaths) == ["first", "second"]
    finally:
        Dying.died = None


def test_objects_that_die_while_encoding_fails() -> None:
    class Fresh:
        """Its state is a new object, which only the encoder keeps."""

        def __reduce__(self) -> Any:
            return Node, (), {"dying": Dying("fresh")}

    deaths = []

    def died(obj: Any) -> None:
        deaths.append(obj.label)
        for encoder in encoders:
            survives(lambda encoder=encoder: encoder.add([1]))
            survives(lambda encoder=encoder: encoder.finish())

    encoders = [Encoder()]
    Dying.died = died
    try:
        with pytest.raises(TypeError):
            encoders[0].add([Fresh(), {}.keys()])
        encoders.clear()
        gc.collect()
        assert deaths == ["fresh"]
    finally:
        Dying.died = None


def test_objects_that_die_when_a_decoder_is_closed() -> None:
    decoder = Decoder(snapshot.dumps([Dying("a"), Dying("b"), [Dying("c")]]))
    deaths = []

    def died(obj: Any) -> None:
        deaths.append(obj.label)
        survives(decoder.close)
        survives(lambda: decoder.roots)
        survives(lambda: decoder.objects(struct.pack("<I", 0)))

    Dying.died = died
    try:
        decoder.close()
        gc.collect()
        assert sorted(deaths) == ["a", "b", "c"]
    finally:
        Dying.died = None


def test_resurrection() -> None:
    saved = []
    Dying.died = saved.append
    try:
        decoder = Decoder(snapshot.dumps([Dying("a")]))
        del decoder
        gc.collect()
        assert saved[0].label == "a"
    finally:
        Dying.died = None


# ---------------------------------------------------------------------------
# Other callers' code: sinks, reducers, buffers, PRNGs.


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


# ---------------------------------------------------------------------------
# Threads.


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

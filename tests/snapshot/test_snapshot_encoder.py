"""Encoder and Decoder: roots, externals, foreign objects, reducers, numbers, sinks."""

from __future__ import annotations

import array
import collections
import copyreg
import functools
import io
import pickle
import random
import struct
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
from checks import copy_of, pickled_copy
from graph_compare import assert_same, match
from graph_strategies import graphs
from hypothesis import HealthCheck, given, settings
from pams_parallel import snapshot
from pams_parallel.snapshot import Decoder, Encoder, ForeignReferenceError, SnapshotDecodeError
from sample_types import (
    Bag,
    Derived,
    Frozen,
    HashedByKey,
    MyList,
    Pair,
    Plain,
    Registered,
    Slotted,
    StateOnly,
    function,
)

if TYPE_CHECKING:
    import pathlib

NOT_THERE = 0xFFFFFFFF

_QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def encoded(*roots: Any, **options: Any) -> bytes:
    encoder = Encoder(**options)
    for root in roots:
        encoder.add(root)
    data = encoder.finish()
    assert data is not None
    return data


def numbers(data: bytes) -> list[int]:
    return array.array("I", data).tolist()


def packed(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


# ---------------------------------------------------------------------------
# Roots.


def test_roots_share_objects() -> None:
    shared = Plain(a=1)
    text = "".join(["shared ", "text"])
    roots = [[shared, text], {"k": shared}, shared, (text, 5), 5, None]
    decoder = Decoder(encoded(*roots))
    assert_same(pickled_copy(roots), decoder.roots)
    assert decoder.roots[0][0] is decoder.roots[1]["k"] is decoder.roots[2]
    assert decoder.roots[0][1] is decoder.roots[3][0]


def test_no_roots() -> None:
    assert Decoder(encoded()).roots == []
    with pytest.raises(SnapshotDecodeError):
        snapshot.loads(encoded())
    with pytest.raises(SnapshotDecodeError):
        snapshot.loads(encoded(1, 2))
    assert snapshot.loads(encoded(1)) == 1


def test_root_within_an_earlier_root() -> None:
    inner: list[Any] = []
    outer = [inner]
    decoder = Decoder(encoded(outer, inner, outer))
    assert decoder.roots[0][0] is decoder.roots[1]
    assert decoder.roots[0] is decoder.roots[2]


def test_an_object_is_written_as_it_is_when_first_met() -> None:
    changing = [1]
    encoder = Encoder()
    encoder.add(changing)
    changing.append(2)
    encoder.add([changing])
    data = encoder.finish()
    assert data is not None
    assert Decoder(data).roots == [[1], [[1]]]


def test_temporary_objects_do_not_lend_their_identity() -> None:
    """The encoder keeps alive what it has seen, so an address is never used twice."""
    encoder = Encoder()
    for number in range(200):
        encoder.add([number, [str(number) * 3]])
    data = encoder.finish()
    assert data is not None
    assert Decoder(data).roots == [[number, [str(number) * 3]] for number in range(200)]

    class Fresh:
        def __reduce__(self) -> Any:
            return list, (), None, iter([[1], [2], [3]])

    assert copy_of([Fresh() for _ in range(100)]) == [[[1], [2], [3]]] * 100


def test_finished_encoder() -> None:
    encoder = Encoder()
    encoder.add([1])
    size = encoder.size
    data = encoder.finish()
    assert data is not None
    assert len(data) == encoder.size
    assert encoder.size >= size
    with pytest.raises(ValueError, match=r"finished|closed"):
        encoder.add([2])
    with pytest.raises(ValueError, match=r"finished|closed"):
        encoder.finish()


def test_encoder_is_closed_by_an_error() -> None:
    encoder = Encoder()
    encoder.add([1])
    with pytest.raises(TypeError):
        encoder.add([len, {}.keys()])
    for _ in range(2):
        with pytest.raises(ValueError, match="closed"):
            encoder.add([2])
        with pytest.raises(ValueError, match="closed"):
            encoder.finish()


def test_size_grows() -> None:
    encoder = Encoder()
    sizes = [encoder.size]
    for root in ([1], ["text"], 5, "x" * 1000):
        encoder.add(root)
        sizes.append(encoder.size)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] - sizes[-2] >= 1000


def test_bytes_after_the_end_are_ignored() -> None:
    data = encoded([1, "two"])
    assert snapshot.loads(data + b"more") == [1, "two"]
    assert Decoder(bytearray(data) + bytes(5000)).roots == [[1, "two"]]


def test_equal_graphs_have_equal_snapshots() -> None:
    def graph() -> Any:
        return [Plain(a=[1, "text"], b=Slotted(left=2)), {"k": (1.5, None)}, collections.deque([1])]

    assert encoded(graph()) == encoded(graph())


# ---------------------------------------------------------------------------
# Externals and foreign objects.

EXTERNAL: dict[str, Any] = {
    "instance": lambda: Plain(a=1),
    "slotted": lambda: Slotted(left=1),
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "frozenset": lambda: frozenset([1, 2]),
    "tuple": lambda: (1, [2]),
    "named tuple": lambda: Pair(1, 2),
    "str": lambda: "".join(["ext", "ernal"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "class": lambda: Derived,
    "function": lambda: function,
    "lambda": lambda: lambda: None,
    "lock-like": lambda: iter(()),
    "generator": lambda: (n for n in ()),
    "random": lambda: random.Random(1),
    "list subclass": lambda: MyList([1]),
    "deque": lambda: collections.deque([1]),
    "reduced": lambda: Bag(3),
    "registered": lambda: Registered(1),
    "complex": lambda: complex(1, 2),
    "bound method": lambda: Plain().method,
}


@pytest.mark.parametrize("name", EXTERNAL)
def test_external(name: str) -> None:
    external = EXTERNAL[name]()
    counterpart = Plain(counterpart=True)
    graph = [
        external,
        (external,),
        {"k": external},
        Plain(a=external),
        Slotted(left=external),
        collections.deque([external]),
        functools.partial(print, external),
        external,
    ]
    copied = Decoder(encoded(graph, external, externals=[[], external]), [None, counterpart]).roots
    assert copied[1] is counterpart
    assert copied[0][0] is counterpart
    assert copied[0][1][0] is counterpart
    assert copied[0][2]["k"] is counterpart
    assert copied[0][3].a is counterpart
    assert copied[0][4].left is counterpart
    assert copied[0][5][0] is counterpart
    assert copied[0][6].args[0] is counterpart
    assert copied[0][7] is counterpart


def test_external_as_key_and_element() -> None:
    external = Plain()
    graph = [{external: 1}, {external}, frozenset([external]), {(external, 1): 2}]
    for counterpart in (external, Plain(), "a text", 5):
        copied = Decoder(encoded(graph, externals=[external]), [counterpart]).roots[0]
        assert copied == [
            {counterpart: 1},
            {counterpart},
            frozenset([counterpart]),
            {(counterpart, 1): 2},
        ]


def test_external_key_with_a_custom_hash() -> None:
    external = HashedByKey("a")
    counterpart = HashedByKey("b")
    copied = Decoder(encoded([{external: 1, "k": 2}], externals=[external]), [counterpart]).roots
    assert copied == [[{counterpart: 1, "k": 2}]]


def test_external_in_state_and_arguments() -> None:
    external = Plain()
    made = Bag(6, external)
    made.state = external
    made.items = [external]
    made.pairs = [(external, external)]
    copied = Decoder(encoded(made, externals=[external]), ["counterpart"]).roots[0]
    assert copied.args == ("counterpart",)
    assert copied.state == "counterpart"
    assert copied.items == ["counterpart"]
    assert copied.pairs == [("counterpart", "counterpart")]


def test_what_is_inside_an_external_is_not_walked() -> None:
    inner = Plain(a=1)
    external = Plain(lock=(n for n in ()), inner=inner)
    copied = Decoder(encoded([external, inner], externals=[external]), ["x"]).roots[0]
    assert copied[0] == "x"
    assert vars(copied[1]) == {"a": 1}


def test_an_equal_object_is_not_external() -> None:
    external = [1]
    copied = Decoder(encoded([external, [1]], externals=[external]), ["x"]).roots[0]
    assert copied == ["x", [1]]
    key = HashedByKey(1)
    copied = Decoder(encoded([key, HashedByKey(1)], externals=[key]), ["x"]).roots[0]
    assert copied[0] == "x"
    assert type(copied[1]) is HashedByKey


def test_an_external_that_stands_twice_has_its_first_index() -> None:
    external = Plain()
    data = encoded([external], externals=[0, external, external, external])
    assert Decoder(data, ["zero", "first", "second", "third"]).roots == [["first"]]


def test_many_externals() -> None:
    externals = [Plain(number=number) for number in range(1000)]
    data = encoded(externals[::-1], externals=externals)
    assert Decoder(data, list(range(1000))).roots == [list(range(1000))[::-1]]
    assert Decoder(data, tuple(range(1000))).roots[0][0] == 999


def test_too_few_externals() -> None:
    externals = [Plain(), Plain()]
    data = encoded([externals[1]], externals=externals)
    for too_few in ([], [1]):
        with pytest.raises(SnapshotDecodeError):
            Decoder(data, too_few)
    assert Decoder(data, [1, 2, 3]).roots == [[2]]
    unused = encoded([5], externals=externals)
    assert snapshot.loads(unused) == [5]


def test_externals_are_compared_by_identity_only() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        def __hash__(self) -> int:
            raise AssertionError

    externals = [Hostile(), Hostile()]
    data = encoded(externals, externals=externals, foreign=[Hostile()])
    assert Decoder(data, [1, 2]).roots == [[1, 2]]


@pytest.mark.parametrize(
    "around",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: (0, x),
        lambda x: {"k": x},
        lambda x: {x: 1},
        lambda x: {x},
        lambda x: frozenset([x]),
        lambda x: Plain(a=x),
        lambda x: Slotted(left=x),
        lambda x: Frozen("a", x),
        lambda x: StateOnly(a=x),
        lambda x: Bag(2, x),
        lambda x: functools.partial(function, x),
        lambda x: collections.deque([x]),
        lambda x: Plain(a=x).method,
    ],
)
def test_foreign(around: Any) -> None:
    foreign = Plain(foreign=True)
    for graph in (around(foreign), [1, Plain(b=around(foreign))]):
        encoder = Encoder(foreign=[[], foreign])
        with pytest.raises(ForeignReferenceError):
            encoder.add(graph)
        with pytest.raises(ValueError, match="closed"):
            encoder.finish()


def test_path_to_a_foreign_object() -> None:
    foreign = Plain()
    encoder = Encoder(foreign=[foreign])
    with pytest.raises(ForeignReferenceError, match=r"orders\[1\]\.owner"):
        encoder.add([1, Plain(owner=foreign)], "orders")


def test_foreign_objects_that_are_not_met_or_external() -> None:
    foreign = Plain()
    assert snapshot.loads(encoded([1, Plain(a=2)], foreign=[foreign]))[0] == 1
    data = encoded([foreign], externals=[foreign], foreign=[foreign])
    assert Decoder(data, ["x"]).roots == [["x"]]
    equal = [1]
    assert snapshot.loads(encoded([[1]], foreign=[equal])) == [[1]]


def test_foreign_object_hidden_in_an_external() -> None:
    foreign = Plain()
    external = [foreign]
    assert Decoder(encoded([external], externals=[external], foreign=[foreign]), [5]).roots == [[5]]


# ---------------------------------------------------------------------------
# Reducers.


def reduce_to_text(obj: Any) -> Any:
    return str, (f"reduced {type(obj).__name__}",)


def test_reducers_by_exact_type() -> None:
    reducers = {Plain: reduce_to_text, Registered: reduce_to_text, Slotted: reduce_to_text}
    graph = [Plain(a=1), Derived(a=1), Registered(1), Slotted()]
    copied = snapshot.loads(encoded(graph, reducers=reducers))
    assert copied[0] == "reduced Plain"
    assert type(copied[1]) is Derived
    assert copied[2:] == ["reduced Registered", "reduced Slotted"]
    assert type(copy_of(graph)[0]) is Plain


def test_reducers_for_what_pickle_cannot_copy() -> None:
    generator = (n for n in ())
    copied = snapshot.loads(encoded([generator], reducers={type(generator): reduce_to_text}))
    assert copied == ["reduced generator"]


@pytest.mark.parametrize("cls", [list, dict, tuple, set, frozenset, str, bytes, int, float, type])
def test_reducers_for_types_that_pickle_treats_first(cls: type) -> None:
    """A dispatch table of pickle has no say for these; neither have ours."""
    graph = [[1], {"a": 1}, (1,), {1}, frozenset([1]), "text", b"abc", 5, 1.5, int]
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 5)
    pickler.dispatch_table = collections.ChainMap({cls: reduce_to_text}, copyreg.dispatch_table)
    pickler.dump(graph)
    expected = pickle.loads(stream.getvalue())
    assert_same(expected, snapshot.loads(encoded(graph, reducers={cls: reduce_to_text})))


def test_reducers_for_random_and_complex() -> None:
    for obj in (random.Random(1), 1 + 2j, Plain.class_method, functools.partial(function)):
        reducers = {type(obj): reduce_to_text}
        assert snapshot.loads(encoded([obj], reducers=reducers)) == [
            f"reduced {type(obj).__name__}"
        ]


def test_reducers_that_fail() -> None:
    def fail(obj: Any) -> Any:
        raise ValueError("no copies")

    for reducer, error in ((fail, ValueError), (lambda obj: 5, Exception), (None, TypeError)):
        encoder = Encoder(reducers={Plain: reducer})
        with pytest.raises(error):
            encoder.add([Plain()])


def test_library_reducers() -> None:
    """Bound methods of C objects and the like: what multiprocessing can send, a snapshot can."""
    reducers = snapshot.library_reducers()
    assert all(isinstance(cls, type) and callable(reducers[cls]) for cls in reducers)
    graph = [Plain(a=1).method, [1].append, functools.partial(function, 1), "".join]
    copied = snapshot.loads(encoded(graph, reducers=reducers))
    assert_same(ForkingPickler.loads(ForkingPickler.dumps(graph)), copied)


def test_library_reducers_that_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ForkingPickler._extra_reducers, Plain, reduce_to_text)
    reducers = snapshot.library_reducers()
    assert reducers[Plain] is reduce_to_text
    assert snapshot.loads(encoded([Plain()], reducers=reducers)) == ["reduced Plain"]

    class Tensor:
        pass

    Tensor.__module__ = "torch.something"
    monkeypatch.setitem(ForkingPickler._extra_reducers, Tensor, reduce_to_text)
    assert Tensor not in snapshot.library_reducers()
    Tensor.__module__ = "torchvision"
    assert Tensor in snapshot.library_reducers()


# ---------------------------------------------------------------------------
# Numbers.


def test_numbers_name_the_counterparts() -> None:
    shared = [1]
    graph = [Plain(a=shared, b={"k": shared}), (shared, "text"), random.Random(1), {2, "x"}]
    objects = [graph, graph[0], shared, graph[0].b, graph[1], graph[2], graph[3]]
    encoder = Encoder()
    encoder.add(graph)
    before = encoder.numbers_of(objects)
    data = encoder.finish()
    assert data is not None
    assert encoder.numbers_of(objects) == before
    assert NOT_THERE not in numbers(before)
    assert len(set(numbers(before))) == len(objects)
    decoder = Decoder(data)
    copied = decoder.roots[0]
    found = decoder.objects(before)
    expected = [
        copied,
        copied[0],
        copied[0].a,
        copied[0].b,
        copied[1],
        copied[2],
        copied[3],
    ]
    assert all(a is b for a, b in zip(found, expected, strict=True))
    assert decoder.objects(b"") == []
    twice = decoder.objects(before[:4] * 2)
    assert twice[0] is twice[1] is copied


def test_numbers_of_objects_that_are_not_there() -> None:
    encoder = Encoder()
    assert numbers(encoder.numbers_of([[], Plain()])) == [NOT_THERE] * 2
    graph = [[1]]
    encoder.add(graph)
    assert numbers(encoder.numbers_of([[1], graph[0], [[1]]]))[::2] == [NOT_THERE] * 2
    assert encoder.numbers_of([]) == b""
    assert encoder.numbers_of(iter([graph])) == encoder.numbers_of((graph,))


def test_numbers_that_no_object_has() -> None:
    decoder = Decoder(encoded([[1], "text"]))
    for wrong in (NOT_THERE, 1000, 2**31):
        with pytest.raises(ValueError, match="number"):
            decoder.objects(packed(wrong))
        with pytest.raises(ValueError, match="number"):
            decoder.objects(packed(0, wrong))
    for wrong_bytes in (b"\x00", b"\x00" * 5):
        with pytest.raises(ValueError, match="4-byte"):
            decoder.objects(wrong_bytes)


@_QUICK
@given(graphs(most=8))
def test_numbers_of_whole_graphs(graph: Any) -> None:
    encoder = Encoder()
    encoder.add(graph)
    data = encoder.finish()
    assert data is not None
    decoder = Decoder(data)
    containers = (list, set, Plain, Slotted, random.Random, MyList, collections.deque)
    pairs = [
        (ours, theirs)
        for ours, theirs in match(graph, decoder.roots[0], layout=False)
        if isinstance(ours, containers)
    ]
    given_numbers = encoder.numbers_of([ours for ours, _ in pairs])
    present = [
        (number, theirs)
        for number, (ours, theirs) in zip(numbers(given_numbers), pairs, strict=True)
        if number != NOT_THERE
    ]
    # Not dicts: that of an instance may be the state of a reducer, which is another dict.
    # What is reached by a global alone (the model of DropsModel) is not in the snapshot.
    assert present or not isinstance(graph, containers)
    found = decoder.objects(packed(*[number for number, _ in present]))
    assert all(a is b for a, (_, b) in zip(found, present, strict=True))


# ---------------------------------------------------------------------------
# Decoder.


def test_close_drops_the_objects() -> None:
    decoder = Decoder(encoded([Plain(a=1), [1]]))
    alive = weakref.ref(decoder.roots[0][0])
    assert alive() is not None
    decoder.close()
    assert alive() is None
    decoder.close()
    kept = Decoder(encoded([Plain(a=1)]))
    root = kept.roots[0]
    kept.close()
    assert root[0].a == 1


def test_use_after_close() -> None:
    decoder = Decoder(encoded([1]))
    decoder.close()
    for use in (lambda: decoder.objects(packed(0)), lambda: decoder.roots):
        try:
            found = use()
        except ValueError:
            continue
        assert found == []


def test_roots_are_a_list_of_ones_own() -> None:
    decoder = Decoder(encoded([1], [2]))
    decoder.roots.clear()
    assert decoder.roots == [[1], [2]]


def test_the_buffer_is_not_held() -> None:
    for load in (Decoder, snapshot.loads):
        data = bytearray(encoded([b"abc" * 100, "text" * 100, 10**400]))
        copied = load(data)
        data.clear()  # refused while anyone holds on to the buffer
        roots = copied.roots[0] if isinstance(copied, Decoder) else copied
        assert roots == [b"abc" * 100, "text" * 100, 10**400]


# ---------------------------------------------------------------------------
# Sinks.


class Recorder(io.BytesIO):
    """A file that records the pieces it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[int] = []

    def write(self, data: Any) -> int:
        self.pieces.append(len(bytes(data)))
        return super().write(data)


BIG = [[str(number) * 10, number, Plain(a=number)] for number in range(5000)]


def test_sink_gets_what_memory_would_hold() -> None:
    expected = encoded(BIG)
    for spill_bytes in (1, 64, 1000, 4096, 65536):
        sink = Recorder()
        encoder = Encoder(sink=sink, spill_bytes=spill_bytes)
        encoder.add(BIG)
        assert encoder.size > 0
        assert encoder.finish() is None
        assert encoder.size == len(expected)
        assert sink.getvalue()[: encoder.size] == expected
        if spill_bytes == 65536:
            assert max(sink.pieces) < len(expected)
    assert snapshot.loads(expected)[-1][0] == "4999" * 10


def test_large_pieces_go_to_the_sink() -> None:
    graph = ["x" * 1_000_000, b"y" * 1_000_000, list(range(100))]
    sink = io.BytesIO()
    encoder = Encoder(sink=sink, spill_bytes=1000)
    encoder.add(graph)
    assert encoder.finish() is None
    assert snapshot.loads(sink.getvalue()) == graph


def test_small_snapshots_stay_in_memory() -> None:
    sink = Recorder()
    encoder = Encoder(sink=sink, spill_bytes=100_000)
    encoder.add([1, 2])
    data = encoder.finish()
    assert data == encoded([1, 2])
    assert sink.pieces == []


@pytest.mark.parametrize("buffering", [0, -1])
def test_real_files(tmp_path: pathlib.Path, buffering: int) -> None:
    path = tmp_path / "frame"
    with path.open("w+b", buffering=buffering) as file:
        encoder = Encoder(sink=file, spill_bytes=4096)
        encoder.add(BIG)
        assert encoder.finish() is None
    assert path.read_bytes()[: encoder.size] == encoded(BIG)


class ShortWrites(io.BytesIO):
    """Takes a part of what it is given, as raw files may."""

    def write(self, data: Any) -> int:
        return super().write(bytes(data)[:777])


class NoCount(io.BytesIO):
    def write(self, data: Any) -> Any:
        super().write(data)
        return None


def test_short_writes_are_continued_or_refused() -> None:
    expected = encoded(BIG)
    for sink in (ShortWrites(), NoCount()):
        encoder = Encoder(sink=sink, spill_bytes=4096)
        try:
            encoder.add(BIG)
            encoder.finish()
        except Exception:
            continue
        assert sink.getvalue()[: encoder.size] == expected


class BrokenSink(io.BytesIO):
    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        self.method = method
        self.error = error

    def write(self, data: Any) -> int:
        if self.method == "write":
            raise self.error
        return super().write(data)

    def seek(self, *args: Any) -> int:
        if self.method == "seek":
            raise self.error
        return super().seek(*args)


@pytest.mark.parametrize("method", ["write", "seek"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_errors_of_the_sink(method: str, error: BaseException) -> None:
    encoder = Encoder(sink=BrokenSink(method, error), spill_bytes=1000)

    def use() -> None:
        encoder.add(BIG)
        encoder.finish()

    with pytest.raises(type(error)):
        use()
    with pytest.raises(ValueError, match="closed"):
        encoder.finish()


@pytest.mark.parametrize("sink", [5, object(), "path"])
def test_sinks_that_are_no_files(sink: Any) -> None:
    def use() -> None:
        encoder = Encoder(sink=sink, spill_bytes=10)
        encoder.add(BIG)
        encoder.finish()

    with pytest.raises((AttributeError, TypeError)):
        use()


def test_numbers_and_offsets_with_a_sink() -> None:
    prngs = [random.Random(seed) for seed in range(30)]
    graph = [Plain(prng=prng, payload="x" * 500) for prng in prngs]
    encoder = Encoder(sink=io.BytesIO(), spill_bytes=2000)
    encoder.add(graph)
    in_memory = Encoder()
    in_memory.add(graph)
    assert encoder.numbers_of(graph) == in_memory.numbers_of(graph)
    assert encoder.random_offsets(prngs) == in_memory.random_offsets(prngs)
    encoder.finish()
    in_memory.finish()
    assert encoder.random_offsets(prngs) == in_memory.random_offsets(prngs)

"""The comparison that the other tests rely on: it must see every difference."""

from __future__ import annotations

import array
import collections
import copy
import datetime
import decimal
import functools
import io
import random
import re
import threading
import types
from typing import Any

import numpy as np
import pytest
from checks import (
    having,
    nan,
    pickled_copy,
)
from graph_compare import Mismatch, assert_same, difference, match
from graph_strategies import LEAVES, graphs
from hypothesis import HealthCheck, given, settings
from sample_types import (
    FrozenSlotted,
    HashedByKey,
    Level,
    MyArray,
    MyDict,
    MyError,
    MyInt,
    MyList,
    MyRandom,
    MyStr,
    Pair,
    Plain,
    Slotted,
    SlottedChild,
    SlottedList,
    Triple,
    WithSecret,
    function,
)

_QUICK = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def text(*parts: str) -> str:
    """A string that is no constant of this module."""
    return "".join(parts)


def shared(make: Any) -> list[Any]:
    child = make()
    return [child, child]


def apart(make: Any) -> list[Any]:
    return [make(), make()]


def cyclic(length: int, back_to: int) -> list[Any]:
    nodes: list[Any] = [[] for _ in range(length)]
    for node, after in zip(nodes, [*nodes[1:], nodes[back_to]], strict=True):
        node.append(after)
    return nodes[0]


def advanced(prng: Any, draws: int) -> Any:
    for _ in range(draws):
        prng.random()
    return prng


def with_gauss() -> random.Random:
    prng = random.Random(1)
    prng.gauss(0, 1)
    return prng


def read_only(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.flags.writeable = False
    return values


def deque_of(*items: Any, maxlen: int | None = None) -> collections.deque[Any]:
    return collections.deque(items, maxlen)


def memory_file(position: int) -> io.BytesIO:
    file = io.BytesIO(b"abc")
    file.seek(position)
    return file


def linked_sets(second: int) -> Any:
    """Two nodes that only their membership in a second set tells apart."""
    nodes = [Plain(rank=0), Plain(rank=1)]
    return [set(nodes), {nodes[second]}]


DIFFERENT = {
    "int and bool": lambda: (1, True),
    "int and float": lambda: (1, 1.0),
    "ints": lambda: (10**400, 10**400 + 1),
    "zeros": lambda: (0.0, -0.0),
    "nans": lambda: (nan(0), nan(1)),
    "complex zeros": lambda: (complex(0.0, 0.0), complex(0.0, -0.0)),
    "numpy zeros": lambda: (np.float64(0.0), np.float64(-0.0)),
    "numpy and python float": lambda: (np.float64(1.0), 1.0),
    "numpy and python bool": lambda: (np.bool_(True), True),
    "numpy scalars": lambda: (np.float64(1.0), np.float32(1.0)),
    "int subclass": lambda: (MyInt(1), 1),
    "str subclass": lambda: (MyStr("abc"), "abc"),
    "str and bytes": lambda: ("abc", b"abc"),
    "short str and bytes": lambda: ("a", b"a"),
    "bytes and bytearray": lambda: (b"abc", bytearray(b"abc")),
    "enum and value": lambda: (Level.LOW, 1),
    "None and Ellipsis": lambda: (None, ...),
    "tuple and list": lambda: ((1,), [1]),
    "tuple and named tuple": lambda: (Pair(1, 2), (1, 2)),
    "named tuples": lambda: (Triple(1, 2, 3), Triple(1, 2, 4)),
    "list order": lambda: ([1, 2], [2, 1]),
    "list length": lambda: ([1, 2], [1, 2, 3]),
    "dict order": lambda: ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "dict values": lambda: ({"a": 1}, {"a": True}),
    "dict keys": lambda: ({1: 1}, {True: 1}),
    "dict and OrderedDict": lambda: ({"a": 1}, collections.OrderedDict(a=1)),
    "OrderedDict order": lambda: (
        collections.OrderedDict([(1, 1), (2, 2)]),
        made_to_end(collections.OrderedDict([(1, 1), (2, 2)])),
    ),
    "default factory": lambda: (
        collections.defaultdict(list, {1: 1}),
        collections.defaultdict(set, {1: 1}),
    ),
    "sets": lambda: ({1, 2}, {1, 3}),
    "set types": lambda: ({1, 2}, frozenset({1, 2})),
    "set atoms": lambda: ({1}, {True}),
    "set members by value": lambda: ({("ab", 1)}, {("ab", 2)}),
    "set members by identity": lambda: ({Plain(a=1)}, {Plain(a=2)}),
    "set members from elsewhere": lambda: (linked_sets(0), linked_sets(1)),
    "set member or new object": lambda: (member(shared=True), member(shared=False)),
    "attribute order": lambda: (Plain(a=1, b=2), Plain(b=2, a=1)),
    "attribute values": lambda: (Plain(a=1), Plain(a=2)),
    "attribute names": lambda: (Plain(a=1), Plain(b=1)),
    "attribute unset": lambda: (Plain(a=None), Plain()),
    "attribute not of type str": lambda: (with_key(1), with_key(2)),
    "private attribute": lambda: (WithSecret(1), WithSecret(2)),
    "type of __dict__": lambda: (with_dict({"a": 1}), with_dict(MyDict({"a": 1}))),
    "slot unset": lambda: (Slotted(left=None), Slotted()),
    "slot values": lambda: (Slotted(left=1), Slotted(left=2)),
    "slots of the base": lambda: (SlottedChild(left=1, extra=1), SlottedChild(left=2, extra=1)),
    "slot of a list": lambda: (having(SlottedList(), tag=1), having(SlottedList(), tag=2)),
    "attribute of a list": lambda: (having(MyList(), a=1), having(MyList(), a=2)),
    "attribute of a str": lambda: (having(MyStr("abc"), a=1), having(MyStr("abc"), a=2)),
    "frozen": lambda: (FrozenSlotted(1, 2), FrozenSlotted(1, 3)),
    "classes": lambda: (Plain, Slotted),
    "functions": lambda: (function, having),
    "instances of classes": lambda: (Plain(), MyError()),
    "methods": lambda: (Plain(a=1).method, Plain(a=2).method),
    "method and function": lambda: (Plain().method, Plain.method),
    "builtin methods": lambda: ([1].append, [1].extend),
    "builtin methods of lists": lambda: ([1].append, [2].append),
    "partials": lambda: (functools.partial(function, 1), functools.partial(function, 2)),
    "partial keywords": lambda: (functools.partial(function, a=1), functools.partial(function)),
    "deque maxlen": lambda: (deque_of(1, maxlen=3), deque_of(1, maxlen=4)),
    "deque items": lambda: (deque_of(1, 2), deque_of(2, 1)),
    "exceptions": lambda: (ValueError(1), ValueError(2)),
    "exception attributes": lambda: (having(MyError(1), a=1), MyError(1)),
    "ranges": lambda: (range(0, 4, 2), range(0, 3, 2)),
    "slices": lambda: (slice(1, None), slice(1, 2)),
    "patterns": lambda: (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "array module": lambda: (array.array("b", [1]), array.array("B", [1])),
    "decimals": lambda: (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "fold": lambda: (datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, fold=1)),
    "time zone": lambda: (
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(2024, 1, 1),
    ),
    "file position": lambda: (memory_file(0), memory_file(1)),
    "namespaces": lambda: (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    "PRNG words": lambda: (random.Random(1), random.Random(2)),
    "PRNG index": lambda: (random.Random(1), advanced(random.Random(1), 1)),
    "PRNG gauss": lambda: (advanced(random.Random(1), 2), with_gauss()),
    "PRNG type": lambda: (random.Random(1), MyRandom(1)),
    "numpy Generator": lambda: (np.random.default_rng(1), np.random.default_rng(2)),
    "numpy Generator index": lambda: (
        np.random.default_rng(1),
        advanced(np.random.default_rng(1), 1),
    ),
    "RandomState": lambda: (np.random.RandomState(1), advanced(np.random.RandomState(1), 1)),
    "array values": lambda: (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
    "array nans": lambda: (np.array([nan(0)]), np.array([nan(1)])),
    "array dtype": lambda: (np.array([1], "i4"), np.array([1], "u4")),
    "array units": lambda: (np.array([1], "M8[s]"), np.array([1], "M8[ms]")),
    "array shape": lambda: (np.zeros((2, 3)), np.zeros((3, 2))),
    "array dimensions": lambda: (np.zeros(()), np.zeros((1,))),
    "array type": lambda: (np.zeros(2), np.zeros(2).view(MyArray)),
    "array and scalar": lambda: (np.array(1.0), np.float64(1.0)),
    "empty array shape": lambda: (np.zeros((0, 3)), np.zeros((0, 4))),
    "field names": lambda: (np.zeros(1, [("a", "i4")]), np.zeros(1, [("b", "i4")])),
    "field offsets": lambda: (
        np.zeros(1, [("a", "i1"), ("b", "i4")]),
        np.zeros(1, np.dtype([("a", "i1"), ("b", "i4")], align=True)),
    ),
    "object array": lambda: (np.array([1, "ab"], object), np.array([True, "ab"], object)),
    "object field": lambda: (object_field(1), object_field(1.0)),
    "aliasing of lists": lambda: (shared(list), apart(list)),
    "aliasing of tuples": lambda: (shared(lambda: tuple("ab")), apart(lambda: tuple("ab"))),
    "aliasing of strings": lambda: (shared(lambda: text("a", "b")), apart(lambda: text("a", "b"))),
    "aliasing of bytes": lambda: (shared(lambda: bytes([1, 2])), apart(lambda: bytes([1, 2]))),
    "aliasing of complex": lambda: (shared(lambda: complex(1)), apart(lambda: complex(1))),
    "aliasing of instances": lambda: (shared(Plain), apart(Plain)),
    "aliasing of arrays": lambda: (shared(lambda: np.zeros(1)), apart(lambda: np.zeros(1))),
    "aliasing of scalars": lambda: (shared(lambda: np.float64(1)), apart(lambda: np.float64(1))),
    "aliasing of keys": lambda: (key_twice(shared), key_twice(apart)),
    "aliasing of __dict__": lambda: (own_dict(True), own_dict(False)),
    "aliasing the other way round": lambda: (apart(list), shared(list)),
    "length of a cycle": lambda: (cyclic(2, 0), cyclic(3, 0)),
    "entry of a cycle": lambda: (cyclic(3, 0), cyclic(3, 1)),
}

DIFFERENT_IN_LAYOUT = {
    "strides": lambda: (np.zeros((2, 3)), np.zeros((2, 3), order="F")),
    "writability": lambda: (np.zeros(3), read_only(np.zeros(3))),
    "ownership": lambda: (np.zeros(3), np.zeros(3)[:]),
    "byte order": lambda: (np.array([1], "<i4"), np.array([1], ">i4")),
}


def made_to_end(ordered: collections.OrderedDict[Any, Any]) -> collections.OrderedDict[Any, Any]:
    ordered.move_to_end(next(iter(ordered)))
    return ordered


def member(shared: bool) -> Any:
    node = Plain(a=1)
    return [node, {node if shared else Plain(a=1)}]


def with_key(key: Any) -> Any:
    obj = Plain()
    obj.__dict__[key] = 1
    return obj


def with_dict(dictionary: dict[str, Any]) -> Any:
    obj = Plain()
    obj.__dict__ = dictionary
    return obj


def object_field(value: Any) -> np.ndarray[Any, Any]:
    values = np.zeros(1, [("number", "i4"), ("anything", object)])
    values["anything"][0] = value
    return values


def key_twice(make: Any) -> Any:
    first, second = make(lambda: text("a", "b"))
    return [{first: 1}, {second: 1}]


def own_dict(aliased: bool) -> Any:
    obj = Plain(a=1)
    return [obj, obj.__dict__ if aliased else {"a": 1}]


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("layout", [True, False])
def test_sees_the_difference(name: str, layout: bool) -> None:
    left, right = DIFFERENT[name]()
    assert difference(left, right, layout=layout)
    assert difference(right, left, layout=layout)
    assert difference([0, {"deep": (left,)}], [0, {"deep": (right,)}], layout=layout)


@pytest.mark.parametrize("name", DIFFERENT_IN_LAYOUT)
def test_sees_the_difference_in_layout_unless_told_not_to(name: str) -> None:
    left, right = DIFFERENT_IN_LAYOUT[name]()
    assert difference(left, right)
    assert difference(left, right, layout=False) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_an_object_is_the_same_as_itself(name: str) -> None:
    for obj in DIFFERENT[name]():
        assert_same(obj, obj)
        if "__dict__" not in name:  # deepcopy and pickle give an instance a dict of its own
            assert_same(obj, copy.deepcopy(obj), layout=False)


def test_says_where() -> None:
    left = Plain(a=[0, {"k": Plain(b=1)}])
    right = Plain(a=[0, {"k": Plain(b=2)}])
    assert "obj.a[1].<value 0>.b" in str(difference(left, right))


def test_gives_the_counterparts() -> None:
    child = Plain(a=1)
    left = [child, {child}]
    right = copy.deepcopy(left)
    pairs = match(left, right)
    assert any(a is child and b is right[0] for a, b in pairs)
    assert any(a is left[1] and b is right[1] for a, b in pairs)


def test_elements_that_look_alike_are_matched() -> None:
    left = {HashedByKey(key) for key in range(20)} | {Plain() for _ in range(5)}
    assert_same([left], copy.deepcopy([left]))


def test_elements_are_told_apart_by_what_refers_to_them() -> None:
    def graph() -> Any:
        nodes = [Plain() for _ in range(8)]
        for node, after in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            node.after = after
        return [set(nodes), {nodes[3]}, {nodes[5], nodes[6]}]

    assert_same(graph(), graph())


def test_depth_does_not_matter() -> None:
    def deep(bottom: Any) -> Any:
        graph: Any = bottom
        for _ in range(10_000):
            graph = [Plain(child=(graph,))]
        return graph

    assert_same(deep(1), deep(1))
    assert difference(deep(1), deep(2))


def test_refuses_what_it_does_not_understand() -> None:
    lock = threading.Lock()
    for obj in (lock, [lock], (n for n in ()), {}.keys(), memoryview(b"")):
        with pytest.raises(TypeError, match="does not understand"):
            match(obj, obj)


def test_never_calls_user_code() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        def __hash__(self) -> int:
            raise AssertionError

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError

    class HostileList(list):
        def __iter__(self) -> Any:
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

    graph = [Hostile(), HostileList([1])]
    assert_same(graph, graph)
    with pytest.raises(Mismatch):
        match(graph, [graph[0], HostileList([2])])


@_QUICK
@given(LEAVES)
def test_leaves_survive_pickle(leaf: Any) -> None:
    assert_same([leaf, leaf], pickled_copy([leaf, leaf]))


@_QUICK
@given(graphs())
def test_graphs_survive_pickle(graph: Any) -> None:
    assert_same(graph, pickled_copy(graph), layout=False)


@_QUICK
@given(graphs())
def test_pickle_twice_is_pickle_once_for_values(graph: Any) -> None:
    once = pickled_copy(graph)
    assert_same(once, pickled_copy(graph))
    assert_same(once, pickled_copy(once), layout=False)

"""Values of built-in and library types, and aliasing among them."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import functools
import io
import math
import os
import pathlib
import re
import types
import typing
import uuid
from typing import Any

import numpy as np
import pytest
from checks import (
    assert_copied,
    assert_like_pickle,
    copy_of,
    having,
    nan,
    pickled_copy,
)
from graph_compare import assert_same
from pams_parallel import snapshot
from sample_types import (
    THE_GLOBAL,
    Derived,
    Frozen,
    FrozenSlotted,
    Level,
    Meta,
    Mode,
    MyBytearray,
    MyBytes,
    MyComplex,
    MyCounter,
    MyDefaultDict,
    MyDeque,
    MyDict,
    MyFloat,
    MyFrozenset,
    MyInt,
    MyList,
    MyOrderedDict,
    MySet,
    MyStr,
    MyTuple,
    OfMeta,
    OfRegisteredMeta,
    OpenSlotted,
    Outer,
    Pair,
    PairWithAttributes,
    Plain,
    Record,
    Side,
    SlottedDict,
    SlottedFloat,
    SlottedList,
    SlottedSet,
    Triple,
    function,
)


def moved(ordered: collections.OrderedDict[Any, Any]) -> collections.OrderedDict[Any, Any]:
    ordered.move_to_end(next(iter(ordered)))
    return ordered


INTEGERS = [
    0,
    1,
    -1,
    255,
    256,
    -128,
    -129,
    2**15,
    2**16 - 1,
    2**16,
    -(2**15) - 1,
    2**31 - 1,
    2**31,
    -(2**31),
    -(2**31) - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64,
    2**2040 - 1,
    2**2040,
    10**400,
    -(10**400),
    1 << 100_000,
]
FLOATS = [
    0.0,
    -0.0,
    1.0,
    5e-324,
    math.pi,
    -math.inf,
    math.inf,
    nan(0),
    nan(0, negative=True),
    nan(0x1234),
]
STRINGS = [
    "",
    "a",
    "\x00",
    "é",
    "ß" * 300,
    "日本",
    "\U0001f600",
    "\ud800",
    "a\udfffb",
    "\ud83d\ude00",  # a pair of lone surrogates, not one character
    "x" * 70_000,
    "mixed ÿ Ā \U0010ffff",
]

VALUES: dict[str, Any] = {
    **{f"int {index}": value for index, value in enumerate(INTEGERS)},
    **{f"float {index}": value for index, value in enumerate(FLOATS)},
    **{f"str {index}": value for index, value in enumerate(STRINGS)},
    "None": None,
    "Ellipsis": ...,
    "NotImplemented": NotImplemented,
    "True beside 1 beside 1.0": [True, 1, 1.0, False, 0, 0.0, -0.0],
    "complex": [complex(-0.0, 0.0), complex(math.inf, -math.inf), 1j],
    "bytes": [b"", b"a", b"\x00\xff", bytes(range(256)) * 300],
    "bytearray": [bytearray(), bytearray(b"abc"), bytearray(100_000)],
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), tuple(range(1000)), ((),)),
    "lists": [[], [[]], list(range(2500))],
    "dicts": [{}, {"a": {}}, {index: str(index) for index in range(2500)}],
    "dict of mixed keys": {
        1: "int",
        1.5: "float",
        "1": "str",
        b"1": "bytes",
        None: "None",
        (1, "1"): "tuple",
        frozenset([1]): "frozenset",
        Side.BUY: "enum",
        int: "class",
        function: "function",
    },
    "dict with a hole": (lambda d: [d, d.pop("b")])({"a": 1, "b": 2, "c": 3})[0],
    "dict keys that are equal but not the same": [{1: "a"}, {True: "b"}, {1.0: "c"}],
    "sets": [set(), {1}, set(range(2500)), {"a", b"a", 1.5, None}],
    "frozensets": [frozenset(), frozenset([1]), frozenset(["a", frozenset(["b"])])],
    "enum": [Side.BUY, Side.SELL, Side],
    "IntEnum": [Level.LOW, Level.HIGH, 1, 2],
    "Flag": [Mode.READ, Mode.READ | Mode.WRITE, Mode(0)],
    "named tuples": [Pair(1, [2]), Triple(1), Triple(1, 2, 3)],
    "named tuple with attributes": having(PairWithAttributes(1, 2), note=[3]),
    "dataclasses": [Record("a", 1), Frozen("a", [1]), FrozenSlotted("a", [1]), OpenSlotted(1, 2)],
    "str subclass": [MyStr("abc"), having(MyStr("abc"), a=[1]), MyStr("")],
    "bytes subclass": having(MyBytes(b"abc"), a=[1]),
    "bytearray subclass": having(MyBytearray(b"abc"), a=[1]),
    "int subclass": [having(MyInt(3), a=1), MyInt(10**400), MyInt(-1)],
    "float subclass": [having(MyFloat(-0.0), a=1), having(SlottedFloat(1.5), tag=[1])],
    "complex subclass": having(MyComplex(1, -0.0), a=1),
    "list subclass": [
        having(MyList([1, [2]]), a=1),
        having(SlottedList([1]), tag=2),
        SlottedList(),
    ],
    "dict subclass": [having(MyDict(b=1), a=1), having(SlottedDict(b=1), tag=2), SlottedDict()],
    "tuple subclass": having(MyTuple([1, [2]]), a=1),
    "set subclass": having(MySet([1, "b"]), a=1),
    "frozenset subclass": having(MyFrozenset([1, "b"]), a=1),
    "OrderedDict": [
        collections.OrderedDict(),
        collections.OrderedDict(a=1, b=[2]),
        moved(collections.OrderedDict(a=1, b=2, c=3)),
        having(moved(MyOrderedDict(a=1, b=2)), note=[1]),
    ],
    "defaultdict": [
        collections.defaultdict(None, a=1),
        collections.defaultdict(list, a=[1]),
        collections.defaultdict(Plain, {1: Plain(a=1)}),
        MyDefaultDict(int, a=1),
    ],
    "deque": [
        collections.deque(),
        collections.deque([1, [2]]),
        collections.deque([1, 2, 3], maxlen=2),
        collections.deque(maxlen=0),
        having(MyDeque([1], 4), a=[1]),
    ],
    "Counter": [
        collections.Counter("abracadabra"),
        collections.Counter({"a": -1, "b": 0}),
        MyCounter("aab"),
    ],
    "ChainMap": collections.ChainMap({"a": 1}, {"b": 2}),
    "UserDict, UserList, UserString": [
        collections.UserDict(a=1),
        collections.UserList([1]),
        collections.UserString("abc"),
    ],
    "SimpleNamespace": types.SimpleNamespace(a=1, b=[2]),
    "array": [array.array("d", [1.5, -0.0]), array.array("b"), array.array("Q", [2**64 - 1])],
    "Decimal": [
        decimal.Decimal("1.10"),
        decimal.Decimal("-0"),
        decimal.Decimal("NaN12"),
        decimal.Decimal("sNaN"),
        decimal.Decimal("-Infinity"),
    ],
    "Fraction": fractions.Fraction(-22, 7),
    "date and time": [
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4, fold=1),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
        datetime.datetime.max,
        datetime.date(1, 1, 1),
        datetime.time(23, 59, 59, 999999, tzinfo=datetime.timezone.utc),
        datetime.timedelta(days=-1, microseconds=1),
        datetime.timezone(datetime.timedelta(hours=9), "JST"),
    ],
    "UUID": uuid.UUID("12345678123456781234567812345678"),
    "paths": [pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:/a"), pathlib.Path("a")],
    "ranges": [range(5), range(0), range(10**30, 0, -3)],
    "slices": [slice(None), slice(1, [2], "c")],
    "partial": [
        functools.partial(function),
        functools.partial(function, [1], key={"a": 1}),
        having(functools.partial(function, 1), note=[2]),
    ],
    "patterns": [re.compile("a(b)?"), re.compile(b"a", re.DOTALL)],
    "generic aliases": [list[int], dict[str, list[int]], int | None, typing.Optional[int]],  # noqa: UP045
    "memory files": [io.BytesIO(b"abc"), io.StringIO("abc")],
    "exceptions": [
        ValueError("a", [1]),
        KeyError(),
        OSError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        StopIteration(3),
        having(RuntimeError("a"), note=[1]),
    ],
    "classes": [
        int,
        type,
        object,
        type(None),
        type(...),
        type(NotImplemented),
        Plain,
        Outer.Inner,
        OfMeta,
        Meta,
        OfRegisteredMeta,
        collections.OrderedDict,
        np.ndarray,
        Exception,
    ],
    "functions": [
        function,
        Outer.Inner.method,
        Plain.static_method,
        len,
        math.sin,
        np.mean,
        np.add,
        os.getcwd,
        str.upper,
        object.__init__,
        int.__add__,
        os.path.join,
    ],
    "bound methods": [
        Plain(a=1).method,
        Plain.class_method,
        Derived.class_method,
        Outer.Inner(a=1).method,
        [1].append,
        "a b".split,
        {}.get,
        dict.fromkeys,
        datetime.datetime.now,
        (1.5).__add__,
        [1].__len__,
    ],
    "a name of a global": THE_GLOBAL,
}


@pytest.mark.parametrize("name", VALUES)
def test_value(name: str) -> None:
    assert_copied(VALUES[name])


@pytest.mark.parametrize("name", VALUES)
def test_value_inside_of_others(name: str) -> None:
    value = VALUES[name]
    assert_copied([Plain(value=value, again=(value,)), {"key": value}, collections.deque([value])])


def test_slot_of_a_set_subclass() -> None:
    """Pickle keeps it since Python 3.11; either way we do what pickle does."""
    assert_like_pickle(having(SlottedSet([1]), tag=[2]))


def test_iterators() -> None:
    half = iter([1, 2, 3])
    next(half)
    assert list(copy_of(half)) == [2, 3]
    assert list(copy_of(iter({"a": 1}))) == ["a"]
    assert list(copy_of(iter((1, 2)))) == [1, 2]
    assert list(copy_of(iter("ab"))) == ["a", "b"]
    assert list(copy_of(iter(range(3)))) == [0, 1, 2]
    assert list(copy_of(reversed([1, 2]))) == [2, 1]
    assert list(copy_of(enumerate(["a"]))) == [(0, "a")]
    assert list(copy_of(zip([1], [2], strict=True))) == [(1, 2)]
    assert list(copy_of(map(str, [1]))) == ["1"]


def test_the_copy_shares_nothing_mutable() -> None:
    original = {"list": [1], "bytes": bytearray(b"a"), "set": {1}, "obj": Plain(a=[1])}
    copied = copy_of(original)
    copied["list"].append(2)
    copied["bytes"] += b"b"
    copied["set"].add(2)
    copied["obj"].a.append(2)
    copied["obj"].b = 1
    assert original["list"] == [1]
    assert original["bytes"] == b"a"
    assert original["set"] == {1}
    assert vars(original["obj"]) == {"a": [1]}


def test_the_data_can_be_loaded_many_times() -> None:
    data = snapshot.dumps([Plain(a=[1])])
    first, second = snapshot.loads(data), snapshot.loads(data)
    assert first[0] is not second[0]
    assert_same(first, second)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda d: array.array("B", d)])
def test_any_buffer_can_be_loaded(wrap: Any) -> None:
    data = snapshot.dumps(["some", ("data",)])
    assert snapshot.loads(wrap(data)) == ["some", ("data",)]
    assert snapshot.loads(memoryview(b"before" + data)[6:]) == ["some", ("data",)]


def test_order_of_small_integers_and_texts_in_sets_is_that_of_pickle() -> None:
    for values in (range(100), [3 * i for i in range(50)], "qwertyuiopasdfghjkl", [0, 8, 16, 24]):
        original = set(values)
        original.discard(next(iter(original)))
        for either in (original, frozenset(original), MySet(original)):
            assert list(copy_of(either)) == list(pickled_copy(either))


# ---------------------------------------------------------------------------
# Aliasing.


def test_one_object_stays_one_and_two_equal_ones_stay_two() -> None:
    def text(number: int) -> str:
        return f"text of number {number}"

    makers: list[Any] = [
        list,
        dict,
        set,
        lambda: tuple("ab"),
        lambda: frozenset([1, "ab"]),
        lambda: text(1),
        lambda: text(1).encode(),
        bytearray,
        lambda: complex(1, 2),
        lambda: MyInt(1),
        lambda: MyStr("ab"),
        lambda: Pair(1, 2),
        lambda: range(3),
        lambda: slice(3),
        lambda: decimal.Decimal(1),
        lambda: datetime.date(2024, 1, 1),
        Plain,
        lambda: Plain.class_method,
        lambda: functools.partial(function),
        collections.deque,
        collections.OrderedDict,
        lambda: np.zeros(2),
        lambda: np.float64(1),
    ]
    for make in makers:
        one = make()
        copied = assert_copied([one, one, make(), {"a": one}, (one,), Plain(a=one)])
        assert copied[0] is copied[1]
        assert copied[0] is copied[3]["a"]
        assert copied[0] is copied[4][0]
        assert copied[0] is copied[5].a
        assert copied[0] is not copied[2]


def test_keys_and_values_share() -> None:
    key = "".join(["a", " key"])
    member = Plain(name="member")
    assert_copied([{key: key}, {key: member, member: key}, {member}, {key}, frozenset([key])])


@pytest.mark.parametrize(
    "make",
    [
        list,
        dict,
        Plain,
        MyList,
        MyDict,
        collections.deque,
        collections.OrderedDict,
        lambda: collections.defaultdict(list),
        lambda: np.empty(2, object),
    ],
)
def test_cycle_of_one_and_of_two(make: Any) -> None:
    def put(container: Any, item: Any) -> None:
        if isinstance(container, dict):
            container["item"] = item
        elif isinstance(container, np.ndarray):
            container[0] = item
        elif isinstance(container, Plain):
            container.item = item
        else:
            container.append(item)

    alone = make()
    put(alone, alone)
    assert_copied(alone)
    for between in (lambda x: x, lambda x: (x,), lambda x: (0, x, 0, x), lambda x: {"k": [x]}):
        first, second = make(), make()
        put(first, between(second))
        put(second, between(first))
        assert_copied(first)
        assert_copied([first, second])
        assert_copied([second, first])


@pytest.mark.parametrize("n_items", [1, 2, 3, 4, 10])
def test_recursive_tuple(n_items: int) -> None:
    """The tuple is finished while its own items are built."""
    inner: list[Any] = []
    recursive = (inner,) * n_items
    inner.append(recursive)
    assert_copied(recursive)
    assert_copied(inner)
    assert_copied([recursive, inner, recursive])


def test_tuple_recursive_at_two_levels() -> None:
    inner: list[Any] = []
    lower = (inner, 1)
    upper = (lower, 2)
    inner += [upper, lower]
    assert_copied(upper)
    assert_copied(lower)
    assert_copied(inner)


def test_recursive_frozenset() -> None:
    member = Plain()
    recursive = frozenset([member, 1])
    member.home = recursive
    assert_copied(recursive)
    assert_copied(member)
    assert_copied([recursive, member])


def test_recursive_subclasses_of_immutable_types() -> None:
    for cls in (MyTuple, MyFrozenset, PairWithAttributes):
        member = Plain()
        recursive = cls(member, 1) if cls is PairWithAttributes else cls([member])
        member.home = recursive
        assert_copied(recursive)
        assert_copied(member)
        recursive.itself = recursive
        assert_copied(recursive)


def test_set_within_its_own_member() -> None:
    member = Plain()
    home = {member, 1}
    member.home = home
    for root in (member, home, [home, member]):
        copied = assert_copied(root)
        found = copied if isinstance(copied, set) else None
        if found is not None:
            (node,) = (element for element in found if element != 1)
            assert node.home is found

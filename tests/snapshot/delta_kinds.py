"""One object of every kind, for tests that do something to each."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import functools
import random
import types
from typing import TYPE_CHECKING, Any

import numpy as np
from checks import having
from sample_types import (
    Bag,
    Derived,
    DropsModel,
    Frozen,
    FrozenSlotted,
    HashedByDefault,
    HashedByKey,
    MyArray,
    MyBytearray,
    MyCounter,
    MyDefaultDict,
    MyDeque,
    MyDict,
    MyError,
    MyInt,
    MyList,
    MyOrderedDict,
    MyRandom,
    MySet,
    MyStr,
    NewArgs,
    NewArgsEx,
    OfMeta,
    OfRegisteredMeta,
    OpenSlotted,
    Outer,
    PairWithAttributes,
    Plain,
    Record,
    Slotted,
    SlottedDict,
    SlottedList,
    SlottedOpen,
    SlottedSecret,
    Stateful,
    StateOnly,
    WithSecret,
    function,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _read_only(values: Any) -> Any:
    values.flags.writeable = False
    return values


def _record_array() -> Any:
    values = np.zeros(2, dtype=[("number", "i4"), ("anything", object)])
    values["anything"][0] = ["in an array"]
    return values


def _drawn(prng: random.Random) -> random.Random:
    prng.random()
    prng.gauss(0.0, 1.0)
    return prng


def _bag() -> Bag:
    return having(Bag(6, "argument"), state=[1], items=[2, [3]], pairs=[("k", [4])])


# The whole state of these is known to the walk, so what changes in them is sent as a delta and
# undone in place.
NATIVE_KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, "text", [2], 1.5, None, ("a", "tuple")],
    "empty list": list,
    "dict": lambda: {"a": 1, 2: [3], "key": "value", 1.5: None, ("a", 1): True},
    "set": lambda: {1, "text", 2.5, ("a", 1), frozenset([1, "in a set"])},
    "deque": lambda: collections.deque([1, "text", [2]]),
    "bounded deque": lambda: collections.deque([1, "text", [2]], 3),
    "ordered dict": lambda: collections.OrderedDict(a=1, b=[2], c="text"),
    "default dict": lambda: collections.defaultdict(list, a=1, b=[2]),
    "bytearray": lambda: bytearray(b"some bytes"),
    "generator of random": lambda: random.Random(1),
    "used generator of random": lambda: _drawn(random.Random(2)),
    "generator of NumPy": lambda: np.random.default_rng(1),
    "array": lambda: np.arange(12.0),
    "integers": lambda: np.arange(6, dtype="i4").reshape(2, 3),
    "instance": lambda: Plain(a=1, first_name="text", value=[2]),
    "empty instance": Plain,
    "derived instance": lambda: Derived(a=[1], b=None),
    "private names": lambda: WithSecret([1]),
    "slots": lambda: Slotted(left=[1]),
    "slots and attributes": lambda: SlottedOpen(left=[1], b=2),
    "private slots": lambda: SlottedSecret([1]),
    "dataclass": lambda: Record("name", [1], [Plain()]),
}

OTHER_KINDS: dict[str, Callable[[], Any]] = {
    "slotted dataclass": lambda: OpenSlotted("name", [1]),
    "frozen dataclass": lambda: Frozen("name", [1]),
    "frozen slotted dataclass": lambda: FrozenSlotted("name", [1]),
    "instance with a metaclass": lambda: OfMeta(a=1, b=[2]),
    "instance with a registered metaclass": lambda: OfRegisteredMeta(a=1, b=[2]),
    "instance of a nested class": lambda: Outer.Inner(a=1, b=[2]),
    "read-only array": lambda: _read_only(np.arange(4.0)),
    "view": lambda: np.arange(12.0).reshape(3, 4)[1:, ::2],
    "array without elements": lambda: np.zeros((3, 0)),
    "array without axes": lambda: np.array(1.5),
    "structured array": lambda: np.zeros(3, dtype=[("price", "f8"), ("volume", "i1")]),
    "objects in an array": lambda: np.array([[1], "text", Plain(a=1)], dtype=object),
    "objects in a structured array": _record_array,
    "array of a subclass": lambda: np.arange(6, dtype="i2").view(MyArray),
    "RandomState": lambda: np.random.RandomState(1),
    "subclass of Random": lambda: _drawn(MyRandom(1)),
    "array of numbers": lambda: array.array("d", [1.0, -0.0, 2.5]),
    "list subclass": lambda: having(MyList([1, [2]]), note="text", value=[3]),
    "dict subclass": lambda: having(MyDict(a=1, b=[2]), note="text"),
    "set subclass": lambda: having(MySet([1, "text"]), note="text"),
    "deque subclass": lambda: having(MyDeque([1, [2]], 5), note="text"),
    "bytearray subclass": lambda: having(MyBytearray(b"abc"), note="text"),
    "ordered dict subclass": lambda: having(MyOrderedDict(a=1, b=[2]), note="text"),
    "default dict subclass": lambda: having(MyDefaultDict(list, a=1), note="text"),
    "str subclass": lambda: having(MyStr("text"), note=[1]),
    "int subclass": lambda: having(MyInt(10**30), note=[1]),
    "named tuple with attributes": lambda: having(PairWithAttributes(1, [2]), note=[1]),
    "slotted list subclass": lambda: having(SlottedList([1]), tag=[2]),
    "slotted dict subclass": lambda: having(SlottedDict(a=1), tag=[2]),
    "counter": lambda: collections.Counter("abracadabra"),
    "counter subclass": lambda: having(MyCounter("hello"), note=[1]),
    "user dict": lambda: collections.UserDict(a=1, b=[2]),
    "chain map": lambda: collections.ChainMap({"a": 1}, {"b": [2]}),
    "namespace": lambda: types.SimpleNamespace(a=1, b=[2]),
    "partial": lambda: functools.partial(function, [1], key="value"),
    "exception": lambda: having(MyError("text", 1), note=[1]),
    "reducer": _bag,
    "state that is a list": lambda: Stateful([1], "text"),
    "state without some attributes": lambda: StateOnly(a=[1], b=2),
    "attribute of the module": lambda: DropsModel("agent"),
    "constructor arguments": lambda: NewArgs("text", [1]),
    "named constructor arguments": lambda: NewArgsEx(1, second=[2]),
    "hashed by an attribute": lambda: HashedByKey("key"),
    "hashed by a default": lambda: HashedByDefault("key"),
}

KINDS = NATIVE_KINDS | OTHER_KINDS

# Hooks of Python classes, behind which there may be more than pickle gets to see.
UNTRACKED_KINDS = {
    "frozen slotted dataclass",
    "array of a subclass",
    "subclass of Random",
    "bytearray subclass",
    "str subclass",
    "int subclass",
    "named tuple with attributes",
    "counter subclass",
    "exception",
    "reducer",
    "state that is a list",
    "state without some attributes",
    "attribute of the module",
    "constructor arguments",
    "named constructor arguments",
}


def _bag_around(part: Any) -> Bag:
    return having(Bag(3), state=[part])


def _cells(part: Any) -> np.ndarray[Any, Any]:
    values = np.empty(2, dtype=object)
    values[0] = part
    return values


# Objects around another one, which are compared in various ways, and how to exchange that.
AROUND: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], None]]] = {
    "list": (lambda part: [part], lambda obj, part: obj.__setitem__(0, part)),
    "dict": (lambda part: {"k": part}, lambda obj, part: obj.__setitem__("k", part)),
    "instance": (lambda part: Plain(a=part), lambda obj, part: setattr(obj, "a", part)),
    "slots": (lambda part: Slotted(left=part), lambda obj, part: setattr(obj, "left", part)),
    "deque": (lambda part: collections.deque([part]), lambda obj, part: obj.__setitem__(0, part)),
    "namespace": (
        lambda part: types.SimpleNamespace(a=part),
        lambda obj, part: setattr(obj, "a", part),
    ),
    "partial": (
        lambda part: functools.partial(function, part),
        lambda obj, part: obj.__setstate__((function, (part,), {}, None)),
    ),
    "objects in an array": (_cells, lambda obj, part: obj.__setitem__(0, part)),
    "reducer": (_bag_around, lambda obj, part: obj.state.__setitem__(0, part)),
    "state that is a list": (Stateful, lambda obj, part: setattr(obj, "content", (part,))),
    "state without some attributes": (
        lambda part: StateOnly(a=part),
        lambda obj, part: setattr(obj, "a", part),
    ),
    "exception": (ValueError, lambda obj, part: setattr(obj, "args", (part,))),
    "user dict": (
        lambda part: collections.UserDict(a=part),
        lambda obj, part: obj.__setitem__("a", part),
    ),
    "generator": (
        lambda part: having(random.Random(1), gauss_next=part),
        lambda obj, part: setattr(obj, "gauss_next", part),
    ),
}

# Never changed: another object takes their place.
LEAVES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bool": lambda: True,
    "int": lambda: 1,
    "big int": lambda: 10**400,
    "negative int": lambda: -(2**63) - 1,
    "float": lambda: 1.0,
    "negative zero": lambda: -0.0,
    "nan": lambda: float("nan"),
    "complex": lambda: complex(-0.0, 1),
    "str": lambda: "".join(["te", "xt"]),
    "surrogates": lambda: "".join(["\ud800", "\udfff", "x"]),
    "bytes": lambda: bytes([1, 2, 3]),
    "tuple": lambda: (int("1"), "text"),
    "empty tuple": tuple,
    "frozenset": lambda: frozenset([1, "text"]),
    "date": lambda: datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
    "decimal": lambda: decimal.Decimal("-0.00"),
    "range": lambda: range(3),
    "class": lambda: Plain,
    "function": lambda: function,
    "bound method": lambda: Plain(a=1).method,
    "NumPy scalar": lambda: np.float64(1.0),
    "ellipsis": lambda: ...,
}

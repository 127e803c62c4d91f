"""Objects whose state or parts are out of sight, and unusual ways to change ordinary ones."""

from __future__ import annotations

import abc
import collections
import datetime
import decimal
import functools
import io
import itertools
import operator
import pathlib
import pickle
import random
import re
import sys
import types
import uuid
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from delta_support import UNKNOWN, Chain, numbers_of, objects
from pams_parallel.snapshot import Replica, Source
from sample_types import (
    Bag,
    Frozen,
    HashedByKey,
    Mode,
    MyDeque,
    MyDict,
    MyFrozenset,
    MyList,
    MyStr,
    MyTuple,
    NoSlots,
    Pair,
    Plain,
    Record,
    Side,
    Slotted,
    Stateful,
    Triple,
    function,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# --- state that only the object itself can see ------------------------------------------------


def spawn(obj: Any) -> None:
    obj.spawn(1)


def more_precision(obj: Any) -> None:
    obj.prec += 1


def write(data: Any) -> Callable[[Any], Any]:
    return lambda obj: obj.write(data)


def content(obj: Any) -> Any:
    return obj.getvalue(), obj.tell()


SEVEN = (1, 2, 3, 4, 5, 6, 7)

# How to make an object, to change it, and to look at a copy of it.
HIDDEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "iterator of a list": (lambda: iter([*SEVEN]), next, list),
    "iterator of a tuple": (lambda: iter(SEVEN), next, list),
    "iterator of a range": (lambda: iter(range(7)), next, list),
    "iterator of a dict": (lambda: iter(dict.fromkeys(SEVEN)), next, list),
    "reverse iterator": (lambda: reversed([*SEVEN]), next, list),
    "enumerate": (lambda: enumerate([*SEVEN]), next, list),
    "zip": (lambda: zip([*SEVEN], "abcdefg"), next, list),  # noqa: B905
    "BytesIO": (lambda: io.BytesIO(b"abc"), write(b"x"), content),
    "StringIO": (lambda: io.StringIO("abc"), write("x"), content),
    "decimal context": (decimal.Context, more_precision, repr),
    "seed sequence": (lambda: np.random.SeedSequence(1), spawn, lambda obj: obj.state),
    "spawning generator": (lambda: np.random.default_rng(1), spawn, pickle.dumps),
    "exception": (lambda: ValueError("a"), lambda obj: obj.__init__(*obj.args, "b"), repr),
    "bounded deque": (
        lambda: collections.deque([1], 3),
        lambda obj: obj.__init__([1], obj.maxlen + 1),
        repr,
    ),
    "bounded deque of a subclass": (
        lambda: MyDeque([1], 3),
        lambda obj: obj.__init__([1], obj.maxlen + 1),
        repr,
    ),
    "generator made anew": (
        lambda: random.Random(1),
        lambda obj: obj.__init__(obj.getrandbits(8)),
        lambda obj: obj.getstate(),
    ),
    "default dict made anew": (
        lambda: collections.defaultdict(list),
        lambda obj: obj.__init__(dict, a=1),
        repr,
    ),
}
if sys.version_info < (3, 14):  # later ones cannot be pickled
    HIDDEN |= {
        "count": (itertools.count, next, repr),
        "cycle": (
            lambda: itertools.cycle([*SEVEN]),
            next,
            lambda obj: list(itertools.islice(obj, 9)),
        ),
        "islice": (lambda: itertools.islice([*SEVEN], 1, None), next, list),
    }


@pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support:DeprecationWarning")
@pytest.mark.parametrize("kind", HIDDEN)
def test_hidden_state(kind: str) -> None:
    make, change, look = HIDDEN[kind]

    def shown(obj: Any) -> Any:
        return look(pickle.loads(pickle.dumps(obj, protocol=5)))

    obj = make()
    source, replica = Source(), Replica()
    replica.apply(source.frame(([obj],)))
    for _ in range(3):
        change(obj)
        replica.apply(source.frame(([obj],)))
        assert shown(replica.roots[0][0]) == shown(obj)
    change(replica.roots[0][0])
    if not replica.roll_back():
        replica.apply(source.frame(([obj],), keyframe=True))
    assert shown(replica.roots[0][0]) == shown(obj)


# --- parts that are hard to reach -------------------------------------------------------------


class Zone(datetime.tzinfo):
    """A time zone with something inside."""

    def __init__(self, part: Any = None) -> None:
        self.part = part

    def utcoffset(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(0)

    def __reduce__(self) -> Any:
        return type(self), (self.part,)


def record_array(part: Any) -> Any:
    values = np.zeros(2, dtype=[("number", "i4"), ("anything", object)])
    values["anything"][1] = part
    return values


def with_attribute(obj: Any, part: Any) -> Any:
    obj.part = part
    return obj


def pending(part: Any) -> random.Random:
    prng = random.Random(1)
    prng.gauss_next = part
    return prng


def in_a_bag(part: Any, arity: int) -> Bag:
    bag = Bag(arity, *([part] if arity == 2 else []))
    bag.state, bag.items, bag.pairs = [part], [part], [("k", part)]
    return bag


PLACES: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda part: (part,),
    "tuple subclass": lambda part: MyTuple((part,)),
    "named tuple": lambda part: Pair(part, 1),
    "typed named tuple": Triple,
    "frozenset": lambda part: frozenset([part]),
    "frozenset subclass": lambda part: MyFrozenset([part]),
    "set": lambda part: {part},
    "key": lambda part: {part: 1},
    "key in a tuple": lambda part: {(part, 1): 1},
    "key of an ordered dict": lambda part: collections.OrderedDict([(part, 1)]),
    "bound method": lambda part: part.method,
    "method of a list": lambda part: [part].append,
    "partial": lambda part: functools.partial(function, part),
    "default factory": lambda part: collections.defaultdict(part.method),
    "slice": lambda part: slice(0, part),
    "slice of a tuple": lambda part: slice(0, (part,)),
    "generic alias": lambda part: types.GenericAlias(list, (part,)),
    "method caller": lambda part: operator.methodcaller("method", part),
    "frozen dataclass": Frozen,
    "slots": lambda part: Slotted(left=part),
    "exception": ValueError,
    "attribute of an exception": lambda part: with_attribute(ValueError(), part),
    "attribute of a str": lambda part: with_attribute(MyStr("text"), part),
    "object array": lambda part: np.array([part, 1], dtype=object),
    "record array": record_array,
    "chain map": lambda part: collections.ChainMap({1: part}),
    "user list": lambda part: collections.UserList([part]),
    "time zone": lambda part: datetime.datetime(2024, 2, 29, tzinfo=Zone(part)),
    "pending gauss": pending,
    "state": lambda part: in_a_bag(part, 3),
    "items": lambda part: in_a_bag(part, 4),
    "pairs": lambda part: in_a_bag(part, 5),
    "arguments": lambda part: in_a_bag(part, 2),
    "state that is a list": Stateful,
    "iterator": lambda part: iter([part]),
    "twice": lambda part: (part, MyTuple((part,)), frozenset([part])),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_part_changes(place: str) -> None:
    """Nothing else leads to it."""
    part = Plain(a=[1])
    root = [PLACES[place](part)]
    source, replica = Source(), Replica()
    replica.apply(source.frame((root,)))
    for step in range(4):
        if step % 2:
            part.a.append(step)
        else:
            setattr(part, f"attribute_{step}", step)
        replica.apply(source.frame((root,)))
        numbers = numbers_of(source, [part, part.a])
        assert UNKNOWN not in numbers
        twin, inner = objects(replica, numbers)
        assert list(vars(twin)) == list(vars(part))
        assert twin.a is inner
        assert inner == part.a
        assert pickle.dumps(pickle.loads(pickle.dumps(replica.roots[0]))) == pickle.dumps(
            pickle.loads(pickle.dumps(root))
        )
    twin.vandalism = twin.a
    twin.a.append("vandalism")
    if not replica.roll_back():
        replica.apply(source.frame((root,), keyframe=True))
        twin, inner = objects(replica, numbers_of(source, [part, part.a]))
    assert list(vars(twin)) == list(vars(part))
    assert inner == part.a


# These cannot be looked into from outside.
OPAQUE_PLACES = {"iterator", "generic alias", "method caller"}


@pytest.mark.parametrize("place", [place for place in PLACES if place not in OPAQUE_PLACES])
def test_a_part_that_leaves_and_returns(place: str) -> None:
    """As long as it is away, its changes are nobody's business."""
    part = Plain(a=[1])
    wrapped = PLACES[place](part)
    chain = Chain([wrapped])
    chain.step()
    for step in range(2):
        chain.roots[0].clear()
        chain.step()
        part.a.append(step)
        chain.step()
        chain.roots[0].append(wrapped)
        chain.step()
        part.b = [step]
        chain.step()
        part.a.append(step)
        chain.step()


# --- the dict of an instance ------------------------------------------------------------------


class Compact:
    """Instances whose dict is not made before somebody looks at it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values = [number]
        self.nothing = None


def test_attributes_without_a_dict() -> None:
    agents = [Compact(n) for n in range(6)]
    source, replica = Source(), Replica()

    def send() -> list[Any]:
        replica.apply(source.frame((agents,)))
        return replica.roots[0]

    twins = send()
    agents[0].number = 7
    assert send()[0].number == 7
    del agents[1].values
    assert not hasattr(send()[1], "values")
    agents[1].values = [5]
    assert send()[1].values == [5]
    agents[2].added = 5  # type: ignore[attr-defined]
    assert send()[2].added == 5
    agents.append(Compact(9))
    assert send()[6].number == 9
    assert not source.is_keyframe
    twins[3].number = "vandalism"
    twins[4].vandalism = 1
    del twins[5].nothing
    twins[6].values = None
    assert replica.roll_back()
    vars(twins[0])["number"] = "vandalism"
    twins[6].__dict__ = {"vandalism": 1}
    assert replica.roll_back()
    assert [list(vars(twin).items()) for twin in twins] == [
        list(vars(agent).items()) for agent in agents
    ]


def test_a_dict_of_a_subclass() -> None:
    agent = Plain(a=1)
    chain = Chain([agent])
    chain.step()
    agent.__dict__ = MyDict(b=2)
    chain.step()
    agent.c = 3
    chain.step()
    agent.__dict__ = {"d": 1}
    chain.step()


class EvilDict(dict):
    """Instances use it without a look at its methods."""

    def refuse(self, *args: Any) -> Any:
        raise AssertionError("a method of the vandal")

    __iter__ = __len__ = __setitem__ = __delitem__ = __contains__ = refuse  # type: ignore[assignment]
    items = keys = values = clear = update = pop = copy = refuse  # type: ignore[assignment]


@pytest.mark.parametrize("cls", [MyDict, EvilDict, collections.OrderedDict])
def test_a_dict_of_a_subclass_from_a_vandal(cls: Any) -> None:
    agent = Plain(a=1)
    chain = Chain([agent])
    chain.step()
    chain.replica.roots[0][0].__dict__ = cls(b=2)
    chain.roll_back()
    assert type(vars(chain.replica.roots[0][0])) is dict


def test_names_of_attributes_that_are_of_a_subclass() -> None:
    agent = Plain(a=1)
    chain = Chain([agent])
    chain.step()
    vars(agent)[MyStr("b")] = 2
    chain.step()
    agent.c = 3
    chain.step()
    twin = chain.replica.roots[0][0]
    vars(twin)[MyStr("d")] = 2
    chain.roll_back()
    twin = chain.replica.roots[0][0]
    del twin.a
    vars(twin)[MyStr("a")] = 1
    chain.roll_back()


# --- containers of a vandal -------------------------------------------------------------------


class EvilKey:
    """Takes the place of another key and cannot be compared."""

    def __init__(self, hashed: int) -> None:
        self._hashed = hashed

    def __hash__(self) -> int:
        return self._hashed

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared with a key of the vandal")


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": 1, "b": [2]},
        lambda: collections.OrderedDict(a=1, b=2),
        lambda: collections.defaultdict(list, a=1),
        lambda: MyDict(a=1),
        lambda: Plain(a=1),
        lambda: {HashedByKey("a"): 1},
    ],
)
def test_keys_that_cannot_be_compared(make: Any) -> None:
    chain = Chain(make())
    chain.step()
    for first in (True, False):
        twin = chain.replica.roots[0]
        table = vars(twin) if type(twin) is Plain else twin
        hashes = [hash(key) for key in table]
        if first:
            table.clear()
        else:
            del table[next(iter(table))]
        table[EvilKey(hashes[0])] = 1
        chain.roll_back()


def test_elements_that_cannot_be_compared() -> None:
    chain = Chain({1, 2, 3})
    chain.step()
    chain.replica.roots[0].clear()
    chain.replica.roots[0].add(EvilKey(1))
    chain.roll_back()


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: dict.__setitem__(obj, "z", 1),
        lambda obj: dict.__setitem__(obj, "a", 1),
        lambda obj: dict.__delitem__(obj, "a"),
        lambda obj: dict.clear(obj),
        lambda obj: dict.update(obj, z=1, a=5),
        lambda obj: dict.__setitem__(obj, "a", dict.pop(obj, "a")),
    ],
)
def test_an_ordered_dict_changed_behind_its_back(change: Any) -> None:
    chain = Chain(collections.OrderedDict(a=1, b=2, c=[3]))
    chain.step()
    change(chain.replica.roots[0])
    chain.roll_back()


# --- classes ----------------------------------------------------------------------------------


class OtherList(list):
    pass


class OtherSlots:
    __slots__ = ("left", "right")


@pytest.mark.parametrize(("obj", "cls"), [(MyList([1]), OtherList), (Slotted(left=1), OtherSlots)])
def test_classes_with_the_same_layout(obj: Any, cls: Any) -> None:
    chain = Chain([obj])
    chain.step()
    former = type(obj)
    chain.replica.roots[0][0].__class__ = cls
    chain.roll_back()
    for new in (cls, former):
        obj.__class__ = new
        chain.step()


# --- what is common in agents and costs nothing -----------------------------------------------

COMMON: dict[str, Callable[[], Any]] = {
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "decimal": lambda: decimal.Decimal("1.5"),
    "fraction": lambda: Fraction(1, 3),
    "uuid": lambda: uuid.UUID(int=7),
    "date": lambda: datetime.date(2024, 2, 29),
    "time": lambda: datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
    "pattern": lambda: re.compile("a+"),
    "enum member": lambda: [Side.BUY, Mode.READ | Mode.WRITE],
    "NumPy scalars": lambda: [np.float64(1), np.int32(2), np.bool_(True), np.str_("text")],
    "data type": lambda: np.dtype([("price", "f8")]),
    "functions": lambda: [len, function, np.add, np.mean, Plain, Plain.static_method],
    "bound methods": lambda: [Plain(a=1).method, Plain.class_method, [1].append],
    "partial": lambda: functools.partial(function, 1),
    "dataclasses": lambda: [Record("name", 1), Frozen("name", 1), Pair(1, 2), Triple(1)],
    "subclasses": lambda: [MyList([1]), MyDict(a=1), MyTuple((1,)), NoSlots()],
    "counter": lambda: collections.Counter("abc"),
    "memory layouts": lambda: [np.arange(6.0)[::2], np.ones((2, 3)).T, np.array([None, "text"])],
}


@pytest.mark.parametrize("kind", COMMON)
def test_common_objects_leave_deltas_alone(kind: str) -> None:
    chain = Chain([COMMON[kind]()], [1])
    chain.step()
    for step in range(3):
        chain.roots[1].append(step)
        frame = chain.step()
        assert not chain.source.is_keyframe
        assert len(frame) < 200


class ClaimsEverything(abc.ABC):
    """Says of every class, also of ``object``, that it is a subclass."""

    __slots__ = ("hidden",)

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return True

    @abc.abstractmethod
    def method(self) -> None: ...


class Claiming(ClaimsEverything):
    def __init__(self) -> None:
        self.hidden = [1]
        self.shown = [1]

    def method(self) -> None: ...


def test_an_abstract_base_class_that_claims_everything() -> None:
    """What a class was made from counts, not what an abstract base class says of itself."""
    obj = Claiming()
    chain = Chain([obj])
    chain.step()
    obj.hidden.append(2)
    chain.step()
    obj.hidden = [3]
    chain.step()
    chain.replica.roots[0][0].hidden = None
    chain.roll_back()
    assert chain.replica.roots[0][0].hidden == [3]

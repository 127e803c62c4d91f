"""Hypothesis strategies for object graphs.

A graph is built in two rounds: objects are made one after the other, each of them from objects
made before it, then some of the mutable ones get references to any others. So children are
shared, and cycles run through every kind of container. Everything here is preserved by pickle
exactly, unless a cycle makes pickle fail.
"""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import functools
import pathlib
import random
import re
import sys
import types
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from sample_types import (
    Bag,
    Derived,
    DropsModel,
    Frozen,
    FrozenSlotted,
    HashedByDefault,
    HashedByKey,
    Level,
    Mode,
    MyArray,
    MyBytearray,
    MyBytes,
    MyComplex,
    MyCounter,
    MyDefaultDict,
    MyDeque,
    MyDict,
    MyError,
    MyFloat,
    MyFrozenset,
    MyInt,
    MyList,
    MyOrderedDict,
    MyRandom,
    MySet,
    MyStr,
    MyTuple,
    NewArgs,
    NewArgsEx,
    NoSlots,
    OfMeta,
    OfRegisteredMeta,
    OpenSlotted,
    Outer,
    Pair,
    PairWithAttributes,
    Plain,
    Record,
    Registered,
    Side,
    Slotted,
    SlottedChild,
    SlottedDict,
    SlottedFloat,
    SlottedList,
    SlottedOpen,
    SlottedSecret,
    SlottedSet,
    Stateful,
    StateOnly,
    Triple,
    WithSecret,
    function,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ATTRIBUTES = ("a", "b", "first_name", "value", "x" * 40, "größe", "not an identifier", "")

_TEXT = st.one_of(
    st.text(max_size=6),
    st.text(st.characters(categories=["Cs", "Lu", "So"]), min_size=2, max_size=5),
    st.sampled_from(["first_name", "value", "\ud800lone", "日本語", "\U0001f600 smile", "a" * 300]),
)
_INTEGERS = st.one_of(
    st.integers(-3, 300),
    st.integers(),
    st.sampled_from([2**15, 2**16, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, -(2**63), 10**400]),
)
_FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([-0.0, float("nan"), -float("nan"), float("inf"), 5e-324]),
)
_GLOBALS = st.sampled_from(
    [
        int,
        type,
        Plain,
        Outer.Inner,
        OfMeta,
        OfRegisteredMeta,
        function,
        Outer.Inner.method,
        len,
        str.upper,
        random.Random,
        np.add,
        type(None),
        type(...),
        type(NotImplemented),
        collections.OrderedDict,
        datetime.timezone.utc,
    ]
)
_DTYPES = st.sampled_from(
    [
        np.dtype("?"),
        np.dtype("i1"),
        np.dtype(">i4"),
        np.dtype("u8"),
        np.dtype("f2"),
        np.dtype("f8"),
        np.dtype(">f8"),
        np.dtype("c16"),
        np.dtype("S3"),
        np.dtype("U2"),
        np.dtype("V5"),
        np.dtype("M8[ms]"),
        np.dtype("m8[D]"),
        np.dtype(np.longdouble),
        np.dtype([("price", "f8"), ("volume", "i4")]),
        np.dtype([("price", "f8"), ("volume", "i1")], align=True),
        np.dtype({"names": ["late", "early"], "formats": ["i2", "i4"], "offsets": [8, 0]}),
        np.dtype([("pairs", "i2", (2, 2)), ("inner", [("deep", ">u2")])]),
    ]
)
_SHAPES = st.sampled_from([(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (2, 1, 3), (1, 1, 1, 2)])

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    _INTEGERS,
    _FLOATS,
    st.complex_numbers(),
    _TEXT,
    st.binary(max_size=6),
    st.sampled_from([*Side, *Level, *Mode, Mode.READ | Mode.WRITE, ..., NotImplemented, ()]),
    _GLOBALS,
)


def _arrays(draw: Any) -> np.ndarray[Any, Any]:
    """An array of any plain kind and layout."""
    dtype = draw(_DTYPES)
    shape = draw(_SHAPES)
    n_bytes = dtype.itemsize * int(np.prod(shape, dtype=int))
    if dtype == np.dtype("?"):
        raw = bytes(draw(st.integers(0, 1)) for _ in range(n_bytes))
    elif dtype.kind == "U":
        raw = np.array(["añ"] * max(1, n_bytes // dtype.itemsize), dtype).tobytes()[:n_bytes]
    else:
        raw = random.Random(draw(st.integers(0, 9))).randbytes(n_bytes)
    values = np.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
    layout = draw(
        st.sampled_from(
            ["C", "F", "owned", "transposed", "step", "reversed", "broadcast", "offset"]
        )
    )
    if layout == "F":
        values = np.asfortranarray(values)
    elif layout == "owned":
        values = values.copy()
    elif layout == "transposed":
        values = values.T
    elif layout == "step" and values.ndim:
        values = values[::2]
    elif layout == "reversed" and values.ndim:
        values = values[..., ::-1]
    elif layout == "broadcast":
        values = np.broadcast_to(values, (2, *values.shape))
    elif layout == "offset" and values.ndim:
        values = values[1:]
    if draw(st.booleans()):
        values = values.view()
        values.flags.writeable = False
    return values


def _random_generator(draw: Any) -> random.Random:
    prng = draw(st.sampled_from([random.Random, random.Random, MyRandom]))(draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, 3))):
        prng.random()
    if draw(st.booleans()):
        prng.gauss(0.0, 1.0)
    return prng


def _numpy_generator(draw: Any) -> Any:
    bits = draw(st.sampled_from([np.random.PCG64, np.random.MT19937, np.random.SFC64]))
    generator = np.random.Generator(bits(draw(st.integers(0, 5))))
    generator.random(draw(st.integers(0, 3)))
    generator.integers(0, 5, dtype=np.uint16)  # leaves half of a word behind
    return generator


class Source:
    """Where the parts of a new object come from."""

    def __init__(self, draw: Any, pool: list[Any], custom_hashes: bool) -> None:
        self.draw = draw
        self.pool = pool
        self._custom_hashes = custom_hashes

    def leaf(self) -> Any:
        return self.draw(LEAVES)

    def any(self) -> Any:
        if self.pool and self.draw(st.booleans()):
            return self.draw(st.sampled_from(self.pool))
        return self.leaf()

    def count(self, most: int = 3) -> range:
        return range(self.draw(st.integers(0, most)))

    def many(self) -> list[Any]:
        return [self.any() for _ in self.count()]

    def names(self) -> list[str]:
        return self.draw(st.lists(st.sampled_from(ATTRIBUTES), max_size=3, unique=True))

    def attributes(self) -> dict[str, Any]:
        return {name: self.any() for name in self.names()}

    def key(self) -> Any:
        """Something hashable; its hash may depend on objects that are built later."""
        candidates = [obj for obj in self.pool if _has_stable_hash(obj) or self._custom_hash(obj)]
        if candidates and self.draw(st.booleans()):
            return self.draw(st.sampled_from(candidates))
        return self.stable_key()

    def stable_key(self) -> Any:
        """Something hashable whose hash never changes."""
        candidates = [obj for obj in self.pool if _has_stable_hash(obj)]
        if candidates and self.draw(st.booleans()):
            return self.draw(st.sampled_from(candidates))
        return self.leaf()

    def _custom_hash(self, obj: Any) -> bool:
        return self._custom_hashes and _has_custom_hash(obj)


_IDENTITY_HASHED = (Plain, Slotted, SlottedSecret, WithSecret, Stateful, StateOnly, NoSlots)
_VALUE_HASHED = (int, float, complex, str, bytes, range, type, types.FunctionType, type(None))


def _has_stable_hash(obj: Any) -> bool:
    if type(obj) in (tuple, frozenset):
        return all(map(_has_stable_hash, obj))
    return isinstance(obj, _IDENTITY_HASHED + _VALUE_HASHED)


def _has_custom_hash(obj: Any) -> bool:
    if type(obj) is tuple:
        return all(_has_stable_hash(part) or _has_custom_hash(part) for part in obj)
    if type(obj) in (Frozen, FrozenSlotted):
        return all(
            _has_stable_hash(part) or _has_custom_hash(part) for part in (obj.name, obj.value)
        )
    return isinstance(obj, HashedByKey | HashedByDefault)


def _with_attributes(obj: Any, source: Source) -> Any:
    for name, value in source.attributes().items():
        setattr(obj, name, value)
    return obj


def _plain(source: Source) -> Any:
    cls = source.draw(st.sampled_from([Plain, Plain, Derived, OfMeta, OfRegisteredMeta]))
    obj = cls()
    for name, value in source.attributes().items():
        setattr(obj, name, value)
    if obj.__dict__ and source.draw(st.booleans()):
        # Another order than the one that the class shares among its instances.
        name = next(iter(obj.__dict__))
        value = getattr(obj, name)
        delattr(obj, name)
        setattr(obj, name, value)
    return obj


def _slotted(source: Source) -> Any:
    cls = source.draw(st.sampled_from([Slotted, SlottedChild, SlottedOpen]))
    obj = cls()
    for name in ("left", "right", "extra"):
        if source.draw(st.booleans()) and (name != "extra" or cls is not Slotted):
            setattr(obj, name, source.any())
    return obj


def _bag(source: Source) -> Any:
    bag = Bag(source.draw(st.integers(2, 6)), *[source.leaf() for _ in source.count()])
    bag.state = source.any()
    if bag.arity > 3:
        bag.items = source.many()
    if bag.arity > 4:
        bag.pairs = [(source.any(), source.any()) for _ in source.count()]
    if bag.arity < 3:
        bag.state = None
    return bag


def _ordered(source: Source) -> Any:
    cls = source.draw(st.sampled_from([collections.OrderedDict, MyOrderedDict]))
    made = cls((source.key(), source.any()) for _ in source.count())
    if made:
        made.move_to_end(next(iter(made)))
    return made if cls is collections.OrderedDict else _with_attributes(made, source)


def _object_array(source: Source) -> Any:
    values = np.empty(source.draw(_SHAPES), dtype=object)
    for index in np.ndindex(values.shape):
        values[index] = source.any()
    return values


def _record_array(source: Source) -> Any:
    values = np.zeros(2, dtype=[("number", "i4"), ("anything", object)])
    for index in range(2):
        values["number"][index] = index + 7
        values["anything"][index] = source.any()
    return values


def _my_array(source: Source) -> Any:
    return np.arange(6, dtype="i2").reshape(2, 3).view(MyArray)


def _partial(source: Source) -> Any:
    made = functools.partial(function, *source.many(), keyword=source.any())
    if source.draw(st.booleans()):
        made.note = source.any()  # type: ignore[attr-defined]
    return made


def _date_and_time(source: Source) -> Any:
    zone = source.draw(
        st.sampled_from(
            [None, datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=9), "JST")]
        )
    )
    return source.draw(
        st.sampled_from(
            [
                datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, zone, fold=1),
                datetime.time(1, 2, 3, 4, zone),
                datetime.date(1, 1, 1),
                datetime.timedelta(-1, 5, 7),
                datetime.timezone(datetime.timedelta(seconds=-1)),
            ]
        )
    )


def _number_like(source: Source) -> Any:
    return source.draw(
        st.sampled_from(
            [
                decimal.Decimal("-0.00"),
                decimal.Decimal("NaN123"),
                fractions.Fraction(22, 7),
                uuid.UUID(int=7),
                MyInt(10**30),
                MyFloat("-0.0"),
                MyComplex(-0.0, 2),
                range(2**70),
                range(0, 10, 3),
                slice(1, None, 2),
                np.float64("nan"),
                np.float32(1.5),
                np.int64(-1),
                np.bool_(True),
                np.str_("numpy text"),
                np.bytes_(b"numpy bytes"),
                np.datetime64("2024-02-29T12:00"),
                np.longdouble("0.1"),
                np.void(b"abc"),
            ]
        )
    )


def _library_object(source: Source) -> Any:
    return source.draw(
        st.sampled_from(
            [
                pathlib.PurePosixPath("/some/path"),
                pathlib.Path("relative") / "path",
                re.compile("a+(b)", re.IGNORECASE),
                list[int],
                int | str,
                array.array("d", [1.0, -0.0]),
                array.array("b"),
            ]
        )
    )


MAKERS: list[Callable[[Source], Any]] = [
    Source.leaf,
    Source.many,
    lambda source: list(source.many() * 2),
    lambda source: tuple(source.many()),
    lambda source: (source.any(), source.any()),
    lambda source: {source.key(): source.any() for _ in source.count(4)},
    lambda source: {source.key() for _ in source.count(4)},
    lambda source: frozenset(source.stable_key() for _ in source.count(4)),
    _plain,
    _plain,
    _slotted,
    _bag,
    _ordered,
    _partial,
    _object_array,
    _record_array,
    _my_array,
    _date_and_time,
    _number_like,
    _library_object,
    lambda source: _arrays(source.draw),
    lambda source: _random_generator(source.draw),
    lambda source: _numpy_generator(source.draw),
    lambda source: np.random.RandomState(source.draw(st.integers(0, 9))),
    lambda source: bytearray(source.draw(st.binary(max_size=9))),
    lambda source: collections.deque(source.many(), source.draw(st.sampled_from([None, 0, 2]))),
    lambda source: _with_attributes(MyDeque(source.many(), 5), source),
    lambda source: collections.defaultdict(
        source.draw(st.sampled_from([None, list, Plain])),
        {source.key(): source.any() for _ in source.count()},
    ),
    lambda source: MyDefaultDict(int, {source.key(): source.any()}),
    lambda source: collections.Counter(source.stable_key() for _ in source.count(4)),
    lambda source: MyCounter("hello"),
    lambda source: collections.ChainMap({source.key(): source.any()}, {}),
    lambda source: collections.UserDict({source.key(): source.any()}),
    lambda source: types.SimpleNamespace(**source.attributes()),
    lambda source: _with_attributes(MyStr(source.draw(_TEXT)), source),
    lambda source: _with_attributes(MyBytes(source.draw(st.binary())), source),
    lambda source: _with_attributes(MyBytearray(b"abc"), source),
    lambda source: _with_attributes(MyInt(source.draw(_INTEGERS)), source),
    lambda source: _with_attributes(MyFloat(source.draw(_FLOATS)), source),
    lambda source: _with_attributes(MyList(source.many()), source),
    lambda source: _with_attributes(MyTuple(source.many()), source),
    lambda source: _with_attributes(MyDict({source.key(): source.any()}), source),
    lambda source: _with_attributes(MySet([source.stable_key()]), source),
    lambda source: _with_attributes(MyFrozenset([source.stable_key()]), source),
    lambda source: _tagged(SlottedList(source.many()), source),
    lambda source: _tagged(SlottedDict({source.key(): source.any()}), source),
    lambda source: _tagged(SlottedSet([source.stable_key()]), source),
    lambda source: _tagged(SlottedFloat(source.draw(_FLOATS)), source),
    lambda source: Pair(source.any(), source.any()),
    lambda source: Triple(source.any()),
    lambda source: _with_attributes(PairWithAttributes(source.any(), 1), source),
    lambda source: Record(source.any(), source.any(), source.many()),
    lambda source: Frozen(source.any(), source.any()),
    lambda source: FrozenSlotted(source.any(), source.any()),
    lambda source: OpenSlotted(source.any(), source.any()),
    lambda source: WithSecret(source.any()),
    lambda source: SlottedSecret(source.any()),
    lambda source: NoSlots(),
    lambda source: NewArgs(source.draw(_TEXT), source.leaf()),
    lambda source: NewArgsEx(source.leaf(), second=source.leaf()),
    lambda source: Stateful(*source.many()),
    lambda source: StateOnly(**{name: source.any() for name in ("a", "b")}),
    lambda source: DropsModel("agent"),
    lambda source: Registered(source.leaf()),
    lambda source: Outer.Inner(inner=source.any()),
    lambda source: Plain().method,
    lambda source: [source.any()].append,
    lambda source: Outer.Inner(**source.attributes()).method,
    lambda source: Plain.class_method,
    lambda source: MyError(source.leaf()),
    lambda source: ValueError(source.leaf(), source.leaf()),
    lambda source: KeyError(),
]

_CUSTOM_HASH_MAKERS: list[Callable[[Source], Any]] = [
    lambda source: HashedByKey(source.stable_key()),
    lambda source: HashedByDefault(source.stable_key()),
    lambda source: Frozen(source.key(), source.key()),
    lambda source: FrozenSlotted(source.key(), source.key()),
    lambda source: (source.key(), source.key()),
    lambda source: {source.key() for _ in source.count(5)},
    lambda source: {source.key(): source.any() for _ in source.count(5)},
    _plain,
    Source.many,
]


def _tagged(obj: Any, source: Source) -> Any:
    keeps_slots = not isinstance(obj, set) or sys.version_info >= (3, 11)
    if keeps_slots and source.draw(st.booleans()):
        obj.tag = source.any()
    return obj


def _link(obj: Any, source: Source) -> None:
    """Let a mutable object refer to any other."""
    other = source.draw(st.sampled_from(source.pool))
    if isinstance(obj, list):
        obj.insert(source.draw(st.integers(0, len(obj))), other)
    elif isinstance(obj, collections.deque):
        obj.appendleft(other)
    elif isinstance(obj, collections.Counter):
        obj["linked"] = 3
    elif isinstance(obj, dict):
        obj[source.key()] = other
    elif type(obj) is set:
        obj.add(source.key())
    elif type(obj) is np.ndarray and obj.dtype == object and obj.ndim == 1 and obj.size:
        obj[0] = other
    elif isinstance(obj, HashedByKey | HashedByDefault):
        obj.other = other  # type: ignore[union-attr]
    elif isinstance(obj, Plain | OfMeta | Record | Outer.Inner | StateOnly):
        setattr(obj, source.draw(st.sampled_from(ATTRIBUTES[:4])), other)
    elif isinstance(obj, Slotted):
        obj.left = other
    elif isinstance(obj, OpenSlotted):
        obj.value = other


def _link_key(source: Source) -> None:
    """Let an object refer to a container of which it is an element or a key."""
    # Counters and subclasses of set get their content as an argument of their constructor.
    filled_later = (dict, set, MyDict, SlottedDict, collections.OrderedDict)
    containers = [obj for obj in source.pool if type(obj) in filled_later]
    keys = [obj for obj in source.pool if isinstance(obj, HashedByKey | HashedByDefault)]
    if not containers or not keys:
        return
    container = source.draw(st.sampled_from(containers))
    key = source.draw(st.sampled_from(keys))
    key.other = source.draw(st.sampled_from([container, [container], (key, container)]))
    if isinstance(container, dict):
        container[source.draw(st.sampled_from([key, (key, 1)]))] = source.any()
    else:
        container.add(key)


@st.composite
def graphs(draw: Any, most: int = 12, custom_hashes: bool = False) -> Any:
    """Any object graph.

    Args:
        draw: given by hypothesis.
        most: largest number of objects made.
        custom_hashes: whether keys and elements may be objects whose hash depends on their
            attributes, for which pickle often fails; most objects are such or hold them.
    """
    pool: list[Any] = []
    source = Source(draw, pool, custom_hashes)
    makers = _CUSTOM_HASH_MAKERS * 6 + MAKERS if custom_hashes else MAKERS
    for _ in range(draw(st.integers(1, most))):
        pool.append(draw(st.sampled_from(makers))(source))
    for _ in range(draw(st.integers(0, most))):
        if custom_hashes and draw(st.booleans()):
            _link_key(source)
        else:
            _link(draw(st.sampled_from(pool)), source)
    roots = draw(st.permutations(pool))
    return roots[0] if draw(st.booleans()) else roots

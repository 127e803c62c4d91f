"""What one Python object consists of, seen through its base type.

No user code runs: subclasses are asked through the methods of the built-in type, attributes and
slots through the descriptors of the classes. A type that is not understood raises ``TypeError``.
"""

from __future__ import annotations

import _random
import array
import collections
import datetime
import decimal
import enum
import functools
import io
import pathlib
import re
import struct
import types
import typing
from typing import Any, NamedTuple

import numpy as np

_HEAP_TYPE = 1 << 9
_WORD = struct.calcsize("P")

_SINGLETONS = (None, Ellipsis, NotImplemented)
_SAME_OBJECT_TYPES = (
    type,
    types.FunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    functools._lru_cache_wrapper,
    np.ufunc,
    type(np.mean),
)
_TYPING_TYPES = (
    types.GenericAlias,
    types.UnionType,
    typing.TypeVar,
    type(typing.List[int]),  # noqa: UP006  (the old aliases are the point)
    type(typing.Any),
    type(typing.Optional[int]),  # noqa: UP045
)


class Description(NamedTuple):
    """What one object consists of.

    Attributes:
        label: everything that is compared by value.
        ordered: children by the name of the edge to them.
        unordered: children without an order.
    """

    label: tuple[Any, ...]
    ordered: list[tuple[str, Any]]
    unordered: list[Any]


class InstanceDict(NamedTuple):
    """Edge to the ``__dict__`` of an instance, whose names of attributes are atoms."""

    dictionary: dict[Any, Any]


def float_bits(value: float) -> bytes:
    """Bits of a float, which distinguish zeros and nans."""
    return struct.pack("<d", value)


def atom_key(obj: object) -> tuple[Any, ...] | None:
    """Key of an object without an identity of its own, ``None`` for any other."""
    cls = type(obj)
    if cls is int:
        return ("int", obj)
    if cls is float:
        return ("float", float_bits(obj))  # type: ignore[arg-type]
    if cls is bool or cls is np.bool_:
        return (cls, bool(obj))
    if any(obj is singleton for singleton in _SINGLETONS):
        return ("singleton", repr(obj))
    if (cls is str or cls is bytes) and len(obj) <= 1:  # type: ignore[arg-type]
        return (cls.__name__, obj)
    if (cls is tuple or cls is frozenset) and not obj:
        return (cls.__name__, "empty")
    if isinstance(cls, enum.EnumMeta) or issubclass(cls, _SAME_OBJECT_TYPES):
        return ("same object", id(obj), _short(obj))
    if cls is types.BuiltinFunctionType and (
        obj.__self__ is None or type(obj.__self__) is types.ModuleType  # type: ignore[attr-defined]
    ):
        return ("same object", id(obj), _short(obj))
    if issubclass(cls, np.dtype):
        return ("dtype", dtype_key(obj))  # type: ignore[arg-type]
    if issubclass(cls, _TYPING_TYPES):
        return ("typing", cls, repr(obj))
    return None


def dtype_key(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Everything that distinguishes two data types."""
    fields: Any = None
    if dtype.fields is not None:
        fields = tuple(
            (name, dtype_key(dtype.fields[name][0]), dtype.fields[name][1:])
            for name in dtype.names or ()
        )
    subdtype = None if dtype.subdtype is None else (dtype_key(dtype.subdtype[0]), dtype.subdtype[1])
    metadata = repr(dict(dtype.metadata)) if dtype.metadata else None
    return (
        dtype.str,
        dtype.type,
        dtype.itemsize,
        dtype.alignment,
        dtype.isalignedstruct,
        dtype.hasobject,
        fields,
        subdtype,
        metadata,
    )


def _short(obj: object) -> str:
    text = object.__repr__(obj) if type(obj).__repr__ is object.__repr__ else type(obj).__name__
    return f"{text} {getattr(obj, '__qualname__', '')}".strip()


def _instance_dict(obj: object) -> dict[Any, Any] | None:
    """The real ``__dict__``, whatever the class shows under that name."""
    for cls in type(obj).__mro__:
        descriptor = cls.__dict__.get("__dict__")
        if isinstance(descriptor, types.GetSetDescriptorType | types.MemberDescriptorType):
            return descriptor.__get__(obj)
    return None


def _slots(obj: object) -> list[tuple[str, Any]]:
    """Set slots of the classes that define ``__slots__``; the edge says which class."""
    found = []
    for cls in type(obj).__mro__:
        if "__slots__" not in cls.__dict__ or not cls.__flags__ & _HEAP_TYPE:
            continue
        for name, descriptor in cls.__dict__.items():
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    value = descriptor.__get__(obj)
                except AttributeError:
                    continue
                found.append((f".<slot of {cls.__name__}>.{name}", value))
    return found


def _check_python_class(cls: type, base: type) -> None:
    """Refuse state that a class implemented in C could hide between ``cls`` and ``base``."""
    if base is object:
        # Dicts and weak references of newer versions stand in front of the object.
        n_words = (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
        for klass in cls.__mro__:
            if "__slots__" in klass.__dict__:
                members = klass.__dict__.values()
                n_words += sum(isinstance(m, types.MemberDescriptorType) for m in members)
        if cls.__basicsize__ != object.__basicsize__ + n_words * _WORD:
            raise TypeError(f"the comparator does not understand {cls!r}")
    for klass in cls.__mro__:
        if klass is base:
            return
        hidden = not klass.__flags__ & _HEAP_TYPE
        hidden |= isinstance(klass.__dict__.get("__new__"), types.BuiltinFunctionType)
        if hidden:
            raise TypeError(f"the comparator does not understand {klass!r}")


# ---------------------------------------------------------------------------
# Content of the built-in types. Every function returns what its base type holds;
# attributes and slots of subclasses are added by `describe`.


def _indexed(values: typing.Iterable[Any]) -> list[tuple[str, Any]]:
    return [(f"[{index}]", value) for index, value in enumerate(values)]


def _pairs(items: typing.Iterable[tuple[Any, Any]]) -> list[tuple[str, Any]]:
    edges = []
    for index, (key, value) in enumerate(items):
        edges.append((f".<key {index}>", key))
        edges.append((f".<value {index}>", value))
    return edges


def _str(obj: Any) -> Description:
    return Description((str.__str__(obj),), [], [])


def _bytes(obj: Any) -> Description:
    return Description((bytes.__getitem__(obj, slice(None)),), [], [])


def _bytearray(obj: Any) -> Description:
    return Description((bytes(memoryview(obj)),), [], [])


def _int(obj: Any) -> Description:
    return Description((int.__index__(obj),), [], [])


def _float(obj: Any) -> Description:
    return Description((float_bits(float.__float__(obj)),), [], [])


def _complex(obj: Any) -> Description:
    parts = (complex.real.__get__(obj), complex.imag.__get__(obj))  # type: ignore[attr-defined]
    return Description(tuple(map(float_bits, parts)), [], [])


def _tuple(obj: Any) -> Description:
    return Description((), _indexed(tuple.__iter__(obj)), [])


def _list(obj: Any) -> Description:
    return Description((), _indexed(list.__iter__(obj)), [])


def _dict(obj: Any) -> Description:
    return Description((), _pairs(dict.items(obj)), [])


def _ordered_dict(obj: Any) -> Description:
    # An OrderedDict has an order of its own, which may differ from that of the dict inside it.
    values = {id(key): value for key, value in dict.items(obj)}
    order = collections.OrderedDict.__iter__(obj)
    return Description((), _pairs((key, values[id(key)]) for key in order), [])


def _defaultdict(obj: Any) -> Description:
    factory = collections.defaultdict.default_factory.__get__(obj)  # type: ignore[attr-defined]
    return Description((), [(".default_factory", factory), *_pairs(dict.items(obj))], [])


def _set(obj: Any) -> Description:
    return Description((), [], list(set.__iter__(obj)))


def _frozenset(obj: Any) -> Description:
    return Description((), [], list(frozenset.__iter__(obj)))


def _deque(obj: Any) -> Description:
    maxlen = collections.deque.maxlen.__get__(obj)  # type: ignore[attr-defined]
    return Description((maxlen,), _indexed(collections.deque.__iter__(obj)), [])


def _random_state(obj: Any) -> Description:
    return Description((_random.Random.getstate(obj),), [], [])


def _exception(obj: Any) -> Description:
    return Description((), _indexed(BaseException.__dict__["args"].__get__(obj)), [])


def _range(obj: Any) -> Description:
    return Description((obj.start, obj.stop, obj.step), [], [])


def _slice(obj: Any) -> Description:
    return Description((), [(f".{n}", getattr(obj, n)) for n in ("start", "stop", "step")], [])


def _partial(obj: Any) -> Description:
    edges = [(".func", obj.func)]
    edges += [(f".args[{index}]", value) for index, value in enumerate(obj.args)]
    edges += [(f".keywords[{name!r}]", value) for name, value in obj.keywords.items()]
    return Description((), edges, [])


def _method(obj: Any) -> Description:
    return Description((), [(".__func__", obj.__func__), (".__self__", obj.__self__)], [])


def _builtin_method(obj: Any) -> Description:
    return Description((obj.__name__,), [(".__self__", obj.__self__)], [])


def _pattern(obj: Any) -> Description:
    return Description((obj.pattern, obj.flags), [], [])


def _array(obj: Any) -> Description:
    return Description((obj.typecode, obj.tobytes()), [], [])


def _decimal(obj: Any) -> Description:
    return Description((decimal.Decimal.as_tuple(obj),), [], [])


def _date(obj: Any) -> Description:
    return Description((obj.year, obj.month, obj.day), [], [])


def _clock(obj: Any) -> tuple[Any, ...]:
    return (obj.hour, obj.minute, obj.second, obj.microsecond, obj.fold)


def _time(obj: Any) -> Description:
    return Description(_clock(obj), [(".tzinfo", obj.tzinfo)], [])


def _datetime(obj: Any) -> Description:
    label = (obj.year, obj.month, obj.day, *_clock(obj))
    return Description(label, [(".tzinfo", obj.tzinfo)], [])


def _timedelta(obj: Any) -> Description:
    return Description((obj.days, obj.seconds, obj.microseconds), [], [])


def _timezone(obj: Any) -> Description:
    offset = obj.utcoffset(None)
    return Description((offset.days, offset.seconds, offset.microseconds, obj.tzname(None)), [], [])


def _nothing(obj: Any) -> Description:
    return Description((), [], [])


def _path(obj: Any) -> Description:
    # Paths cache their parts in slots, so these are no content.
    return Description((str(obj),), [], [])


def _memory_file(obj: Any) -> Description:
    return Description((obj.getvalue(), obj.tell()), [], [])


def _value(state: Any) -> Any:
    """PRNG states as plain values."""
    if isinstance(state, dict):
        return tuple((name, _value(value)) for name, value in state.items())
    if isinstance(state, np.ndarray):
        return (state.dtype.str, state.tobytes())
    if isinstance(state, float):
        return float_bits(state)
    return state


def _bit_generator(obj: Any) -> Description:
    return Description((_value(obj.state),), [], [])


def _generator(obj: Any) -> Description:
    return Description((), [(".bit_generator", obj.bit_generator)], [])


def _random_state_numpy(obj: Any) -> Description:
    return Description((_value(obj.get_state(legacy=False)),), [], [])


def _cells(values: np.ndarray[Any, Any], edge: str) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Raw bytes and objects in an array, field by field: bytes between fields mean nothing."""
    if values.dtype.names is not None:
        raw: list[Any] = []
        objects = []
        for name in values.dtype.names:
            more_raw, more_objects = _cells(values[name], f"{edge}[{name!r}]")
            raw += more_raw
            objects += more_objects
        return raw, objects
    if values.dtype.hasobject:
        return [], [(f"{edge}{list(i)}", values[i]) for i in np.ndindex(values.shape)]
    if values.dtype.char in "gG" and np.finfo(np.longdouble).nmant == 63:
        # Ten bytes of the x87 unit, then padding.
        words = np.frombuffer(values.tobytes(), "u1").reshape(-1, np.longdouble(0).itemsize)
        return [words[:, :10].tobytes()], []
    return [values.tobytes()], []


def _ndarray(obj: Any) -> Description:
    plain = obj.view(np.ndarray)
    raw, objects = _cells(plain, "")
    names = ("C_CONTIGUOUS", "F_CONTIGUOUS", "WRITEABLE", "ALIGNED")
    flags = tuple(bool(plain.flags[name]) for name in names)
    owns_data = bool(obj.flags["OWNDATA"])
    layout = Layout((dtype_key(plain.dtype), *raw, flags, plain.strides, owns_data))
    # Pickle turns arrays that are not contiguous into native byte order.
    native = plain
    if not plain.dtype.hasobject:
        native = plain.astype(plain.dtype.newbyteorder("="))
        raw = _cells(native, "")[0]
    return Description((dtype_key(native.dtype), plain.shape, *raw, layout), objects, [])


class Layout(tuple):  # type: ignore[type-arg]
    """Part of a label that a comparison can be told to leave out."""

    __slots__ = ()


def _numpy_scalar(obj: Any) -> Description:
    cell = np.asarray(obj)
    raw, objects = _cells(cell, "")
    return Description((dtype_key(cell.dtype), *raw), objects, [])


_CONTENT: list[tuple[type, typing.Callable[[Any], Description]]] = [
    # A subclass stands before its base.
    (np.generic, _numpy_scalar),
    (np.ndarray, _ndarray),
    (np.random.Generator, _generator),
    (np.random.RandomState, _random_state_numpy),
    (np.random.BitGenerator, _bit_generator),
    (collections.OrderedDict, _ordered_dict),
    (collections.defaultdict, _defaultdict),
    (dict, _dict),
    (list, _list),
    (tuple, _tuple),
    (set, _set),
    (frozenset, _frozenset),
    (str, _str),
    (bytes, _bytes),
    (bytearray, _bytearray),
    (int, _int),
    (float, _float),
    (complex, _complex),
    (collections.deque, _deque),
    (_random.Random, _random_state),
    (BaseException, _exception),
    (range, _range),
    (slice, _slice),
    (functools.partial, _partial),
    (types.MethodType, _method),
    (types.BuiltinMethodType, _builtin_method),
    (types.MethodWrapperType, _builtin_method),
    (re.Pattern, _pattern),
    (array.array, _array),
    (decimal.Decimal, _decimal),
    (datetime.datetime, _datetime),
    (datetime.date, _date),
    (datetime.time, _time),
    (datetime.timedelta, _timedelta),
    (datetime.timezone, _timezone),
    (datetime.tzinfo, _nothing),
    (pathlib.PurePath, _path),
    (io.BytesIO, _memory_file),
    (io.StringIO, _memory_file),
    (types.SimpleNamespace, _nothing),
    (object, _nothing),
]


# Bases whose subclasses in C add nothing that their content does not show.
_C_SUBCLASSES = (np.generic, np.random.BitGenerator, BaseException, pathlib.PurePath)


def describe(obj: object) -> Description:
    """Label and children of one object that is not an atom."""
    cls = type(obj)
    base, content = next(entry for entry in _CONTENT if issubclass(cls, entry[0]))
    if base not in _C_SUBCLASSES:
        _check_python_class(cls, base)
    found = content(obj)
    ordered = list(found.ordered)
    if base is not pathlib.PurePath:
        ordered += _own_attributes(obj)
    return Description((cls, *found.label), ordered, found.unordered)


def _own_attributes(obj: object) -> list[tuple[str, Any]]:
    attributes = _instance_dict(obj)
    return _slots(obj) + ([] if attributes is None else [(".__dict__", InstanceDict(attributes))])


def describe_instance_dict(dictionary: dict[Any, Any]) -> Description:
    """As :func:`describe` for the ``__dict__`` of an instance."""
    label: list[Any] = [type(dictionary)]
    edges: list[tuple[str, Any]] = []
    for index, (key, value) in enumerate(dict.items(dictionary)):
        if type(key) is str:
            label.append(key)
            edges.append((f".{key}", value))
        else:
            label.append(None)
            edges += [(f".<key {index}>", key), (f".<value {index}>", value)]
    if type(dictionary) is not dict:
        edges += _own_attributes(dictionary)
    return Description(tuple(label), edges, [])

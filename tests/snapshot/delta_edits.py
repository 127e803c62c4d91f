"""What can be done to an object: the changes of a user, and the mischief of a vandal."""

from __future__ import annotations

import array
import ast
import collections
import contextlib
import functools
import random
import types
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from graph_strategies import ATTRIBUTES
from sample_types import (
    Bag,
    Derived,
    DropsModel,
    Frozen,
    FrozenSlotted,
    HashedByDefault,
    HashedByKey,
    MyStr,
    NewArgs,
    NewArgsEx,
    OfMeta,
    OfRegisteredMeta,
    OpenSlotted,
    Outer,
    Plain,
    Registered,
    Slotted,
    SlottedDict,
    SlottedFloat,
    SlottedList,
    SlottedSecret,
    Stateful,
    StateOnly,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Chooser(Protocol):
    """Where the parts of an edit come from."""

    def value(self) -> Any:
        """Any object, an old or a new one."""

    def leaf(self) -> Any:
        """An immutable object without parts."""

    def key(self) -> Any:
        """Something hashable whose hash does not change."""

    def index(self, n: int, /) -> int:
        """A number from 0 to ``n - 1``."""


class SeededChooser:
    """The same choices every time."""

    def __init__(self, pool: list[Any], seed: int = 0) -> None:
        self._pool = pool
        self._prng = random.Random(seed)
        self._n_made = 0

    def index(self, n: int, /) -> int:
        return self._prng.randrange(n)

    def leaf(self) -> Any:
        self._n_made += 1
        makers: list[Any] = [
            str,
            float,
            lambda n: n,
            lambda n: f"text {n}",
            lambda n: -(10**30) - n,
        ]
        return makers[self.index(len(makers))](self._n_made)

    def key(self) -> Any:
        return self.leaf()

    def value(self) -> Any:
        self._n_made += 1
        choice = self.index(4)
        if choice == 0 and self._pool:
            return self._pool[self.index(len(self._pool))]
        if choice == 1:
            return Plain(number=self._n_made, others=list(self._pool))
        return [self._n_made, self.leaf()] if choice == 2 else self.leaf()


def _own_dict(obj: Any) -> Any:
    """The ``__dict__`` of an instance whose attributes are its own business, or ``None``."""
    if isinstance(obj, type | types.FunctionType | types.ModuleType | types.MethodType):
        return None
    return obj.__dict__ if isinstance(getattr(obj, "__dict__", None), dict) else None


def _has_attributes(obj: Any) -> bool:
    is_ours = type(obj).__module__ not in ("builtins", "typing") and not isinstance(
        obj, types.GenericAlias
    )
    # Enum members are the same objects on both sides.
    return is_ours and _own_dict(obj) is not None and not hasattr(type(obj), "__members__")


def _few(obj: Any) -> bool:
    return len(obj) < 40


# --- lists ------------------------------------------------------------------------------------


def _list_pop(obj: Any, choose: Chooser) -> None:
    if obj:
        obj.pop(choose.index(len(obj)))


def _list_replace(obj: Any, choose: Chooser) -> None:
    if obj:
        obj[choose.index(len(obj))] = choose.value()


def _list_same_length(obj: Any, choose: Chooser) -> None:
    if obj:
        obj.pop(choose.index(len(obj)))
        obj.append(choose.value())


def _list_slice(obj: Any, choose: Chooser) -> None:
    start = choose.index(len(obj) + 1)
    obj[start : start + choose.index(3)] = [choose.value() for _ in range(choose.index(4))]


def _list_double(obj: Any, choose: Chooser) -> None:
    if _few(obj):
        obj *= 2


def _list_swap(obj: Any, choose: Chooser) -> None:
    if obj:
        i, j = choose.index(len(obj)), choose.index(len(obj))
        obj[i], obj[j] = obj[j], obj[i]


def _equal_text(obj: Any) -> Any:
    return "".join(list(obj)) if type(obj) is str else obj


def _list_equal_objects(obj: Any, choose: Chooser) -> None:
    obj[:] = [_equal_text(item) for item in obj]


_LIST = {
    "append": lambda obj, choose: obj.append(choose.value()),
    "insert": lambda obj, choose: obj.insert(choose.index(len(obj) + 1), choose.value()),
    "pop": _list_pop,
    "replace item": _list_replace,
    "pop and append": _list_same_length,
    "assign slice": _list_slice,
    "reverse": lambda obj, choose: obj.reverse(),
    "sort": lambda obj, choose: obj.sort(key=lambda item: type(item).__name__),
    "swap": _list_swap,
    "double": _list_double,
    "append itself": lambda obj, choose: obj.append(obj),
    "clear": lambda obj, choose: obj.clear(),
    "clear and refill": lambda obj, choose: (items := list(obj), obj.clear(), obj.extend(items)),
    "equal text, other objects": _list_equal_objects,
}

# --- dicts ------------------------------------------------------------------------------------


def _dict_key(obj: Any, choose: Chooser) -> Any:
    return list(obj)[choose.index(len(obj))]


def _dict_value(obj: Any, choose: Chooser) -> Any:
    # The items of counters are arguments of their constructor, which must not lead back.
    return choose.leaf() if isinstance(obj, collections.Counter) else choose.value()


def _dict_replace(obj: Any, choose: Chooser) -> None:
    if obj:
        obj[_dict_key(obj, choose)] = _dict_value(obj, choose)


def _dict_delete(obj: Any, choose: Chooser) -> None:
    if obj:
        del obj[_dict_key(obj, choose)]


def _dict_reinsert(obj: Any, choose: Chooser) -> None:
    if obj:
        key = _dict_key(obj, choose)
        obj[key] = obj.pop(key)


def _dict_refill(obj: Any, choose: Chooser) -> None:
    items = list(obj.items())
    obj.clear()
    obj.update(items)


def _dict_refill_reversed(obj: Any, choose: Chooser) -> None:
    items = list(obj.items())
    obj.clear()
    obj.update(reversed(items))


def _equal_key(key: Any) -> Any:
    """An equal key of another type or at least another identity."""
    if type(key) is bool:
        return int(key)
    if type(key) is int:
        return float(key) if abs(key) < 2**53 else key + 0
    if type(key) is float:
        return int(key) if key.is_integer() else key
    if type(key) is str:
        return "".join(list(key))
    return (*key,) if type(key) is tuple else key


def _dict_equal_keys(obj: Any, choose: Chooser) -> None:
    items = [(_equal_key(key), value) for key, value in obj.items()]
    obj.clear()
    obj.update(items)


def _dict_text_keys(obj: Any, choose: Chooser) -> None:
    items = [(MyStr(key) if type(key) is str else key, value) for key, value in obj.items()]
    obj.clear()
    obj.update(items)


def _dict_swap_values(obj: Any, choose: Chooser) -> None:
    if obj:
        a, b = _dict_key(obj, choose), _dict_key(obj, choose)
        obj[a], obj[b] = obj[b], obj[a]


_DICT = {
    "set": lambda obj, choose: obj.__setitem__(choose.key(), _dict_value(obj, choose)),
    "replace value": _dict_replace,
    "delete": _dict_delete,
    "reinsert": _dict_reinsert,
    "swap values": _dict_swap_values,
    "clear": lambda obj, choose: obj.clear(),
    "clear and refill": _dict_refill,
    "refill in reverse": _dict_refill_reversed,
    "equal keys": _dict_equal_keys,
    "keys of a subclass": _dict_text_keys,
}


def _ordered_move(obj: Any, choose: Chooser) -> None:
    if obj:
        obj.move_to_end(_dict_key(obj, choose), last=bool(choose.index(2)))


_ORDERED_DICT = {"move to end": _ordered_move}


def _factory(obj: Any, choose: Chooser) -> None:
    obj.default_factory = [None, list, dict, Plain][choose.index(4)]


_DEFAULT_DICT = {
    "factory": _factory,
    "missing key": lambda obj, choose: obj.default_factory and obj[choose.key()],
}

# --- sets -------------------------------------------------------------------------------------


def _set_key(obj: Any, choose: Chooser) -> Any:
    return choose.key() if type(obj) is set else choose.leaf()


def _set_discard(obj: Any, choose: Chooser) -> None:
    # In an order that does not depend on addresses.
    plain = sorted((type(item).__name__, repr(item)) for item in obj if type(item) in (int, str))
    if plain:
        _, text = plain[choose.index(len(plain))]
        obj.discard(ast.literal_eval(text))


def _set_equal(obj: Any, choose: Chooser) -> None:
    items = [_equal_key(item) for item in obj]
    obj.clear()
    obj.update(items)


_SET = {
    "add": lambda obj, choose: obj.add(_set_key(obj, choose)),
    "discard": lambda obj, choose: obj.discard(_set_key(obj, choose)),
    "toggle": lambda obj, choose: obj.symmetric_difference_update([_set_key(obj, choose)]),
    "clear": lambda obj, choose: obj.clear(),
    "clear and add": lambda obj, choose: (obj.clear(), obj.add(_set_key(obj, choose))),
    "equal elements": _set_equal,
    "discard element": _set_discard,
}

# --- deques, bytes, arrays of numbers ---------------------------------------------------------

_DEQUE = {
    "append": lambda obj, choose: obj.append(choose.value()),
    "append left": lambda obj, choose: obj.appendleft(choose.value()),
    "pop": lambda obj, choose: obj and obj.pop(),
    "pop left": lambda obj, choose: obj and obj.popleft(),
    "rotate": lambda obj, choose: obj.rotate(1 + choose.index(3)),
    "replace item": _list_replace,
    "reverse": lambda obj, choose: obj.reverse(),
    "clear": lambda obj, choose: obj.clear(),
}

_BYTEARRAY = {
    "append": lambda obj, choose: obj.append(choose.index(256)),
    "one byte": lambda obj, choose: obj and obj.__setitem__(choose.index(len(obj)), 7),
    "cut": lambda obj, choose: obj.__delitem__(slice(choose.index(len(obj) + 1), None)),
    "extend": lambda obj, choose: obj.extend(bytes(choose.index(50))),
    "insert": lambda obj, choose: obj.insert(0, choose.index(256)),
    "clear": lambda obj, choose: obj.clear(),
}

_ARRAY = {
    "append": lambda obj, choose: obj.append(choose.index(100)),
    "replace": lambda obj, choose: obj and obj.__setitem__(0, choose.index(100)),
    "pop": lambda obj, choose: obj and obj.pop(),
}

# --- pseudo random number generators ----------------------------------------------------------


def _random_word(obj: Any, choose: Chooser) -> None:
    version, state, gauss = obj.getstate()
    words = list(state)
    words[choose.index(624)] ^= 1 << choose.index(32)
    obj.setstate((version, tuple(words), gauss))


def _random_index(obj: Any, choose: Chooser) -> None:
    version, state, gauss = obj.getstate()
    obj.setstate((version, (*state[:624], choose.index(625)), gauss))


def _many_random(obj: Any, choose: Chooser) -> None:
    for _ in range(1 + choose.index(2000)):
        obj.random()


def _pending_gauss(obj: Any, choose: Chooser) -> None:
    obj.gauss_next = [None, 0.5, -0.0, 1, "text", float("nan")][choose.index(6)]


_RANDOM = {
    "draw": lambda obj, choose: obj.random(),
    "draw an odd number of words": lambda obj, choose: obj.getrandbits(32),
    "draw a lot": _many_random,
    "gauss": lambda obj, choose: obj.gauss(0.0, 1.0),
    "seed": lambda obj, choose: obj.seed(choose.index(100)),
    "seed anew and draw": lambda obj, choose: (obj.seed(choose.index(9)), obj.random()),
    "one word": _random_word,
    "index": _random_index,
    "pending gauss": _pending_gauss,
    "state of another": lambda obj, choose: obj.setstate(
        random.Random(choose.index(50)).getstate()
    ),
    "shuffle": lambda obj, choose: obj.shuffle(list(range(choose.index(40)))),
}


def _half_word(obj: Any, choose: Chooser) -> None:
    obj.integers(0, 5, dtype=np.uint16)


def _other_state(obj: Any, choose: Chooser) -> None:
    made = type(obj.bit_generator)(choose.index(50))
    obj.bit_generator.state = made.state


_GENERATOR = {
    "draw": lambda obj, choose: obj.random(),
    "draw half a word": _half_word,
    "draw a lot": lambda obj, choose: obj.random(1 + choose.index(900)),
    "state of another": _other_state,
}

_RANDOM_STATE = {
    "draw": lambda obj, choose: obj.random_sample(),
    "gauss": lambda obj, choose: obj.standard_normal(),
    "seed": lambda obj, choose: obj.seed(choose.index(50)),
}

# --- NumPy ------------------------------------------------------------------------------------


def _writable(obj: Any) -> bool:
    return bool(obj.flags.writeable and obj.size)


def _array_item(obj: Any, choose: Chooser) -> None:
    if _writable(obj):
        obj.flat[choose.index(obj.size)] = obj.flat[choose.index(obj.size)]


def _array_zero(obj: Any, choose: Chooser) -> None:
    if _writable(obj):
        obj[...] = np.zeros((), obj.dtype)


def _array_bit(obj: Any, choose: Chooser) -> None:
    plain = obj.dtype.kind in "iufcV" and obj.dtype.names is None and not obj.dtype.hasobject
    if _writable(obj) and plain and obj.flags.c_contiguous:
        raw = obj.reshape(-1).view(np.ndarray).view(np.uint8)
        raw[choose.index(raw.size)] ^= 1


def _array_write_protected(obj: Any, choose: Chooser) -> None:
    """A read-only array whose content changes all the same."""
    with contextlib.suppress(ValueError):
        obj.flags.writeable = True
        _array_zero(obj, choose)
        obj.flags.writeable = False


def _array_protect(obj: Any, choose: Chooser) -> None:
    obj.flags.writeable = False


def _array_unprotect(obj: Any, choose: Chooser) -> None:
    with contextlib.suppress(ValueError):
        obj.flags.writeable = True


def _array_shape(obj: Any, choose: Chooser) -> None:
    with contextlib.suppress(AttributeError):
        obj.shape = (1, *obj.shape) if choose.index(2) else (obj.size,)


def _array_resize(obj: Any, choose: Chooser) -> None:
    # NumPy leaves null pointers in new cells of objects.
    if not obj.dtype.hasobject:
        with contextlib.suppress(ValueError):
            obj.resize((obj.size + 1,), refcheck=False)


def _array_dtype(obj: Any, choose: Chooser) -> None:
    if obj.dtype.kind in "iu" and obj.dtype.itemsize > 1:
        obj.dtype = obj.dtype.newbyteorder()


_NDARRAY = {
    "copy an item": _array_item,
    "zero": _array_zero,
    "one bit": _array_bit,
    "write-protected content": _array_write_protected,
    "protect": _array_protect,
    "unprotect": _array_unprotect,
    "shape": _array_shape,
    "resize": _array_resize,
    "byte order": _array_dtype,
}


def _object_cell(obj: Any, choose: Chooser) -> None:
    if _writable(obj):
        cells = obj if obj.dtype == object else obj["anything"]
        cells.flat[choose.index(obj.size)] = choose.leaf()


# --- instances --------------------------------------------------------------------------------


def _name(choose: Chooser) -> str:
    return ATTRIBUTES[choose.index(len(ATTRIBUTES))]


def _attribute_set(obj: Any, choose: Chooser) -> None:
    object.__setattr__(obj, _name(choose), choose.value())


def _attribute_replace(obj: Any, choose: Chooser) -> None:
    attributes = _own_dict(obj)
    if attributes:
        attributes[_dict_key(attributes, choose)] = choose.value()


def _attribute_delete(obj: Any, choose: Chooser) -> None:
    if _own_dict(obj):
        _dict_delete(_own_dict(obj), choose)


def _attribute_reorder(obj: Any, choose: Chooser) -> None:
    _dict_refill_reversed(_own_dict(obj), choose)


def _attribute_move(obj: Any, choose: Chooser) -> None:
    _dict_reinsert(_own_dict(obj), choose)


def _attribute_odd(obj: Any, choose: Chooser) -> None:
    _own_dict(obj)[choose.index(3)] = choose.value()


def _new_dict(obj: Any, choose: Chooser) -> None:
    with contextlib.suppress(AttributeError, TypeError):  # not every type allows it
        obj.__dict__ = {**obj.__dict__, "value": choose.value()}


def _same_dict(obj: Any, choose: Chooser) -> None:
    with contextlib.suppress(AttributeError, TypeError):
        obj.__dict__ = dict(obj.__dict__)


_INSTANCE = {
    "set attribute": _attribute_set,
    "move attribute": _attribute_move,
    "reorder attributes": _attribute_reorder,
    "replace the dict": _new_dict,
    "replace the dict by an equal one": _same_dict,
}
_RISKY = {
    "replace attribute": _attribute_replace,
    "delete attribute": _attribute_delete,
    "clear attributes": lambda obj, choose: _own_dict(obj).clear(),
    "attribute that is no str": _attribute_odd,
}

_CLASSES = (Plain, Derived, OfMeta, OfRegisteredMeta, Outer.Inner)


def _class(obj: Any, choose: Chooser) -> None:
    obj.__class__ = _CLASSES[choose.index(len(_CLASSES))]


_CLASS = {
    "class": _class,
    "class with a hook": lambda obj, choose: setattr(obj, "__class__", StateOnly),
}


def _slots(*names: str) -> dict[str, Any]:
    def fill(obj: Any, choose: Chooser) -> None:
        with contextlib.suppress(AttributeError):  # not a slot of this class
            object.__setattr__(obj, names[choose.index(len(names))], choose.value())

    def empty(obj: Any, choose: Chooser) -> None:
        with contextlib.suppress(AttributeError):
            object.__delattr__(obj, names[choose.index(len(names))])

    return {"set slot": fill, "delete slot": empty}


def _set_only(*names: str) -> dict[str, Any]:
    return {"set slot": _slots(*names)["set slot"]}


def _partial(obj: Any, choose: Chooser) -> None:
    obj.__setstate__((obj.func, (choose.value(),), {"keyword": choose.value()}, None))


_PARTIAL = {"state": _partial}
_EXCEPTION = {"args": lambda obj, choose: setattr(obj, "args", (choose.leaf(), choose.leaf()))}
_BAG = {
    "state": lambda obj, choose: setattr(obj, "state", choose.value()),
    "append": lambda obj, choose: obj.items.append(choose.value()),
    "pair": lambda obj, choose: obj.pairs.append((choose.leaf(), choose.value())),
    "arguments": lambda obj, choose: setattr(obj, "args", (choose.leaf(),)),
}
_STATEFUL = {
    "content": lambda obj, choose: setattr(obj, "content", (choose.value(), *obj.content[:3])),
}
_KEYED = {"key": lambda obj, choose: setattr(obj, "key", choose.leaf())}

# Their hooks need the attributes that they have.
_NEEDY = (
    Bag,
    NewArgsEx,
    Stateful,
    DropsModel,
    Registered,
    HashedByKey,
    HashedByDefault,
    Frozen,
    random.Random,
    collections.ChainMap,
    collections.UserDict,
)
# Attributes of these would lead back to arguments of their own constructors.
_NO_ATTRIBUTES = (functools.partial, BaseException, collections.Counter, set, frozenset)

_TABLE: list[tuple[str, Any, dict[str, Any]]] = [
    ("list", list, _LIST),
    ("dict", dict, _DICT),
    ("ordered", collections.OrderedDict, _ORDERED_DICT),
    ("default", collections.defaultdict, _DEFAULT_DICT),
    ("set", set, _SET),
    ("deque", collections.deque, _DEQUE),
    ("bytearray", bytearray, _BYTEARRAY),
    ("array", array.array, _ARRAY),
    ("random", random.Random, _RANDOM),
    ("generator", np.random.Generator, _GENERATOR),
    ("random state", np.random.RandomState, _RANDOM_STATE),
    ("ndarray", np.ndarray, _NDARRAY),
    ("slots", Slotted, _slots("left", "right", "extra")),
    ("slots", OpenSlotted, _set_only("name", "value")),
    ("slots", FrozenSlotted, _set_only("value")),
    ("slots", SlottedList | SlottedDict | SlottedFloat, _slots("tag")),
    ("slots", SlottedSecret, _set_only("_SlottedSecret__secret")),
    ("slots", NewArgs, _set_only("tag")),
    ("partial", functools.partial, _PARTIAL),
    ("exception", BaseException, _EXCEPTION),
    ("bag", Bag, _BAG),
    ("stateful", Stateful, _STATEFUL),
    ("class", (*_CLASSES, StateOnly), _CLASS),
]

# After these an object is not native any more, or has to be another one.
OPAQUE_EDITS = frozenset(
    {
        "class: class with a hook",
        "dict: keys of a subclass",
        "random: pending gauss",
        "ndarray: shape",
        "ndarray: resize",
        "ndarray: byte order",
        "ndarray: protect",
        "ndarray: write-protected content",
    }
)


def keeps_native(obj: Any, edit: str) -> bool:
    """Whether an object that is native stays so."""
    # Attributes of generators are no part of their copies.
    is_odd = isinstance(obj, random.Random) and edit.startswith("instance")
    return edit not in OPAQUE_EDITS and not is_odd


def edits_of(obj: Any, *, vandal: bool = False) -> dict[str, Callable[[Any, Chooser], None]]:
    """The edits that fit an object, by name.

    Args:
        obj: any object; most leaves have none.
        vandal: whether edits count after which the object cannot be copied any more, or
            those whose effect does not reach a copy.
    """
    found = {
        f"{group}: {name}": edit
        for group, base, edits in _TABLE
        if isinstance(obj, base) and not isinstance(obj, type)
        for name, edit in edits.items()
    }
    if isinstance(obj, np.ndarray) and obj.dtype.hasobject:
        found["ndarray: object"] = _object_cell
    if isinstance(obj, HashedByKey | HashedByDefault):
        found |= {f"keyed: {name}": edit for name, edit in _KEYED.items()}
    if _has_attributes(obj) and (vandal or not isinstance(obj, _NO_ATTRIBUTES)):
        found |= {f"instance: {name}": edit for name, edit in _INSTANCE.items()}
        if vandal or not isinstance(obj, _NEEDY):
            found |= {f"instance: {name}": edit for name, edit in _RISKY.items()}
    return found

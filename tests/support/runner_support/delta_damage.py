"""Random changes to whatever an object graph consists of, in place.

Workers use them as vandalism, the main process as changes that have to reach the workers.
Everything that is put into the graph can be copied by pickle and described by
:mod:`~runner_support.comparison`.
"""

from __future__ import annotations

import enum
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from pams.order import LIMIT_ORDER, MARKET_ORDER

from .vandalism import NamedList, Plain, Slotted, SlottedAndDict, SlottedTwin

# What is the process's own on either side, or part of none.
_NOT_PART = (type, FunctionType, BuiltinFunctionType, ModuleType, enum.Enum)
_LEAVES = (int, str, bytes, float, complex, bool, type(None), np.generic, np.dtype)


def children(obj: Any) -> Iterator[Any]:
    """What an object refers to."""
    if isinstance(obj, dict):
        yield from obj.keys()
        yield from obj.values()
    elif isinstance(obj, (list, tuple, set, frozenset, deque)):
        yield from obj
    elif isinstance(obj, np.ndarray):
        if obj.dtype.hasobject:
            yield from obj.ravel().tolist()
    elif isinstance(obj, MethodType):
        yield obj.__self__
    yield from getattr(obj, "__dict__", {}).values()
    for name in slot_names(type(obj)):
        with suppress(AttributeError):
            yield getattr(obj, name)


def slot_names(cls: type) -> list[str]:
    found: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found.extend([slots] if isinstance(slots, str) else slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def mutable_objects(root: Any, exempt: list[Any]) -> list[Any]:
    """All objects that can be changed, in an order that depends on the graph only.

    Args:
        root: where to begin.
        exempt: objects that are left out, with what only they refer to.
    """
    seen = {id(LIMIT_ORDER), id(MARKET_ORDER), *map(id, exempt)}
    alive: list[Any] = []
    found: list[Any] = []
    waiting = [root]
    while waiting:
        obj = waiting.pop()
        if id(obj) in seen or isinstance(obj, (*_NOT_PART, *_LEAVES)):
            continue
        seen.add(id(obj))
        alive.append(obj)
        if not isinstance(obj, (tuple, frozenset, MethodType)):
            found.append(obj)
        waiting.extend(reversed(list(children(obj))))
    return found


Change = Callable[[Any, random.Random, "list[Any]"], None]

# Values that differ from each other in ways that ``==`` or a hash may overlook.
_VALUES: tuple[Callable[[], Any], ...] = (
    lambda: True,
    lambda: 1,
    lambda: 1.0,
    lambda: -0.0,
    lambda: 0.0,
    lambda: float("nan"),
    lambda: None,
    lambda: "text" * 3,
    lambda: 2**70,
    list,
    lambda: [1, [2]],
    lambda: {"k": (1, [2])},
    lambda: Plain([3]),
    lambda: Slotted(1, [2]),
    lambda: SlottedAndDict([1], 2),
    lambda: NamedList([4]),
    lambda: deque([1, 2], maxlen=3),
    lambda: OrderedDict(a=1),
    lambda: bytearray(b"xyz"),
    lambda: np.arange(3),
    lambda: random.Random(3),
    lambda: np.random.default_rng(3),
)


def some_value(prng: random.Random, pool: list[Any]) -> Any:
    """A new value, or (half of the time) an object that is in the graph already."""
    if pool and prng.random() < 0.5:
        return prng.choice(pool)
    return prng.choice(_VALUES)()


def _change_list(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    n = len(obj)
    position = prng.randrange(n + 1)
    kind = prng.randrange(8)
    if kind == 0 or n == 0:
        obj.append(some_value(prng, pool))
    elif kind == 1:
        obj.insert(position, some_value(prng, pool))
    elif kind == 2:
        obj[position % n] = some_value(prng, pool)
    elif kind == 3:
        del obj[position % n]
    elif kind == 4:
        obj.append(obj.pop(0))  # same length, same items
    elif kind == 5:
        obj.reverse()
    elif kind == 6:
        obj[position:] = [some_value(prng, pool), *obj[position:]][: prng.randrange(n + 1)]
    else:
        obj.clear()


def _change_dict(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    keys = list(obj)
    kind = prng.randrange(6)
    if kind == 0 or not keys:
        obj[prng.choice(["new", 7, (1, "t"), None, 2.5])] = some_value(prng, pool)
    elif kind == 1:
        obj[prng.choice(keys)] = some_value(prng, pool)
    elif kind == 2:
        del obj[prng.choice(keys)]
    elif kind == 3:
        key = prng.choice(keys)
        obj[key] = obj.pop(key)  # the same contents in another order
    elif kind == 4:
        obj[prng.choice(keys)] = list(obj.values())  # aliases
    else:
        obj.clear()


def _change_set(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    if obj and prng.random() < 0.5:
        obj.discard(prng.choice(sorted(obj, key=repr)))
    else:
        obj.add(prng.choice([11, "s", (1, 2), 2.5, None, frozenset({1})]))


def _change_deque(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    if prng.random() < 0.5:
        obj.rotate(1)
    else:
        obj.appendleft(some_value(prng, pool))


def _change_bytes(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    if obj and prng.random() < 0.5:
        obj[prng.randrange(len(obj))] ^= 0xFF
    else:
        obj += b"+"


def _change_array(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    if obj.dtype.hasobject:
        if obj.size and obj.flags.writeable:
            obj.ravel()[prng.randrange(obj.size)] = some_value(prng, pool)
            obj.flat[prng.randrange(obj.size)] = some_value(prng, pool)
    elif prng.random() < 0.2:
        obj.setflags(write=not obj.flags.writeable)
    elif obj.size and obj.flags.writeable:
        view = obj.reshape(-1).view(np.uint8) if obj.flags.c_contiguous else None
        if view is None:
            obj *= 2
        else:
            view[prng.randrange(view.size)] ^= 1  # one bit


def _change_random(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    kind = prng.randrange(5)
    if kind == 0:
        obj.random()
    elif kind == 1:
        obj.gauss(0.0, 1.0)
    elif kind == 2:
        obj.seed(prng.getrandbits(20))
    elif kind == 3:
        obj.gauss_next = prng.choice([None, 0.0, -0.0, 1.5])
    else:
        version, words, gauss = obj.getstate()
        changed = list(words)
        changed[prng.randrange(624)] ^= 1 << prng.randrange(32)  # one bit, the same index
        obj.setstate((version, tuple(changed), gauss))


def _change_generator(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    if prng.random() < 0.5:
        obj.normal()
    else:
        obj.bit_generator.state = np.random.default_rng(prng.getrandbits(20)).bit_generator.state


# Classes of one layout, which an instance can change between.
_LAYOUTS: tuple[tuple[type, ...], ...] = ((SlottedAndDict, SlottedTwin),)


def _change_instance(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    names = list(getattr(obj, "__dict__", {}))
    slots = slot_names(type(obj))
    kind = prng.randrange(7)
    if kind == 0 and hasattr(obj, "__dict__"):
        obj.__dict__["added"] = some_value(prng, pool)
    elif kind == 1 and names:
        obj.__dict__[prng.choice(names)] = some_value(prng, pool)
    elif kind == 2 and names:
        del obj.__dict__[prng.choice(names)]
    elif kind == 3 and names:
        obj.__dict__ = dict(reversed(list(obj.__dict__.items())))
    elif kind == 4 and names:
        obj.__dict__.clear()
    elif kind == 5 and slots:
        object.__setattr__(obj, prng.choice(slots), some_value(prng, pool))
    elif kind == 6 and slots:
        with suppress(AttributeError):
            object.__delattr__(obj, prng.choice(slots))
    for layout in _LAYOUTS:
        if type(obj) in layout and prng.random() < 0.3:
            obj.__class__ = prng.choice(layout)


def _label(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    # pickle does not copy the attributes of these, so the copies would differ rightly.
    if not isinstance(obj, (Counter, random.Random)):
        obj.label = some_value(prng, pool)


_CHANGES: tuple[tuple[type, Change], ...] = (
    (dict, _change_dict),
    (list, _change_list),
    (set, _change_set),
    (deque, _change_deque),
    (bytearray, _change_bytes),
    (np.ndarray, _change_array),
    (random.Random, _change_random),
    (np.random.Generator, _change_generator),
)


def change(obj: Any, prng: random.Random, pool: list[Any]) -> None:
    """Change one object in some way.

    Args:
        obj: the object.
        prng: source of the decisions.
        pool: objects that may be put into it.
    """
    for cls, function in _CHANGES:
        if isinstance(obj, cls):
            function(obj, prng, pool)
            if hasattr(obj, "__dict__") and prng.random() < 0.3:
                _label(obj, prng, pool)
            return
    _change_instance(obj, prng, pool)


def change_graph(root: Any, prng: random.Random, share: float, exempt: list[Any]) -> int:
    """Change a share of all objects below ``root``.

    Returns:
        How many objects there were to choose from.
    """
    objects = mutable_objects(root, exempt)
    for obj in objects:
        if prng.random() < share:
            # A user's __setattr__ etc. may refuse; what it has done so far counts.
            with suppress(Exception):
                change(obj, prng, objects)
    return len(objects)

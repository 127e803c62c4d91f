"""Exact comparison of simulations and of object graphs.

``==`` is too weak for both: it does not see ``-0.0``, ``True`` beside ``1``, aliasing, or
another class with equal contents, and calls two nans different.
"""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from pams import Market, Session, Simulator
from pams.agents import Agent
from pams.events import EventABC, EventHook
from pams.fundamentals import Fundamentals
from pams.logs import Logger
from pams.order import LIMIT_ORDER, MARKET_ORDER, Cancel, Order, OrderKind
from pams.order_book import OrderBook
from pams.runners import Runner

_LEAVES = (int, str, bytes, bool, type(None), type(Ellipsis))


def digest(value: object) -> str:
    """Short stand-in for a long value (the states of generators are 625 numbers)."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def numpy_generator_state(generator: np.random.Generator) -> str:
    return digest(generator.bit_generator.state)


def _slot_names(cls: type) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.extend([slots] if isinstance(slots, str) else slots)
    return sorted(name for name in names if name not in ("__dict__", "__weakref__"))


class GraphDescription:
    """Lines that describe an object graph: types, values, order, aliasing.

    Equal for a graph and for what pickle makes of it. Two references to one container or
    instance give the same number, so lost or new aliasing changes the lines.

    Args:
        skip: keys of ``__dict__`` that are left out (what the test itself writes).
    """

    def __init__(self, skip: frozenset[str] = frozenset()) -> None:
        self.lines: list[str] = []
        self._skip = skip
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []

    def add(self, obj: object, path: str = "") -> None:
        kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
        if type(obj) in _LEAVES:
            self.lines.append(f"{path} {kind} {obj!r}")
        elif type(obj) in (float, complex):
            self.lines.append(f"{path} {kind} {obj!r}")  # repr tells -0.0 from 0.0
        elif isinstance(obj, (type, FunctionType, BuiltinFunctionType)):
            self.lines.append(f"{path} {obj.__module__}.{obj.__qualname__}")
        elif isinstance(obj, np.generic):
            self.lines.append(f"{path} {kind} {obj.dtype} {obj.tobytes().hex()}")
        elif id(obj) in self._numbers:
            self.lines.append(f"{path} #{self._numbers[id(obj)]}")
        else:
            self._numbers[id(obj)] = len(self._numbers)
            self._alive.append(obj)  # its id must not be given to another object
            self.lines.append(f"{path} #{self._numbers[id(obj)]} {kind}")
            self._add_contents(obj, path)

    def _add_contents(self, obj: Any, path: str) -> None:
        if isinstance(obj, random.Random):
            self.lines.append(f"{path} state {digest(obj.getstate())}")
            return
        if isinstance(obj, np.random.Generator):
            self.lines.append(f"{path} state {numpy_generator_state(obj)}")
            return
        if isinstance(obj, np.ndarray):
            self.lines.append(
                f"{path} {obj.dtype.descr} {obj.shape} writeable={obj.flags.writeable} "
                f"fortran={obj.flags.fnc}"
            )
            if obj.dtype.hasobject:
                for i, item in enumerate(obj.ravel().tolist()):
                    self.add(item, f"{path}[{i}]")
            else:
                self.lines.append(f"{path} bytes {hashlib.sha256(obj.tobytes()).hexdigest()}")
            return
        if isinstance(obj, MethodType):
            self.add(obj.__func__, f"{path}.__func__")
            self.add(obj.__self__, f"{path}.__self__")
            return
        if isinstance(obj, deque):
            self.lines.append(f"{path} maxlen {obj.maxlen}")
        if isinstance(obj, bytearray):
            self.lines.append(f"{path} bytes {hashlib.sha256(obj).hexdigest()}")
        elif isinstance(obj, Mapping):
            for i, (key, value) in enumerate(obj.items()):
                self.add(key, f"{path}.key{i}")
                self.add(value, f"{path}[{key!r}]" if type(key) in _LEAVES else f"{path}.value{i}")
        elif isinstance(obj, (list, tuple, deque)):
            for i, item in enumerate(obj):
                self.add(item, f"{path}[{i}]")
        elif isinstance(obj, (set, frozenset)):
            for i, item in enumerate(sorted(obj, key=repr)):
                self.add(item, f"{path}{{{i}}}")
        for name, value in getattr(obj, "__dict__", {}).items():
            if name not in self._skip:
                self.add(value, f"{path}.{name}")
        for name in _slot_names(type(obj)):
            if hasattr(obj, name):
                self.add(getattr(obj, name), f"{path}.{name}")


def describe(obj: object, skip: frozenset[str] = frozenset()) -> list[str]:
    """Lines of a :class:`GraphDescription` of one object."""
    description = GraphDescription(skip)
    description.add(obj)
    return description.lines


def exact(value: object) -> object:
    """Form of a value whose ``==`` is exact; simulation objects become their names."""
    if isinstance(value, float):
        return type(value).__name__, value.hex()
    if type(value) in _LEAVES:
        return type(value).__name__, value
    if isinstance(value, bytearray):
        return "bytearray", bytes(value)
    if isinstance(value, (enum.Enum, Decimal, Fraction, datetime.datetime, PurePath)):
        return repr(value)
    if isinstance(value, MethodType):
        return value.__func__.__qualname__, exact(value.__self__)
    if isinstance(value, functools.partial):
        return value.func.__qualname__, value.args, value.keywords
    if isinstance(value, np.generic):
        return str(value.dtype), value.tobytes()
    if isinstance(value, random.Random):
        return type(value).__name__, digest(value.getstate())
    if isinstance(value, np.random.Generator):
        return "Generator", numpy_generator_state(value)
    if isinstance(value, np.ndarray):
        content = exact(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return value.dtype.str, value.shape, value.flags.writeable, content
    if isinstance(value, OrderKind):
        assert value is LIMIT_ORDER or value is MARKET_ORDER
        return repr(value)
    if isinstance(value, (Order, Cancel)):
        return type(value).__name__, {k: exact(v) for k, v in vars(value).items()}
    if isinstance(value, (Market, Agent, Session, EventABC)):
        return type(value).__name__, value.name
    if isinstance(value, (Simulator, Logger, Fundamentals, OrderBook, EventHook)):
        return type(value).__name__
    if isinstance(value, (type, FunctionType)):
        return value.__qualname__
    if isinstance(value, Mapping):
        name = type(value).__name__
        items = [(exact(k), exact(v)) for k, v in value.items()]
        return (name, items) if isinstance(value, (dict, OrderedDict)) else (name, sorted(items))
    if isinstance(value, (list, tuple, deque)):
        return type(value).__name__, [exact(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(exact(item) for item in value)
    if hasattr(value, "__dict__"):
        return type(value).__name__, {k: exact(v) for k, v in vars(value).items()}
    raise TypeError(f"no exact form of {value!r}")


def attributes(obj: Any) -> dict[str, object]:
    """Exact form of all attributes in ``__dict__`` and ``__slots__``."""
    found = {name: exact(value) for name, value in vars(obj).items()}
    for name in _slot_names(type(obj)):
        if hasattr(obj, name):
            found[f"slot {name}"] = exact(getattr(obj, name))
    return found


def outcome(runner: Runner) -> dict[str, object]:
    """Everything that two runs of one simulation must have in common, by a readable key."""
    simulator = runner.simulator
    found: dict[str, object] = {
        "runner.prng": exact(runner._prng),
        "simulator.prng": exact(simulator._prng),
        "fundamentals": attributes(simulator.fundamentals),
        "log": exact(getattr(runner.logger, "rows", None)),
        "pending_logs": len(runner.logger.pending_logs) if runner.logger else None,
    }
    for market in simulator.markets:
        for name, value in attributes(market).items():
            found[f"{market.name}.{name}"] = value
        for side in ("buy_order_book", "sell_order_book"):
            found[f"{market.name}.{side}"] = attributes(getattr(market, side))
    for agent in simulator.agents:
        for name, value in attributes(agent).items():
            found[f"{agent.name}.{name}"] = value
    for session in simulator.sessions:
        found[f"session {session.name}"] = attributes(session)
    for event in simulator.events:
        found[f"event {event.name}"] = attributes(event)
    return found

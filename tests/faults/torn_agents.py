"""Agents that tell what they see of a simulation that changes all the time."""

from __future__ import annotations

import collections
import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any

from pams.agents import Agent
from pams.logs import Logger

if TYPE_CHECKING:
    from collections.abc import Callable


class Part:
    """A part of the simulation with a value."""

    def __init__(self) -> None:
        self.value = 0


class LingeringKey:
    """Its hash lets other threads run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        linger()
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LingeringKey) and self.number == other.number


class LingeringState(Part):
    """Its state lets other threads run; with a hook like this every frame is complete."""

    def __getstate__(self) -> Any:
        linger()
        return dict(self.__dict__)

    def __repr__(self) -> str:
        return f"LingeringState({self.value})"


class LingeringReduction(Part):
    def __reduce__(self) -> Any:
        linger()
        return Part, (), dict(self.__dict__)


def linger() -> None:
    # On a worker nobody waits for it.
    if threading.active_count() > 1:
        time.sleep(0.0005)


class ChangingLogger(Logger):
    """Has containers that grow and shrink, and two parts that always have the same value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Part()
        self.items: list[Any] = []
        self.table: dict[Any, Any] = {}
        self.names: set[Any] = set()
        self.waiting: collections.deque[Any] = collections.deque()
        self.lingering: Any = None
        self.more_items: list[Any] = []
        self.more: dict[Any, Any] = {}
        self.last = Part()

    @property
    def parts(self) -> list[Part]:
        return [self.first, self.last]


def describe(logger: ChangingLogger) -> str:
    """A digest of all that changes."""
    seen = repr(
        (
            logger.items,
            list(logger.table.items()),
            sorted(logger.names),
            list(logger.waiting),
            logger.more_items,
            list(logger.more.items()),
            [part.__dict__ for part in logger.parts],
        )
    )
    return hashlib.sha256(seen.encode()).hexdigest()


class Witness(Agent):
    """Submits nothing, and keeps what it has seen."""

    synced_attributes = ("seen",)

    def setup(self, *args: Any, **kwargs: Any) -> None:
        super().setup(*args, **kwargs)
        self.seen: list[Any] = []
        self.hooked: Any = None

    def submit_orders(self, markets: Any) -> list[Any]:
        logger: Any = self.logger
        values = [part.value for part in logger.parts]
        # In a chunk the copy is shared, and what an agent does to it the next one sees.
        self.seen.append((describe(logger), values, markets[0].get_time()))
        return []


def set_all(objs: list[Any], name: str, value: Any) -> None:
    """Set an attribute of several objects without any bytecode in between.

    Other threads get their turn between two instructions of Python only, so they see all of it or
    nothing.
    """
    collections.deque(map(setattr, objs, [name] * len(objs), [value] * len(objs)), maxlen=0)


class Changer(threading.Thread):
    """Changes a logger until it is told to stop."""

    def __init__(self, logger: ChangingLogger) -> None:
        super().__init__(daemon=True)
        self.logger = logger
        self.n_changes = 0
        self._stop_now = threading.Event()

    def run(self) -> None:
        logger, n = self.logger, 0
        actions: list[Callable[[], Any]] = [
            lambda: logger.items.append(n),
            lambda: logger.table.__setitem__(n % 50, n),
            lambda: logger.table.pop(n * 7 % 50, None),
            lambda: logger.names.add(n % 40),
            lambda: logger.names.discard(n * 3 % 40),
            lambda: logger.waiting.append(n),
            lambda: logger.waiting.popleft(),
            lambda: logger.more.update({n % 30: [n]}),
            lambda: logger.more.clear(),
            lambda: logger.more_items.insert(0, n),
            lambda: logger.__dict__.__setitem__("items", logger.items[-20:]),
            lambda: logger.more_items.__delitem__(slice(10, None)),
        ]
        while not self._stop_now.is_set():
            n += 1
            self.n_changes = n
            set_all(logger.parts, "value", n)
            actions[n % len(actions)]()
            if n % 20 == 0:
                time.sleep(0)

    def stop(self) -> None:
        self._stop_now.set()
        self.join(60)
        assert not self.is_alive()

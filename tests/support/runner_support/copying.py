"""Objects with a say in how they are copied, and scripts that use them."""

from __future__ import annotations

import copyreg
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NoReturn

from . import initializers
from .scripted_agents import Scripted

if TYPE_CHECKING:
    from pams import Market


class LibraryHandle:
    """Object of a library: pickle refuses it, but the library told multiprocessing how."""

    def __init__(self, number: int, rebuilt: bool = False) -> None:
        self.number = number
        self.rebuilt = rebuilt

    def __reduce__(self) -> NoReturn:
        raise TypeError("a LibraryHandle cannot be pickled")


def _rebuild_handle(number: int) -> LibraryHandle:
    return LibraryHandle(number, rebuilt=True)


def _reduce_handle(handle: LibraryHandle) -> tuple[Any, ...]:
    return _rebuild_handle, (handle.number,)


# As libraries do it, when they are imported.
ForkingPickler.register(LibraryHandle, _reduce_handle)


class Registered:
    """Object whose class is known to ``copyreg``."""

    def __init__(self, number: int, rebuilt: bool = False) -> None:
        self.number = number
        self.rebuilt = rebuilt


def _rebuild_registered(number: int) -> Registered:
    return Registered(number, rebuilt=True)


def _reduce_registered(obj: Registered) -> tuple[Any, ...]:
    return _rebuild_registered, (obj.number,)


copyreg.pickle(Registered, _reduce_registered)  # type: ignore[arg-type]


class Dropping(Scripted):
    """Does not take ``model`` along when it is copied."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "model"}


class Restoring(Dropping):
    """Takes the model of the process instead."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.model = initializers.process_model()


class FailingToRebuild(Scripted):
    """Cannot be rebuilt in another process."""

    def __setstate__(self, state: dict[str, Any]) -> NoReturn:
        raise LookupError("this agent cannot be rebuilt")


def use_model(agent: Any, markets: list[Market]) -> None:
    agent.limit = agent.model.limit


def look_for_model(agent: Any, markets: list[Market]) -> None:
    agent.has_model = hasattr(agent, "model")


def make_model(agent: Any, markets: list[Market]) -> None:
    agent.model = ["made in the worker"]


def use_handle(agent: Any, markets: list[Market]) -> None:
    assert agent.handle.rebuilt
    agent.handle = LibraryHandle(agent.handle.number + 1)
    agent.numbers = [*agent.numbers, agent.handle.number]


def use_registered(agent: Any, markets: list[Market]) -> None:
    assert agent.registered.rebuilt
    agent.registered = Registered(agent.registered.number + 1)


def train_tensor(agent: Any, markets: list[Market]) -> None:
    agent.weights += 1
    agent.unlisted += 1
    agent.shared += 1
    agent.trained = agent.weights * 2

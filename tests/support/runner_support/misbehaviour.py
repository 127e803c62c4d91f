"""Agents that fail, in every way in which they can."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .scripts import limit_order, wait_for

if TYPE_CHECKING:
    from pams import Market


def traceback_text(error: BaseException) -> str:
    """The whole traceback as Python would print it, causes included."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


class DetailedError(Exception):
    """Keeps what it is about in attributes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.detail: Any = None


class NeedsTwoArguments(Exception):
    """Cannot be rebuilt from its ``args``."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class KeywordOnly(Exception):
    """Cannot be rebuilt from its ``args`` either."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"because of {reason}")


class HoldsLock(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message, threading.Lock())


class BecomesText(Exception):
    """Is rebuilt as something that is no exception."""

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("only a text",)


class FailsInText(Exception):
    """Cannot be shown."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise ValueError("no text for this one")


class RebuildFails(Exception):
    """Is pickled, but rebuilding it raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail_to_rebuild, (self.args[0],)


def _fail_to_rebuild(message: str) -> NoReturn:
    raise LookupError(f"cannot rebuild: {message}")


class BaseError(BaseException):
    """No ``Exception``."""


def raise_value_error(agent: Any, markets: list[Market]) -> NoReturn:
    raise ValueError("bad price", agent.agent_id)


def raise_detailed(agent: Any, markets: list[Market]) -> NoReturn:
    error = DetailedError("something specific")
    error.detail = {"agent": agent.agent_id, "prices": [1.0, 2.0]}
    raise error


def raise_key_error(agent: Any, markets: list[Market]) -> NoReturn:
    raise KeyError("missing")


def raise_os_error(agent: Any, markets: list[Market]) -> NoReturn:
    open("/no such directory/file")  # noqa: SIM115
    raise AssertionError


def raise_unicode_error(agent: Any, markets: list[Market]) -> NoReturn:
    b"\xff".decode("utf-8")
    raise AssertionError


def raise_recursion_error(agent: Any, markets: list[Market]) -> NoReturn:
    raise_recursion_error(agent, markets)


def raise_stop_iteration(agent: Any, markets: list[Market]) -> NoReturn:
    raise StopIteration("from the agent")


def raise_cancelled_error(agent: Any, markets: list[Market]) -> NoReturn:
    raise concurrent.futures.CancelledError("from the agent")


def raise_timeout_error(agent: Any, markets: list[Market]) -> NoReturn:
    raise concurrent.futures.TimeoutError("from the agent")


def raise_system_exit(agent: Any, markets: list[Market]) -> NoReturn:
    sys.exit(3)


def raise_keyboard_interrupt(agent: Any, markets: list[Market]) -> NoReturn:
    raise KeyboardInterrupt("from the agent")


def raise_base_error(agent: Any, markets: list[Market]) -> NoReturn:
    raise BaseError("from the agent")


def _deepest() -> NoReturn:
    raise LookupError("the very first reason")


def raise_chain(agent: Any, markets: list[Market]) -> NoReturn:
    try:
        try:
            _deepest()
        except LookupError as first:
            raise OSError("the second reason") from first
    except OSError:
        error = ValueError("what arrives")
        if hasattr(error, "add_note"):
            error.add_note("a note on what arrives")
        raise error  # noqa: B904 - its context is wanted


def raise_with_noted_cause(agent: Any, markets: list[Market]) -> NoReturn:
    cause = LookupError("noted reason")
    cause.add_note("a note on the reason")  # type: ignore[attr-defined]
    raise ValueError("what arrives") from cause


def raise_with_agent_and_market(agent: Any, markets: list[Market]) -> NoReturn:
    raise ValueError("this agent, this market", agent, markets[0])


def raise_group(agent: Any, markets: list[Market]) -> NoReturn:
    raise ExceptionGroup("several", [ValueError(1), KeyError("k")])  # noqa: F821


def raise_needs_two_arguments(agent: Any, markets: list[Market]) -> NoReturn:
    raise NeedsTwoArguments("this", "that")


def raise_keyword_only(agent: Any, markets: list[Market]) -> NoReturn:
    raise KeywordOnly(reason="rain")


def raise_lock(agent: Any, markets: list[Market]) -> NoReturn:
    raise HoldsLock("locked in")


def raise_lock_in_attribute(agent: Any, markets: list[Market]) -> NoReturn:
    error = DetailedError("locked in")
    error.detail = threading.Lock()
    raise error


def raise_becomes_text(agent: Any, markets: list[Market]) -> NoReturn:
    raise BecomesText("was an exception")


def raise_rebuild_fails(agent: Any, markets: list[Market]) -> NoReturn:
    raise RebuildFails("fragile")


def raise_fails_in_text(agent: Any, markets: list[Market]) -> NoReturn:
    raise FailsInText


def raise_local_class(agent: Any, markets: list[Market]) -> NoReturn:
    class LocalError(Exception):
        pass

    raise LocalError("known nowhere else")


def raise_lookup_error_after_marker(agent: Any, markets: list[Market]) -> NoReturn:
    """Fail once the file ``agent.marker`` exists, i.e. another agent has begun to sleep."""
    wait_for(agent.marker)
    raise LookupError("while another one is busy")


def make_marker_and_sleep(agent: Any, markets: list[Market]) -> None:
    Path(agent.marker).touch()
    time.sleep(600)


def make_marker_and_wait_for_release(agent: Any, markets: list[Market]) -> None:
    """As above, for threads, which cannot be ended: until the file ``agent.release`` exists."""
    Path(agent.marker).touch()
    wait_for(agent.release, seconds=200)


def exit_process(agent: Any, markets: list[Market]) -> NoReturn:
    os._exit(7)


def keep_lambda(agent: Any, markets: list[Market]) -> None:
    agent.rule = lambda: 1


def keep_lock(agent: Any, markets: list[Market]) -> None:
    agent.items = [{"lock": threading.Lock()}]


def keep_open_file(agent: Any, markets: list[Market]) -> None:
    agent.file = open(os.devnull)  # noqa: SIM115


def keep_generator(agent: Any, markets: list[Market]) -> None:
    agent.stream = (i for i in range(3))


def return_order_with_lambda(agent: Any, markets: list[Market]) -> list[Any]:
    order = limit_order(agent, 290.0)
    order.rule = lambda: 1
    return [order]


def return_own_sequence(agent: Any, markets: list[Market]) -> Any:
    return _Orders(limit_order(agent, 290.0))


class _Orders:
    """Sequence of orders that cannot be pickled."""

    def __init__(self, *orders: Any) -> None:
        self._orders = orders
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Any:
        return iter(self._orders)


class ArrivesBroken:
    """Is pickled, but raises when the main process rebuilds it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise_on_arrival, ()


def _raise_on_arrival() -> NoReturn:
    raise LookupError("broken on arrival")


def keep_what_arrives_broken(agent: Any, markets: list[Market]) -> None:
    agent.prng.random()
    agent.fragile = ArrivesBroken()


def return_number(agent: Any, markets: list[Market]) -> int:
    return 5


def return_numbers(agent: Any, markets: list[Market]) -> list[int]:
    return [5]


def spoof(agent: Any, markets: list[Market]) -> list[Any]:
    """Submit an order in the name of another agent."""
    agent.prng.random()
    return [limit_order(agent, 290.0, agent_id=agent.agent_id + 1)]


def spoof_in_second_order(agent: Any, markets: list[Market]) -> list[Any]:
    return [limit_order(agent, 290.0), *spoof(agent, markets)]

"""What a finished run leaves behind, and the exact comparison of two runs.

Two runs of the same settings and seed are identical if :func:`differences` of their outcomes
is empty::

    import random

    from pams.runners import SequentialRunner

    from pams_parallel import examples
    from pams_parallel.outcome import RecordingLogger, differences, outcome


    def finished(seed):
        example = examples.load("learning")
        runner = SequentialRunner(example.config, random.Random(seed), RecordingLogger())
        for cls in example.classes:
            runner.class_register(cls)
        runner.main()
        return outcome(runner)


    assert differences(finished(seed=1), finished(seed=1)) == []
    for difference in differences(finished(seed=1), finished(seed=2))[:3]:
        print(difference)  # market 'Market': market_prices[10]: 301.43 against 300.89
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from pams.logs import Logger
from pams.market import Market
from pams.order import OrderKind
from pams.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pams.logs.base import Log
    from pams.order import Order
    from pams.order_book import OrderBook
    from pams.runners import SequentialRunner

__all__ = ["Difference", "RecordingLogger", "differences", "outcome"]

_HISTORIES = (
    "market_prices",
    "last_executed_prices",
    "mid_prices",
    "fundamental_prices",
    "executed_volumes",
    "executed_total_prices",
    "n_buy_orders",
    "n_sell_orders",
)


class RecordingLogger(Logger):
    """Logger that keeps one row per log, at once and in order.

    The rows stay on the main process: a copy for a worker starts without them, so their
    number costs a run nothing.

    Attributes:
        rows: tuples of the log's class name and its values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[Any, ...]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rows": []}

    def write(self, log: Log) -> None:
        """Record a log."""
        values = tuple(_plain(value) for value in vars(log).values())
        self.rows.append((type(log).__name__, *values))

    def bulk_write(self, logs: list[Log]) -> None:
        """Record some logs."""
        for log in logs:
            self.write(log)

    def write_and_direct_process(self, log: Log) -> None:
        """Record a log."""
        self.write(log)

    def bulk_write_and_direct_process(self, logs: list[Log]) -> None:
        """Record some logs."""
        for log in logs:
            self.write_and_direct_process(log)


def _plain(value: object) -> object:
    """Copy of a value without references into the simulation, which goes on changing."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Market):
        return (value.name, value.get_time())
    if isinstance(value, (Session, OrderKind)):
        return value.name
    return type(value).__name__


def outcome(runner: SequentialRunner) -> dict[str, Any]:
    """Everything that identical runs agree on, by name.

    Args:
        runner: a runner whose run is over. Its logs are part of the outcome if its logger is
            a :class:`RecordingLogger`.

    Returns:
        Prices, volumes, order books with order ids, logs, cash and assets of the agents, and
        a digest of the state of every pseudo random number generator: of the runner, the
        simulator, the fundamentals, markets, agents, sessions and events.
    """
    simulator = runner.simulator
    fundamentals = simulator.fundamentals
    found: dict[str, Any] = {}
    for market in simulator.markets:
        name = f"market {market.name!r}"
        for history in _HISTORIES:
            found[f"{name}: {history}"] = list(getattr(market, f"_{history}"))
        found[f"{name}: time"] = market.get_time()
        found[f"{name}: next order id"] = market._next_order_id
        found[f"{name}: buy orders"] = _orders(market.buy_order_book)
        found[f"{name}: sell orders"] = _orders(market.sell_order_book)
    for agent in simulator.agents:
        found[f"agent {agent.name!r}: cash_amount"] = agent.cash_amount
        found[f"agent {agent.name!r}: asset_volumes"] = dict(agent.asset_volumes)
    if isinstance(runner.logger, RecordingLogger):
        found["logs"] = runner.logger.rows
    for agent in simulator.agents:
        found[f"agent {agent.name!r}: prng"] = _digest(agent.prng)
    for market in simulator.markets:
        found[f"market {market.name!r}: prng"] = _digest(market._prng)
    for session in simulator.sessions:
        found[f"session {session.name!r}: prng"] = _digest(session.prng)
    for event in simulator.events:
        found[f"event {event.name!r} ({event.event_id}): prng"] = _digest(event.prng)
    found["fundamentals: prng"] = _digest(fundamentals._prng)
    found["fundamentals: NumPy prng"] = _hash(fundamentals._np_prng.bit_generator.state)
    found["simulator: prng"] = _digest(simulator._prng)
    found["runner: prng"] = _digest(runner._prng)
    return found


def _orders(book: OrderBook) -> list[tuple[Any, ...]]:
    return [_order(order) for order in book.priority_queue]


def _order(order: Order) -> tuple[Any, ...]:
    return tuple(_plain(value) for value in vars(order).values())


def _digest(prng: Any) -> str:
    try:
        state = prng.getstate()
    except NotImplementedError:  # random.SystemRandom has no state
        return type(prng).__name__
    return _hash(state)


def _hash(state: object) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


class Difference(NamedTuple):
    """The first place at which two values of the same name differ.

    Attributes:
        name: name of the value, with the place in it, e.g. ``market 'A': market_prices[12]``.
        first: what the first run has there, as text.
        second: what the second run has there, as text.
    """

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.name}: {self.first} against {self.second}"


_ABSENT = object()


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Compare two outcomes exactly.

    Types count, and so does the sign of zero; ``nan`` equals ``nan``.

    Args:
        first: from :func:`outcome`.
        second: from :func:`outcome` of another run.

    Returns:
        At most one difference per name, in the order of ``first``; empty if identical.
    """
    found = []
    for name in [*first, *(name for name in second if name not in first)]:
        difference = _first_difference(first.get(name, _ABSENT), second.get(name, _ABSENT), name)
        if difference is not None:
            found.append(difference)
    return found


def _first_difference(first: Any, second: Any, place: str) -> Difference | None:
    if type(first) is type(second):
        if isinstance(first, dict):
            if list(first) == list(second):
                return _first_of_items(first, second, first, place)
        elif isinstance(first, (list, tuple)):
            n_common = min(len(first), len(second))
            inner = _first_of_items(first, second, range(n_common), place)
            if inner is not None or len(first) == len(second):
                return inner
            return Difference(f"{place}: length", str(len(first)), str(len(second)))
        elif repr(first) == repr(second) if isinstance(first, float) else first == second:
            return None
    return Difference(place, _text(first), _text(second))


def _first_of_items(first: Any, second: Any, keys: Any, place: str) -> Difference | None:
    for key in keys:
        inner = _first_difference(first[key], second[key], f"{place}[{key!r}]")
        if inner is not None:
            return inner
    return None


def _text(value: object) -> str:
    return "absent" if value is _ABSENT else repr(value)

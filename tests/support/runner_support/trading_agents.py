"""Agents that trade, each kind in a way that is hard to carry over to a worker process.

All of them keep the conditions under which runs are equal: deterministic given their PRNG, and
every attribute that ``submit_orders`` changes is listed.
"""

from __future__ import annotations

import datetime
import enum
import functools
import random
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pams.agents import Agent, ArbitrageAgent, FCNAgent
from pams.events import EventABC, EventHook
from pams.order import LIMIT_ORDER, MARKET_ORDER, Cancel, Order

from . import initializers

if TYPE_CHECKING:
    from pams import Market


class Trader(Agent):
    """Submits one limit order per call; the base of the others."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        return [self.limit_order(self.random_market(markets))]

    def random_market(self, markets: list[Market]) -> Market:
        return self.prng.choice([m for m in markets if self.is_market_accessible(m.market_id)])

    def limit_order(self, market: Market, ttl: int | None = None) -> Order:
        is_buy = self.prng.random() < 0.5
        price = market.get_market_price() * (1.0 + self.prng.gauss(0.0, 0.01))
        return Order(
            agent_id=self.agent_id,
            market_id=market.market_id,
            is_buy=is_buy,
            kind=LIMIT_ORDER,
            volume=self.prng.randint(1, 3),
            price=round(price, 2),
            ttl=self.prng.choice([1, 2, 5, None]) if ttl is None else ttl,
        )

    def own_orders(self, markets: list[Market]) -> list[Order]:
        """Orders of this agent that are in the books."""
        return [
            order
            for market in markets
            for book in (market.buy_order_book, market.sell_order_book)
            for order in book.priority_queue
            if order.agent_id == self.agent_id
        ]


class Silent(Trader):
    """Draws random numbers and never submits."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        self.prng.gauss(0.0, 1.0)
        return []


class Sometimes(Trader):
    """Submits nothing in most calls, so that batches follow batches."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        if self.prng.random() < 0.7:
            return []
        return super().submit_orders(markets)


class TupleReturner(Trader):
    """Returns a tuple, which pams accepts as well as a list."""

    def submit_orders(self, markets: list[Market]) -> Any:
        return tuple(self.limit_order(market) for market in markets)


class MarketOrderTrader(Trader):
    """Mixes market orders with limit orders that stay in the book to absorb them."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        market = self.random_market(markets)
        orders: list[Order | Cancel] = [self.limit_order(market, ttl=20) for _ in range(2)]
        if self.prng.random() < 0.4:
            orders.append(
                Order(
                    agent_id=self.agent_id,
                    market_id=market.market_id,
                    is_buy=self.prng.random() < 0.5,
                    kind=MARKET_ORDER,
                    volume=1,
                    ttl=self.prng.choice([1, None]),
                )
            )
        return orders


class Canceller(Trader):
    """Cancels orders in the books, and now and then an order of the same list."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        orders: list[Order | Cancel] = [self.limit_order(self.random_market(markets), ttl=20)]
        if (placed := self.own_orders(markets)) and self.prng.random() < 0.6:
            orders.append(Cancel(order=self.prng.choice(placed)))
        if self.prng.random() < 0.3:
            order = self.limit_order(self.random_market(markets), ttl=20)
            orders += [order, Cancel(order=order)]
        return orders


class CancelKeeper(Trader):
    """Keeps a cancel and submits it later, when its order may be executed or expired."""

    synced_attributes = ("kept",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: Cancel | None = None

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        orders: list[Order | Cancel] = [self.limit_order(self.random_market(markets))]
        if self.kept is not None and self.prng.random() < 0.5:
            if not self.kept.order.is_canceled:
                orders.append(self.kept)
            self.kept = None
        elif placed := self.own_orders(markets):
            self.kept = Cancel(order=placed[0])
        return orders


class OrderKeeper(Trader):
    """Keeps the orders that it returns, reads them later and cancels them by hand."""

    synced_attributes = ("orders", "volumes")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.orders: deque[Order] = deque(maxlen=4)
        self.volumes: list[int] = []

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        self.volumes = [order.volume for order in self.orders]
        order = self.limit_order(self.random_market(markets))
        result: list[Order | Cancel] = [order]
        if self.orders and self.prng.random() < 0.4:
            oldest = self.orders.popleft()
            if oldest.order_id is not None and not oldest.is_canceled:
                result.append(Cancel(order=oldest))
        self.orders.append(order)
        return result


class Model:
    """Weights that an agent trains."""

    def __init__(self) -> None:
        self.weights = np.zeros(3)
        self.steps = 0

    def train(self, value: float) -> None:
        self.weights[self.steps % 3] += value
        self.steps += 1


class Learner(Trader):
    """Changes listed attributes of many types, in place and by assignment."""

    synced_attributes = (
        *("model", "history", "counts", "seen", "text", "ratio", "last", "alias", "queue", "raw"),
        *("temporary", "frozen", "best_market"),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = Model()
        self.history: list[Any] = []
        self.counts: OrderedDict[int, int] = OrderedDict()
        self.seen: set[int] = set()
        self.text = ""
        self.ratio = -0.0
        self.last: tuple[Any, ...] = ()
        self.alias = self.history
        self.queue: deque[float] = deque(maxlen=3)
        self.raw = bytearray()
        self.frozen: frozenset[int] = frozenset()
        self.best_market: Market | None = None

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        market = self.random_market(markets)
        price = market.get_market_price()
        self.model.train(price)
        self.history.append([market.get_time(), price, None])
        self.counts[market.market_id] = self.counts.pop(market.market_id, 0) + 1
        self.seen.add(market.market_id)
        self.text += chr(0x3042 + market.market_id)
        self.ratio = -self.ratio
        self.last = (price, float("nan"), True, (1, 1.0), self.history)
        assert self.alias is self.history
        self.queue.append(price)
        self.raw += bytes([market.market_id])
        if market.get_time() % 2:
            self.temporary = market.get_time()
        elif hasattr(self, "temporary"):
            del self.temporary
        self.frozen |= {market.get_time()}
        self.best_market = market
        return [self.limit_order(market)] if self.model.steps % 3 else []


class NumpyTrader(Trader):
    """Draws from a NumPy generator that it lists."""

    synced_attributes: ClassVar[list[str]] = ["generator", "draws"]

    def setup(self, settings: dict[str, Any], accessible_markets_ids: list[int], **kw: Any) -> None:
        super().setup(settings, accessible_markets_ids, **kw)
        self.generator = np.random.default_rng(self.prng.getrandbits(32))
        self.draws = np.zeros(0)

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        draw = self.generator.normal()
        self.draws = np.append(self.draws, draw)
        return [self.limit_order(self.random_market(markets))] if draw > 0 else []


class SlotTrader(Trader):
    """Keeps its state in a slot."""

    __slots__ = ("count",)
    synced_attributes = ("count",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = 0

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        self.count += 1
        return super().submit_orders(markets) if self.count % 2 else []


class CallbackTrader(Trader):
    """Keeps its state through the callbacks, which run on the main process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.submitted = 0
        self.executed = 0
        self.cancelled = 0

    def submitted_order(self, log: Any) -> None:
        self.submitted += 1

    def executed_order(self, log: Any) -> None:
        self.executed += log.volume

    def canceled_order(self, log: Any) -> None:
        self.cancelled += 1

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        if self.submitted > self.executed + self.cancelled + 2:
            return [Cancel(order=order) for order in self.own_orders(markets)[:1]]
        return [self.limit_order(self.random_market(markets), ttl=20)]


class PlainRandom(random.Random):
    """A subclass that changes nothing."""


class CountedRandom(random.Random):
    """A generator with a state of its own shape."""

    def __init__(self, seed: int | None = None) -> None:
        self.draws = 0
        super().__init__(seed)

    def random(self) -> float:
        self.draws += 1
        return super().random()

    def getstate(self) -> tuple[Any, ...]:
        return self.draws, super().getstate()

    def setstate(self, state: tuple[Any, ...]) -> None:
        self.draws, inner = state
        super().setstate(inner)


class OwnPrngTrader(Trader):
    """Has a generator of a class of its own."""

    def setup(self, settings: dict[str, Any], accessible_markets_ids: list[int], **kw: Any) -> None:
        super().setup(settings, accessible_markets_ids, **kw)
        cls = (PlainRandom, CountedRandom)[self.agent_id % 2]
        self.prng = cls(self.prng.getrandbits(32))


class PrngReplacer(Trader):
    """Replaces its generator during the call."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        if self.prng.random() < 0.5:
            self.prng = random.Random(self.prng.getrandbits(64))
        return super().submit_orders(markets)


class ModelTrader(Trader):
    """Drops its model when it is copied; the copy takes the one that its process has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = initializers.LargeModel()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "model"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.model = initializers.process_model()

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        return super().submit_orders(markets)[: self.model.limit]


class Mood(enum.Enum):
    """What a :class:`StrategyTrader` feels."""

    CALM = "calm"
    WILD = "wild"


@dataclass
class Plan:
    """What a :class:`StrategyTrader` intends."""

    target: Decimal
    since: datetime.datetime
    notes: list[str] = field(default_factory=list)


def scaled(factor: int, base: int) -> int:
    return factor * base


class StrategyTrader(Trader):
    """Holds what real agents hold: methods, partials, classes, enums, dates, paths."""

    synced_attributes = ("strategy", "plan", "mood", "share", "waiting")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.strategy = self.buy_cheap
        self.sizing = functools.partial(scaled, 2)
        self.order_class: type[Order] = Order
        self.plan = Plan(
            Decimal("1.10"), datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
        )
        self.mood = Mood.CALM
        self.share = Fraction(1, 3)
        self.path = Path("data") / "prices.csv"
        self.waiting: defaultdict[int, list[Order]] = defaultdict(list)

    def buy_cheap(self, market: Market) -> tuple[bool, float]:
        return True, market.get_market_price() * 0.99

    def sell_dear(self, market: Market) -> tuple[bool, float]:
        return False, market.get_market_price() * 1.01

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        assert self.strategy.__self__ is self
        market = self.random_market(markets)
        is_buy, price = self.strategy(market)
        order = self.order_class(
            agent_id=self.agent_id,
            market_id=market.market_id,
            is_buy=is_buy,
            kind=LIMIT_ORDER,
            volume=self.sizing(1),
            price=round(price, 2),
            ttl=5,
        )
        order.tag = self.mood.value  # type: ignore[attr-defined]
        assert self.mood in (Mood.CALM, Mood.WILD)
        self.strategy = self.sell_dear if self.mood is Mood.CALM else self.buy_cheap
        self.mood = Mood.WILD if self.mood is Mood.CALM else Mood.CALM
        self.plan.target += Decimal("0.01")
        self.plan.since += datetime.timedelta(days=1)
        self.plan.notes.append(self.path.name)
        self.share *= Fraction(2, 3)
        self.waiting[market.market_id].append(order)
        return [order]


class KeywordTrader(Trader):
    """Takes its arguments by name, and relies on what ``markets`` is."""

    def submit_orders(self, **arguments: Any) -> list[Order | Cancel]:
        assert list(arguments) == ["markets"]
        assert arguments["markets"] is self.simulator.markets
        return super().submit_orders(arguments["markets"])


class HeavyDrawer(Trader):
    """Uses its generator in all the ways that change its state."""

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        for _ in range((0, 1, 311, 312, 313, 1000, 3000)[self.agent_id % 7]):
            self.prng.random()
        if self.prng.random() < 0.2:
            self.prng.seed(self.prng.getrandbits(32))
        if self.prng.random() < 0.2:
            state = self.prng.getstate()
            self.prng.random()
            self.prng.setstate(state)
        if self.prng.random() < 0.3:
            self.prng.gauss(0.0, 1.0)
        return [] if self.agent_id % 7 == 0 else super().submit_orders(markets)


class Unhashable(Trader):
    """Defines ``__eq__`` and therefore has no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Agent) and self.agent_id == other.agent_id

    __hash__ = None  # type: ignore[assignment]


class SkewedFCNAgent(FCNAgent):
    """FCN agent whose parameters follow the market, all of it listed."""

    synced_attributes = ("order_margin", "noise_scale")

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        self.order_margin = min(0.1, self.order_margin * 1.1)
        self.noise_scale *= 0.99
        return super().submit_orders(markets)


class CountingArbitrageAgent(ArbitrageAgent):
    """High-frequency agent with state; it is never asked in a worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked = 0

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        self.asked += 1
        return super().submit_orders(markets)


class ReplacingEvent(EventABC):
    """Replaces much of the simulation while it runs: agents come, go and change."""

    def hook_registration(self) -> list[EventHook]:
        market = self.simulator.markets[0]
        return [EventHook(event=self, hook_type="market", is_before=True, specific_instance=market)]

    def hooked_before_step_for_market(self, simulator: Any, market: Any) -> None:
        number = simulator.n_agents
        agent = Trader(
            agent_id=number,
            prng=random.Random(self.prng.getrandbits(32)),
            simulator=simulator,
            name=f"newcomer {number}",
            logger=simulator.logger,
        )
        for other in simulator.markets:
            agent.set_market_accessible(other.market_id)
        simulator._add_agent(agent)
        if number % 2:
            simulator.normal_frequency_agents.pop(0)
        last = simulator.normal_frequency_agents[-1]
        last.prng = random.Random(self.prng.getrandbits(32))
        simulator.normal_frequency_agents[0].__class__ = Sometimes
        market.buy_order_book.priority_queue = list(market.buy_order_book.priority_queue)
        session = simulator.current_session
        session.max_normal_orders = 1 + session.max_normal_orders % 4


class RecordingEvent(EventABC):
    """Event that is hooked everywhere and draws from its own generator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[str] = []
        self.kinds: set[str] = set()

    def hook_registration(self) -> list[EventHook]:
        hooks = [EventHook(event=self, hook_type="execution", is_before=False)]
        for hook_type in ("order", "cancel", "session", "market"):
            for is_before in (True, False):
                hooks.append(EventHook(event=self, hook_type=hook_type, is_before=is_before))
        return hooks

    def _record(self, kind: str) -> None:
        self.kinds.add(kind)
        self.calls.append(f"{kind} {self.prng.random()!r}")

    def hooked_before_order(self, simulator: Any, order: Any) -> None:
        self._record("before order")

    def hooked_after_order(self, simulator: Any, order_log: Any) -> None:
        self._record("after order")

    def hooked_before_cancel(self, simulator: Any, cancel: Any) -> None:
        self._record("before cancel")

    def hooked_after_cancel(self, simulator: Any, cancel_log: Any) -> None:
        self._record("after cancel")

    def hooked_after_execution(self, simulator: Any, execution_log: Any) -> None:
        self._record("after execution")

    def hooked_before_session(self, simulator: Any, session: Any) -> None:
        self._record("before session")

    def hooked_after_session(self, simulator: Any, session: Any) -> None:
        self._record("after session")

    def hooked_before_step_for_market(self, simulator: Any, market: Any) -> None:
        self._record("before step")

    def hooked_after_step_for_market(self, simulator: Any, market: Any) -> None:
        self._record("after step")

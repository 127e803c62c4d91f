"""Objects of a simulation, found alike on the main process and in a worker."""

from __future__ import annotations

import functools
from typing import Any

from pams import Market
from pams.events import EventABC, EventHook
from pams.order import LIMIT_ORDER, Cancel, Order

from .scripted_agents import Scripted
from .scripts import limit_order


class TaggedMarket(Market):
    """Market with containers of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tags = {"liquid", "large"}
        self.ranking: dict[str, list[int]] = {"first": [1]}
        self.special = ListSubclass([1, 2])


class ListSubclass(list):  # type: ignore[type-arg]
    """Not an exact list."""


class HookedEvent(EventABC):
    """Event with a hook that has times, and containers of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.history = [1]

    def hook_registration(self) -> list[EventHook]:
        return [EventHook(event=self, hook_type="market", is_before=True, time=[0, 1])]


def enrich(runner: Any) -> None:
    """Fill books and give objects of pams more containers."""
    simulator = runner.simulator
    simulator._update_times_on_markets(simulator.markets)
    market = simulator.markets[0]
    for order in (
        Order(0, 0, True, LIMIT_ORDER, 2, price=290.0, ttl=50),
        Order(1, 0, True, LIMIT_ORDER, 1, price=280.0),
        Order(0, 0, False, LIMIT_ORDER, 3, price=310.0),
    ):
        market._add_order(order)
        order.notes = ["note"]
    simulator.extra = {1, 2}
    simulator.sessions[0].notes = ["n"]
    simulator.fundamentals.cache = {"k": 1}
    simulator.event_hooks[0].extra = {3}


def simulation_objects(agent: Any) -> dict[str, Any]:
    """What comes back from a worker as the main process's own object."""
    simulator = agent.simulator
    market = simulator.markets[0]
    other = simulator.agents[1]
    event = simulator.events[0]
    hook = simulator.event_hooks[0]
    session = simulator.sessions[0]
    order = market.buy_order_book.priority_queue[0]
    return {
        "simulator": simulator,
        "logger": simulator.logger,
        "fundamentals": simulator.fundamentals,
        "market": market,
        "buy order book": market.buy_order_book,
        "sell order book": market.sell_order_book,
        "buy order": order,
        "second buy order": market.buy_order_book.priority_queue[1],
        "sell order": market.sell_order_book.priority_queue[0],
        "order in the expiry list": next(iter(market.buy_order_book.expire_time_list.values()))[0],
        "agent itself": agent,
        "other agent": other,
        "session": session,
        "current session": simulator.current_session,
        "event": event,
        "event hook": hook,
        "prng of the simulator": simulator._prng,
        "prng of a market": market._prng,
        "prng of the agent itself": agent.prng,
        "prng of another agent": other.prng,
        "prng of a session": session.prng,
        "prng of an event": event.prng,
        "list of the simulator": simulator.agents,
        "other list of the simulator": simulator.markets,
        "dict of the simulator": simulator.id2agent,
        "set of the simulator": simulator.extra,
        "list of the logger": simulator.logger.rows,
        "dict of the fundamentals": simulator.fundamentals.prices,
        "own dict of the fundamentals": simulator.fundamentals.cache,
        "list of a market": market._market_prices,
        "dict of a market": market.ranking,
        "set of a market": market.tags,
        "list of an order book": market.buy_order_book.priority_queue,
        "dict of an order book": market.buy_order_book.expire_time_list,
        "list of an order in a book": order.notes,
        "list of a session": session.notes,
        "list of an event": event.history,
        "list of an event hook": hook.time,
        "set of an event hook": hook.extra,
    }


def other_objects(agent: Any) -> dict[str, Any]:
    """What comes back as a copy."""
    simulator = agent.simulator
    market = simulator.markets[0]
    return {
        "dict of the agent itself": agent.asset_volumes,
        "dict of another agent": simulator.agents[1].asset_volumes,
        "nested list of the fundamentals": simulator.fundamentals.prices[0],
        "nested dict of the simulator": simulator.events_dict["market_before"],
        "nested list of the simulator": simulator.agents_group_name2agent["Agents"],
        "nested list of a market": market.ranking["first"],
        "list subclass of a market": market.special,
        "nested list of an order book": next(iter(market.buy_order_book.expire_time_list.values())),
        "prng of the fundamentals": simulator.fundamentals._prng,
        "NumPy generator of the fundamentals": simulator.fundamentals._np_prng,
        "model shared by agents": agent.model,
        "executed order": agent.executed,
        "order never submitted": agent.draft,
    }


def keep_references(agent: Any, markets: list[Market]) -> None:
    agent.references = simulation_objects(agent)
    agent.direct_market = markets[0]
    agent.copies = other_objects(agent)


class Model:
    """Something that agents share."""

    def __init__(self) -> None:
        self.weights = [1.0]


def keep_model(agent: Any, markets: list[Market]) -> None:
    agent.model.weights.append(len(agent.model.weights))


def return_and_show_order(agent: Any, markets: list[Market]) -> list[Order]:
    order = limit_order(agent, 290.0)
    agent.simulator.board.append(order)
    return [order]


def keep_shown_order(agent: Any, markets: list[Market]) -> None:
    """Keep the order of an agent that was asked before in the same task."""
    agent.seen = agent.simulator.board[-1]


def return_and_keep_order(agent: Any, markets: list[Market]) -> list[Order]:
    agent.last = limit_order(agent, 290.0 - agent.agent_id)
    agent.history.append(agent.last)
    return [agent.last]


def keep_cancel(agent: Any, markets: list[Market]) -> list[Any]:
    """Cancel an own order and keep both the cancel and the order."""
    own = [o for o in markets[0].buy_order_book.priority_queue if o.agent_id == agent.agent_id]
    if not own:
        return [limit_order(agent, 290.0)]
    agent.cancelled = own[0]
    agent.cancel = Cancel(order=own[0])
    return [agent.cancel]


def cancel_a_copy(agent: Any, markets: list[Market]) -> list[Any]:
    """Cancel an own order through a copy of it."""
    own = [o for o in markets[0].buy_order_book.priority_queue if o.agent_id == agent.agent_id]
    if not own:
        return [limit_order(agent, 290.0)]
    clone = Order.__new__(Order)
    vars(clone).update(vars(own[0]))
    return [Cancel(order=clone)]


def return_placed_order(agent: Any, markets: list[Market]) -> list[Any]:
    """Put the order into the book at once, which only the main process may do."""
    order = limit_order(agent, 290.0)
    markets[0]._add_order(order)
    return [order]


def keep_placed_order(agent: Any, markets: list[Market]) -> None:
    order = limit_order(agent, 290.0)
    markets[0].buy_order_book.add(order)
    agent.kept = [{"order": order}]


def keep_new_agent(agent: Any, markets: list[Market]) -> None:
    """Keep an agent that only the copy of the simulator knows."""
    stranger = type(agent)(99, agent.prng, agent.simulator, "stranger")
    agent.simulator._add_agent(stranger)
    agent.kept = stranger


def return_old_order(agent: Any, markets: list[Market]) -> list[Any]:
    """Return an order that is in the book already."""
    own = [o for o in markets[0].buy_order_book.priority_queue if o.agent_id == agent.agent_id]
    return own or [limit_order(agent, 290.0)]


class SlotsAndProperty(Scripted):
    """Listed names that are no keys of ``__dict__``."""

    __slots__ = ("_prop", "other_slot", "slot")

    @property
    def prop(self) -> int:
        return self._prop

    @prop.setter
    def prop(self, value: int) -> None:
        self._prop = value


class WithLevel(Scripted):
    """Has a default for ``level``."""

    level = 3


class WithFeatures(Scripted):
    """Computes something once, when it is needed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.computed = 0

    @functools.cached_property
    def features(self) -> list[int]:
        self.computed += 1
        return [1]


def use_features(agent: Any, markets: list[Market]) -> None:
    agent.features.append(2)


class WithCount(Scripted):
    """Lists names in its class."""

    synced_attributes = ("count", "other_count")


class AlternatingNames(Scripted):
    """Lists other names in every other step."""

    @property
    def synced_attributes(self) -> list[str]:
        return ["count"] if self.simulator.markets[0].get_time() % 2 == 0 else ["other_count"]


class PlainCounter(Scripted):
    """Lists nothing, until a test patches the class."""


def change_attributes(agent: Any, markets: list[Market]) -> None:
    """Assign, change in place, delete and add."""
    agent.count = agent.count + 1
    agent.items.append(agent.count)
    if hasattr(agent, "temporary"):
        del agent.temporary
    agent.fresh = agent.count


def change_slots_and_property(agent: Any, markets: list[Market]) -> None:
    agent.slot += 1
    agent.prop = agent.prop * 2
    if hasattr(agent, "other_slot"):
        del agent.other_slot


def delete_level(agent: Any, markets: list[Market]) -> None:
    del agent.level


def set_level(agent: Any, markets: list[Market]) -> None:
    agent.level = 7


def count_up(agent: Any, markets: list[Market]) -> None:
    agent.count = getattr(agent, "count", 0) + 1
    agent.other_count = getattr(agent, "other_count", 0) + 1


def invalidate_names(agent: Any, markets: list[Market]) -> None:
    """Change the names in the worker, where nobody reads them."""
    agent.synced_attributes = "invalid"
    agent.count = 5


def keep_containers(agent: Any, markets: list[Market]) -> None:
    """Listed containers that refer to simulation objects and to each other."""
    market = markets[0]
    agent.by_market = {market: [agent, agent.simulator.agents[0]]}
    agent.pair = (market, agent.by_market)


def refer_to_order(agent: Any, markets: list[Market]) -> None:
    """Keep the best buy order, whatever has become of the one kept before."""
    queue = markets[0].buy_order_book.priority_queue
    agent.best = queue[0] if queue else None

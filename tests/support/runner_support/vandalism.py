"""Agents that damage everything in reach, and agents that look whether anything is damaged."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pams.order import LIMIT_ORDER, MARKET_ORDER, Order

from .comparison import describe
from .scripts import limit_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from pams import Market

# Attributes that the tests themselves write in workers.
NOT_DESCRIBED = frozenset({"seen", "script", "synced_attributes"})


class Plain:
    """An object with a ``__dict__``."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Other:
    """Another class of the same layout."""


class Slotted:
    """An object with slots, one of them unset."""

    __slots__ = ("first", "second", "unset")

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


class SlottedAndDict(Slotted):
    """Slots and a ``__dict__``."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Immutable by convention only."""

    numbers: tuple[int, ...]
    items: list[int]


class NamedList(list):  # type: ignore[type-arg]
    """A subclass of a container, with attributes."""


class Treasure:
    """One object of every type that a simulation is likely to hold.

    Args:
        size: items of the larger arrays and buffers.
    """

    def __init__(self, size: int = 10) -> None:
        self.list = [1, [2.0, -0.0], "x"]
        self.alias = self.list
        self.equal = [1, [2.0, -0.0], "x"]
        self.dict: dict[Any, Any] = {"b": 1, "a": [2], 3: None, (4, 5): {6}}
        self.set = {1, 2, 3}
        self.frozenset = frozenset({"p", "q"})
        self.tuple = (1, [2])
        self.bytearray = bytearray(b"abc")
        self.deque = deque([1, 2, 3], maxlen=4)
        self.ordered = OrderedDict([("z", 1), ("y", 2)])
        self.default: defaultdict[str, list[int]] = defaultdict(list, {"k": [1]})
        self.counter = Counter("aab")
        self.named = NamedList([1, 2])
        self.named.label = ["l"]
        self.array = np.arange(6.0).reshape(2, 3)
        self.fortran = np.asfortranarray(self.array)
        self.big_array = np.arange(size, dtype=np.int64)
        self.read_only = np.arange(4)
        self.read_only.setflags(write=False)
        self.big_read_only = np.arange(size, dtype=np.float64)
        self.big_read_only.setflags(write=False)
        self.empty_array = np.zeros((0, 3))
        self.objects = np.array([[1], "s", None], dtype=object)
        self.structured = np.array([(1, 2.0)], dtype=[("i", "i4"), ("f", "f8")])
        self.big_bytes = bytes(size)
        self.big_bytearray = bytearray(size)
        self.plain = Plain([1])
        self.slotted = Slotted([1], 2)
        self.slotted_and_dict = SlottedAndDict(1, [2])
        self.slotted_and_dict.extra = [3]
        self.frozen = Frozen((1, 2), [3])
        self.random = random.Random(5)
        self.random.gauss(0.0, 1.0)  # leaves a pending value
        self.generator = np.random.default_rng(5)
        self.cycle: list[Any] = []
        self.cycle.append(self.cycle)
        self.own_kind = Plain(LIMIT_ORDER)


def bury(runner: Any) -> None:
    """Give the simulator, a market, agents and the session something to be damaged."""
    simulator = runner.simulator
    shared = Treasure(300_000)
    for holder in (simulator, simulator.markets[0], simulator.sessions[0], *simulator.agents[:2]):
        holder.treasure = Treasure()
        holder.shared_treasure = shared
    for order in (
        Order(0, 0, True, LIMIT_ORDER, 2, price=290.0, ttl=50),
        Order(1, 0, True, LIMIT_ORDER, 1, price=280.0),
        Order(0, 0, False, LIMIT_ORDER, 3, price=310.0),
    ):
        simulator.markets[0]._add_order(order)


def treasures(agent: Any) -> list[Treasure]:
    simulator = agent.simulator
    holders = (simulator, simulator.markets[0], simulator.sessions[0], *simulator.agents)
    return [h.treasure for h in holders if hasattr(h, "treasure")] + [simulator.shared_treasure]


def _on_treasures(damage: Callable[[Any], None]) -> Callable[[Any], None]:
    def damage_all(agent: Any) -> None:
        for treasure in treasures(agent):
            damage(treasure)

    return damage_all


def _lists(t: Any) -> None:
    t.list.append("more")
    t.list[1][0] = 99.0
    t.equal.clear()
    t.cycle.insert(0, 1)
    t.tuple[1].append(3)


def _dicts(t: Any) -> None:
    t.dict["a"].append(3)
    t.dict["b"] = t.dict.pop("b")  # the same contents in another order
    t.dict[(4, 5)].add(7)
    t.dict["new"] = object()


def _sets(t: Any) -> None:
    t.set.discard(1)
    t.set.add("other")


def _collections(t: Any) -> None:
    t.deque.append(4)
    t.deque.append(5)
    t.ordered.move_to_end("z")
    _ = t.default["created by reading"]
    t.default.default_factory = None
    t.counter["a"] -= 5
    t.named.append(3)
    t.named.label.append("m")
    t.named.other = 1


def _byte_buffers(t: Any) -> None:
    t.bytearray[0] = 0
    t.bytearray += b"more"
    t.big_bytearray[:] = b"\xff" * len(t.big_bytearray)


def _arrays(t: Any) -> None:
    t.array[0, 0] = -1.0
    t.fortran *= 2
    t.big_array[:] = -1
    t.objects[0].append(2)
    t.objects[1] = "changed"
    t.structured["f"] = 9.0


def _array_properties(t: Any) -> None:
    t.big_array.setflags(write=False)
    # Another shape and type in place, as unpickling does it.
    t.array.__setstate__((1, (3, 2), np.dtype(np.int32), False, bytes(24)))
    for array in (t.read_only, t.big_read_only):
        with suppress(ValueError):  # nothing to be damaged if the memory cannot be written
            array.setflags(write=True)
            array[0] = 77


def _instances(t: Any) -> None:
    t.plain.value.append(2)
    t.plain.extra = 1
    t.plain.__dict__["a b"] = 2
    t.own_kind.value = MARKET_ORDER


def _classes(t: Any) -> None:
    t.plain.__class__ = Other
    t.own_kind.__class__ = Other
    t.slotted_and_dict.__class__ = SlottedTwin


class SlottedTwin(Slotted):
    """Same layout as :class:`SlottedAndDict`."""


def _slots(t: Any) -> None:
    t.slotted.first.append(2)
    t.slotted.second = "changed"
    t.slotted.unset = "set"
    del t.slotted_and_dict.first
    t.slotted_and_dict.extra.append(4)
    object.__setattr__(t.frozen, "numbers", ())
    t.frozen.items.append(4)


def _deletions(t: Any) -> None:
    del t.plain.value
    del t.list[0]
    del t.dict["a"]
    del t.set
    del t.slotted.first


def _aliasing(t: Any) -> None:
    t.alias = list(t.list)
    t.equal = t.list
    t.plain.value = t.slotted
    t.cycle[0] = []


def _whole_dict(t: Any) -> None:
    t.plain.__dict__ = {"value": "replaced"}
    t.__dict__.clear()


def _generators(t: Any) -> None:
    t.random.random()
    t.random.gauss_next = None
    t.generator.normal()


def _markets(agent: Any) -> None:
    market = agent.simulator.markets[0]
    market._market_prices[0] = 1.0
    market._fundamental_prices.clear()
    market.time = 77
    market.tick_size = 0.5
    market._next_order_id = 1000
    market.name = "vandalised"
    market._is_running = not market._is_running
    market._prng.random()
    market.extra = object()
    del market.outstanding_shares


def _order_books(agent: Any) -> None:
    market = agent.simulator.markets[0]
    order = market.buy_order_book.priority_queue[0]
    order.volume = 1000
    order.price = 1.0
    order.kind = MARKET_ORDER
    order.extra = [order]
    market.buy_order_book.priority_queue.pop()
    market.buy_order_book.expire_time_list.clear()
    market.sell_order_book.priority_queue = []
    market._add_order(limit_order(agent, 291.0))
    market.buy_order_book.time = 9
    market.sell_order_book = market.buy_order_book


def _other_agents(agent: Any) -> None:
    for other in agent.simulator.agents:
        other.cash_amount = -1.0
        other.asset_volumes[0] = 0
        other.asset_volumes["x"] = 1
        other.name += "!"
        other.stolen = other.asset_volumes
        if other is not agent:
            other.prng.random()
            other.prng = agent.prng
            other.script = None
            other.__class__ = type("Impostor", (type(other),), {})


def _own_attributes(agent: Any) -> None:
    agent.cash_amount += 1.0
    agent.asset_volumes.clear()
    agent.note = "mine"
    del agent.name


def _simulator_containers(agent: Any) -> None:
    simulator = agent.simulator
    simulator.agents.reverse()
    simulator.agents.pop()
    simulator.normal_frequency_agents.clear()
    simulator.id2agent.clear()
    simulator.name2market["ghost"] = simulator.markets[0]
    simulator.agents_group_name2agent["Agents"].append("not an agent")
    simulator.markets.append(simulator.markets[0])
    simulator.events_dict["order_before"][None] = []
    simulator.n_agents = -1
    simulator._prng.random()
    simulator.extra = simulator
    del simulator.n_markets
    simulator.current_session = None


def _sessions(agent: Any) -> None:
    session = agent.simulator.sessions[0]
    session.max_normal_orders = 0
    session.with_order_placement = False
    session.prng.random()
    session.simulator = None
    agent.simulator.sessions.clear()


def _fundamentals(agent: Any) -> None:
    fundamentals = agent.simulator.fundamentals
    fundamentals.prices[0][0] = 1.0
    fundamentals.market_ids.append(9)
    fundamentals.correlation[0, 1] = 0.9
    fundamentals._np_prng.normal()
    fundamentals._prng.random()
    agent.simulator.fundamentals = None


def _logger(agent: Any) -> None:
    logger = agent.simulator.logger
    logger.rows.append(("vandalised",))
    logger.pending_logs.append("not a log")
    logger.simulator = None
    logger.extra = {1}
    agent.simulator.logger = None


ACTIONS: dict[str, Callable[[Any], None]] = {
    "lists": _on_treasures(_lists),
    "dicts": _on_treasures(_dicts),
    "sets": _on_treasures(_sets),
    "collections": _on_treasures(_collections),
    "byte buffers": _on_treasures(_byte_buffers),
    "arrays": _on_treasures(_arrays),
    "array properties": _on_treasures(_array_properties),
    "instances": _on_treasures(_instances),
    "classes": _on_treasures(_classes),
    "slots": _on_treasures(_slots),
    "deletions": _on_treasures(_deletions),
    "aliasing": _on_treasures(_aliasing),
    "generators": _on_treasures(_generators),
    "markets": _markets,
    "order books": _order_books,
    "other agents": _other_agents,
    "own attributes": _own_attributes,
    "sessions": _sessions,
    "fundamentals": _fundamentals,
    "logger": _logger,
    "simulator containers": _simulator_containers,
    "whole __dict__": _on_treasures(_whole_dict),
}


def vandalise(agent: Any, markets: list[Market]) -> None:
    """Do the damage that ``agent.damage`` names, or all of it."""
    agent.seen = "\n".join(describe(agent.simulator, NOT_DESCRIBED))
    if agent.damage != "everything":
        ACTIONS[agent.damage](agent)
        return
    # One action may take away what another one wants to damage, so any may fail.
    simulator = agent.simulator
    for action in ACTIONS.values():
        try:
            action(agent)
        except Exception:
            agent.simulator = simulator


def check(agent: Any, markets: list[Market]) -> None:
    """Tell what the simulation looks like in this task."""
    agent.seen = "\n".join(describe(agent.simulator, NOT_DESCRIBED))

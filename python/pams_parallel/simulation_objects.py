"""Which objects of a simulation keep their identity in the results of a worker.

A result that refers to one of them refers, on the main process, to the main process's own
object; anything else in it is a new copy.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import numpy as np
from pams.order import MARKET_ORDER, Order
from pams.order_book import OrderBook

_CONTAINERS = (list, dict, set)

# Number of an object that is not in a snapshot.
_NO_NUMBER = 0xFFFFFFFF

_get_dict = attrgetter("__dict__")
_get_prng = attrgetter("prng")

# Attributes that an order has from its constructor, none of which can be a container in an order
# that is in a book, and those of a generator (its gauss_next).
_N_ORDER_ATTRIBUTES = len(vars(Order(0, 0, is_buy=True, kind=MARKET_ORDER, volume=1)))
_N_RANDOM_ATTRIBUTES = len(vars(random.Random(0)))


def simulation_objects(simulator: Any, *, structure_only: bool = False) -> list[Any]:
    """Collect the simulation objects.

    They are the simulator, its logger, fundamentals, markets, order books, the orders in the
    books, agents, sessions, events and event hooks; the pseudo random number generators of the
    simulator, markets, agents, sessions and events; and the lists, dicts and sets (exact types)
    that these objects except the agents hold directly as attributes.

    Args:
        simulator: simulator. What it lacks, or holds in a form that pams does not use, is left
            out: agents can do anything to the copy in a worker.
        structure_only: leave out the generators of agents, and what orders and generators hold
            as unusual attributes, looking for which takes most of the time.

    Returns:
        The objects. The order depends on nothing but the simulation; an object can be in the
        list several times.
    """
    agents = agents_of(simulator)
    markets = _sequence(simulator, "markets")
    sessions = _sequence(simulator, "sessions")
    hooks = _sequence(simulator, "event_hooks")
    events = [*_sequence(simulator, "events"), *_present(hooks, "event")]
    books = [book for market in markets for book in order_books(market)]
    orders = [order for book in books for order in _sequence(book, "priority_queue")]
    singles = [
        *_present([simulator], "logger", "fundamentals"),
        *markets,
        *books,
        *sessions,
        *events,
        *hooks,
    ]
    prngs = [
        *_present([simulator, *markets], "_prng"),
        *_present([*sessions, *events], "prng"),
    ]
    holders = [simulator, *singles]
    if not structure_only:
        prngs += _prngs_of_agents(agents)
        holders += _unusual(prngs, random.Random, _N_RANDOM_ATTRIBUTES)
        holders += _unusual(orders, Order, _N_ORDER_ATTRIBUTES)
    containers = [
        value
        for holder in holders
        for value in _attribute_values(holder)
        if type(value) in _CONTAINERS
    ]
    return [simulator, *singles, *containers, *prngs, *orders, *agents]


def agents_of(simulator: Any) -> list[Any]:
    """Collect the agents of a simulator, in a list of their own."""
    return _sequence(simulator, "agents")


def select_numbered(numbers: bytes) -> tuple[bytes, list[bool]]:
    """Find out which objects are in a snapshot.

    A ``__getstate__`` can keep a simulation object, e.g. a list of the logger's, from being sent.

    Args:
        numbers: numbers of the simulation objects, from ``Encoder.numbers_of``.

    Returns:
        The numbers of those that are in the snapshot, and for each object whether it is.
    """
    each = np.frombuffer(numbers, dtype="<u4")
    is_numbered = each != _NO_NUMBER
    return each[is_numbered].tobytes(), is_numbered.tolist()


def _attribute(obj: Any, name: str) -> Any:
    try:
        return getattr(obj, name, None)
    except Exception:  # a property of the user's that does not work on what agents left
        return None


def _sequence(obj: Any, name: str) -> list[Any]:
    value = _attribute(obj, name)
    return list(value) if isinstance(value, (list, tuple)) else []


def _present(holders: Iterable[Any], *names: str) -> list[Any]:
    values = [_attribute(holder, name) for holder in holders for name in names]
    return [value for value in values if value is not None]


def _prngs_of_agents(agents: list[Any]) -> list[Any]:
    try:
        return list(map(_get_prng, agents))
    except Exception:
        return _present(agents, "prng")


def order_books(market: Any) -> list[Any]:
    """Collect the order books of a market.

    Args:
        market: market.

    Returns:
        Both order books, and all others that the market has as attributes.
    """
    books = _present([market], "buy_order_book", "sell_order_book")
    books.extend(value for value in _attribute_values(market) if isinstance(value, OrderBook))
    return books


def _attribute_values(obj: Any) -> list[Any]:
    """Values of the attributes that the instance itself has, in ``__dict__`` or in slots."""
    own = _attribute(obj, "__dict__")
    values = list(own.values()) if isinstance(own, dict) else []
    for base in type(obj).__mro__:
        if "__slots__" in base.__dict__:
            for name, member in base.__dict__.items():
                if isinstance(member, types.MemberDescriptorType):
                    values.append(_attribute(obj, name))
    return values


def _unusual(objects: list[Any], usual_type: type, usual_attributes: int) -> list[Any]:
    """Those of many objects whose attributes have to be looked through for containers.

    Looking at the values of all attributes of tens of thousands of orders takes several times
    longer than everything else here, so objects that have just the attributes of their class
    are skipped, in passes that stay in C when there is nothing to find.
    """
    try:
        if set(map(type, objects)) <= {usual_type} and set(map(len, map(_get_dict, objects))) <= {
            usual_attributes
        }:
            return []
        return [
            obj
            for obj in objects
            if type(obj) is not usual_type or len(_get_dict(obj)) != usual_attributes
        ]
    except AttributeError:  # something without __dict__ among them
        return objects

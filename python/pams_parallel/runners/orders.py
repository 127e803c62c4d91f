"""What agents submit, as it comes back from workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pams.agents import Agent
from pams.order import Cancel, Order
from pams.session import Session
from pams.simulator import Simulator

from .._core import index_of

# What an agent submits.
Orders = list[Order | Cancel]


def resolve_cancels(simulator: Simulator, orders: Any) -> None:
    """Give cancel orders the order in the order book of the main process in place of a copy.

    Args:
        simulator: simulator of the main process.
        orders: what ``submit_orders`` has returned, whatever that is.
    """
    if type(orders) is list and all(type(order) is Order for order in orders):
        return
    if not isinstance(orders, Iterable):  # the checks say what is wrong with it
        return
    for cancel in orders:
        if not isinstance(cancel, Cancel) or not isinstance(cancel.order, Order):
            continue
        order = cancel.order
        market = simulator.id2market.get(order.market_id)
        if market is None:
            continue
        book = market.buy_order_book if order.is_buy else market.sell_order_book
        if index_of(book.priority_queue, order) >= 0:
            continue
        for placed in book.priority_queue:
            # Orders of different classes refuse to be compared.
            if type(placed) is type(order) and placed == order:
                cancel.order = placed
                break


def check_orders(runner: Any, session: Session, agent: Agent, orders: Orders) -> None:
    """Check submitted orders as the installed pams does.

    Args:
        runner: the runner; later versions of pams have the check as a method of it.
        session: current session.
        agent: agent that has submitted the orders.
        orders: its orders.

    Raises:
        AssertionError: no orders are accepted in this session.
        ValueError: an order is in the name of another agent.
    """
    if not session.with_order_placement:
        raise AssertionError("currently order is not accepted")
    check = getattr(runner, "_check_submitted_orders", None)
    if check is not None:
        check(agent=agent, orders=orders)
    elif sum([order.agent_id != agent.agent_id for order in orders]) > 0:
        raise ValueError("spoofing order is not allowed. please check agent_id in order")

"""Scripts that tell what an agent sees in a worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pams.logs import OrderLog
from pams.order import LIMIT_ORDER, MARKET_ORDER

from .scripts import limit_order

if TYPE_CHECKING:
    from pams import Market
    from pams.order import Order

MODULE_COUNT = 0


class ClassWithCount:
    """Has a count as a class attribute."""

    count = 0


def leave_a_note(agent: Any, markets: list[Market]) -> None:
    agent.notes_found = len(agent.simulator.notes)
    agent.simulator.notes.append(agent.agent_id)


def report_writability(agent: Any, markets: list[Market]) -> None:
    agent.flags = (agent.array.flags.writeable, agent.read_only.flags.writeable)
    agent.array += 1


def report_kinds(agent: Any, markets: list[Market]) -> list[Order]:
    (buy,), (sell,) = (
        markets[0].buy_order_book.priority_queue,
        markets[0].sell_order_book.priority_queue,
    )
    agent.kinds_are_constants = (
        buy.kind is LIMIT_ORDER
        and sell.kind is MARKET_ORDER
        and agent.kinds[0] is LIMIT_ORDER
        and agent.kinds[1] is MARKET_ORDER
        and agent.kinds[2]["key"] is LIMIT_ORDER
    )
    agent.equal_kind_is_constant = agent.own_kind is LIMIT_ORDER
    agent.kind = buy.kind
    return [limit_order(agent, 290.0)]


def report_aliasing(agent: Any, markets: list[Market]) -> None:
    other = agent.simulator.agents[1 - agent.agent_id]
    agent.same = (
        agent.one is agent.another_name,
        agent.one is agent.equal,
        agent.of_both is other.of_both,
    )


def count_everywhere(agent: Any, markets: list[Market]) -> None:
    global MODULE_COUNT
    MODULE_COUNT += 1
    ClassWithCount.count += 1
    count_everywhere.calls = getattr(count_everywhere, "calls", 0) + 1  # type: ignore[attr-defined]
    agent.counts = counts()


def counts() -> tuple[int, int, int]:
    """Calls of :func:`count_everywhere` in this process, as kept in three places."""
    return MODULE_COUNT, ClassWithCount.count, getattr(count_everywhere, "calls", 0)


def write_logs(agent: Any, markets: list[Market]) -> None:
    for write in (agent.logger.write, agent.logger.write_and_direct_process):
        write(
            OrderLog(
                order_id=1,
                market_id=0,
                time=0,
                agent_id=agent.agent_id,
                is_buy=True,
                kind=LIMIT_ORDER,
                volume=1,
                price="from submit_orders",
            )
        )


def change_own_attributes(agent: Any, markets: list[Market]) -> None:
    assert agent.history == [1]
    assert agent.level == 5
    agent.history.append(2)
    agent.level = 6
    agent.extra = 7


def report_weather(agent: Any, markets: list[Market]) -> None:
    agent.weather = agent.simulator.weather
    agent.forecast = list(markets[0].forecast)
    agent.moods = [other.mood for other in agent.simulator.agents]


class CountsCopies:
    """Notes when and on which thread it is copied."""

    def __init__(self) -> None:
        self.number = 1

    def __getstate__(self) -> dict[str, Any]:
        COPIED_ON.append(threading.get_ident())
        return vars(self)


COPIED_ON: list[int] = []


def read_number(agent: Any, markets: list[Market]) -> None:
    agent.number = agent.simulator.counted.number


def add_up_others(agent: Any, markets: list[Market]) -> None:
    agent.totals = [*agent.totals, sum(other.count for other in agent.simulator.agents)]
    agent.count += 1


class Link:
    """One link of a chain."""

    def __init__(self, tail: Link | None) -> None:
        self.tail = tail


def make_chain(length: int) -> Link | None:
    chain = None
    for _ in range(length):
        chain = Link(chain)
    return chain


def chain_length(chain: Link | None) -> int:
    length = 0
    while chain is not None:
        length += 1
        chain = chain.tail
    return length


def extend_chain(agent: Any, markets: list[Market]) -> None:
    agent.chain = Link(agent.chain)

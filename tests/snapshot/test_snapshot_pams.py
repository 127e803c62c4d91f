"""Simulations of pams: the copy is what pickle makes, and it trades like the original."""

from __future__ import annotations

import random
from typing import Any

import pytest
from checks import pickled_copy
from graph_compare import assert_same
from pams.agents import FCNAgent
from pams.order import LIMIT_ORDER, MARKET_ORDER, Cancel, Order
from pams.runners import SequentialRunner
from pams_parallel import snapshot

SETTINGS: dict[str, Any] = {
    "simulation": {
        "markets": ["Market-A", "Market-B", "Index"],
        "agents": ["FCNAgents", "ArbitrageAgents"],
        "sessions": [
            {
                "sessionName": 0,
                "iterationSteps": 30,
                "withOrderPlacement": True,
                "withOrderExecution": False,
                "withPrint": False,
                "events": ["Shock"],
            },
            {
                "sessionName": 1,
                "iterationSteps": 60,
                "withOrderPlacement": True,
                "withOrderExecution": True,
                "withPrint": False,
            },
        ],
    },
    "Shock": {
        "class": "FundamentalPriceShock",
        "target": "Market-A",
        "triggerTime": 10,
        "priceChangeRate": -0.1,
        "shockTimeLength": 2,
        "enabled": True,
    },
    "Market-A": {
        "class": "Market",
        "tickSize": 0.01,
        "marketPrice": 300.0,
        "outstandingShares": 25000,
    },
    "Market-B": {
        "class": "Market",
        "tickSize": 0.01,
        "marketPrice": 300.0,
        "outstandingShares": 25000,
    },
    "Index": {
        "class": "IndexMarket",
        "tickSize": 0.01,
        "marketPrice": 300.0,
        "outstandingShares": 25000,
        "markets": ["Market-A", "Market-B"],
    },
    "FCNAgents": {
        "class": "FCNAgent",
        "numAgents": 12,
        "markets": ["Market-A"],
        "assetVolume": 50,
        "cashAmount": 10000,
        "fundamentalWeight": {"expon": [1.0]},
        "chartWeight": {"expon": [0.2]},
        "noiseWeight": {"expon": [1.0]},
        "noiseScale": 0.001,
        "timeWindowSize": {"uniform": [10, 20]},
        "orderMargin": {"uniform": [0.0, 0.1]},
    },
    "ArbitrageAgents": {
        "class": "ArbitrageAgent",
        "numAgents": 2,
        "markets": ["Index", "Market-A", "Market-B"],
        "assetVolume": 50,
        "cashAmount": 150000,
        "orderVolume": 1,
        "orderThresholdPrice": 1.0,
    },
}


@pytest.fixture(scope="module")
def simulator() -> Any:
    """A simulation in the middle of everything, with orders in its books."""
    runner = SequentialRunner(settings=SETTINGS, prng=random.Random(42))
    runner.main()
    orders = [
        order
        for market in runner.simulator.markets
        for book in (market.buy_order_book, market.sell_order_book)
        for order in book.priority_queue
    ]
    assert orders
    return runner.simulator


def test_a_whole_simulator(simulator: Any) -> None:
    copied = snapshot.loads(snapshot.dumps(simulator))
    assert_same(pickled_copy(simulator), copied)
    assert_same(simulator, copied, layout=False)
    assert copied.agents[0].simulator is copied
    assert type(copied.markets[2].get_components()[0]) is type(simulator.markets[0])


@pytest.mark.parametrize("attribute", ["agents", "markets", "fundamentals", "sessions"])
def test_parts_of_a_simulator(simulator: Any, attribute: str) -> None:
    part = getattr(simulator, attribute)
    copied = snapshot.loads(snapshot.dumps(part))
    assert_same(pickled_copy(part), copied)


def test_books_keep_their_orders(simulator: Any) -> None:
    copied = snapshot.loads(snapshot.dumps(simulator))
    for market, other in zip(simulator.markets, copied.markets, strict=True):
        for side in ("buy_order_book", "sell_order_book"):
            ours, theirs = getattr(market, side), getattr(other, side)
            assert len(ours) == len(theirs)
            assert [order.order_id for order in ours.priority_queue] == [
                order.order_id for order in theirs.priority_queue
            ]
            assert ours.get_best_price() == theirs.get_best_price()
            # A book keeps the orders to expire by time, and these are the same objects.
            known = {id(order) for order in theirs.priority_queue}
            expiring = [o for orders in theirs.expire_time_list.values() for o in orders]
            assert {id(order) for order in expiring} <= known


def test_the_copy_trades_like_the_original(simulator: Any) -> None:
    data = snapshot.dumps(simulator)

    def trade(sim: Any) -> list[Any]:
        agents = [agent for agent in sim.agents if isinstance(agent, FCNAgent)]
        markets = sim.markets
        submitted = [agent.submit_orders(markets) for agent in agents]
        return [
            [(o.agent_id, o.is_buy, o.price, o.volume, o.kind.name, o.ttl) for o in orders]
            for orders in submitted
        ]

    first = trade(snapshot.loads(data))
    assert first
    assert any(first)
    assert first == trade(snapshot.loads(data))
    assert first == trade(pickled_copy(simulator))


def test_constants_of_pams_by_externals() -> None:
    orders = [
        Order(0, 0, True, LIMIT_ORDER, 5, price=300.0, ttl=3),
        Order(1, 0, False, MARKET_ORDER, 5),
    ]
    graph = [*orders, Cancel(orders[0])]
    plain = snapshot.loads(snapshot.dumps(graph))
    assert plain[0].kind is not LIMIT_ORDER
    assert plain[0].kind == LIMIT_ORDER
    assert plain[2].order is plain[0]
    encoder = snapshot.Encoder(externals=[LIMIT_ORDER, MARKET_ORDER])
    encoder.add(graph)
    data = encoder.finish()
    assert data is not None
    copied = snapshot.Decoder(data, [LIMIT_ORDER, MARKET_ORDER]).roots[0]
    assert copied[0].kind is LIMIT_ORDER
    assert copied[1].kind is MARKET_ORDER


def test_a_lambda_in_the_simulation(simulator: Any) -> None:
    simulator.agents[3].rule = lambda: None
    try:
        encoder = snapshot.Encoder()
        with pytest.raises(Exception, match=r"simulator\.agents\[3\]\.rule") as error:
            encoder.add(simulator, "simulator")
        assert "lambda" in str(error.value)
    finally:
        del simulator.agents[3].rule

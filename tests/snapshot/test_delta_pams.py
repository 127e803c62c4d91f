"""Simulations of pams: a replica follows every step, and agents that act there leave no trace."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from checks import pickled_copy
from delta_support import Chain
from pams.agents import FCNAgent
from pams.runners import SequentialRunner
from test_snapshot_pams import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable


def submitted(agents: Any, markets: Any) -> list[Any]:
    """What agents would submit, and the states of their generators afterwards."""
    return [
        (
            [(o.agent_id, o.is_buy, o.price, o.volume, o.kind.name, o.ttl) for o in orders],
            agent.prng.getstate(),
        )
        for agent in agents
        if isinstance(agent, FCNAgent)
        for orders in [agent.submit_orders(markets)]
    ]


class FramingRunner(SequentialRunner):
    """Takes a frame before every step."""

    before_a_step: Callable[[Any], None]

    def _collect_orders_from_normal_agents(self, session: Any) -> Any:
        self.before_a_step(self.simulator)
        return super()._collect_orders_from_normal_agents(session)


def run(before_a_step: Callable[[Any], None]) -> FramingRunner:
    runner = FramingRunner(settings=SETTINGS, prng=random.Random(42))
    runner.before_a_step = before_a_step
    runner.main()
    return runner


@pytest.mark.filterwarnings("ignore:order price:UserWarning")
def test_a_replica_of_a_simulation() -> None:
    chain = Chain()
    sizes = []

    def frame(simulator: Any) -> None:
        chain.roots = (simulator, simulator.markets)
        sizes.append(len(chain.send()))
        chain.catch_up(chain.replica)
        if len(sizes) % 15 == 1:
            chain.check()
        simulator_there, markets_there = chain.replica.roots
        acted = submitted(simulator_there.agents, markets_there)
        if len(sizes) % 15 == 1:
            copied, markets = pickled_copy(chain.roots)
            assert acted == submitted(copied.agents, markets)
        assert chain.replica.roll_back()
        if len(sizes) % 15 == 1:
            chain.check()
            assert acted == submitted(simulator_there.agents, markets_there)
            assert chain.replica.roll_back()

    simulator = run(frame).simulator
    chain.roots = (simulator, simulator.markets)
    chain.step()
    assert len(sizes) == 90
    assert not chain.source.is_keyframe
    # The first frame is the keyframe, the others are small.
    assert max(sizes[1:]) < sizes[0] / 2


@pytest.mark.filterwarnings("ignore:order price:UserWarning")
def test_vandals_in_a_simulation() -> None:
    """Books are torn, agents lose their memory, and nothing of it is left."""
    chain = Chain()
    steps = []

    def frame(simulator: Any) -> None:
        chain.roots = (simulator,)
        chain.send()
        chain.catch_up(chain.replica)
        steps.append(simulator)
        replica = chain.replica.roots[0]
        for market in replica.markets:
            market.buy_order_book.priority_queue.reverse()
            market.sell_order_book.expire_time_list.clear()
            vars(market).popitem()
        for number, agent in enumerate(replica.agents):
            agent.asset_volumes.clear()
            agent.__class__ = FCNAgent
            agent.vandalism = replica.agents[number - 1]
            agent.prng.seed(number)
            if number % 2:
                agent.__dict__.clear()
        replica.fundamentals.prices.clear()
        replica.agents.reverse()
        replica.__dict__["id2agent"] = None
        assert chain.replica.roll_back()
        if len(steps) % 20 == 0:
            chain.check()

    run(frame)
    chain.step()


@pytest.mark.filterwarnings("ignore:order price:UserWarning")
def test_frames_do_not_disturb_a_simulation() -> None:
    chain = Chain()

    def frame(simulator: Any) -> None:
        chain.roots = (simulator,)
        chain.send()

    def prices(runner: Any) -> Any:
        return [market.get_market_prices() for market in runner.simulator.markets]

    assert prices(run(frame)) == prices(run(lambda simulator: None))

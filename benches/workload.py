"""The workload that the figures are measured on.

It follows ParallelMain of Plham (Torii et al. 2017): nine spot markets and an index over them,
the same number of FCN agents on each of the ten, of which each submits an order with
probability 0.1 when it is asked, and 100 arbitrage agents over all markets. Agents are "light",
or price an option by "n x m" Monte Carlo paths and steps first. Or they are "neural": FCN agents
whose forecast is a Flax network of their own, and which submit an order whenever they are asked.
With one market there are no index and no arbitrage agents.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pams.logs import Logger
from pams.runners import SequentialRunner
from pams_parallel import examples

if TYPE_CHECKING:
    from pams.agents import Agent
    from pams.simulator import Simulator

N_ARBITRAGEURS = 100
SEED = 1


class Workload(NamedTuple):
    """What to simulate.

    Attributes:
        n_agents: number of FCN agents in all, a multiple of the number of markets.
        paths: Monte Carlo paths per agent and step; 0 for light agents.
        path_steps: steps of a path.
        history: steps in which ten agents submit and the arbitrage agents are not asked. They
            fill the markets' histories before the measured steps. Agents have no load then.
        steps: measured steps, in which every agent is asked.
        workers: number of worker processes.
        hidden_layers: units of the hidden layers of neural agents; they need JAX and Flax. The
            other agents have none.
        n_markets: number of markets, one of which is the index unless there is only one.
        arbitrage_rate: probability, in measured steps, that the arbitrage agents are asked after
            an order.
        time_window: least and largest time window of the agents, for which their orders stand.
    """

    n_agents: int
    paths: int = 0
    path_steps: int = 0
    history: int = 0
    steps: int = 1
    workers: int = 2
    hidden_layers: tuple[int, ...] = ()
    n_markets: int = 10
    arbitrage_rate: float = 1.0
    time_window: tuple[int, int] = (100, 200)

    def with_load(self, load: str) -> Workload:
        """The same with the load ``"light"`` or, for example, ``"10x10"``."""
        paths, path_steps = (0, 0) if load == "light" else map(int, load.split("x"))
        return self._replace(paths=paths, path_steps=path_steps)

    @property
    def example(self) -> str:
        """The bundled example from which the agents are taken."""
        return "flax" if self.hidden_layers else "index"

    def config(self) -> dict[str, Any]:
        """Settings for a runner."""
        agents_per_market, rest = divmod(self.n_agents, self.n_markets)
        if rest:
            raise ValueError(f"the number of agents must be a multiple of {self.n_markets}")
        # A single market has no index; what is not listed here is not made.
        indices, arbitrageur_groups = (
            (["Index"], ["Arbitrageurs"]) if self.n_markets > 1 else ([], [])
        )
        spots = [f"Spot-{i}" for i in range(self.n_markets - len(indices))]
        markets = [*spots, *indices]
        session = {
            "withOrderPlacement": True,
            "withOrderExecution": True,
            "withPrint": False,
            "maxHighFrequencyOrders": 1,
        }
        sessions = [
            {
                **session,
                "sessionName": "history",
                "iterationSteps": self.history,
                "maxNormalOrders": 10,
                "highFrequencySubmitRate": 0.0,
            },
            {
                **session,
                "sessionName": "measured",
                "iterationSteps": self.steps,
                "maxNormalOrders": 1_000_000,
                "highFrequencySubmitRate": self.arbitrage_rate,
            },
        ]
        agent = {
            "class": "FlaxAgent" if self.hidden_layers else "OptionPricingAgent",
            "numAgents": agents_per_market,
            "assetVolume": 50,
            "cashAmount": 10000,
            "fundamentalWeight": {"expon": [1.0]},
            "chartWeight": {"expon": [0.0]},
            "noiseWeight": {"expon": [1.0]},
            "noiseScale": 0.001,
            "timeWindowSize": list(self.time_window),
            "orderMargin": [0.0, 0.1],
            "orderRate": 0.1,
            "optionPaths": self.paths,
            "optionSteps": self.path_steps,
            "hiddenLayers": self.hidden_layers,
        }
        market = {
            "class": "Market",
            "tickSize": 1e-5,
            "marketPrice": 300.0,
            "outstandingShares": 25000,
        }
        arbitrageurs = {
            "class": "ArbitrageAgent",
            "numAgents": N_ARBITRAGEURS,
            "markets": markets,
            "assetVolume": 50,
            "cashAmount": 150000,
            "orderVolume": 1,
            "orderThresholdPrice": 1.0,
        }
        return {
            "simulation": {
                "markets": markets,
                "agents": [*(f"Agents-{name}" for name in markets), *arbitrageur_groups],
                "sessions": sessions[0 if self.history else 1 :],
                "numParallel": self.workers,
                # JAX must not be forked.
                **({"startMethod": "spawn"} if self.hidden_layers else {}),
            },
            **dict.fromkeys(spots, market),
            "Index": {**market, "class": "IndexMarket", "markets": spots},
            **{f"Agents-{name}": {**agent, "markets": [name]} for name in spots},
            "Agents-Index": {**agent, "markets": ["Index"], "fundamentalWeight": 0.5},
            "Arbitrageurs": arbitrageurs,
        }

    def runner(self, runner_class: type[SequentialRunner]) -> SequentialRunner:
        """A runner that has been set up."""
        prng = random.Random(SEED)
        runner = runner_class(self.config(), prng=prng, logger=RowLogger())
        for cls in examples.load(self.example).classes:
            runner.class_register(cls)
        runner._setup()
        return runner


class RowLogger(Logger):
    """Keeps one row per order and execution, which travel with the simulation.

    Logs become rows as they are written, so that there are no others waiting for the end of the
    session.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[Any, ...]] = []

    def write(self, log: Any) -> None:
        self.process([log])

    def bulk_write(self, logs: list[Any]) -> None:
        self.process(logs)

    def process_order_log(self, log: Any) -> None:
        self.rows.append((log.time, log.market_id, log.agent_id, log.is_buy, log.price))

    def process_execution_log(self, log: Any) -> None:
        self.rows.append((log.time, log.market_id, log.buy_agent_id, log.sell_agent_id, log.price))


def _has_load(agent: Agent) -> bool:
    return getattr(agent, "option_paths", 0) > 0


def run_history(runner: SequentialRunner) -> None:
    """Run the first session, without workers whatever the runner, and enter the second one."""
    simulator = runner.simulator
    simulator._update_times_on_markets(simulator.markets)
    *history, measured = simulator.sessions
    collect = partial(SequentialRunner._collect_orders_from_normal_agents, runner)
    runner._collect_orders_from_normal_agents = collect
    loads = [(agent, agent.option_paths) for agent in simulator.agents if _has_load(agent)]
    for agent, _ in loads:
        agent.option_paths = 0
    try:
        for session in history:
            simulator.current_session = session
            runner._iterate_market_updates(session)
    finally:
        del runner._collect_orders_from_normal_agents
        for agent, paths in loads:
            agent.option_paths = paths
    if runner.logger is not None:
        runner.logger._process()
    simulator.current_session = measured


def simulator_with_history(n_agents: int, history: int) -> Simulator:
    """The simulation as a batch of the first measured step finds it."""
    runner = Workload(n_agents, history=history).runner(SequentialRunner)
    run_history(runner)
    return runner.simulator

"""The baseline: a process runner that pickles the simulation once per chunk.

This is the design that the reference describes, as fast as it can be written with pickle: one
task per worker and batch, one ``pickle.dumps`` per task.
"""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from pams.runners import SequentialRunner

if TYPE_CHECKING:
    from pams.order import Cancel, Order
    from pams.session import Session


def _ask(data: bytes) -> list[tuple[list[Order | Cancel], Any]]:
    agents, markets = pickle.loads(data)
    return [(agent.submit_orders(markets=markets), agent.prng.getstate()) for agent in agents]


class PicklePerChunkRunner(SequentialRunner):
    """Asks agents in worker processes; enough for agents that never cancel an order."""

    executor: Executor | None = None

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._shutdown_executor()

    def _shutdown_executor(self) -> None:
        if self.executor is not None:
            self.executor.shutdown()
            self.executor = None

    def _collect_orders_from_normal_agents(self, session: Session) -> list[list[Order | Cancel]]:
        simulation = self.settings["simulation"]
        n_workers = simulation["numParallel"]
        if self.executor is None:
            context = multiprocessing.get_context(simulation.get("startMethod"))
            self.executor = ProcessPoolExecutor(n_workers, mp_context=context)
        agents = self.simulator.normal_frequency_agents
        agents = self._prng.sample(agents, len(agents))
        asked = 0
        collected: list[list[Order | Cancel]] = []
        while len(collected) < session.max_normal_orders and asked < len(agents):
            batch = agents[asked : asked + session.max_normal_orders - len(collected)]
            asked += len(batch)
            size = -(-len(batch) // n_workers)
            chunks = [batch[i : i + size] for i in range(0, len(batch), size)]
            markets = self.simulator.markets
            futures = [
                self.executor.submit(_ask, pickle.dumps((chunk, markets), protocol=5))
                for chunk in chunks
            ]
            results = [result for future in futures for result in future.result()]
            for agent, (orders, prng_state) in zip(batch, results, strict=True):
                agent.prng.setstate(prng_state)
                if orders:
                    collected.append(orders)
        return collected

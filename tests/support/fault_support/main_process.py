"""Script: a run in the second step of which something happens; for tests that end the process.

Usage: ``python -m fault_support.main_process JSON``, see :class:`Situation`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts
from runner_support.scenarios import (
    InOrder,
    build,
    expected_warnings_ignored,
    give_scripts,
    scripted_settings,
)

from .faults import FOR_EVER, Fault, set_trap

# Lists whose copy takes seconds.
N_COPIED = 2_000_000


@dataclass
class Situation:
    """What the process does.

    Args:
        marker: path of a file that exists as soon as the process is in this situation.
        start_method: start method of the workers.
        phase: ``"first batch"``: the run begins; ``"between"``: between two batches;
            ``"start"``: workers are starting; ``"walk"``: many objects are being copied;
            ``"receive"``: an agent is being updated;
            else as for :func:`~.faults.set_trap`.
        fault: key of ``FAULTS``.
        memfd: whether there is anonymous memory.
        own_pool: whether the pool is one that knows nothing of the runner.
    """

    marker: str
    start_method: str = "fork"
    phase: str = "run"
    fault: str = "hang up"
    memfd: bool = True
    own_pool: bool = False

    def command(self) -> list[str]:
        text = json.dumps(asdict(self))
        return [sys.executable, "-m", "fault_support.main_process", text]


def hang_up(marker: str) -> None:
    Path(marker).touch()
    time.sleep(FOR_EVER)


class InSituation(MultiProcessAgentParallelRunner):
    """Gets into its situation in the second step, when there are workers."""

    situation: Situation

    def _create_executor(self) -> Any:
        if not self.situation.own_pool:
            return super()._create_executor()
        return ProcessPoolExecutor(2, mp_context=self._get_mp_context())

    def _get_worker_initializer(self) -> Any:
        return hang_up if self.situation.phase == "start" else None

    def _get_worker_initargs(self) -> Any:
        return (self.situation.marker,)

    def _split_agents_into_chunks(self, agents: Any) -> Any:
        if self.situation.phase == "first batch":
            Path(self.situation.marker).touch()
        return super()._split_agents_into_chunks(agents)

    def _receive_orders_from_worker(self, agent: Any, orders: Any, prng_state: Any) -> Any:
        if self.situation.phase == "receive" and self.simulator.markets[0].get_time() == 1:
            hang_up(self.situation.marker)
        return super()._receive_orders_from_worker(agent, orders, prng_state)

    def _update_markets(self, session: Any) -> None:
        super()._update_markets(session)
        situation = self.situation
        if situation.phase == "between":
            hang_up(situation.marker)
        elif situation.phase == "walk":
            self.simulator.payload = [[i] for i in range(N_COPIED)]
            Path(situation.marker).touch()
        elif situation.phase in ("unpickle", "pickle", "run", "return"):
            fault = Fault(situation.fault, situation.marker, lasting=True)
            set_trap(self, situation.phase, fault, 2)


def main(text: str) -> None:
    situation = Situation(**json.loads(text))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not situation.memfd:
        with contextlib.suppress(AttributeError):
            del os.memfd_create
    runner = build(
        InSituation,
        scripted_settings(4, steps=3),
        seed=InOrder(1),
        numParallel=2,
        startMethod=situation.start_method,
    )
    runner.situation = situation
    with expected_warnings_ignored():
        runner._setup()
    listed = ("trap",) if situation.phase == "return" else None
    give_scripts(runner, [scripts.buy] * 4, listed)
    if situation.phase == "first batch":
        runner.simulator.sessions[0].iteration_steps = 1_000_000
    try:
        runner._run()
    except KeyboardInterrupt:
        print("interrupted, executor:", runner.executor, flush=True)
        raise


if __name__ == "__main__":
    main(sys.argv[1])

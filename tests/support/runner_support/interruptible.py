"""Script: a run whose worker sleeps, for the test that interrupts it.

Usage: ``python -m runner_support.interruptible START_METHOD MARKER``
"""

from __future__ import annotations

import sys

from pams_parallel import MultiProcessAgentParallelRunner

from . import misbehaviour, scripts
from .scenarios import InOrder, build, expected_warnings_ignored, give_scripts, scripted_settings


def main(start_method: str, marker: str) -> None:
    runner = build(
        MultiProcessAgentParallelRunner,
        scripted_settings(2),
        seed=InOrder(1),
        numParallel=2,
        startMethod=start_method,
    )
    with expected_warnings_ignored():
        runner._setup()
    give_scripts(runner, [scripts.buy, misbehaviour.make_marker_and_sleep])
    for agent in runner.simulator.agents:
        agent.marker = marker
    try:
        runner._run()
    except KeyboardInterrupt:
        print("interrupted, executor:", runner.executor)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])

"""``pams-parallel compare``."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..outcome import differences, outcome
from ._execution import Timing, execute
from ._simulation import Simulation, read_simulation

if TYPE_CHECKING:
    import argparse

_SHOWN_DIFFERENCES = 10


def compare(arguments: argparse.Namespace) -> int:
    """Run a config with both runners, and print what comes out.

    Args:
        arguments: options of the command line.

    Returns:
        0 if the outcomes are identical, else 1.
    """
    simulation = read_simulation(arguments)
    # Ours comes first: it has more to say against a config, and should say it at once.
    runner, parallel = execute(simulation, arguments.runner, quiet=arguments.quiet, keep_logs=True)
    found = outcome(runner)
    heading = _heading(simulation, runner)
    # The second run should not carry the first one's objects about.
    del runner
    gc.collect()
    runner, sequential = execute(simulation, "sequential", quiet=arguments.quiet, keep_logs=True)
    expected = outcome(runner)
    different = differences(expected, found)

    print(heading)
    print()
    if different:
        print(f"The outcomes DIFFER in {len(different)} of {len(expected)} values:")
        for difference in different[:_SHOWN_DIFFERENCES]:
            print(f"  {difference}")
        if len(different) > _SHOWN_DIFFERENCES:
            print(f"  and {len(different) - _SHOWN_DIFFERENCES} more")
    else:
        logs = Counter(row[0] for row in expected["logs"])
        print(
            f"The outcomes are identical ({logs['OrderLog']} orders, "
            f"{logs['ExecutionLog']} executions, {len(expected)} values compared)."
        )
    print()
    print(_table(sequential, parallel))
    return 1 if different else 0


def _heading(simulation: Simulation, runner: Any) -> str:
    simulator = runner.simulator
    method = runner.start_method or multiprocessing.get_start_method()
    steps = sum(session.iteration_steps for session in simulator.sessions)
    return (
        f"{simulation.name}: {_count(simulator.n_markets, 'market')}, "
        f"{_count(simulator.n_agents, 'agent')}, {_count(steps, 'step')}, "
        f"seed {simulation.seed}; {_count(runner.num_parallel, 'worker')} ({method})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(first: Timing, second: Timing) -> str:
    widths = [len(first.runner), len(second.runner)]
    lines = [f"{'seconds':<14}  {first.runner}  {second.runner}  {'ratio':>6}"]
    for label, *seconds in (
        ("collect phase", first.collect_seconds, second.collect_seconds),
        ("whole run", first.seconds, second.seconds),
    ):
        cells = [f"{value:>{width}.3f}" for value, width in zip(seconds, widths, strict=True)]
        ratio = seconds[0] / seconds[1] if seconds[1] > 0.0 else float("nan")
        lines.append("  ".join([f"{label:<14}", *cells, f"{ratio:>6.2f}"]))
    return "\n".join(lines)

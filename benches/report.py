"""Measure every bar, and print a table: bar, measured, verdict.

It exits with 1 if a bar is missed. All groups take about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import operator
import statistics
import sys
from typing import TYPE_CHECKING

import measure
import measure_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from measure import Sizes

Row = tuple[str, str, str, str]
"""What, bar, measured, verdict."""


def _row(what: str, bar: str, value: float, detail: str) -> Row:
    """Row of a ratio with a bar such as ``>= 10``."""
    relation, limit = bar.split()
    holds = {">=": operator.ge, "<=": operator.le}[relation](value, float(limit))
    return what, bar, f"{value:.2f} ({detail})", "pass" if holds else "FAIL"


def _milliseconds(**seconds: float) -> str:
    parts = (f"{name.replace('_', ' ')} {1000 * value:.1f}" for name, value in seconds.items())
    return ", ".join(parts) + " ms"


def _faster(what: str, bar: str, ours: float, theirs: float) -> Row:
    return _row(what, bar, theirs / ours, _milliseconds(ours=ours, pickle=theirs))


def copies(sizes: Sizes) -> Iterator[Row]:
    """writing and reading a snapshot, against pickle"""
    for n_agents in reversed(sizes.agents):
        for what, function in (
            ("dumps", measure.dumps),
            ("loads", measure.loads),
            ("loads, fresh process", measure.first_loads),
        ):
            found = function(n_agents, sizes)
            what = f"{what}, {n_agents} agents"
            yield _faster(what, ">= 10", found["snapshot"], found["pickle"])
        found = measure.sizes_in_bytes(n_agents, sizes)
        ratio = found["snapshot"] / found["pickle"]
        detail = f"{found['snapshot']:,} of {found['pickle']:,} bytes"
        yield _row(f"bytes, {n_agents} agents", "<= 0.85", ratio, detail)


def collect(sizes: Sizes) -> Iterator[Row]:
    """collect phase of light agents"""
    for n_agents in reversed(sizes.agents):
        phase = measure_runs.collect_phase(n_agents, sizes)
        ours, per_chunk, sequential = (
            phase.seconds[name] for name in ("snapshot", "pickle per chunk", "sequential")
        )
        what = f"light, {n_agents} agents"
        yield _faster(f"collect phase, {what}", ">= 15", ours, per_chunk)

        ideal = sequential / phase.scaling
        yield _faster(
            f"overhead of the collect phase, {what}",
            ">= 100",
            max(ours - ideal, 0.001),
            max(per_chunk - ideal, 0.001),
        )
        yield _row(
            f"collect phase against SequentialRunner, {what}",
            ">= 0.8",
            phase.against_sequential("snapshot"),
            _milliseconds(ours=ours, sequential=sequential),
        )


def loaded(sizes: Sizes) -> Iterator[Row]:
    """collect phase of agents with a load, against SequentialRunner and the scaling"""
    for load, bar in zip(measure_runs.LOADS, (">= 0.85", ">= 0.93"), strict=True):
        phase = measure_runs.loaded_collect_phase(load, sizes)
        faster = phase.against_sequential("snapshot")
        times = _milliseconds(
            ours=phase.seconds["snapshot"], sequential=phase.seconds["sequential"]
        )
        yield _row(
            f"speed-up of the collect phase / scaling, {load}, {max(sizes.agents)} agents",
            bar,
            faster / phase.scaling,
            f"{faster:.3f} / {phase.scaling:.3f}, {times}",
        )


def late(sizes: Sizes) -> Iterator[Row]:
    """late steps of a long run against early ones"""
    run = measure_runs.long_run(sizes)
    what = f"{min(sizes.agents)} light agents, {sizes.long_run} steps, no arbitrage"
    early_and_late = {
        name: (run.early(values), run.late(values)) for name, values in run.seconds.items()
    }
    early, late = early_and_late["snapshot"]
    sequential = " to ".join(f"{1000 * value:.2f}" for value in early_and_late["sequential"])
    detail = f"{1000 * early:.2f} to {1000 * late:.2f} ms, sequential {sequential} ms"
    yield _row(f"late / early collect phase, {what}", "<= 1.5", late / early, detail)
    early, late = run.early(run.frame_bytes), run.late(run.frame_bytes)
    detail = f"{early:,.0f} to {late:,.0f}"
    yield _row(f"late / early bytes of a frame, {what}", "<= 1.5", late / early, detail)
    seconds = run.seconds["snapshot"]
    worst, median = max(seconds), statistics.median(seconds)
    detail = f"step {seconds.index(worst) + 1}: {_milliseconds(worst=worst, median=median)}"
    yield _row(f"worst / median collect phase, {what}", "<= 10", worst / median, detail)


def frames(sizes: Sizes) -> Iterator[Row]:
    """bytes of frames with what has changed"""
    for n_agents in reversed(sizes.agents):
        median = measure_runs.delta_bytes(n_agents, sizes)
        yield _row(f"kilobytes of a delta, {n_agents} agents", "<= 60", median / 1000, "median")
    n_agents = max(sizes.agents)
    n_bytes = measure.unchanged_frame_bytes(n_agents, sizes)
    what = f"kilobytes of a frame, nothing changed, {n_agents} agents"
    yield _row(what, "<= 1", n_bytes / 1000, f"{n_bytes} bytes")


def memory(sizes: Sizes) -> Iterator[Row]:
    """memory of the main process for a batch, and of a worker's replica"""
    for n_agents in reversed(sizes.agents):
        found = measure_runs.peak_memory(n_agents, sizes)
        detail = ", ".join(f"{name} {size:,}" for name, size in found.items())
        ratio = found["total"] / found["snapshot"]
        yield _row(f"peak extra memory, {n_agents} agents", "<= 2", ratio, f"{detail} bytes")
    for n_agents in reversed(sizes.agents):
        held = measure.held_bytes(n_agents, sizes)
        detail = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in held.items())
        ratio = held["replica"] / held["pickle"]
        what = f"memory of a replica / of pickle.loads, {n_agents} agents"
        yield _row(what, "<= 2.5", ratio, f"{detail} MB")


def neural(sizes: Sizes) -> Iterator[Row]:
    """collect phase of neural agents, which has no bar, and bytes of their deltas"""
    layers = "-".join(map(str, (*measure_runs.HIDDEN_LAYERS, 1)))
    who = f"{sizes.neural_agents} agents with a {layers} MLP of their own"
    if not measure.HAS_FLAX:
        yield who, "-", "skipped: JAX or Flax is not installed", "-"
        return
    found = measure_runs.neural_collect_phase(sizes).seconds
    ours = found.pop("jax")
    for name, seconds in found.items():
        detail = _milliseconds(ours=ours, **{name: seconds})
        what = f"collect phase, {who}: against {name}"
        yield what, "-", f"{seconds / ours:.2f} ({detail})", "-"
    deltas = measure_runs.neural_deltas(sizes)
    what = f"kilobytes of a delta, {who} on one market"
    detail = f"of {len(deltas)} deltas in {sizes.neural_run} steps"
    yield _row(f"{what}: median", "<= 20", statistics.median(deltas) / 1000, detail)
    yield _row(f"{what}: worst", "<= 100", max(deltas) / 1000, detail)


def runs(sizes: Sizes) -> Iterator[Row]:
    """whole runs, which have no bar"""
    for load in measure_runs.WHOLE_RUN_LOADS:
        workload = measure_runs.whole_run_workload(load, sizes)
        found = measure_runs.whole_run(workload, sizes)
        ours, sequential = found["snapshot"], found["sequential"]
        for key, name in (("seconds", "wall"), ("cpu", "CPU"), ("collect", "collect phase")):
            yield (
                f"whole run, {load}, {workload.n_agents} agents, {workload.steps} steps: {name}",
                "-",
                f"{sequential[key] / ours[key]:.2f} "
                f"(ours {ours[key]:.2f}, sequential {sequential[key]:.2f} s)",
                "-",
            )


GROUPS: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    function.__name__: function
    for function in (copies, collect, loaded, late, frames, memory, neural, runs)
}
"""Groups of rows; the docstring of each says what it is."""


def _arguments() -> argparse.Namespace:
    width = max(map(len, GROUPS))
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="groups:\n"
        + "\n".join(f"  {name:{width}}  {function.__doc__}" for name, function in GROUPS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help="measure only these, see below (default: all)"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: show only that everything works"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no group is named {', '.join(unknown)}, only {', '.join(GROUPS)}")
    return arguments


def main() -> int:
    arguments = _arguments()
    sizes = measure.SMOKE if arguments.smoke else measure.FULL
    print(measure.machine())
    scaling = measure_runs.scaling(sizes)
    print(f"two processes are {scaling:.2f} times as fast as one on this machine")
    if arguments.smoke:
        print("SMOKE RUN: the figures mean nothing")
    print("\n| what | bar | measured | verdict |\n|---|---|---|---|", flush=True)
    failed = False
    for name in arguments.groups or GROUPS:
        for *cells, verdict in GROUPS[name](sizes):
            if arguments.smoke:
                verdict = "-"
            failed |= verdict == "FAIL"
            print(f"| {' | '.join([*cells, verdict])} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure every bar, and print a table: bar, measured, verdict.

``python benches/report.py`` takes about five minutes and exits with 1 if a bar is missed;
``--smoke`` shows only that it works.
"""

from __future__ import annotations

import argparse
import operator
import sys
from typing import TYPE_CHECKING

import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def copies(n_agents: int, sizes: Sizes) -> Iterator[Row]:
    """Bars of ``pams_parallel.snapshot``."""
    for what, function in (
        ("dumps", measure.dumps),
        ("loads", measure.loads),
        ("loads, fresh process", measure.first_loads),
    ):
        found = function(n_agents, sizes)
        yield _faster(f"{what}, {n_agents} agents", ">= 10", found["snapshot"], found["pickle"])
    found = measure.sizes_in_bytes(n_agents, sizes)
    ratio = found["snapshot"] / found["pickle"]
    detail = f"{found['snapshot']:,} of {found['pickle']:,} bytes"
    yield _row(f"bytes, {n_agents} agents", "<= 0.85", ratio, detail)


def batches(n_agents: int, sizes: Sizes) -> Iterator[Row]:
    """Bars of the runner."""
    found = measure.collect_phase(n_agents, sizes)
    ours, per_chunk, sequential = (
        found[name] for name in ("snapshot", "pickle per chunk", "sequential")
    )
    yield _faster(f"collect phase, light, {n_agents} agents", ">= 15", ours, per_chunk)
    scaling = measure.scaling()

    def overhead(seconds: float) -> float:
        return max(seconds - sequential / scaling, 0.001)

    yield _faster(
        f"overhead of the collect phase, light, {n_agents} agents",
        ">= 100",
        overhead(ours),
        overhead(per_chunk),
    )
    yield _row(
        f"collect phase against SequentialRunner, light, {n_agents} agents",
        ">= 0.8",
        sequential / ours,
        _milliseconds(ours=ours, sequential=sequential),
    )
    found_bytes = measure.delta_bytes(n_agents, sizes)
    yield _row(f"kilobytes of a delta, {n_agents} agents", "<= 60", found_bytes / 1000, "median")
    memory = measure.peak_memory(n_agents, sizes)
    detail = ", ".join(f"{name} {size:,}" for name, size in memory.items())
    ratio = memory["total"] / memory["snapshot"]
    yield _row(f"peak extra memory, {n_agents} agents", "<= 2", ratio, f"{detail} bytes")


def neural_batches(sizes: Sizes) -> Iterator[Row]:
    """Neural agents, which have no bar."""
    layers = "-".join(map(str, (*measure.HIDDEN_LAYERS, 1)))
    what = f"collect phase, {sizes.neural_agents} agents with a {layers} MLP of their own"
    if not measure.HAS_FLAX:
        yield what, "-", "skipped: JAX or Flax is not installed", "-"
        return
    found = measure.neural_collect_phase(sizes)
    ours = found.pop("jax")
    for name, seconds in found.items():
        detail = _milliseconds(ours=ours, **{name: seconds})
        yield f"{what}: against {name}", "-", f"{seconds / ours:.2f} ({detail})", "-"


def whole_runs(sizes: Sizes) -> Iterator[Row]:
    """Whole runs, which have no bar."""
    for load in measure.LOADS:
        workload = measure.whole_run_workload(load, sizes)
        found = measure.whole_run(workload, sizes)
        ours, sequential = found["snapshot"], found["sequential"]
        for key, name in (("seconds", "wall"), ("cpu", "CPU"), ("collect", "collect phase")):
            yield (
                f"whole run, {load}, {workload.n_agents} agents, {workload.steps} steps: {name}",
                "-",
                f"{sequential[key] / ours[key]:.2f} "
                f"(ours {ours[key]:.2f}, sequential {sequential[key]:.2f} s)",
                "-",
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    sizes = measure.SMOKE if parser.parse_args().smoke else measure.FULL
    print(measure.machine())
    print(f"two processes are {measure.scaling():.2f} times as fast as one on this machine")
    if sizes is measure.SMOKE:
        print("SMOKE RUN: the figures mean nothing")
    print("\n| what | bar | measured | verdict |\n|---|---|---|---|")

    def rows() -> Iterator[Row]:
        for n_agents in reversed(sizes.agents):
            yield from copies(n_agents, sizes)
        for n_agents in reversed(sizes.agents):
            yield from batches(n_agents, sizes)
        yield from neural_batches(sizes)
        yield from whole_runs(sizes)

    failed = False
    for *cells, verdict in rows():
        if sizes is measure.SMOKE:
            verdict = "-"
        failed |= verdict == "FAIL"
        print(f"| {' | '.join([*cells, verdict])} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

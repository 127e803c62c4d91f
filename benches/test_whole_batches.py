"""Collect phase, memory and whole runs, each candidate in a process of its own.

The time that pytest-benchmark shows is that of the whole measurement; the figures are in
``extra_info``.
"""

from __future__ import annotations

import measure
import pytest

pytestmark = pytest.mark.benchmark(group="batches")


def test_collect_phase(benchmark, n_agents, sizes):
    seconds = benchmark.pedantic(measure.collect_phase, (n_agents, sizes), rounds=1)
    benchmark.extra_info["seconds"] = seconds
    benchmark.extra_info["times_faster"] = seconds["pickle per chunk"] / seconds["snapshot"]
    benchmark.extra_info["against_sequential"] = seconds["sequential"] / seconds["snapshot"]


@pytest.mark.skipif(not measure.HAS_FLAX, reason="needs JAX and Flax")
def test_neural_collect_phase(benchmark, sizes):
    seconds = benchmark.pedantic(measure.neural_collect_phase, (sizes,), rounds=1)
    benchmark.extra_info["seconds"] = seconds
    for name, taken in seconds.items():
        benchmark.extra_info[f"against {name}"] = taken / seconds["jax"]


def test_peak_memory(benchmark, n_agents, sizes):
    found = benchmark.pedantic(measure.peak_memory, (n_agents, sizes), rounds=1)
    benchmark.extra_info["bytes"] = found
    benchmark.extra_info["snapshots"] = found["total"] / found["snapshot"]


@pytest.mark.parametrize("load", measure.LOADS)
def test_whole_run(benchmark, load, sizes):
    workload = measure.whole_run_workload(load, sizes)
    benchmark.extra_info["runs"] = benchmark.pedantic(
        measure.whole_run, (workload, sizes), rounds=1
    )

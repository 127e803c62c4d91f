"""Collect phase, frames, memory and whole runs, each candidate in a process of its own.

The time that pytest-benchmark shows is that of the whole measurement; the figures are in
``extra_info``.
"""

from __future__ import annotations

import statistics

import measure
import measure_runs
import pytest

pytestmark = pytest.mark.benchmark(group="batches")

needs_flax = pytest.mark.skipif(not measure.HAS_FLAX, reason="needs JAX and Flax")


@pytest.fixture
def figures(benchmark):
    """Calls a function under the benchmark; what it finds is to go into ``extra_info``."""

    def call(function, *args):
        return benchmark.pedantic(function, args, rounds=1), benchmark.extra_info

    return call


def test_collect_phase(figures, n_agents, sizes):
    phase, info = figures(measure_runs.collect_phase, n_agents, sizes)
    info.update(phase._asdict())
    info["times_faster"] = phase.seconds["pickle per chunk"] / phase.seconds["snapshot"]
    info["against_sequential"] = phase.against_sequential("snapshot")


@pytest.mark.parametrize("load", measure_runs.LOADS)
def test_loaded_collect_phase(figures, load, sizes):
    phase, info = figures(measure_runs.loaded_collect_phase, load, sizes)
    info.update(phase._asdict())
    info["against_scaling"] = phase.against_sequential("snapshot") / phase.scaling


@needs_flax
def test_neural_collect_phase(figures, sizes):
    phase, info = figures(measure_runs.neural_collect_phase, sizes)
    info["seconds"] = phase.seconds
    for name, taken in phase.seconds.items():
        info[f"against {name}"] = taken / phase.seconds["jax"]


def test_long_run(figures, sizes):
    run, info = figures(measure_runs.long_run, sizes)
    for name, values in {**run.seconds, "frame_bytes": run.frame_bytes}.items():
        info[name] = {
            "early": run.early(values),
            "late": run.late(values),
            "median": statistics.median(values),
            "worst": max(values),
        }


def test_delta(figures, n_agents, sizes):
    found, info = figures(measure_runs.delta_bytes, n_agents, sizes)
    info["bytes"] = found


def test_unchanged_frame(figures, n_agents, sizes):
    found, info = figures(measure.unchanged_frame_bytes, n_agents, sizes)
    info["bytes"] = found


@needs_flax
def test_neural_deltas(figures, sizes):
    deltas, info = figures(measure_runs.neural_deltas, sizes)
    info["bytes"] = {"median": statistics.median(deltas), "worst": max(deltas)}


def test_peak_memory(figures, n_agents, sizes):
    found, info = figures(measure_runs.peak_memory, n_agents, sizes)
    info["bytes"] = found
    info["snapshots"] = found["total"] / found["snapshot"]


def test_held_memory(figures, n_agents, sizes):
    found, info = figures(measure.held_bytes, n_agents, sizes)
    info["bytes"] = found
    info["against_pickle"] = found["replica"] / found["pickle"]


@pytest.mark.parametrize("load", measure_runs.WHOLE_RUN_LOADS)
def test_whole_run(figures, load, sizes):
    workload = measure_runs.whole_run_workload(load, sizes)
    found, info = figures(measure_runs.whole_run, workload, sizes)
    info["runs"] = found

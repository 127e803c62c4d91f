"""``snapshot.dumps`` and ``loads`` against pickle."""

from __future__ import annotations

import pickle
import statistics

import measure
import pytest
from pams_parallel import snapshot


def against_pickle(benchmark, rounds, ours, theirs):
    """Time ours, and pickle before each round of it."""
    seconds = []
    ours()
    theirs()
    benchmark.pedantic(
        ours, setup=lambda: seconds.append(measure.timed(theirs)) or None, rounds=rounds
    )
    if benchmark.stats is not None:  # not with --benchmark-disable
        taken = statistics.median(seconds)
        benchmark.extra_info["pickle_seconds"] = taken
        benchmark.extra_info["times_faster"] = taken / benchmark.stats.stats.median


@pytest.mark.benchmark(group="dumps")
def test_dumps(benchmark, n_agents, sizes):
    simulator = measure.graph(n_agents, sizes.history)
    against_pickle(
        benchmark,
        sizes.rounds,
        lambda: snapshot.dumps(simulator),
        lambda: measure.pickle_dumps(simulator),
    )
    found = measure.sizes_in_bytes(n_agents, sizes)
    benchmark.extra_info["bytes"] = found
    benchmark.extra_info["bytes_of_pickle"] = found["snapshot"] / found["pickle"]


@pytest.mark.benchmark(group="loads")
def test_loads(benchmark, n_agents, sizes):
    simulator = measure.graph(n_agents, sizes.history)
    data, pickled = snapshot.dumps(simulator), measure.pickle_dumps(simulator)
    measure.assert_same_simulation(pickle.loads(pickled), snapshot.loads(data))
    against_pickle(
        benchmark, sizes.rounds, lambda: snapshot.loads(data), lambda: pickle.loads(pickled)
    )


@pytest.mark.benchmark(group="loads in a fresh process")
def test_first_loads(benchmark, n_agents, sizes):
    found = benchmark.pedantic(measure.first_loads, (n_agents, sizes), rounds=1)
    benchmark.extra_info["seconds"] = found
    benchmark.extra_info["times_faster"] = found["pickle"] / found["snapshot"]

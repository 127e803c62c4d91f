"""What is measured of copies, and how: everything that is compared runs interleaved.

Results are checked. Runners are in ``measure_runs.py``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pams_parallel import snapshot
from pams_parallel.results import CONSTANTS
from workload import simulator_with_history

if TYPE_CHECKING:
    from collections.abc import Callable

    from pams.simulator import Simulator

CHILD = Path(__file__).with_name("child.py")

HAS_FLAX = all(map(importlib.util.find_spec, ("jax", "flax")))
"""Whether neural agents can be measured."""


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        agents: numbers of agents.
        history: steps of history.
        rounds: rounds of what takes less than a second.
        pairs: least number of pairs that the scaling is the median of.
        steps: measured steps of light and neural agents, the first one left out.
        loaded_steps: those of agents with a load.
        long_run: steps of the long run of light agents, a multiple of 15.
        light_run: steps of a whole run of light agents.
        heavy_run: steps of a whole run of 30x30 agents.
        runs: whole runs per candidate.
        neural_agents: number of neural agents.
        neural_run: steps of a run of neural agents.
    """

    agents: tuple[int, ...] = (1000, 5000)
    history: int = 500
    rounds: int = 11
    pairs: int = 15
    steps: int = 7
    loaded_steps: int = 5
    long_run: int = 1500
    light_run: int = 20
    heavy_run: int = 5
    runs: int = 3
    neural_agents: int = 200
    neural_run: int = 700


FULL = Sizes()
SMOKE = Sizes(
    (50, 100),
    history=5,
    rounds=2,
    pairs=1,
    steps=2,
    loaded_steps=1,
    long_run=15,
    light_run=2,
    heavy_run=1,
    runs=1,
    neural_agents=10,
    neural_run=3,
)
"""Shows only that everything works."""


def machine() -> str:
    """Machine and versions."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    names = ["pams-parallel", "pams", "numpy", *(("jax", "flax") if HAS_FLAX else ())]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return (
        f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


@cache
def graph(n_agents: int, history: int) -> Simulator:
    """The simulation whose copies are measured; do not change it."""
    return simulator_with_history(n_agents, history)


def pickle_dumps(obj: object) -> bytes:
    """The oracle."""
    return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)


def timed(function: Callable[[], object]) -> float:
    """Seconds of a call; what it returns is freed afterwards, and earlier garbage before."""
    gc.collect()
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    del result
    return seconds


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each candidate, which take turns after a round for warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(rounds + 1):
        for name, function in candidates.items():
            taken = timed(function)
            if round_ > 0:
                seconds[name].append(taken)
    return {name: statistics.median(values) for name, values in seconds.items()}


def assert_same_simulation(first: Simulator, second: Simulator) -> None:
    """A cheap check that a copy is one; the tests of the package do it thoroughly."""
    assert [a.prng.getstate() for a in first.agents] == [a.prng.getstate() for a in second.agents]
    assert [m._market_prices for m in first.markets] == [m._market_prices for m in second.markets]
    assert pickle_dumps(first) == pickle_dumps(second)


def dumps(n_agents: int, sizes: Sizes) -> dict[str, float]:
    """Seconds of ``dumps``."""
    simulator = graph(n_agents, sizes.history)
    return interleaved(
        {
            "snapshot": lambda: snapshot.dumps(simulator),
            "pickle": lambda: pickle_dumps(simulator),
        },
        sizes.rounds,
    )


def loads(n_agents: int, sizes: Sizes) -> dict[str, float]:
    """Seconds of ``loads``."""
    simulator = graph(n_agents, sizes.history)
    data, pickled = snapshot.dumps(simulator), pickle_dumps(simulator)
    # What pickle itself loads is the reference: it interns and shares strings its own way.
    assert_same_simulation(pickle.loads(pickled), snapshot.loads(data))
    return interleaved(
        {"snapshot": lambda: snapshot.loads(data), "pickle": lambda: pickle.loads(pickled)},
        sizes.rounds,
    )


def first_loads(n_agents: int, sizes: Sizes) -> dict[str, float]:
    """Seconds of the first ``loads`` in a fresh process, which has imported the modules."""
    simulator = graph(n_agents, sizes.history)
    data = {"snapshot": snapshot.dumps(simulator), "pickle": pickle_dumps(simulator)}
    return _in_fresh_processes("loads", data, sizes.rounds)


def _in_fresh_processes(what: str, data: dict[str, bytes], rounds: int) -> dict[str, float]:
    """Median of what ``child.py`` measures with each of these data; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in data}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in data.items():
            Path(folder, name).write_bytes(content)
        for _ in range(rounds):
            for name, values in found.items():
                arguments = [sys.executable, CHILD, what, name, Path(folder, name)]
                output = subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout
                values.append(json.loads(output))
    return {name: statistics.median(values) for name, values in found.items()}


def _source_and_roots(n_agents: int, sizes: Sizes) -> tuple[snapshot.Source, tuple[object, ...]]:
    """A source as a runner has it, and what it is asked for."""
    simulator = graph(n_agents, sizes.history)
    source = snapshot.Source(CONSTANTS, snapshot.library_reducers())
    return source, (simulator, simulator.markets)


def held_bytes(n_agents: int, sizes: Sizes) -> dict[str, float]:
    """Memory of a replica in a fresh process, and of what both kinds of ``loads`` give.

    What ``pickle.loads`` leaves behind includes the room that its intermediate objects took, and
    that it cannot give back.
    """
    source, roots = _source_and_roots(n_agents, sizes)
    data = {
        "replica": source.frame(roots),
        "pickle": pickle_dumps(roots),
        "snapshot": snapshot.dumps(roots),
    }
    return _in_fresh_processes("hold", data, sizes.runs)


def unchanged_frame_bytes(n_agents: int, sizes: Sizes) -> int:
    """Bytes of a frame in a step in which nothing has changed."""
    source, roots = _source_and_roots(n_agents, sizes)
    replica = snapshot.Replica(CONSTANTS, snapshot.library_reducers())
    replica.apply(source.frame(roots))
    frame = source.frame(roots)
    assert not source.is_keyframe
    replica.apply(frame)
    copy, _ = replica.roots
    assert_same_simulation(pickle.loads(pickle_dumps(roots))[0], copy)
    return len(frame)


def sizes_in_bytes(n_agents: int, sizes: Sizes) -> dict[str, int]:
    """Bytes of both formats."""
    simulator = graph(n_agents, sizes.history)
    return {"snapshot": len(snapshot.dumps(simulator)), "pickle": len(pickle_dumps(simulator))}

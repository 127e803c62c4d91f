"""What is measured, and how: everything that is compared runs interleaved, results are checked."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import multiprocessing
import os
import pickle
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pams_parallel import snapshot
from workload import Workload, simulator_with_history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pams.simulator import Simulator

CHILD = Path(__file__).with_name("child.py")

HAS_FLAX = all(map(importlib.util.find_spec, ("jax", "flax")))
"""Whether neural agents can be measured."""

HIDDEN_LAYERS = (64, 64)
"""Of neural agents."""


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        agents: numbers of agents.
        history: steps of history.
        rounds: rounds of what takes less than a second.
        steps: measured steps, the first one left out.
        light_run: steps of a whole run of light agents.
        heavy_run: steps of a whole run of 30x30 agents.
        runs: whole runs per candidate.
        neural_agents: number of neural agents.
    """

    agents: tuple[int, ...] = (1000, 5000)
    history: int = 500
    rounds: int = 11
    steps: int = 7
    light_run: int = 20
    heavy_run: int = 5
    runs: int = 3
    neural_agents: int = 200


FULL = Sizes()
SMOKE = Sizes(
    (50, 100), history=5, rounds=2, steps=2, light_run=2, heavy_run=1, runs=1, neural_agents=10
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
    seconds: dict[str, list[float]] = {"snapshot": [], "pickle": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "snapshot").write_bytes(snapshot.dumps(simulator))
        Path(folder, "pickle").write_bytes(pickle_dumps(simulator))
        for _ in range(sizes.rounds):
            for name, values in seconds.items():
                arguments = [sys.executable, CHILD, "loads", name, Path(folder, name)]
                output = subprocess.run(arguments, check=True, capture_output=True).stdout
                values.append(json.loads(output))
    return {name: statistics.median(values) for name, values in seconds.items()}


def sizes_in_bytes(n_agents: int, sizes: Sizes) -> dict[str, int]:
    """Bytes of both formats."""
    simulator = graph(n_agents, sizes.history)
    return {"snapshot": len(snapshot.dumps(simulator)), "pickle": len(pickle_dumps(simulator))}


class Child:
    """A candidate in a process of its own; see ``child.py``."""

    def __init__(self, runner: str, workload: Workload, *, memory: bool = False) -> None:
        given = {"runner": runner, "workload": workload._asdict(), "memory": memory}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", CHILD, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.answer()

    def send(self, request: str) -> None:
        assert self.process.stdin is not None
        print(request, file=self.process.stdin, flush=True)

    def has_answered(self) -> bool:
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, request: str) -> Any:
        self.send(request)
        return self.answer()

    def close(self) -> None:
        with self.process:
            pass


@contextlib.contextmanager
def children(runners: tuple[str, ...], workload: Workload) -> Iterator[dict[str, Child]]:
    """Processes of several candidates."""
    with contextlib.ExitStack() as stack:
        started = {}
        for name in runners:
            started[name] = Child(name, workload)
            stack.callback(started[name].close)
        yield started


def same_outcome(ends: list[dict[str, Any]]) -> None:
    """Check that all candidates came to the same result."""
    assert len({end["digest"] for end in ends}) == 1, "the outcomes differ"


def collect_phase(n_agents: int, sizes: Sizes) -> dict[str, float]:
    """Median seconds of the collect phase with light agents, step by step in turn."""
    return _collect_phase("snapshot", Workload(n_agents, history=sizes.history), sizes)


def delta_bytes(n_agents: int, sizes: Sizes) -> float:
    """Median bytes of a delta with light agents."""
    workload = Workload(n_agents, history=sizes.history)
    with children(("snapshot",), workload) as candidates:
        for _ in range(sizes.steps + 1):
            candidates["snapshot"].ask("step")
        return statistics.median(candidates["snapshot"].ask("end")["deltas"])


def neural_collect_phase(sizes: Sizes) -> dict[str, float]:
    """Median seconds of the collect phase with neural agents, step by step in turn."""
    workload = Workload(sizes.neural_agents, history=sizes.history, hidden_layers=HIDDEN_LAYERS)
    return _collect_phase("jax", workload, sizes)


def _collect_phase(ours: str, workload: Workload, sizes: Sizes) -> dict[str, float]:
    names = (ours, "pickle per chunk", "sequential")
    with children(names, workload) as candidates:
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for step in range(sizes.steps + 1):
            for name, child in candidates.items():
                taken = child.ask("step")["seconds"]
                if step > 0:  # workers start in the first one
                    seconds[name].append(taken)
        same_outcome([child.ask("end") for child in candidates.values()])
    return {name: statistics.median(values) for name, values in seconds.items()}


def _memfd_bytes(pid: int) -> int:
    """Memory of the anonymous files that a process has open, mapped or not."""
    found: dict[int, int] = {}
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/{number}").startswith("/memfd:"):
                status = os.stat(f"{folder}/{number}")
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _private_bytes(pid: int) -> int:
    """Resident memory of a process that is neither file nor shared memory."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def peak_memory(n_agents: int, sizes: Sizes) -> dict[str, int]:
    """Peak extra memory of the main process for a batch, the larger of the first two.

    Returns:
        Bytes: ``resident`` is the rise of the high-water mark of resident memory, in which are
        the pages of the frame's anonymous file that the process maps; ``file`` is that file,
        mapped or not; ``total`` is the peak of private memory and file together, or
        ``resident`` if that is more; ``snapshot`` is the size of a snapshot.
    """
    child = Child("snapshot", Workload(n_agents, history=sizes.history), memory=True)
    peak = {"resident": 0, "file": 0, "total": 0}
    try:
        for _ in range(2):
            child.send("step")
            private_before = child.answer()["private_bytes"]
            file = total = 0
            while not child.has_answered():
                file = max(file, _memfd_bytes(child.pid))
                total = max(total, _private_bytes(child.pid) - private_before + file)
                time.sleep(0.0001)
            resident = child.answer()["resident"]
            child.answer()  # the orders have been handled, too
            total = max(total, resident)
            if total > peak["total"]:
                peak = {"resident": resident, "file": file, "total": total}
        return {**peak, "snapshot": child.ask("end")["bytes"]}
    finally:
        child.close()


LOADS = ("light", "30x30")


def whole_run_workload(load: str, sizes: Sizes) -> Workload:
    """Workload of a whole run with one of :data:`LOADS`."""
    n_agents = max(sizes.agents)
    if load == "light":
        return Workload(n_agents, steps=sizes.light_run)
    paths, path_steps = map(int, load.split("x"))
    return Workload(n_agents, paths, path_steps, steps=sizes.heavy_run)


def whole_run(workload: Workload, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of whole runs, which take turns.

    CPU seconds are those of the main process and its workers.
    """
    measured: dict[str, list[dict[str, float]]] = {"snapshot": [], "sequential": []}
    ends = []
    for _ in range(sizes.runs):
        for name, runs in measured.items():
            with children((name,), workload) as candidates:
                runs.append(candidates[name].ask("run"))
                ends.append(candidates[name].ask("end"))
    same_outcome(ends)
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in measured.items()
    }


def _unit(_: int = 0) -> int:
    total = 0
    for i in range(1_500_000):
        total += i & 3
    return total


def scaling(pairs: int = 15) -> float:
    """How much faster two processes are than one on this machine.

    Median of: two equal units of plain Python work one after the other, by two at once.
    """
    ratios = []
    with multiprocessing.Pool(2) as pool:
        pool.map(_unit, range(2), chunksize=1)
        for _ in range(pairs):
            one_by_one = timed(lambda: (_unit(), _unit()))
            ratios.append(one_by_one / timed(lambda: pool.map(_unit, range(2), chunksize=1)))
    return statistics.median(ratios)

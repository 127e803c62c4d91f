"""What is measured of runners, each in a process of its own, and how.

What is compared runs interleaved, outcomes are checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from measure import CHILD, Sizes, timed
from workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN_LAYERS = (64, 64)
"""Of neural agents."""

LOADS = ("10x10", "30x30")
"""Loads of the measured collect phases of agents that have one."""

WHOLE_RUN_LOADS = ("light", "30x30")
"""Loads of whole runs."""


def _unit(_: int = 0) -> int:
    total = 0
    for i in range(1_500_000):
        total += i & 3
    return total


class Scaling:
    """How much faster two processes are than one on this machine, measured in pairs.

    Each pair is the time of two equal units of plain Python work one after the other, and that
    of two at once.
    """

    def __init__(self) -> None:
        self._ratios: list[float] = []

    def __enter__(self) -> Scaling:
        self._pool = multiprocessing.Pool(2)
        self._both_at_once()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()

    def _both_at_once(self) -> None:
        self._pool.map(_unit, range(2), chunksize=1)

    def measure(self, pairs: int) -> None:
        """Measure more pairs."""
        for _ in range(pairs):
            one_by_one = timed(lambda: (_unit(), _unit()))
            self._ratios.append(one_by_one / timed(self._both_at_once))

    @property
    def median(self) -> float:
        """Of all pairs."""
        return statistics.median(self._ratios)


def scaling(sizes: Sizes) -> float:
    """See :class:`Scaling`."""
    with Scaling() as measured:
        measured.measure(sizes.pairs)
    return measured.median


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


class CollectPhase(NamedTuple):
    """Collect phases of several runners.

    Attributes:
        seconds: medians over the steps, by runner.
        scaling: see :class:`Scaling`; measured between the steps.
    """

    seconds: dict[str, float]
    scaling: float

    def against_sequential(self, runner: str) -> float:
        """How many times as fast as ``SequentialRunner`` one is."""
        return self.seconds["sequential"] / self.seconds[runner]


def collect_phase(n_agents: int, sizes: Sizes) -> CollectPhase:
    """The collect phase with light agents."""
    workload = Workload(n_agents, history=sizes.history)
    return _collect_phase(("snapshot", "pickle per chunk", "sequential"), workload, sizes)


def loaded_collect_phase(load: str, sizes: Sizes) -> CollectPhase:
    """The collect phase with one of :data:`LOADS`."""
    workload = Workload(max(sizes.agents), history=sizes.history).with_load(load)
    return _collect_phase(
        ("snapshot", "sequential"), workload, sizes._replace(steps=sizes.loaded_steps)
    )


def neural_collect_phase(sizes: Sizes) -> CollectPhase:
    """The collect phase with neural agents."""
    workload = Workload(sizes.neural_agents, history=sizes.history, hidden_layers=HIDDEN_LAYERS)
    return _collect_phase(("jax", "pickle per chunk", "sequential"), workload, sizes)


def _collect_phase(names: tuple[str, ...], workload: Workload, sizes: Sizes) -> CollectPhase:
    """Measure step by step in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with children(names, workload) as candidates, Scaling() as scaling:
        for step in range(sizes.steps + 1):
            for name, child in candidates.items():
                taken = child.ask("step")["seconds"]
                if step > 0:  # workers start in the first one
                    seconds[name].append(taken)
            if step > 0:
                scaling.measure(math.ceil(sizes.pairs / sizes.steps))
        same_outcome([child.ask("end") for child in candidates.values()])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return CollectPhase(medians, scaling.median)


def delta_bytes(n_agents: int, sizes: Sizes) -> float:
    """Median bytes of a delta with light agents."""
    workload = Workload(n_agents, history=sizes.history)
    with children(("snapshot",), workload) as candidates:
        # Not only the steps after the history, in which the first arbitrage orders fall.
        for _ in range(3 * sizes.steps + 1):
            candidates["snapshot"].ask("step")
        return statistics.median(candidates["snapshot"].ask("end")["deltas"])


class LongRun(NamedTuple):
    """Steps of a long run with light agents, without the first one, in which workers start.

    Attributes:
        seconds: of the collect phase, by runner.
        frame_bytes: bytes of each frame, of whatever kind.
    """

    seconds: dict[str, list[float]]
    frame_bytes: list[int]

    def early(self, values: list[Any]) -> float:
        """Median of early steps: 100 to 300 of 1500."""
        return self._median(values, 1, 3)

    def late(self, values: list[Any]) -> float:
        """Median of late steps: 1300 to 1500 of 1500."""
        return self._median(values, 13, 15)

    def _median(self, values: list[Any], start: int, stop: int) -> float:
        unit = (len(values) + 1) // 15
        return statistics.median(values[start * unit - 1 : stop * unit - 1])


def long_run(sizes: Sizes) -> LongRun:
    """Measure a long run with light agents; that of ``SequentialRunner`` follows ours."""
    # Handling the orders of arbitrage agents takes minutes of such a run, and is not measured.
    workload = Workload(min(sizes.agents), steps=sizes.long_run, arbitrage_rate=0.0)
    ends = {}
    for name in ("snapshot", "sequential"):
        with children((name,), workload) as candidates:
            candidates[name].ask("run")
            ends[name] = candidates[name].ask("end")
    same_outcome(list(ends.values()))
    seconds = {name: end["collect_seconds"][1:] for name, end in ends.items()}
    return LongRun(seconds, ends["snapshot"]["frames"][1:])


def neural_deltas(sizes: Sizes) -> list[int]:
    """Bytes of each delta of a run of neural agents on one market, which do not train."""
    # Neural agents always submit. With orders that stand for longer, the market's handling of them
    # would take most of an hour.
    workload = Workload(
        sizes.neural_agents,
        steps=sizes.neural_run,
        hidden_layers=HIDDEN_LAYERS,
        n_markets=1,
        time_window=(2, 5),
    )
    with children(("jax", "sequential"), workload) as candidates:
        for child in candidates.values():  # at once, for no times are measured
            child.send("run")
        for child in candidates.values():
            child.answer()
        ends = {name: child.ask("end") for name, child in candidates.items()}
    same_outcome(list(ends.values()))
    return ends["jax"]["deltas"]


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


def whole_run_workload(load: str, sizes: Sizes) -> Workload:
    """Workload of a whole run with one of :data:`WHOLE_RUN_LOADS`."""
    steps = sizes.light_run if load == "light" else sizes.heavy_run
    return Workload(max(sizes.agents), steps=steps).with_load(load)


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

"""One process that runs one candidate, so that candidates do not disturb each other.

It obeys a line on standard input at a time and answers each with a line of JSON:

* ``step``: run one step; answers the collect phase's seconds. If memory is measured, two answers
  come before: private bytes at the beginning of the phase, and at its end what the high-water
  mark of resident memory rose by.
* ``run``: run all steps; answers wall and CPU seconds, the set-up included.
* ``end``: answers a digest of the outcome, the bytes of a snapshot, the seconds of each collect
  phase, and the bytes of each frame and of each delta.

``child.py loads FORMAT FILE`` instead times the first ``loads`` in a fresh process, and ``child.py
hold FORMAT FILE`` tells how much memory the loaded copy takes there.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import mmap
import pickle
import resource
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from pams.runners import SequentialRunner
from pams_parallel import (
    JaxAgentParallelRunner,
    MultiProcessAgentParallelRunner,
    examples,
    snapshot,
)
from pams_parallel.outcome import outcome
from pams_parallel.results import CONSTANTS
from pickle_per_chunk import PicklePerChunkRunner
from workload import Workload, run_history

RUNNERS: dict[str, type[SequentialRunner]] = {
    "jax": JaxAgentParallelRunner,
    "snapshot": MultiProcessAgentParallelRunner,
    "pickle per chunk": PicklePerChunkRunner,
    "sequential": SequentialRunner,
}


def memory(field: str) -> int:
    """A field of ``/proc/self/status`` in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def reset_high_water() -> int:
    """Start a new high-water mark of resident memory, and return where it starts.

    Free memory goes back to the system first; it would hide what a batch takes.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def cpu_seconds() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


class Candidate:
    """A runner with its workload, and what was measured in the last collect phase."""

    def __init__(self, runner_name: str, workload: Workload, *, measure_memory: bool) -> None:
        self.measure_memory = measure_memory
        self.seconds: list[float] = []
        self.start, self.start_cpu = time.perf_counter(), cpu_seconds()
        self.runner = workload.runner(RUNNERS[runner_name])
        if workload.history:
            run_history(self.runner)
            self.session = self.runner.simulator.sessions[-1]
            self.session.iteration_steps = 1
        self.collect = self.runner._collect_orders_from_normal_agents
        self.runner._collect_orders_from_normal_agents = self.measured_collect

    def measured_collect(self, session: Any) -> Any:
        if self.measure_memory:
            before = reset_high_water()
            answer({"private_bytes": memory("RssAnon")})
        start = time.perf_counter()
        orders = self.collect(session)
        self.seconds.append(time.perf_counter() - start)
        if self.measure_memory:
            answer({"resident": memory("VmHWM") - before})
        return orders

    def step(self) -> dict[str, Any]:
        self.runner._iterate_market_updates(self.session)
        return {"seconds": self.seconds[-1]}

    def run(self) -> dict[str, Any]:
        self.runner._run()
        return {
            "seconds": time.perf_counter() - self.start,
            "collect": sum(self.seconds),
            "cpu": cpu_seconds() - self.start_cpu,
        }

    def end(self) -> dict[str, Any]:
        if hasattr(self.runner, "_shutdown_executor"):
            self.runner._shutdown_executor()
        everything = {**outcome(self.runner), "rows": self.runner.logger.rows}
        digest = hashlib.sha256(repr(everything).encode()).hexdigest()
        records = getattr(self.runner, "batch_records", ())
        return {
            "digest": digest,
            "bytes": len(snapshot.dumps(self.runner.simulator)),
            "collect_seconds": self.seconds,
            "frames": [each.frame_bytes for each in records],
            "deltas": [each.frame_bytes for each in records if each.frame_kind == "delta"],
        }


def first_loads(name: str, file: str) -> float:
    loads = {"snapshot": snapshot.loads, "pickle": pickle.loads}[name]
    data = Path(file).read_bytes()
    start = time.perf_counter()
    loaded = loads(data)
    seconds = time.perf_counter() - start
    assert loaded.agents
    return seconds


def held_bytes(name: str, file: str) -> int:
    """Memory of this process alone (USS) that a copy takes.

    The copy is what one kind of ``loads`` gives, or a replica, as a worker keeps it, with the
    first frame of a source.
    """
    examples.load("index")  # modules do not count
    replica = snapshot.Replica(CONSTANTS, snapshot.library_reducers())
    load = {"snapshot": snapshot.loads, "pickle": pickle.loads, "replica": replica.apply}[name]
    uss = psutil.Process().memory_full_info
    gc.collect()
    before = uss().uss
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        held = load(data)
    gc.collect()
    taken = uss().uss - before
    simulator, _ = replica.roots if name == "replica" else held
    assert simulator.agents
    return taken


FRESH = {"loads": first_loads, "hold": held_bytes}
"""What is measured in a fresh process."""


def main() -> None:
    if sys.argv[1] in FRESH:
        answer(FRESH[sys.argv[1]](*sys.argv[2:]))
        return
    given = json.loads(sys.argv[1])
    candidate = Candidate(
        given["runner"], Workload(**given["workload"]), measure_memory=given["memory"]
    )
    answer("ready")
    for line in sys.stdin:
        answer(getattr(candidate, line.strip())())


if __name__ == "__main__":
    main()

"""What replicas and deltas leave behind: nothing, and no memory that grows."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import sys
import weakref
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pams import Simulator
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support.comparison import describe
from runner_support.scenarios import (
    POPULATIONS,
    build,
    collect,
    expected_warnings_ignored,
    run,
    scripted_settings,
)
from runner_support.scripts import buy, draw

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20


def deltas_were_sent(runner: Any) -> bool:
    return any(record.frame_kind == "delta" for record in runner.batch_records)


# --------------------------------------------------------------------------- references that stay


class OwnSimulator(Simulator):
    """Can be referred to weakly, as any instance of a Python class."""


@pytest.mark.parametrize("population", ["orders", "cancels", "events"])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_simulator_dies_with_its_last_reference(start_method: str, population: str) -> None:
    runner = build(
        MultiProcessAgentParallelRunner,
        POPULATIONS[population],
        startMethod=start_method,
        numParallel=2,
    )
    run(runner)
    assert deltas_were_sent(runner)
    simulator = runner.simulator
    dead = [weakref.ref(obj) for obj in (simulator, *simulator.agents, *simulator.markets)]
    runner.simulator = runner.logger = None
    runner._pending_setups.clear()
    del simulator
    gc.collect()
    assert not any(reference() for reference in dead)


def test_runner_that_is_only_dropped_dies() -> None:
    """In the middle, with a source in use."""
    runner = build(
        MultiProcessAgentParallelRunner, POPULATIONS["orders"], startMethod="fork", numParallel=2
    )
    with expected_warnings_ignored():
        runner._setup()
    for _ in range(3):
        collect(runner)
    assert deltas_were_sent(runner)
    simulator = weakref.ref(runner.simulator)
    runner._shutdown_executor()
    del runner
    gc.collect()
    assert simulator() is None


def test_objects_that_are_replaced_are_let_go(scripted: Any) -> None:
    """What is no longer part of the simulation dies, at the latest after the next batch."""
    runner = scripted([buy] * 3, workers=2)
    dead: list[Any] = []
    for _ in range(5):
        runner.simulator.extra = {"held": OwnSimulator(runner._prng)}
        dead.append(weakref.ref(runner.simulator.extra["held"]))
        collect(runner)
    del runner.simulator.extra
    collect(runner)
    gc.collect()
    assert [reference() for reference in dead] == [None] * 5


def test_reference_counts_are_restored(scripted: Any) -> None:
    """No reference to an object of the user's is left, nor one too few."""
    runner = scripted([draw] * 4, workers=2)
    simulator = runner.simulator
    simulator.things = [("tuple", [1]), {"key": 2.5}, {1, 2}, bytearray(b"x"), OwnSimulator]
    objects = [*simulator.things, *simulator.agents, *simulator.markets, simulator.things]
    collect(runner)  # some objects are made when they are needed
    runner._shutdown_executor()
    gc.collect()
    before = [sys.getrefcount(obj) for obj in objects]
    for _ in range(4):
        collect(runner)
    assert deltas_were_sent(runner)
    runner._shutdown_executor()
    gc.collect()
    assert [sys.getrefcount(obj) for obj in objects] == before


# ------------------------------------------------------------------------------ traces in objects


class Copying(MultiProcessAgentParallelRunner):
    """Copies the simulation in every step, as a user may who wants to go back to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_copies = 0

    def _update_markets(self, session: Any) -> None:
        super()._update_markets(session)
        assert_no_traces(self.simulator)
        self.n_copies += 1


def assert_no_traces(simulator: Any) -> None:
    expected = describe(simulator)
    assert "pams_parallel" not in "\n".join(expected)
    assert b"pams_parallel" not in pickle.dumps(simulator)
    assert describe(pickle.loads(pickle.dumps(simulator))) == expected
    agent = copy.deepcopy(simulator.agents[0])
    assert describe(agent) == describe(simulator.agents[0])
    shallow = copy.copy(simulator.agents[0])
    assert vars(shallow) == vars(simulator.agents[0])


@pytest.mark.parametrize("population", ["orders", "cancels", "FCN agents"])
def test_simulation_can_be_copied_during_and_after_a_run(population: str) -> None:
    runner = build(Copying, POPULATIONS[population], startMethod="fork", numParallel=2)
    run(runner)
    assert runner.n_copies > 10
    assert deltas_were_sent(runner)
    assert_no_traces(runner.simulator)


def test_a_copy_of_the_simulation_can_be_run() -> None:
    """With a runner that has asked agents of the original before."""
    runner = build(
        MultiProcessAgentParallelRunner, POPULATIONS["orders"], startMethod="fork", numParallel=2
    )
    with expected_warnings_ignored():
        runner._setup()
    for _ in range(2):
        collect(runner)
    state = runner._prng.getstate()
    original, runner.simulator = runner.simulator, copy.deepcopy(runner.simulator)
    first = collect(runner)
    of_copy = describe(runner.simulator)
    runner._prng.setstate(state)
    runner.simulator = original
    assert describe(collect(runner)) == describe(first)
    assert describe(runner.simulator) == of_copy
    runner._shutdown_executor()


# ----------------------------------------------------------------------------- memory that grows


def test_nothing_is_open_or_running_after_a_run(scripted: Any) -> None:
    n_open = len(os.listdir("/proc/self/fd"))
    n_children = len(multiprocessing.active_children())
    runner = scripted([buy] * 3, workers=3, steps=4)
    runner.simulator.payload = bytes(300_000)
    runner._run()
    assert deltas_were_sent(runner)
    assert len(multiprocessing.active_children()) == n_children
    assert len(os.listdir("/proc/self/fd")) == n_open
    targets = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    assert not any("pams-parallel" in target for target in targets)


class Measuring(MultiProcessAgentParallelRunner):
    """Keeps the simulation at a constant size, and measures memory now and then.

    Attributes:
        every: steps between two measurements.
        memory: unique memory in bytes of the main process and of each worker.
    """

    every = 10

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_steps = 0
        self.memory: list[list[int]] = []

    def _update_markets(self, session: Any) -> None:
        super()._update_markets(session)
        self.n_steps += 1
        _forget_history(self.simulator)
        if self.n_steps % self.every == 0:
            # Records of batches are bounded, but there are few of them yet.
            self.batch_records.clear()
            gc.collect()
            processes = [psutil.Process()]
            processes += [psutil.Process(pid) for pid in sorted(self.executor._processes)]
            self.memory.append([process.memory_full_info().uss for process in processes])


def _forget_history(simulator: Any) -> None:
    """Nothing is left of orders and logs; new objects come in the place of others."""
    for market in simulator.markets:
        for book in (market.buy_order_book, market.sell_order_book):
            for order in list(book.priority_queue):
                book._remove(order)
            book.expire_time_list.clear()
    simulator.logger.rows.clear()
    simulator.logger.pending_logs.clear()
    simulator.extra = {f"name {i}": [float(i), {"nested": [i] * 10}] for i in range(50)}
    simulator.text = "x" * 10_000


def check_memory(runner_of: Callable[[int], Any], steps: int, every: int, limit: int) -> None:
    runner = runner_of(steps)
    runner.every = every
    with expected_warnings_ignored():
        runner._run()
    assert len(runner.memory) == steps // every
    third = len(runner.memory) // 3
    # Columns: the main process and the workers. Only what pams itself records in its markets
    # grows (prices etc., about 1 MiB in 1,000 steps).
    for measured in zip(*runner.memory, strict=True):
        early, late = min(measured[third : 2 * third]), min(measured[2 * third :])
        assert late - early < limit, [round(m / MIB, 2) for m in measured]


@pytest.fixture
def measured_runner() -> Callable[[int], Any]:
    def make(steps: int) -> Any:
        config = scripted_settings(60, 1000, steps, cls="Trader")
        runner = build(Measuring, config, startMethod="spawn", numParallel=2)
        with expected_warnings_ignored():
            runner._setup()
        return runner

    return make


def test_memory_is_flat(measured_runner: Callable[[int], Any]) -> None:
    """The objects that come and go in 50 steps take about 3 MiB."""
    check_memory(measured_runner, steps=150, every=5, limit=MIB)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_is_flat_for_long(measured_runner: Callable[[int], Any]) -> None:
    """The objects that come and go in 1,700 steps take about 100 MiB."""
    check_memory(measured_runner, steps=5_000, every=100, limit=6 * MIB)

"""Executors of the user's own: any ``concurrent.futures.Executor`` works."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import initializers, misbehaviour, scripts
from runner_support.comparison import outcome
from runner_support.executors import DelegatingExecutor, InlineExecutor, PicklingExecutor
from runner_support.runner_classes import with_executor, with_initializer
from runner_support.scenarios import (
    POPULATIONS,
    InOrder,
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    run,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPORTED = ("pid", "thread", "initializations", "initialized_threads")


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "inline": InlineExecutor,
    "pickling": PicklingExecutor,
    "threads": lambda: ThreadPoolExecutor(2),
    "one thread": lambda: ThreadPoolExecutor(1),
    "delegating, fork": lambda: DelegatingExecutor(2, "fork"),
    "delegating, spawn": lambda: DelegatingExecutor(2, "spawn"),
    "plain pool": lambda: ProcessPoolExecutor(2),
    "plain pool, spawn": lambda: ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn")
    ),
}
if sys.version_info >= (3, 11):
    EXECUTORS["new worker for every task"] = lambda: ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    )


@pytest.mark.parametrize("name", EXECUTORS)
def test_outcome_equals_sequential(name: str) -> None:
    settings = scripted_settings(4, quota=3, steps=2, cls="OrderKeeper")
    cls = with_executor(EXECUTORS[name])
    found = outcome(run(build(cls, settings, numParallel=2)))
    assert found == outcome(run(build(SequentialRunner, settings)))


@pytest.mark.parametrize("name", EXECUTORS)
def test_errors(scripted: Any, name: str) -> None:
    cls = with_executor(EXECUTORS[name])
    runner = scripted([scripts.buy, misbehaviour.raise_detailed], runner_class=cls, workers=2)
    with pytest.raises(misbehaviour.DetailedError) as caught:
        runner._run()
    assert caught.value.detail["agent"] == 1
    assert runner.executor is None

    runner = scripted([misbehaviour.raise_lock], runner_class=cls)
    with pytest.raises(RuntimeError, match="HoldsLock"):
        runner._run()
    runner = scripted([misbehaviour.keep_lambda], runner_class=cls, listed=("rule",))
    with pytest.raises(RuntimeError, match=r"^The results of Scripted \(agent_id=0\) cannot be"):
        runner._run()


@pytest.mark.parametrize("name", [name for name in EXECUTORS if name not in ("inline", "pickling")])
def test_initializer_is_called_once_per_worker(scripted: Any, name: str) -> None:
    cls = with_initializer(initializers.remember, ("model",), with_executor(EXECUTORS[name]))
    runner = scripted(
        [scripts.report_initialization] * 4, runner_class=cls, steps=2, listed=REPORTED
    )
    runner._run()
    for agent in runner.simulator.agents:
        if agent.pid == os.getpid():
            assert agent.initialized_threads.count(agent.thread) == 1
        else:
            assert agent.initializations == [("model",)]


# ---------------------------------------------------------------- one pool for several runners


@pytest.fixture
def shared_pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        yield pool


def sharing(pool: Executor) -> type[Any]:
    class Sharing(MultiProcessAgentParallelRunner):
        def _create_executor(self) -> Executor:
            return pool

        def _shutdown_executor(self) -> None:
            self.executor = None

    return Sharing


def test_runners_that_share_a_pool_one_after_the_other(shared_pool: Any) -> None:
    expected = outcome(run(build(SequentialRunner, POPULATIONS["mixed"])))
    for _ in range(2):
        runner = run(build(sharing(shared_pool), POPULATIONS["mixed"], numParallel=1))
        assert outcome(runner) == expected
        assert runner.executor is None


def test_runners_that_share_a_pool_in_turns(shared_pool: Any) -> None:
    def set_up(runner_class: type[Any], seed: int) -> Any:
        settings = scripted_settings(4, quota=3, cls="OrderKeeper")
        runner = build(runner_class, settings, seed=seed, numParallel=1)
        with expected_warnings_ignored():
            runner._setup()
        return runner

    parallel = [set_up(sharing(shared_pool), seed) for seed in (1, 2)]
    sequential = [set_up(SequentialRunner, seed) for seed in (1, 2)]
    for _ in range(3):
        for runner in (*parallel, *sequential):
            orders = collect(runner)
            runner._handle_orders(runner.simulator.sessions[0], orders)
            runner.simulator._update_times_on_markets(runner.simulator.markets)
    assert [outcome(r) for r in parallel] == [outcome(r) for r in sequential]


def test_every_runner_on_a_pool_has_its_initializer_called(scripted: Any, shared_pool: Any) -> None:
    """Once per worker, and before the first task of that runner."""

    runners = [
        scripted(
            [scripts.report_initialization] * 2,
            runner_class=with_initializer(initializers.remember, (name,), sharing(shared_pool)),
            listed=REPORTED,
        )
        for name in ("first", "second")
    ]
    for _ in range(2):
        for runner in runners:
            collect(runner)
    for runner, name in zip(runners, ("first", "second"), strict=True):
        for agent in runner.simulator.agents:
            assert agent.initializations.count((name,)) == 1


# ---------------------------------------------------------------- the main process is left alone


@pytest.mark.parametrize("collector_on", [True, False])
@pytest.mark.parametrize("name", ["inline", "threads", "plain pool"])
def test_garbage_collector_of_the_main_process(name: str, collector_on: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        if not collector_on:
            gc.disable()
        runner = build(
            with_executor(EXECUTORS[name]), scripted_settings(4, steps=2, cls="OrderKeeper")
        )
        run(runner)
        assert gc.isenabled() == collector_on
        assert gc.get_freeze_count() == frozen
    finally:
        gc.enable()


def test_signal_handlers_of_the_main_process() -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]

    before = handlers()
    run(
        build(
            MultiProcessAgentParallelRunner,
            scripted_settings(4, cls="OrderKeeper"),
            numParallel=2,
            startMethod="fork",
        )
    )
    assert handlers() == before


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_run_on_another_thread_than_the_main_one(start_method: str) -> None:
    found: list[Any] = []

    def run_there() -> None:
        found.append(
            outcome(
                run(
                    build(
                        MultiProcessAgentParallelRunner,
                        POPULATIONS["mixed"],
                        numParallel=2,
                        startMethod=start_method,
                    )
                )
            )
        )

    thread = threading.Thread(target=run_there)
    thread.start()
    thread.join()
    assert found == [outcome(run(build(SequentialRunner, POPULATIONS["mixed"])))]


def test_shutdown_may_be_overridden(scripted: Any, shared_pool: Any) -> None:
    """E.g. to keep the workers for the next run; the run itself ends as always."""
    runner = scripted([scripts.report_process] * 2, runner_class=sharing(shared_pool), steps=2)
    give_scripts(runner, [scripts.report_process] * 2, scripts.PROCESS_NAMES)
    runner._run()
    assert runner.executor is None
    worker = shared_pool.submit(os.getpid).result(timeout=60)
    assert {agent.pid for agent in runner.simulator.agents} == {worker}


def test_quota_and_order_do_not_depend_on_the_executor(scripted: Any) -> None:
    sequential = build(SequentialRunner, scripted_settings(5, quota=2), seed=InOrder(1))
    sequential._setup()
    agent_scripts = [scripts.draw, scripts.buy, scripts.draw, scripts.buy, scripts.buy]
    give_scripts(sequential, agent_scripts)
    collect(sequential)
    for make in (InlineExecutor, PicklingExecutor):
        runner = scripted(agent_scripts, runner_class=with_executor(make), quota=2, workers=2)
        collect(runner)
        assert outcome(runner) == outcome(sequential)

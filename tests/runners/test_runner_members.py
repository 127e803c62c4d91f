"""Members that subclasses may read or override: executor, start method, context."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pams.runners
import pytest
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts
from runner_support.executors import CountingPool, InlineExecutor
from runner_support.scenarios import (
    POPULATIONS,
    build,
    collect,
    expected_warnings_ignored,
    run,
    scripted_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

PROCESS_TYPES = {
    "fork": "ForkProcess",
    "spawn": "SpawnProcess",
    "forkserver": "ForkServerProcess",
}


def set_up(runner: Any) -> Any:
    with expected_warnings_ignored():
        runner._setup()
    return runner


def test_is_a_process_runner_of_pams() -> None:
    assert issubclass(MultiProcessAgentParallelRunner, pams.runners.MultiProcessAgentParallelRunner)
    assert MultiProcessAgentParallelRunner is not pams.runners.MultiProcessAgentParallelRunner


def test_importing_the_package_imports_neither_jax_nor_flax(tmp_path: Path) -> None:
    """Also where they are installed: stand-ins for them fail when they are imported."""
    for name in ("jax", "flax"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('must not be imported')\n")
    code = "import sys, pams_parallel; assert not {'jax', 'flax'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_defaults_before_setup() -> None:
    runner = build(MultiProcessAgentParallelRunner, scripted_settings(1))
    assert MultiProcessAgentParallelRunner.default_start_method is None
    assert MultiProcessAgentParallelRunner._parallel_pool_provider is ProcessPoolExecutor
    assert runner.executor is None
    assert runner.num_parallel == max((os.cpu_count() or 1) - 1, 1)
    assert runner._get_worker_initializer() is None
    assert runner._get_worker_initargs() == ()


def test_num_parallel_default_after_setup() -> None:
    runner = set_up(build(MultiProcessAgentParallelRunner, scripted_settings(1)))
    assert runner.num_parallel == max((os.cpu_count() or 1) - 1, 1)
    runner._shutdown_executor()


def test_executor_during_and_after_a_run() -> None:
    during: list[Any] = []

    class Watching(MultiProcessAgentParallelRunner):
        def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
            during.append(self.executor)
            return super()._split_agents_into_chunks(agents)

    runner = build(Watching, scripted_settings(3, steps=2), numParallel=2, startMethod="fork")
    set_up(runner)
    created = runner.executor
    assert isinstance(created, ProcessPoolExecutor)
    assert runner.num_parallel == 2
    assert runner.start_method == "fork"
    runner._run()
    assert during == [created, created]
    assert runner.executor is None
    with pytest.raises(RuntimeError, match="shutdown"):
        created.submit(os.getpid)


@pytest.mark.parametrize(
    ("setting", "default", "expected"),
    [
        (None, None, None),
        (None, "spawn", "spawn"),
        ("fork", None, "fork"),
        ("forkserver", "spawn", "forkserver"),
    ],
)
def test_start_method(
    scripted: Any, setting: str | None, default: str | None, expected: str | None
) -> None:
    class WithDefault(MultiProcessAgentParallelRunner):
        default_start_method = default

    runner = scripted(
        [scripts.report_process] * 2,
        runner_class=WithDefault,
        start_method=setting,
        listed=scripts.PROCESS_NAMES,
    )
    assert runner.start_method == expected
    collect(runner)
    platform_default = multiprocessing.get_context().get_start_method()
    started = PROCESS_TYPES[expected or platform_default]
    for agent in runner.simulator.agents:
        assert agent.process_type == started
        assert agent.pid != os.getpid()


def test_start_method_of_the_platform_may_be_changed(scripted: Any) -> None:
    """``None`` leaves the choice to multiprocessing."""
    before = multiprocessing.get_start_method()
    try:
        multiprocessing.set_start_method("spawn", force=True)
        runner = scripted([scripts.report_process], start_method=None, listed=scripts.PROCESS_NAMES)
        assert runner.start_method is None
        collect(runner)
        assert runner.simulator.agents[0].process_type == "SpawnProcess"
    finally:
        multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize("start_method", PROCESS_TYPES)
def test_mp_context_has_the_start_method(scripted: Any, start_method: str) -> None:
    runner = scripted([scripts.draw], start_method=start_method)
    assert runner._get_mp_context().get_start_method() == start_method


@pytest.mark.parametrize("how", ["subclass", "instance", "monkeypatch"])
def test_mp_context_may_be_replaced(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The context of the workers wins over the start method in the configuration."""
    context = multiprocessing.get_context("spawn")

    class OwnContext(MultiProcessAgentParallelRunner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if how == "instance":
                self._get_mp_context = lambda: context

    if how == "subclass":
        OwnContext._get_mp_context = lambda self: context
    elif how == "monkeypatch":
        monkeypatch.setattr(
            MultiProcessAgentParallelRunner, "_get_mp_context", lambda self: context
        )
    runner = scripted(
        [scripts.report_process], runner_class=OwnContext, listed=scripts.PROCESS_NAMES
    )
    collect(runner)
    assert runner.simulator.agents[0].process_type == "SpawnProcess"


class CountingPoolRunner(MultiProcessAgentParallelRunner):
    _parallel_pool_provider = CountingPool


def test_pool_provider_is_instantiated_once(scripted: Any) -> None:
    """The pool that pams 0.3.0 builds in its own ``_setup`` must never be."""
    runner = scripted([scripts.draw] * 2, runner_class=CountingPoolRunner, workers=2)
    assert CountingPool.made == [runner.executor]
    _, keywords = runner.executor.arguments
    assert runner.executor._max_workers == 2
    assert keywords["mp_context"].get_start_method() == "fork"
    collect(runner)
    assert runner.executor.submitted == 2
    assert len(CountingPool.made) == 1


def test_thread_pool_as_provider(scripted: Any) -> None:
    class ThreadRunner(MultiProcessAgentParallelRunner):
        _parallel_pool_provider = ThreadPoolExecutor

    runner = scripted(
        [scripts.report_process] * 2, runner_class=ThreadRunner, listed=scripts.PROCESS_NAMES
    )
    assert isinstance(runner.executor, ThreadPoolExecutor)
    collect(runner)
    assert all(agent.pid == os.getpid() for agent in runner.simulator.agents)
    assert not any(agent.on_main_thread for agent in runner.simulator.agents)


class OwnExecutorRunner(MultiProcessAgentParallelRunner):
    """Counts the calls of ``_create_executor``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.created: list[Executor] = []

    def _create_executor(self) -> Executor:
        self.created.append(InlineExecutor())
        return self.created[-1]


def test_create_executor_is_called_by_setup_and_when_there_is_none(scripted: Any) -> None:
    runner = scripted([scripts.buy] * 2, runner_class=OwnExecutorRunner)
    assert runner.created == [runner.executor]
    assert runner._get_executor() is runner.executor is runner.created[0]
    collect(runner)
    assert len(runner.created) == 1

    runner._shutdown_executor()
    assert runner.executor is None
    assert len(runner.created) == 1
    second = runner._get_executor()
    assert runner.created[1:] == [second]
    assert runner._get_executor() is second is runner.executor

    runner._shutdown_executor()
    assert len(collect(runner)) == 2  # asking agents gets an executor, too
    assert len(runner.created) == 3


@pytest.mark.parametrize("how", ["instance", "monkeypatch"])
def test_create_executor_may_be_replaced(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    runner = build(MultiProcessAgentParallelRunner, POPULATIONS["orders"], numParallel=2)
    own = InlineExecutor()
    if how == "instance":
        runner._create_executor = lambda: own
    else:
        monkeypatch.setattr(MultiProcessAgentParallelRunner, "_create_executor", lambda self: own)
    run(runner)
    assert own.submitted > 0
    assert own.shutdowns >= 1
    assert runner.executor is None


def test_no_pool_beside_an_executor_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("a pool has been made")

    monkeypatch.setattr(ProcessPoolExecutor, "__init__", refuse)
    monkeypatch.setattr(ThreadPoolExecutor, "__init__", refuse)
    runner = run(build(OwnExecutorRunner, POPULATIONS["mixed"], numParallel=2))
    assert len(runner.created) == 1


def test_shutdown_executor_is_idempotent(scripted: Any) -> None:
    runner = build(MultiProcessAgentParallelRunner, scripted_settings(1))
    runner._shutdown_executor()
    assert runner.executor is None

    runner = scripted([scripts.buy] * 2, workers=2)
    pool = runner.executor
    collect(runner)
    for _ in range(3):
        runner._shutdown_executor()
        assert runner.executor is None
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(os.getpid)


def test_pool_can_be_used_again_after_a_shutdown(scripted: Any) -> None:
    runner = scripted([scripts.buy] * 2, workers=2)
    assert len(collect(runner)) == 2
    runner._shutdown_executor()
    assert len(collect(runner)) == 2
    assert isinstance(runner.executor, ProcessPoolExecutor)


def test_workers_persist_during_a_run(scripted: Any) -> None:
    runner = scripted([scripts.count_call] * 2, steps=4, listed=("calls_so_far", "pid"))
    runner._run()
    assert [agent.calls_so_far for agent in runner.simulator.agents] == [7, 8]


def test_only_normal_agents_are_asked_in_workers() -> None:
    settings = scripted_settings(2)
    settings["simulation"]["agents"].append("Fast")
    settings["simulation"]["sessions"][0]["highFrequencySubmitRate"] = 1.0
    settings["Fast"] = {**settings["Agents"], "class": "ScriptedHighFrequency", "numAgents": 1}
    runner = set_up(
        build(MultiProcessAgentParallelRunner, settings, numParallel=1, startMethod="fork")
    )
    for agent in runner.simulator.agents:
        agent.script = scripts.report_process_and_buy
        agent.synced_attributes = scripts.PROCESS_NAMES
    runner._run()
    *normal, fast = runner.simulator.agents
    assert fast.pid == os.getpid()
    assert all(agent.pid != os.getpid() for agent in normal)

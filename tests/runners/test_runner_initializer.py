"""The worker initializer: once per worker, before any task, never on the main thread."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import initializers, scripts
from runner_support.executors import InlineExecutor
from runner_support.misbehaviour import traceback_text
from runner_support.runner_classes import with_executor, with_initializer
from runner_support.scenarios import collect

if TYPE_CHECKING:
    from collections.abc import Callable

REPORTED = ("pid", "thread", "initializations", "initialized_threads")


class OwnPool(MultiProcessAgentParallelRunner):
    """A pool that knows nothing of an initializer."""

    def _create_executor(self) -> Executor:
        return ProcessPoolExecutor(self.num_parallel, mp_context=self._get_mp_context())


OwnThreads = with_executor(lambda: ThreadPoolExecutor(2))


class ThreadProvider(MultiProcessAgentParallelRunner):
    _parallel_pool_provider = ThreadPoolExecutor


@pytest.mark.parametrize("base", [MultiProcessAgentParallelRunner, OwnPool])
@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_once_per_worker_process_before_any_task(
    scripted: Any, start_method: str, base: type[Any]
) -> None:
    runner = scripted(
        [scripts.report_initialization] * 6,
        runner_class=with_initializer(initializers.remember, ("model", 3), base),
        workers=2,
        start_method=start_method,
        steps=4,
        listed=REPORTED,
    )
    runner._run()
    for agent in runner.simulator.agents:
        assert agent.pid != os.getpid()
        assert agent.initializations == [("model", 3)]
    assert initializers.STATE.calls == []  # nothing on the main process


@pytest.mark.parametrize("base", [OwnThreads, ThreadProvider])
def test_once_per_worker_thread_before_its_first_task(scripted: Any, base: type[Any]) -> None:
    runner = scripted(
        [scripts.report_initialization] * 6,
        runner_class=with_initializer(initializers.remember_slowly, ("model",), base),
        workers=3,
        steps=3,
        listed=REPORTED,
    )
    runner._run()
    agents = runner.simulator.agents
    for agent in agents:
        assert agent.pid == os.getpid()
        assert agent.initialized_threads.count(agent.thread) == 1
    threads = initializers.STATE.threads
    assert len(threads) == len(set(threads))
    assert {agent.thread for agent in agents} <= set(threads)
    assert threading.get_ident() not in threads


def test_never_on_the_main_thread(scripted: Any) -> None:
    """An executor that runs its tasks there gets no initializer there."""
    runner = scripted(
        [scripts.buy] * 3,
        runner_class=with_initializer(initializers.remember, base=with_executor(InlineExecutor)),
        workers=2,
        steps=2,
    )
    runner._run()
    assert True not in initializers.STATE.on_main_thread


@pytest.mark.parametrize("base", [MultiProcessAgentParallelRunner, OwnPool, OwnThreads])
def test_not_called_without_a_task(scripted: Any, base: type[Any]) -> None:
    runner = scripted(
        [scripts.buy], runner_class=with_initializer(initializers.remember, base=base)
    )
    runner._shutdown_executor()
    assert initializers.STATE.calls == []


@pytest.mark.parametrize("way", ["instance", "monkeypatch"])
def test_initializer_hooks_may_be_replaced(
    monkeypatch: pytest.MonkeyPatch, scripted: Any, way: str
) -> None:
    """Before the executor is made, in any of Python's ways."""

    class Replaced(MultiProcessAgentParallelRunner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if way == "instance":
                self._get_worker_initializer = lambda: initializers.remember
                self._get_worker_initargs = lambda: (way,)

    if way == "monkeypatch":
        cls = MultiProcessAgentParallelRunner
        monkeypatch.setattr(cls, "_get_worker_initializer", lambda self: initializers.remember)
        monkeypatch.setattr(cls, "_get_worker_initargs", lambda self: (way,))
    runner = scripted([scripts.report_initialization], runner_class=Replaced, listed=REPORTED)
    collect(runner)
    assert runner.simulator.agents[0].initializations == [(way,)]


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_lock_in_the_arguments(scripted: Any, start_method: str) -> None:
    """Such objects may be given to a process when it is started, and at no other time."""
    lock = multiprocessing.get_context(start_method).Lock()
    runner = scripted(
        [scripts.report_initialization] * 2,
        runner_class=with_initializer(initializers.acquire_and_remember, (lock,)),
        start_method=start_method,
        workers=2,
        listed=REPORTED,
    )
    collect(runner)
    assert all(agent.initializations == [()] for agent in runner.simulator.agents)


FAILURES = [
    (initializers.fail_with_exception, "LookupError: no model on this machine"),
    (initializers.fail_with_system_exit, "SystemExit: initializer wants to leave"),
    (initializers.fail_with_keyboard_interrupt, "KeyboardInterrupt: initializer was interrupted"),
]


@pytest.mark.parametrize("base", [MultiProcessAgentParallelRunner, OwnPool])
@pytest.mark.parametrize(("initializer", "cause"), FAILURES)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_failing_initializer(
    scripted: Any,
    initializer: Callable[..., Any],
    cause: str,
    start_method: str,
    base: type[Any],
) -> None:
    runner = scripted(
        [scripts.buy] * 4,
        runner_class=with_initializer(initializer, base=base),
        workers=2,
        start_method=start_method,
    )
    with pytest.raises(RuntimeError) as caught:
        runner._run()
    assert str(caught.value) == "the worker initializer failed on this worker"
    assert caught.value.__cause__ is not None
    assert cause in traceback_text(caught.value)
    assert runner.executor is None


@pytest.mark.parametrize("initializer", [failure[0] for failure in FAILURES])
def test_failing_initializer_leaves_the_pool_usable(
    scripted: Any, initializer: Callable[..., Any]
) -> None:
    """``ProcessPoolExecutor`` itself is broken for good when its initializer raises."""
    runner = scripted([scripts.buy], runner_class=with_initializer(initializer))
    pool = runner._get_executor()
    assert pool.submit(os.getpid).result(timeout=60) != os.getpid()
    for _ in range(3):  # every task, not only the first one
        with pytest.raises(RuntimeError, match=r"^the worker initializer failed on this worker$"):
            collect(runner)


@pytest.mark.parametrize("base", [OwnThreads, ThreadProvider])
@pytest.mark.parametrize(("initializer", "cause"), FAILURES)
def test_failing_initializer_in_a_thread(
    scripted: Any,
    initializer: Callable[..., Any],
    cause: str,
    base: type[Any],
) -> None:
    runner = scripted([scripts.buy] * 2, runner_class=with_initializer(initializer, base=base))
    with pytest.raises(RuntimeError) as caught:
        runner._run()
    assert str(caught.value) == "the worker initializer failed on this worker"
    assert cause in traceback_text(caught.value)
    assert runner.executor is None


@pytest.mark.parametrize("base", [MultiProcessAgentParallelRunner, OwnPool])
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_arguments_that_cannot_be_unpickled(
    scripted: Any, start_method: str, base: type[Any]
) -> None:
    runner = scripted(
        [scripts.buy] * 2,
        runner_class=with_initializer(initializers.remember, (initializers.RebuildsNever(),), base),
        start_method=start_method,
        workers=2,
    )
    with pytest.raises(RuntimeError) as caught:
        runner._run()
    assert str(caught.value) == "the worker initializer failed on this worker"
    assert "LookupError: arguments cannot be rebuilt" in traceback_text(caught.value)
    assert runner.executor is None


def test_initializer_called_with_wrong_arguments(scripted: Any) -> None:
    runner = scripted(
        [scripts.buy], runner_class=with_initializer(initializers.fail_with_exception, ("extra",))
    )
    with pytest.raises(RuntimeError) as caught:
        collect(runner)
    assert str(caught.value) == "the worker initializer failed on this worker"
    assert "TypeError" in traceback_text(caught.value)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_agents_use_what_the_initializer_keeps(scripted: Any, start_method: str) -> None:
    """The model itself refuses to be copied, so it cannot have travelled with an agent."""
    runner = scripted(
        [scripts.use_process_model] * 3,
        runner_class=with_initializer(initializers.load_model),
        start_method=start_method,
        workers=2,
        steps=2,
        listed=("limit",),
    )
    runner._run()
    assert [agent.limit for agent in runner.simulator.agents] == [1, 1, 1]
    assert initializers._models == []

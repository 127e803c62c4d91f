"""What is left when a run ends, fails or is interrupted: nothing.

The fixture in ``tests/conftest.py`` looks after every test for processes, threads, temporary
files, shared memory and open files; the tests here bring a run into the states that matter.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import misbehaviour, scripts
from runner_support.executors import InlineExecutor
from runner_support.scenarios import POPULATIONS, build, collect, run

START_METHODS = ("fork", "spawn", "forkserver")
LARGE = 3_000_000  # bytes; a frame of this size does not travel inside a task
# Open at most besides the one that is being written: files of frames that some worker may need.
FILES_OF_FRAMES = 2


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Watching(MultiProcessAgentParallelRunner):
    """Counts the open files of the main process in every step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.open_files: list[int] = []

    def _update_markets(self, session: Any) -> None:
        super()._update_markets(session)
        self.open_files.append(open_files())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("payload", [0, LARGE])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_open_files_do_not_grow(scripted: Any, start_method: str, payload: int) -> None:
    """Over 200 steps, neither on the main process nor in the workers."""
    runner = scripted(
        [scripts.report_open_files] * 4,
        runner_class=Watching,
        workers=2,
        start_method=start_method,
        steps=200,
        listed=("open_files",),
    )
    runner.simulator.payload = os.urandom(payload)
    for agent in runner.simulator.agents:
        agent.open_files = []
    runner._run()
    assert len(runner.open_files) == 200
    # Workers start within the first steps.
    assert max(runner.open_files[10:]) <= max(runner.open_files[:10]) + FILES_OF_FRAMES
    # A worker that starts later begins with more of them, if it is forked.
    by_worker: dict[int, list[int]] = {}
    for reports in zip(*(agent.open_files for agent in runner.simulator.agents), strict=True):
        for process, count in reports:
            by_worker.setdefault(process, []).append(count)
    assert sum(map(len, by_worker.values())) == 4 * 200
    for counts in by_worker.values():
        if len(counts) > 40:
            assert max(counts[40:]) <= max(counts[:40]) + FILES_OF_FRAMES
    assert any(len(counts) > 40 for counts in by_worker.values())


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_memory_does_not_grow(scripted: Any, start_method: str) -> None:
    """Copies of the simulation are freed, in workers and on the main process."""
    runner = scripted(
        [scripts.report_memory] * 2,
        workers=2,
        start_method=start_method,
        steps=100,
        listed=("memory",),
    )
    runner.simulator.payload = [bytes(LARGE)]
    runner.simulator.payload.append(runner.simulator.payload)
    for agent in runner.simulator.agents:
        agent.memory = []
    before = psutil.Process().memory_info().rss
    runner._run()
    grown = [psutil.Process().memory_info().rss - before]
    grown += [agent.memory[-1] - agent.memory[20] for agent in runner.simulator.agents]
    # 80 steps with a copy that is never freed would be 80 times LARGE.
    assert max(grown) < 20 * LARGE


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("payload", [0, LARGE])
def test_after_a_run(scripted: Any, payload: int, start_method: str) -> None:
    runner = scripted([scripts.buy] * 4, workers=2, start_method=start_method, steps=2)
    runner.simulator.payload = os.urandom(payload)
    runner._run()
    assert runner.executor is None


@pytest.mark.parametrize("payload", [0, LARGE])
def test_after_a_failure(scripted: Any, payload: int) -> None:
    runner = scripted([scripts.buy, misbehaviour.raise_value_error], workers=2, steps=2)
    runner.simulator.payload = os.urandom(payload)
    with pytest.raises(ValueError, match="bad price"):
        runner._run()
    assert runner.executor is None


def test_after_a_shutdown_between_batches(scripted: Any) -> None:
    runner = scripted([scripts.buy] * 4, workers=2)
    runner.simulator.payload = os.urandom(LARGE)
    collect(runner)
    runner._shutdown_executor()
    assert runner.executor is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_after_an_error_on_the_main_process(scripted: Any, error: type[BaseException]) -> None:
    """E.g. in a callback of an agent or in an event, between two batches."""

    class Failing(MultiProcessAgentParallelRunner):
        def _handle_orders(self, session: Any, local_orders: Any) -> Any:
            if self.simulator.markets[0].get_time() == 1:
                raise error("on the main process")
            return super()._handle_orders(session, local_orders)

    runner = scripted([scripts.buy] * 3, runner_class=Failing, workers=2, steps=3)
    with pytest.raises(error, match="on the main process"):
        runner._run()
    assert runner.executor is None


def interrupt_when(marker: Path) -> threading.Thread:
    def wait_and_interrupt() -> None:
        scripts.wait_for(str(marker))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("start_method", START_METHODS)
def test_interrupt_while_waiting_for_workers(
    scripted: Any, tmp_path: Path, start_method: str
) -> None:
    """Ctrl-C of which only the main process hears; the busy worker is ended."""
    runner = scripted(
        [scripts.buy, misbehaviour.make_marker_and_sleep], workers=2, start_method=start_method
    )
    for agent in runner.simulator.agents:
        agent.marker = str(tmp_path / "marker")
    thread = interrupt_when(tmp_path / "marker")
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner._run()
    thread.join()
    assert time.monotonic() - start < 120.0
    assert runner.executor is None


@pytest.mark.parametrize("start_method", START_METHODS)
def test_interrupt_of_all_processes(tmp_path: Path, start_method: str) -> None:
    """Ctrl-C in a terminal: the signal goes to main process and workers alike."""
    marker = tmp_path / "marker"
    process = subprocess.Popen(
        [sys.executable, "-m", "runner_support.interruptible", start_method, str(marker)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        scripts.wait_for(str(marker))
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert output == "interrupted, executor: None\n", errors
    assert "KeyboardInterrupt" in errors
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_a_runner_that_was_set_up_and_never_run_can_be_closed(scripted: Any) -> None:
    runner = scripted([scripts.buy] * 2, workers=2)
    runner._shutdown_executor()
    assert runner.executor is None


@pytest.mark.parametrize("executor", [InlineExecutor, lambda: ThreadPoolExecutor(2)])
def test_other_executors_are_shut_down(executor: Any) -> None:
    shut_down: list[Any] = []

    class Own(MultiProcessAgentParallelRunner):
        def _create_executor(self) -> Any:
            made = executor()
            original = made.shutdown

            def shutdown(*args: Any, **kwargs: Any) -> None:
                shut_down.append(made)
                original(*args, **kwargs)

            made.shutdown = shutdown
            return made

    runner = run(build(Own, POPULATIONS["orders"], numParallel=2))
    assert len(shut_down) >= 1
    assert runner.executor is None


def test_simulation_is_freed_after_a_run(scripted: Any) -> None:
    """Nothing in the package keeps the objects of a simulation alive."""
    runner = scripted([scripts.buy] * 3, workers=2, steps=2)
    runner._run()
    agent = weakref.ref(runner.simulator.agents[0])
    simulator = runner.simulator
    runner.simulator = runner.logger = None
    runner._pending_setups.clear()
    simulator.agents.clear()
    del simulator
    gc.collect()
    assert agent() is None

"""Several runners in one process, threads beside them, and runners in workers of other pools."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import multiprocessing
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from fault_support.faults import FOR_EVER
from fault_support.observing import assert_all_gone, started
from fault_support.selection import slow_unless
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts
from runner_support.comparison import outcome
from runner_support.scenarios import (
    POPULATIONS,
    build,
    collect,
    expected_warnings_ignored,
    run,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

START_METHODS = ("fork", "spawn", "forkserver")


def result(runner_class: type[Any], seed: int = 1, **keys: Any) -> Any:
    population = POPULATIONS["orders"]
    return outcome(run(build(runner_class, population, seed=seed, **keys)))


# ------------------------------------------------------------------------------------- threads


@contextlib.contextmanager
def logging_thread(handler: logging.Handler) -> Iterator[None]:
    """Another thread that logs as fast as it can."""
    logger = logging.getLogger("pams_parallel.tests")
    logger.addHandler(handler)
    logger.propagate = False
    stop = threading.Event()

    def log() -> None:
        while not stop.is_set():
            logger.error("a line")

    thread = threading.Thread(target=log)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        logger.removeHandler(handler)
        handler.close()


def log_and_buy(agent: Any, markets: Any) -> Any:
    """Needs the locks that a thread of the main process may have held during the fork."""
    logging.getLogger("pams_parallel.tests").error("agent %s", agent.agent_id)
    return scripts.buy(agent, markets)


@pytest.mark.parametrize("to_file", [True, False])
def test_forks_while_another_thread_logs(scripted: Any, tmp_path: Path, to_file: bool) -> None:
    """Fifty times; a lock that is held for ever in a worker would show as a timeout.

    Workers flush standard error when they end.
    """
    handler = logging.FileHandler(tmp_path / "log") if to_file else logging.StreamHandler()
    with logging_thread(handler):
        for _ in range(50):
            runner = scripted([log_and_buy] * 2, workers=2)
            runner.task_timeout = 60.0
            runner._run()
            assert len(runner.batch_records) == 1


@pytest.mark.parametrize("start_method", START_METHODS)
def test_runners_in_threads_at_the_same_time(start_method: str) -> None:
    found: dict[int, Any] = {}

    def run_one(seed: int) -> None:
        found[seed] = result(
            MultiProcessAgentParallelRunner, seed, numParallel=2, startMethod=start_method
        )

    expected = {seed: result(SequentialRunner, seed) for seed in range(3)}
    with warnings.catch_warnings():
        # Their filters are the interpreter's, not the thread's.
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=run_one, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == expected


# ----------------------------------------------------------------------------- several runners


@pytest.mark.parametrize("start_method", START_METHODS)
def test_runners_that_are_set_up_and_never_run(start_method: str) -> None:
    """They hold no file for longer than they live, and start no process."""

    def set_up() -> Any:
        config = scripted_settings(2)
        runner = build(
            MultiProcessAgentParallelRunner, config, numParallel=2, startMethod=start_method
        )
        with expected_warnings_ignored():
            runner._setup()
        return runner

    children = psutil.Process().children(recursive=True)
    for _ in range(20):
        build(MultiProcessAgentParallelRunner, scripted_settings(2), numParallel=2)
        set_up()
    assert psutil.Process().children(recursive=True) == children
    gc.collect()


def test_runner_that_is_dropped_in_the_middle(scripted: Any) -> None:
    """Its workers end when nobody refers to it any more (the fixture of all tests waits)."""
    runner = build(
        MultiProcessAgentParallelRunner, scripted_settings(2), numParallel=2, startMethod="fork"
    )
    with expected_warnings_ignored():
        runner._setup()
    collect(runner)
    del runner
    gc.collect()


def test_runners_one_after_the_other() -> None:
    for seed in (1, 2, 1):
        keys = {"numParallel": 2, "startMethod": "fork"}
        assert result(MultiProcessAgentParallelRunner, seed, **keys) == result(
            SequentialRunner, seed
        )


@pytest.mark.parametrize("methods", [("fork", "fork"), ("fork", "spawn"), ("forkserver", "fork")])
def test_runners_in_turns(methods: tuple[str, str]) -> None:
    """Step by step, each with its own workers."""

    def set_up(runner_class: type[Any], seed: int, **keys: Any) -> Any:
        config = scripted_settings(4, quota=3, cls="OrderKeeper")
        runner = build(runner_class, config, seed=seed, numParallel=2, **keys)
        with expected_warnings_ignored():
            runner._setup()
        return runner

    parallel = [
        set_up(MultiProcessAgentParallelRunner, seed, startMethod=method)
        for seed, method in enumerate(methods)
    ]
    sequential = [set_up(SequentialRunner, seed) for seed in range(2)]
    for _ in range(5):
        for runner in (*parallel, *sequential):
            orders = collect(runner)
            with expected_warnings_ignored():
                runner._handle_orders(runner.simulator.sessions[0], orders)
                runner.simulator._update_times_on_markets(runner.simulator.markets)
    assert [outcome(r) for r in parallel] == [outcome(r) for r in sequential]
    parallel[0]._shutdown_executor()
    collect(parallel[1])  # does not mind
    parallel[1]._shutdown_executor()


# --------------------------------------------------------------------- runners in other workers


def run_in_worker(start_method: str) -> Any:
    return result(MultiProcessAgentParallelRunner, numParallel=2, startMethod=start_method)


@pytest.mark.parametrize(
    ("outer", "inner"),
    slow_unless(
        lambda outer, inner: outer == inner or outer == "forkserver",
        itertools.product(START_METHODS, ["fork", "spawn"]),
    ),
)
def test_runner_in_a_worker_of_an_executor(outer: str, inner: str) -> None:
    context = multiprocessing.get_context(outer)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found = pool.submit(run_in_worker, inner).result(timeout=240)
        # When it is done, its workers are gone.
        (worker,) = (psutil.Process(pid) for pid in pool._processes)
        rest = [child for child in worker.children() if "tracker" not in " ".join(child.cmdline())]
        assert rest == []
    assert found == result(SequentialRunner)


def error_in_worker(start_method: str) -> str:
    try:
        run_in_worker(start_method)
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("start_method", START_METHODS)
def test_runner_in_a_worker_of_a_pool(start_method: str) -> None:
    """Which may not have children."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        text = pool.apply(error_in_worker, (start_method,))
    assert "daemonic" in text
    assert "ProcessPoolExecutor" in text


INNER = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from fault_support import faults
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts
from runner_support.scenarios import build, expected_warnings_ignored, give_scripts
from runner_support.scenarios import scripted_settings

def inner(start_method, marker):
    keys = dict(numParallel=2, startMethod=start_method)
    runner = build(MultiProcessAgentParallelRunner, scripted_settings(4), **keys)
    with expected_warnings_ignored():
        runner._setup()
    give_scripts(runner, [scripts.buy] * 4)
    fault = faults.Fault("hang up in C", marker, True)
    faults.set_trap(runner, "run", fault, 2)
    with open(marker + "-pid", "w") as file:
        file.write(str(os.getpid()))
    runner._run()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(inner, sys.argv[2], sys.argv[3]).result()
"""


@pytest.mark.parametrize(("outer", "inner"), [("fork", "fork"), ("spawn", "spawn")])
def test_inner_workers_end_when_the_outer_worker_is_killed(
    tmp_path: Path, outer: str, inner: str
) -> None:
    script = tmp_path / "outer.py"
    script.write_text(INNER)
    marker = str(tmp_path / "marker")
    with started([sys.executable, str(script), outer, inner, marker]) as process:
        scripts.wait_for(marker)
        outer_worker = psutil.Process(int(Path(f"{marker}-pid").read_text()))
        workers = outer_worker.children(recursive=True)
        assert len(workers) >= 2
        outer_worker.kill()
        assert_all_gone(workers)
        process.communicate(timeout=FOR_EVER)  # its pool is broken
        assert process.returncode == 1

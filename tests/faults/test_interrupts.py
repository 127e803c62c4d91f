"""Ctrl-C, once, in every phase of a run: the signal goes to all processes of the terminal."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from fault_support.main_process import Situation
from fault_support.observing import PATIENCE, assert_all_gone, in_situation, of_session
from fault_support.selection import slow_unless
from pams_parallel.interrupts import interrupts_deferred
from runner_support import scripts
from runner_support.executors import MeddlingPool
from runner_support.runner_classes import with_executor

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

START_METHODS = ("fork", "spawn", "forkserver")
PHASES = ("start", "between", "pickle", "unpickle", "run", "return", "receive")


@pytest.mark.parametrize(
    ("phase", "start_method"),
    slow_unless(
        lambda phase, method: method == "fork" or phase in ("start", "run"),
        itertools.product(PHASES, START_METHODS),
    ),
)
def test_interrupt(tmp_path: Path, phase: str, start_method: str) -> None:
    """Workers that have started have nothing to say about it."""
    situation = Situation(str(tmp_path / "marker"), start_method, phase)
    with in_situation(situation) as (process, children):
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert output == "interrupted, executor: None\n", errors
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        if start_method == "fork":  # others may still be importing modules
            assert errors.count("KeyboardInterrupt") == 1, errors
        assert_all_gone(children)


@pytest.mark.parametrize("phase", ["run", "return"])
def test_interrupt_while_a_worker_hangs_in_c(tmp_path: Path, phase: str) -> None:
    situation = Situation(str(tmp_path / "marker"), "fork", phase, "hang up in C")
    with in_situation(situation) as (process, children):
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert output == "interrupted, executor: None\n", errors
        assert_all_gone(children)


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_interrupt_while_much_is_copied(tmp_path: Path, start_method: str) -> None:
    """By the walk through the simulation, which no Python code takes part in."""
    situation = Situation(str(tmp_path / "marker"), start_method, "walk")
    with in_situation(situation) as (process, children):
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert output == "interrupted, executor: None\n", errors
        assert_all_gone(children)


@pytest.mark.parametrize(
    ("delay", "start_method"),
    slow_unless(
        lambda delay, _: delay == 0.02, itertools.product([0.0, 0.02, 0.1, 0.3], START_METHODS)
    ),
)
def test_interrupt_at_any_time(tmp_path: Path, start_method: str, delay: float) -> None:
    """From the moment in which the first batch begins, i.e. also while workers are spawned."""
    situation = Situation(str(tmp_path / "marker"), start_method, "first batch")
    with in_situation(situation) as (process, _):
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode != 0
        assert_all_gone(of_session(process.pid))
        assert "KeyboardInterrupt" in errors


class Interrupting(MeddlingPool):
    """Ctrl-C in the middle of submitting."""

    def meddle(self, n_submitted: int) -> None:
        if n_submitted == 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("workers", [1, 3])
def test_interrupt_while_tasks_are_submitted(scripted: Any, workers: int) -> None:
    """It waits until all are known; the run ends before anything is received."""
    runner = scripted(
        [scripts.buy] * 4,
        runner_class=with_executor(lambda: Interrupting(workers)),
        workers=4,
    )
    with pytest.raises(KeyboardInterrupt):
        runner._run()
    assert runner.executor is None
    assert len(runner.simulator.markets[0].buy_order_book) == 0


def test_handler_of_the_users_own(scripted: Any) -> None:
    """E.g. one that lets the run end by itself: workers do not mind the signal."""
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        runner = scripted([scripts.buy] * 4, workers=2, steps=5, start_method="spawn")
        update = runner._update_markets

        def interrupt_all(session: Any) -> None:
            update(session)
            os.kill(os.getpid(), signal.SIGINT)
            for process in runner.executor._processes.values():
                os.kill(process.pid, signal.SIGINT)

        runner._update_markets = interrupt_all
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # One that is still importing modules dies of it, and is replaced.
            warnings.filterwarnings("ignore", "A worker process .* has died")
            runner._run()
        assert len(runner.batch_records) == 5
        assert len(heard) >= 5
    finally:
        signal.signal(signal.SIGINT, handler)


def start_program(agent: Any, markets: Any) -> None:
    """Programs that agents start hear Ctrl-C."""
    with subprocess.Popen(["sleep", "3600"]) as program:
        program.send_signal(signal.SIGINT)
        agent.code = program.wait(timeout=60)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_programs_of_agents_can_be_interrupted(scripted: Any, start_method: str) -> None:
    runner = scripted([start_program] * 2, workers=2, listed=("code",), start_method=start_method)
    runner._run()
    assert [agent.code for agent in runner.simulator.agents] == [-signal.SIGINT] * 2


# --------------------------------------------------------------------------------- deferring


def test_deferred_interrupt_comes_afterwards() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            reached.append(1)
        reached.append(2)
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_deferring_without_an_interrupt() -> None:
    with interrupts_deferred(), interrupts_deferred():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(LookupError), interrupts_deferred():
        raise LookupError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_deferred_on_other_threads() -> None:
    found: list[Any] = []

    def look() -> None:
        with interrupts_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_deferred():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

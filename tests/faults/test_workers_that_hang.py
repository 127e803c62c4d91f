"""``simulation.taskTimeout``, and the other key about faults."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fault_support.faults import Fault, set_trap
from fault_support.observing import started
from fault_support.selection import slow_unless
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner, WorkerDiedError, executors
from pams_parallel.runners import attempts
from runner_support import misbehaviour, scripts
from runner_support.comparison import outcome
from runner_support.executors import InlineExecutor
from runner_support.runner_classes import OneAgentPerChunk, with_executor, with_initializer
from runner_support.scenarios import (
    POPULATIONS,
    build,
    collect,
    expected_warnings_ignored,
    run,
    scripted_settings,
)

START_METHODS = ("fork", "spawn", "forkserver")
# Long enough for what does not hang, also on a machine that has much to do.
TIMEOUT = 3.0
# Far less than the hour for which they hang.
PATIENCE = 120.0


def settings(steps: int = 1, n_agents: int = 4, **keys: Any) -> dict[str, Any]:
    config = scripted_settings(n_agents, steps=steps)
    config["simulation"].update(keys)
    return config


# --------------------------------------------------------------------------------------- keys


def set_up(**keys: Any) -> Any:
    runner = build(MultiProcessAgentParallelRunner, settings(**keys), startMethod="fork")
    with expected_warnings_ignored():
        runner._setup()
    runner._shutdown_executor()
    return runner


@pytest.mark.parametrize("value", [0, 1, 3, 10**30])
def test_valid_numbers_of_restarts(value: int) -> None:
    assert set_up(maxWorkerRestarts=value).max_worker_restarts == value


@pytest.mark.parametrize("value", [-1, 1.0, 0.5, "3", None, True, False, [1], float("nan")])
def test_invalid_numbers_of_restarts(value: Any) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings(maxWorkerRestarts=value))
    with expected_warnings_ignored(), pytest.raises(ValueError, match="at least 0") as caught:
        runner._setup()
    assert str(caught.value).startswith("simulation.maxWorkerRestarts must be an integer")
    assert repr(value) in str(caught.value)
    assert runner.executor is None


@pytest.mark.parametrize("value", [1, 0.25, 1e-3, 3600.5])
def test_valid_timeouts(value: Any) -> None:
    runner = set_up(taskTimeout=value)
    assert runner.task_timeout == value
    assert type(runner.task_timeout) is float


@pytest.mark.parametrize(
    "value",
    [
        *(0, 0.0, -1, -0.5, "1", None, True, False, [1]),
        *(float("nan"), float("inf"), float("-inf"), 1e300),
        pytest.param(10**5000, id="huge"),
    ],
)
def test_invalid_timeouts(value: Any) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings(taskTimeout=value))
    with expected_warnings_ignored(), pytest.raises(ValueError, match="positive number") as caught:
        runner._setup()
    assert str(caught.value).startswith("simulation.taskTimeout must be a positive number of")
    assert runner.executor is None


def test_defaults() -> None:
    runner = build(MultiProcessAgentParallelRunner, settings())
    assert (runner.max_worker_restarts, runner.task_timeout) == (3, None)
    runner = set_up()
    assert (runner.max_worker_restarts, runner.task_timeout) == (3, None)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("maxworkerrestarts", "maxWorkerRestarts"),
        ("max_worker_restarts", "maxWorkerRestarts"),
        ("maxWorkerRestart", "maxWorkerRestarts"),
        ("tasktimeout", "taskTimeout"),
        ("task_timeout", "taskTimeout"),
        ("TaskTimeout", "taskTimeout"),
    ],
)
def test_keys_that_are_nearly_right(key: str, meant: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner = set_up(**{key: 1})
    assert f"simulation.{key} is ignored; probably simulation.{meant} is meant." in [
        str(entry.message) for entry in caught
    ]
    assert (runner.max_worker_restarts, runner.task_timeout) == (3, None)


# ------------------------------------------------------------------------------------ timeouts


def run_and_catch(runner: Any, start: float) -> str:
    before = [agent.prng.getstate() for agent in runner.simulator.agents]
    with pytest.raises(TimeoutError) as caught:
        runner._run()
    assert time.monotonic() - start < PATIENCE
    assert type(caught.value) is TimeoutError
    assert runner.executor is None
    assert [agent.prng.getstate() for agent in runner.simulator.agents] == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("phase", "kind", "start_method"),
    slow_unless(
        lambda phase, kind, method: (
            method != "forkserver" and (kind, method) != ("hang up", "spawn")
        ),
        [
            *(
                ("run", kind, method)
                for kind in ("hang up", "hang up in C")
                for method in START_METHODS
            ),
            ("unpickle", "hang up", "fork"),
            ("return", "hang up", "fork"),
        ],
    ),
)
def test_task_that_hangs(
    scripted: Any, tmp_path: Path, phase: str, kind: str, start_method: str
) -> None:
    runner = scripted(
        [scripts.buy] * 4,
        workers=2,
        start_method=start_method,
        listed=("trap",) if phase == "return" else None,
        settings=settings(taskTimeout=TIMEOUT),
    )
    set_trap(runner, phase, Fault(kind, str(tmp_path / "fault"), lasting=True), 2)
    text = run_and_catch(runner, time.monotonic())
    assert "simulation.taskTimeout (3 s)" in text
    if phase == "run":
        assert "asking Scripted (agent_id=2)" in text
    elif phase == "return":
        assert "results of Scripted (agent_id=2), Scripted (agent_id=3)" in text
    else:
        assert "reading the simulation" in text
    if phase != "unpickle":
        assert "agent_id=0" not in text


def test_all_agents_that_hang_are_named(scripted: Any, tmp_path: Path) -> None:
    runner = scripted([scripts.buy] * 4, workers=2, settings=settings(taskTimeout=1))
    for number in (1, 2):
        set_trap(runner, "run", Fault("hang up", str(tmp_path / "fault"), True), number)
    text = run_and_catch(runner, time.monotonic())
    assert "agent_id=1" in text
    assert "agent_id=2" in text


def test_death_is_not_a_timeout_and_repeats_have_their_own_time(
    scripted: Any, tmp_path: Path
) -> None:
    runner = scripted([scripts.buy] * 4, workers=2, settings=settings(taskTimeout=60))
    set_trap(runner, "run", Fault("exit", str(tmp_path / "fault"), True), 2)
    with pytest.warns(UserWarning, match="has died"), pytest.raises(WorkerDiedError):
        runner._run()


def sleep_a_little(agent: Any, markets: Any) -> Any:
    time.sleep(0.3)
    return scripts.buy(agent, markets)


def test_waiting_for_a_worker_does_not_count(scripted: Any) -> None:
    """Twelve tasks of 0.3 s one after the other may take 2 s each, not all together."""
    runner = scripted(
        [sleep_a_little] * 12,
        runner_class=OneAgentPerChunk,
        workers=1,
        settings=settings(n_agents=12, taskTimeout=2),
    )
    runner._run()
    assert runner.batch_records[0].wait_seconds > 3


def sleep_on_start() -> None:
    time.sleep(2.0)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_starting_does_not_count(scripted: Any, start_method: str) -> None:
    runner = scripted(
        [scripts.buy] * 4,
        runner_class=with_initializer(sleep_on_start),
        workers=2,
        start_method=start_method,
        settings=settings(taskTimeout=1),
    )
    runner._run()
    assert len(runner.batch_records) == 1


def test_worker_that_hangs_when_it_starts(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """That ends, too, after a long time."""
    monkeypatch.setattr(attempts, "START_ALLOWANCE", 1.0)
    runner = scripted(
        [scripts.buy] * 4,
        runner_class=with_initializer(time.sleep, (3600,)),
        workers=2,
        settings=settings(taskTimeout=0.5),
    )
    assert "No worker has begun a task" in run_and_catch(runner, time.monotonic())


def test_time_in_which_everything_is_stopped_does_not_count(tmp_path: Path) -> None:
    """As by Ctrl-Z in a terminal; afterwards the run goes on."""
    script = tmp_path / "script.py"
    script.write_text(STOPPED)
    with started([sys.executable, str(script), str(tmp_path / "marker")]) as process:
        scripts.wait_for(str(tmp_path / "marker"))
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.killpg(process.pid, signal.SIGCONT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert output == "done\n", errors


STOPPED = """
import sys, time
from pathlib import Path
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support.scenarios import build, expected_warnings_ignored, give_scripts
from runner_support.scenarios import scripted_settings

def busy(agent, markets):
    Path(sys.argv[1]).touch()
    time.sleep(0.5)

if __name__ == "__main__":
    keys = dict(numParallel=2, startMethod="fork", taskTimeout=4)
    runner = build(MultiProcessAgentParallelRunner, scripted_settings(2), **keys)
    with expected_warnings_ignored():
        runner._setup()
        give_scripts(runner, [busy] * 2)
        runner._run()
    print("done")
"""


def test_timeout_of_an_agents_own(scripted: Any) -> None:
    runner = scripted(
        [scripts.buy, misbehaviour.raise_timeout_error],
        workers=2,
        settings=settings(n_agents=2, taskTimeout=60),
    )
    with pytest.raises(TimeoutError, match="from the agent"):
        runner._run()


def test_other_executors(scripted: Any, tmp_path: Path) -> None:
    """Threads cannot be ended, but the run does not wait for them."""
    runner = scripted(
        [scripts.buy, misbehaviour.make_marker_and_wait_for_release],
        runner_class=with_executor(lambda: ThreadPoolExecutor(2)),
        workers=2,
        settings=settings(n_agents=2, taskTimeout=0.5),
    )
    for agent in runner.simulator.agents:
        agent.marker, agent.release = str(tmp_path / "marker"), str(tmp_path / "release")
    try:
        with pytest.raises(TimeoutError, match=r"Scripted \(agent_id=1\)"):
            collect(runner)
        assert runner.executor is None
    finally:
        (tmp_path / "release").touch()


@pytest.mark.parametrize("name", ["process", "inline", "threads"])
def test_outcome_with_a_timeout_that_is_not_reached(name: str) -> None:
    executors = {"inline": InlineExecutor, "threads": lambda: ThreadPoolExecutor(2)}
    cls: Any = MultiProcessAgentParallelRunner
    if name in executors:
        cls = with_executor(executors[name])
    population = POPULATIONS["orders"]
    runner = run(build(cls, population, numParallel=2, startMethod="fork", taskTimeout=600))
    assert outcome(runner) == outcome(run(build(SequentialRunner, population)))


def hang_at_exit() -> None:
    multiprocessing.util.Finalize(None, time.sleep, args=(3600,), exitpriority=1)


def test_worker_that_hangs_at_its_end(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended after a while."""
    monkeypatch.setattr(executors, "_TIME_LIMIT", 1.0)
    runner = scripted([scripts.buy] * 2, runner_class=with_initializer(hang_at_exit), workers=2)
    start = time.monotonic()
    runner._run()
    assert time.monotonic() - start < PATIENCE
    assert runner.executor is None

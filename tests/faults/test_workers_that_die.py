"""Workers that die, in every phase of a task and in between, and batches that are repeated."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import struct
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pams_parallel
import pytest
from fault_support.faults import EXIT_CODES, FAULTS, Fault, Raised, is_first, set_trap
from fault_support.selection import slow_unless
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner, WorkerDiedError
from runner_support import scripts
from runner_support.comparison import outcome
from runner_support.executors import DelegatingExecutor
from runner_support.runner_classes import OneAgentPerChunk, with_executor, with_initializer
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
    from collections.abc import Iterator

START_METHODS = ("fork", "spawn", "forkserver")
PHASES = ("unpickle", "run", "return")
DEATHS = ("exit", "segfault", "SIGKILL")

# The agent that has the fault in most tests, of five agents in two chunks: 0, 1, 2 and 3, 4.
CULPRIT = 3


@contextlib.contextmanager
def caught_warnings() -> Iterator[list[str]]:
    """Texts of all warnings that tell of a death."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    messages = [str(entry.message) for entry in caught if entry.category is UserWarning]
    texts += [text for text in messages if "has died" in text]


def states(runner: Any) -> list[Any]:
    return [agent.prng.getstate() for agent in runner.simulator.agents]


@pytest.fixture
def undisturbed() -> Any:
    """What the runs of these tests come to without a fault."""
    runner = build(SequentialRunner, scripted_settings(5, steps=3), seed=InOrder(1))
    with expected_warnings_ignored():
        runner._setup()
        give_scripts(runner, [scripts.buy] * 5)
        runner._run()
    return result_of(runner)


def result_of(runner: Any) -> Any:
    for agent in runner.simulator.agents:  # what only these tests have put there
        for name in ("fault", "trap", "script", "synced_attributes"):
            vars(agent).pop(name, None)
    return outcome(runner)


def with_fault(scripted: Any, phase: str, fault: Fault, **keys: Any) -> Any:
    settings = scripted_settings(5, steps=3)
    settings["simulation"].update(keys.pop("simulation", {}))
    listed = ("trap",) if phase == "return" else None
    runner = scripted(
        [scripts.buy] * 5, workers=2, steps=3, settings=settings, listed=listed, **keys
    )
    set_trap(runner, phase, fault, CULPRIT)
    return runner


# ----------------------------------------------------------------------------- the fault table

CASES = [
    *((phase, kind, "fork") for phase in PHASES for kind in DEATHS),
    *((phase, "SIGKILL", method) for phase in PHASES for method in START_METHODS[1:]),
]


@pytest.mark.parametrize(("phase", "kind", "start_method"), CASES)
def test_batch_is_repeated(
    scripted: Any, undisturbed: Any, tmp_path: Path, phase: str, kind: str, start_method: str
) -> None:
    """With the same outcome as without the fault, and one warning."""
    fault = Fault(kind, str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, phase, fault, start_method=start_method)
    with caught_warnings() as texts:
        runner._run()
    assert os.path.exists(fault.marker)
    assert result_of(runner) == undisturbed
    (text,) = texts
    assert str(EXIT_CODES[kind]).lstrip("-") in text
    assert "restart 1 of at most 3" in text
    if phase != "unpickle":
        assert f"Scripted (agent_id={CULPRIT})" in text


@pytest.mark.parametrize(
    ("phase", "kind", "start_method"),
    slow_unless(lambda phase, kind, method: method == "fork", CASES),
)
def test_task_that_always_ends_its_worker(
    scripted: Any, tmp_path: Path, phase: str, kind: str, start_method: str
) -> None:
    """It is repeated once, as it may not be its fault."""
    fault = Fault(kind, str(tmp_path / "fault"), lasting=True)
    runner = with_fault(scripted, phase, fault, start_method=start_method)
    before = states(runner)
    with caught_warnings() as texts, pytest.raises(WorkerDiedError) as caught:
        runner._run()
    if phase != "unpickle":  # each worker reads the simulation, and the first to do so dies
        assert len(texts) == 1
        assert ("Scripted", CULPRIT) in caught.value.agents
        assert "twice" in str(caught.value)
    if phase == "run":
        assert caught.value.agents == (("Scripted", CULPRIT),)
        assert f"asking Scripted (agent_id={CULPRIT})" in str(caught.value)
    assert caught.value.exit_code == EXIT_CODES[kind]
    assert isinstance(caught.value.__cause__, BrokenProcessPool)
    assert runner.executor is None
    assert states(runner) == before
    assert len(runner.simulator.markets[0].buy_order_book) == 0


@pytest.mark.parametrize("phase", PHASES)
def test_exception_is_no_death(scripted: Any, tmp_path: Path, phase: str) -> None:
    """In no phase: it is raised on the main process, and nothing is repeated."""
    fault = Fault("raise", str(tmp_path / "fault"), lasting=True)
    runner = with_fault(scripted, phase, fault)
    expected: Any = RuntimeError if phase == "return" else Raised
    with caught_warnings() as texts, pytest.raises(expected, match="on purpose"):
        runner._run()
    assert texts == []


# ------------------------------------------------------------------------------------- who died


def test_sigterm_to_a_busy_worker(scripted: Any, undisturbed: Any, tmp_path: Path) -> None:
    """The pool ends the others in the same way."""
    fault = Fault("SIGTERM", str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, "run", fault)
    with caught_warnings() as texts:
        runner._run()
    assert result_of(runner) == undisturbed
    assert len(texts) == 1
    assert "signal 15, SIGTERM" in texts[0]


def wait_for_victim(agent: Any, markets: Any) -> Any:
    """Take until the pool ends this worker."""
    if is_first(f"{agent.marker}-{agent.agent_id}"):
        scripts.wait_for(f"{agent.marker}-never", seconds=600)
    return scripts.buy(agent, markets)


def kill_after_others(agent: Any, markets: Any) -> Any:
    if is_first(f"{agent.marker}-{agent.agent_id}"):
        for number in agent.others:
            scripts.wait_for(f"{agent.marker}-{number}")
        FAULTS["SIGKILL"]()
    return scripts.buy(agent, markets)


def test_others_that_are_busy_are_not_blamed(
    scripted: Any, undisturbed: Any, tmp_path: Path
) -> None:
    """Two workers are in the middle of a task when the third one dies."""
    runner = scripted(
        [wait_for_victim, scripts.buy, wait_for_victim, scripts.buy, kill_after_others],
        workers=3,
        steps=3,
    )
    for agent in runner.simulator.agents:
        agent.marker, agent.others = str(tmp_path / "at"), (0, 2)
    with caught_warnings() as texts:
        runner._run()
    (text,) = texts
    assert "asking Scripted (agent_id=4)." in text
    for agent in runner.simulator.agents:
        del agent.marker, agent.others
    assert result_of(runner) == undisturbed


def test_several_die_one_after_the_other(scripted: Any, undisturbed: Any, tmp_path: Path) -> None:
    """Each once, so that the limit of the run, not that of a task, is what counts."""
    runner = scripted([scripts.buy] * 5, workers=2, steps=3, runner_class=OneAgentPerChunk)
    for number in range(3):
        set_trap(runner, "run", Fault("exit", str(tmp_path / str(number)), False), number)
    with caught_warnings() as texts:
        runner._run()
    assert 1 <= len(texts) <= 3
    assert f"restart {len(texts)} of at most 3" in texts[-1]
    assert result_of(runner) == undisturbed


def die_in_other_step(agent: Any, markets: Any) -> Any:
    """Once in each step."""
    if is_first(f"{agent.marker}-{markets[0].get_time()}"):
        os._exit(7)
    return scripts.buy(agent, markets)


@pytest.mark.parametrize(("limit", "n_steps"), [(0, 1), (1, 2), (2, 2)])
def test_limit_of_restarts(scripted: Any, tmp_path: Path, limit: int, n_steps: int) -> None:
    """Counted over all batches of a run."""
    runner = scripted(
        [die_in_other_step, scripts.buy],
        workers=2,
        steps=n_steps,
        settings={
            **(settings := scripted_settings(2, steps=n_steps)),
            "simulation": {**settings["simulation"], "maxWorkerRestarts": limit},
        },
    )
    assert runner.max_worker_restarts == limit
    runner.simulator.agents[0].marker = str(tmp_path / "step")
    with caught_warnings() as texts:
        if limit < n_steps:
            with pytest.raises(WorkerDiedError, match="maxWorkerRestarts") as caught:
                runner._run()
            assert caught.value.exit_code == 7
            assert caught.value.agents == (("Scripted", 0),)
            assert len(runner.batch_records) == n_steps - 1
        else:
            runner._run()
            assert len(runner.batch_records) == n_steps
    assert len(texts) == min(limit, n_steps)


def test_restarts_are_counted_anew_in_every_run(scripted: Any, tmp_path: Path) -> None:
    for number in range(2):
        runner = scripted([die_in_other_step, scripts.buy], workers=2)
        runner.max_worker_restarts = 1
        runner.simulator.agents[0].marker = str(tmp_path / f"run-{number}")
        with caught_warnings() as texts:
            runner._run()
        assert "restart 1 of at most 1" in texts[0]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_worker_that_dies_between_two_batches(
    scripted: Any, undisturbed: Any, start_method: str
) -> None:
    runner = scripted([scripts.buy] * 5, workers=2, start_method=start_method, steps=3)

    def kill_one(session: Any) -> None:
        update(session)
        if runner.simulator.markets[0].get_time() == 1:
            process = next(iter(runner.executor._processes.values()))
            os.kill(process.pid, signal.SIGKILL)
            wait([process.sentinel])

    update = runner._update_markets
    runner._update_markets = kill_one
    with caught_warnings() as texts:
        runner._run()
    (text,) = texts
    assert "not in a task of this batch" in text
    del runner._update_markets
    assert result_of(runner) == undisturbed


# ------------------------------------------------------------------------- workers that start


def die_on_start(marker: str, lasting: bool) -> None:
    if is_first(marker) or lasting:
        os._exit(7)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_worker_that_dies_when_it_starts(
    scripted: Any, undisturbed: Any, tmp_path: Path, start_method: str
) -> None:
    cls = with_initializer(die_on_start, (str(tmp_path / "start"), False))
    runner = scripted(
        [scripts.buy] * 5, runner_class=cls, workers=2, steps=3, start_method=start_method
    )
    with caught_warnings() as texts:
        runner._run()
    (text,) = texts
    assert "exit code 7" in text
    assert "starting" in text
    assert result_of(runner) == undisturbed


def test_workers_that_always_die_when_they_start(scripted: Any, tmp_path: Path) -> None:
    cls = with_initializer(die_on_start, (str(tmp_path / "start"), True))
    runner = scripted([scripts.buy] * 5, runner_class=cls, workers=2)
    with caught_warnings() as texts, pytest.raises(WorkerDiedError, match="starting") as caught:
        runner._run()
    assert len(texts) == 3
    assert caught.value.agents == ()
    assert caught.value.exit_code == 7
    assert "__main__" in str(caught.value)


# ------------------------------------------------------------------- executors of the user's own


class OwnPool(ProcessPoolExecutor):
    made = 0

    def __init__(self) -> None:
        super().__init__(2)
        OwnPool.made += 1


@pytest.mark.parametrize("phase", PHASES)
def test_own_process_pool(scripted: Any, undisturbed: Any, tmp_path: Path, phase: str) -> None:
    """The runner asks ``_create_executor`` for another one."""
    OwnPool.made = 0
    fault = Fault("SIGKILL", str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, phase, fault, runner_class=with_executor(OwnPool))
    with caught_warnings() as texts:
        runner._run()
    assert len(texts) == 1
    assert OwnPool.made == 2
    assert result_of(runner) == undisturbed


@pytest.mark.skipif(sys.version_info < (3, 11), reason="max_tasks_per_child is new in 3.11")
def test_workers_that_end_after_every_task_have_not_died(
    scripted: Any, undisturbed: Any, tmp_path: Path
) -> None:
    """And if one does die, it is told from those that have ended."""

    def make() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(2, max_tasks_per_child=1)

    fault = Fault("exit", str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, "run", fault, runner_class=with_executor(make))
    with caught_warnings() as texts:
        runner._run()
    (text,) = texts
    assert "exit code 7" in text
    assert result_of(runner) == undisturbed


def test_executor_that_is_no_process_pool_has_its_own_error(scripted: Any, tmp_path: Path) -> None:
    fault = Fault("exit", str(tmp_path / "fault"), lasting=True)
    cls = with_executor(lambda: DelegatingExecutor(2, "fork"))
    runner = with_fault(scripted, "run", fault, runner_class=cls)
    with caught_warnings() as texts, pytest.raises(BrokenProcessPool) as caught:
        runner._run()
    assert type(caught.value) is BrokenProcessPool
    assert texts == []
    assert runner.executor is None


# ----------------------------------------------------------------------------- what is repeated


class CountingHooks(MultiProcessAgentParallelRunner):
    """Counts what the user's own methods are called for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[str] = []

    def _split_agents_into_chunks(self, agents: Any) -> Any:
        self.calls.append("split")
        return super()._split_agents_into_chunks(agents)

    def _create_executor(self) -> Any:
        self.calls.append("create")
        return super()._create_executor()

    def _receive_orders_from_worker(self, agent: Any, orders: Any, prng_state: Any) -> Any:
        self.calls.append("receive")
        return super()._receive_orders_from_worker(agent, orders, prng_state)


def test_hooks_are_called_as_in_an_undisturbed_run(scripted: Any, tmp_path: Path) -> None:
    """But for a new executor."""
    fault = Fault("SIGKILL", str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, "run", fault, runner_class=CountingHooks)
    with caught_warnings():
        runner._run()
    batch = ["split", *["receive"] * 5]
    assert runner.calls == ["create", "split", "create", *batch[1:], *batch * 2]


class Counted:
    """Counts how often it has been pickled on the main process."""

    def __init__(self) -> None:
        self.n_pickled = 0

    def __reduce__(self) -> Any:
        self.n_pickled += 1
        return Counted, ()


def test_simulation_is_not_pickled_again(scripted: Any, tmp_path: Path) -> None:
    """New workers see what the old ones saw, whatever another thread does meanwhile."""
    fault = Fault("SIGKILL", str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, "run", fault)
    counted = runner.simulator.counted = Counted()
    with caught_warnings():
        collect(runner)
    assert os.path.exists(fault.marker)
    assert counted.n_pickled == 1
    assert runner.simulator.counted is counted


def lose_change_and_meet_fault(agent: Any, markets: Any) -> None:
    agent.lost = 1
    if agent.agent_id == CULPRIT:
        agent.fault.met()


def test_lost_changes_are_told_once(scripted: Any, tmp_path: Path) -> None:
    runner = scripted([lose_change_and_meet_fault] * 5, workers=2, steps=2)
    for number, agent in enumerate(runner.simulator.agents):
        if number == CULPRIT:
            agent.fault = Fault("exit", str(tmp_path / "fault"), lasting=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner._run()
    texts = [str(entry.message) for entry in caught]
    assert sum("are lost" in text for text in texts) == 1
    assert sum("has died" in text for text in texts) == 1


def test_warning_that_is_an_error(scripted: Any, tmp_path: Path) -> None:
    """It ends the run instead of the batch being repeated."""
    fault = Fault("exit", str(tmp_path / "fault"), lasting=False)
    runner = with_fault(scripted, "run", fault)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has died"):
            runner._run()
    assert runner.executor is None


@pytest.mark.parametrize(
    ("start_method", "mode"),
    slow_unless(
        lambda method, mode: method == "fork" or (method, mode) == ("spawn", "delta"),
        itertools.product(START_METHODS, ["delta", "full"]),
    ),
)
def test_outcome_of_a_run_with_many_deaths(start_method: str, mode: str) -> None:
    """Workers of all kinds of agents are killed at any time; chaos does not show."""

    class Chaotic(MultiProcessAgentParallelRunner):
        n_batches = 0

        def _split_agents_into_chunks(self, agents: Any) -> Any:
            self.n_batches += 1
            processes = list(self.executor._processes.values())
            if processes and self.n_batches % 4 == 2:
                os.kill(processes[self.n_batches % len(processes)].pid, signal.SIGKILL)
            return super()._split_agents_into_chunks(agents)

    keys = {"numParallel": 2, "startMethod": start_method, "snapshotMode": mode}
    runner = build(Chaotic, POPULATIONS["mixed"], **keys, maxWorkerRestarts=100)
    with caught_warnings() as texts:
        run(runner)
    assert len(texts) >= 3
    assert outcome(runner) == outcome(run(build(SequentialRunner, POPULATIONS["mixed"])))


# -------------------------------------------------------------------------- result half sent


def send_part_of_a_result(agent: Any, markets: Any) -> Any:
    """Die in the middle of it."""
    if is_first(agent.marker):
        frame: Any = sys._getframe()
        while "result_queue" not in frame.f_locals:
            frame = frame.f_back
        writer = frame.f_locals["result_queue"]._writer
        os.write(writer.fileno(), struct.pack("!i", 1000) + b"only a part")
        FAULTS["SIGKILL"]()
    return scripts.buy(agent, markets)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_death_in_the_middle_of_a_result(
    scripted: Any, undisturbed: Any, tmp_path: Path, start_method: str
) -> None:
    """The pool waits for the rest for ever and does not notice; the runner does."""
    runner = scripted(
        [*[scripts.buy] * 4, send_part_of_a_result], workers=2, steps=3, start_method=start_method
    )
    for agent in runner.simulator.agents:
        agent.marker = str(tmp_path / "part")
    with caught_warnings() as texts:
        runner._run()
    (text,) = texts
    assert "SIGKILL" in text
    for agent in runner.simulator.agents:
        del agent.marker
    assert result_of(runner) == undisturbed


# ---------------------------------------------------------------------------------- the error


def test_error_is_a_broken_process_pool_and_survives_pickle() -> None:
    error = pams_parallel.WorkerDiedError("text", -9, [("FCNAgent", 3)])
    assert isinstance(error, BrokenProcessPool)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is WorkerDiedError
    assert (str(copy), copy.exit_code, copy.agents) == ("text", -9, (("FCNAgent", 3),))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("SIGKILL", "memory runs out"),
        ("segfault", "PYTHONFAULTHANDLER"),
        ("exit", "os._exit"),
        ("SIGTERM", "Somebody else"),
    ],
)
def test_error_names_a_remedy(scripted: Any, tmp_path: Path, kind: str, words: str) -> None:
    fault = Fault(kind, str(tmp_path / "fault"), lasting=True)
    runner = with_fault(scripted, "run", fault)
    with caught_warnings(), pytest.raises(WorkerDiedError, match=words):
        runner._run()

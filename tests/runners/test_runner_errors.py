"""What goes wrong in a worker or on the way, and how it shows on the main process."""

from __future__ import annotations

import concurrent.futures
import pickle
import sys
import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import misbehaviour, scripts
from runner_support.executors import InlineExecutor
from runner_support.misbehaviour import traceback_text
from runner_support.runner_classes import OneAgentPerChunk, with_executor
from runner_support.scenarios import InOrder, build, collect, give_scripts, scripted_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Far beyond what anything takes here, and far below the 600 seconds that agents sleep.
PATIENCE = 120.0


def states(runner: Any) -> list[Any]:
    return [agent.prng.getstate() for agent in runner.simulator.agents]


def run_and_catch(runner: Any, expected: type[BaseException]) -> BaseException:
    """The error of the run; no agent of the failed batch has changed, the executor is closed."""
    before = states(runner)
    with pytest.raises(expected) as caught:
        runner._run()
    assert runner.executor is None
    assert states(runner) == before
    assert len(runner.simulator.markets[0].buy_order_book) == 0
    assert not isinstance(caught.value, BrokenProcessPool)
    return caught.value


def forked_and_spawned(cases: list[Any], spawned: int) -> list[Any]:
    """All cases with forked workers, and the first ones with spawned workers as well."""
    return [("fork", *case) for case in cases] + [("spawn", *case) for case in cases[:spawned]]


# ---------------------------------------------------------------- agents that raise


SURVIVING = [
    (misbehaviour.raise_value_error, ValueError, ("bad price", 1)),
    (misbehaviour.raise_detailed, misbehaviour.DetailedError, ("something specific",)),
    (misbehaviour.raise_key_error, KeyError, ("missing",)),
    (misbehaviour.raise_stop_iteration, StopIteration, ("from the agent",)),
    (
        misbehaviour.raise_cancelled_error,
        concurrent.futures.CancelledError,
        ("from the agent",),
    ),
    (misbehaviour.raise_timeout_error, concurrent.futures.TimeoutError, ("from the agent",)),
    (misbehaviour.raise_system_exit, SystemExit, (3,)),
    (misbehaviour.raise_keyboard_interrupt, KeyboardInterrupt, ("from the agent",)),
    (misbehaviour.raise_base_error, misbehaviour.BaseError, ("from the agent",)),
]


@pytest.mark.parametrize(
    ("start_method", "script", "expected", "args"), forked_and_spawned(SURVIVING, spawned=2)
)
def test_exception_of_an_agent(
    scripted: Any,
    script: Callable[..., Any],
    expected: type[BaseException],
    args: tuple[Any, ...],
    start_method: str,
) -> None:
    runner = scripted([scripts.buy, script, scripts.buy], workers=2, start_method=start_method)
    error = run_and_catch(runner, expected)
    assert type(error) is expected
    assert error.args == args
    cause = str(error.__cause__)
    assert "Traceback (most recent call last)" in cause
    assert "misbehaviour.py" in cause
    assert f"in {script.__name__}" in cause
    assert "in submit_orders" in cause


def test_attributes_of_an_exception_survive(scripted: Any) -> None:
    runner = scripted([misbehaviour.raise_detailed])
    error = run_and_catch(runner, misbehaviour.DetailedError)
    assert error.detail == {"agent": 0, "prices": [1.0, 2.0]}  # type: ignore[attr-defined]


def test_exceptions_with_state_of_their_own(scripted: Any) -> None:
    error = run_and_catch(scripted([misbehaviour.raise_os_error]), FileNotFoundError)
    assert error.filename == "/no such directory/file"  # type: ignore[attr-defined]
    error = run_and_catch(scripted([misbehaviour.raise_unicode_error]), UnicodeDecodeError)
    assert error.start == 0  # type: ignore[attr-defined]
    error = run_and_catch(scripted([misbehaviour.raise_recursion_error]), RecursionError)
    assert "raise_recursion_error" in str(error.__cause__)


@pytest.mark.parametrize(
    "executor", [InlineExecutor, lambda: ThreadPoolExecutor(2)], ids=["inline", "threads"]
)
def test_exception_with_other_executors(scripted: Any, executor: Callable[[], Executor]) -> None:
    cls = with_executor(executor)
    runner = scripted([scripts.buy, misbehaviour.raise_detailed], runner_class=cls, workers=2)
    error = run_and_catch(runner, misbehaviour.DetailedError)
    assert error.detail["agent"] == 1  # type: ignore[attr-defined]
    assert "in raise_detailed" in traceback_text(error)


def test_remote_traceback_shows_the_whole_chain(scripted: Any) -> None:
    error = run_and_catch(scripted([misbehaviour.raise_chain]), ValueError)
    assert error.args == ("what arrives",)
    cause = str(error.__cause__)
    assert "LookupError: the very first reason" in cause
    assert "in _deepest" in cause
    assert "direct cause" in cause
    assert "OSError: the second reason" in cause
    assert "During handling of the above exception" in cause
    assert "ValueError: what arrives" in cause
    if sys.version_info >= (3, 11):
        assert "a note on what arrives" in cause
        assert error.__notes__ == ["a note on what arrives"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
def test_remote_traceback_shows_notes_of_causes(scripted: Any) -> None:
    error = run_and_catch(scripted([misbehaviour.raise_with_noted_cause]), ValueError)
    cause = str(error.__cause__)
    assert "LookupError: noted reason" in cause
    assert "a note on the reason" in cause


def test_exception_that_refers_to_the_simulation(scripted: Any) -> None:
    error = run_and_catch(scripted([misbehaviour.raise_with_agent_and_market]), ValueError)
    assert error.args[0] == "this agent, this market"
    assert [type(arg).__name__ for arg in error.args[1:]] == ["Scripted", "Market"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_exception_group(scripted: Any) -> None:
    error = run_and_catch(scripted([misbehaviour.raise_group]), ExceptionGroup)  # noqa: F821
    assert [repr(member) for member in error.exceptions] == ["ValueError(1)", "KeyError('k')"]
    assert "ValueError: 1" in str(error.__cause__)
    assert "KeyError: 'k'" in str(error.__cause__)


UNABLE_TO_TRAVEL = [
    (misbehaviour.raise_needs_two_arguments, "NeedsTwoArguments", "this and that"),
    (misbehaviour.raise_keyword_only, "KeywordOnly", "because of rain"),
    (misbehaviour.raise_lock, "HoldsLock", "locked in"),
    (misbehaviour.raise_lock_in_attribute, "DetailedError", "locked in"),
    (misbehaviour.raise_rebuild_fails, "RebuildFails", "fragile"),
    (misbehaviour.raise_becomes_text, "BecomesText", "was an exception"),
    (misbehaviour.raise_local_class, "LocalError", "known nowhere else"),
    (misbehaviour.raise_fails_in_text, "FailsInText", ""),
]


@pytest.mark.parametrize(
    ("start_method", "script", "name", "message"), forked_and_spawned(UNABLE_TO_TRAVEL, spawned=3)
)
def test_exception_that_cannot_travel(
    scripted: Any, script: Callable[..., Any], name: str, message: str, start_method: str
) -> None:
    runner = scripted([scripts.buy, script], workers=2, start_method=start_method)
    error = run_and_catch(runner, RuntimeError)
    assert type(error) is RuntimeError
    assert name in str(error)
    assert message in str(error)
    text = traceback_text(error)
    assert f"in {script.__name__}" in text
    assert "in submit_orders" in text
    assert name in text


def test_pool_is_usable_after_an_exception_that_cannot_travel(scripted: Any) -> None:
    """The next run of the same agents, on the same runner, is none the worse for it."""
    runner = scripted([misbehaviour.raise_needs_two_arguments, scripts.buy])
    with pytest.raises(RuntimeError, match="this and that"):
        collect(runner)
    runner.simulator.agents[0].script = scripts.buy
    assert len(collect(runner)) == 2


# ---------------------------------------------------------------- several tasks, one failure


def test_agents_of_earlier_tasks_do_not_change_when_a_later_one_fails(scripted: Any) -> None:
    runner = scripted(
        [scripts.count_call, scripts.buy, scripts.buy, misbehaviour.raise_value_error],
        workers=4,
        listed=("calls_so_far", "pid"),
    )
    run_and_catch(runner, ValueError)
    assert not hasattr(runner.simulator.agents[0], "calls_so_far")


def test_agents_of_earlier_batches_keep_their_changes(scripted: Any) -> None:
    agent_scripts = [scripts.draw, scripts.draw, misbehaviour.raise_value_error, scripts.buy]
    runner = scripted(agent_scripts, quota=1)
    before = states(runner)
    with pytest.raises(ValueError, match="bad price"):
        runner._run()
    changed = [a != b for a, b in zip(states(runner), before, strict=True)]
    assert changed == [True, True, False, False]


def test_of_several_failures_that_of_the_earliest_asked_agent_wins(scripted: Any) -> None:
    # All failures are known when the tasks have been submitted.
    runner = scripted(
        [
            scripts.buy,
            misbehaviour.raise_key_error,
            misbehaviour.raise_value_error,
            misbehaviour.raise_detailed,
        ],
        runner_class=with_executor(InlineExecutor),
        workers=4,
    )
    run_and_catch(runner, KeyError)


def test_failure_of_the_first_agent_wins_within_a_task(scripted: Any) -> None:
    runner = scripted([misbehaviour.raise_key_error, misbehaviour.raise_value_error])
    run_and_catch(runner, KeyError)


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("sleeper_first", [True, False])
def test_failure_is_raised_without_waiting_for_other_tasks(
    scripted: Any, tmp_path: Path, sleeper_first: bool, start_method: str
) -> None:
    """The busy worker is ended; see the teardown of every test."""
    agent_scripts = [
        misbehaviour.make_marker_and_sleep,
        misbehaviour.raise_lookup_error_after_marker,
    ]
    runner = scripted(
        agent_scripts if sleeper_first else agent_scripts[::-1],
        workers=2,
        start_method=start_method,
    )
    for agent in runner.simulator.agents:
        agent.marker = str(tmp_path / "marker")
    start = time.monotonic()
    run_and_catch(runner, LookupError)
    assert time.monotonic() - start < PATIENCE


def test_tasks_not_begun_are_cancelled(scripted: Any, tmp_path: Path) -> None:
    runner = scripted(
        [misbehaviour.raise_value_error, *[misbehaviour.make_marker_and_sleep] * 8],
        runner_class=OneAgentPerChunk,
        workers=2,
    )
    for agent in runner.simulator.agents:
        agent.marker = str(tmp_path / "marker")
    start = time.monotonic()
    run_and_catch(runner, ValueError)
    assert time.monotonic() - start < PATIENCE


def test_failure_is_raised_without_waiting_for_a_thread(scripted: Any, tmp_path: Path) -> None:
    """A thread cannot be ended, so it may still run when the error has been raised."""
    runner = scripted(
        [
            misbehaviour.make_marker_and_wait_for_release,
            misbehaviour.raise_lookup_error_after_marker,
        ],
        runner_class=with_executor(lambda: ThreadPoolExecutor(2)),
        workers=2,
    )
    for agent in runner.simulator.agents:
        agent.marker = str(tmp_path / "marker")
        agent.release = str(tmp_path / "release")
    start = time.monotonic()
    try:
        with pytest.raises(LookupError, match="while another one is busy"):
            collect(runner)
        assert time.monotonic() - start < PATIENCE
    finally:
        (tmp_path / "release").touch()


# ---------------------------------------------------------------- results that do not pickle


UNPICKLABLE = [
    (misbehaviour.keep_lambda, ("rule",), "lambda"),
    (misbehaviour.keep_lock, ("count", "items"), "lock"),
    (misbehaviour.keep_open_file, ("file",), "TextIOWrapper"),
    (misbehaviour.keep_generator, ("stream",), "generator"),
    (misbehaviour.return_order_with_lambda, (), "lambda"),
    (misbehaviour.return_order_with_lambda, ("count",), "lambda"),
    (misbehaviour.return_own_sequence, (), "lock"),
]


@pytest.mark.parametrize(
    ("start_method", "script", "listed", "original"), forked_and_spawned(UNPICKLABLE, spawned=2)
)
def test_results_that_cannot_be_pickled(
    scripted: Any,
    script: Callable[..., Any],
    listed: tuple[str, ...],
    original: str,
    start_method: str,
) -> None:
    runner = scripted(
        [scripts.draw, scripts.buy, script, scripts.buy], workers=2, start_method=start_method
    )
    runner.simulator.agents[2].synced_attributes = listed
    error = run_and_catch(runner, RuntimeError)
    assert type(error) is RuntimeError
    beginning = "The results of Scripted (agent_id=2) cannot be pickled on a worker process: "
    assert str(error).startswith(beginning)
    for name in listed:
        assert repr(name) in str(error)
    assert error.__cause__ is not None
    assert original in traceback_text(error)
    assert any(
        f"{kind}: " in traceback_text(error)
        for kind in ("TypeError", "AttributeError", "PicklingError")
    )


def test_results_that_cannot_be_rebuilt(scripted: Any) -> None:
    """Every result is decoded before any agent is updated."""
    runner = scripted(
        [scripts.buy, misbehaviour.keep_what_arrives_broken], workers=2, listed=("fragile",)
    )
    before = states(runner)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        runner._run()
    assert "broken on arrival" in traceback_text(caught.value)
    assert runner.executor is None
    assert states(runner) == before


# ---------------------------------------------------------------- simulations that do not pickle


def make_lambda() -> Any:
    return lambda price: price


def make_open_file() -> Any:
    return open(__file__)


CULPRITS: dict[str, Callable[[], Any]] = {
    "lambda": make_lambda,
    "open file": make_open_file,
    "lock": threading.Lock,
    "generator": lambda: (i for i in range(3)),
    "module": lambda: sys,
}


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", CULPRITS)
def test_simulation_that_cannot_be_pickled(scripted: Any, kind: str, start_method: str) -> None:
    culprit = CULPRITS[kind]()
    with pytest.raises(Exception) as of_pickle:  # noqa: PT011
        pickle.dumps(culprit, protocol=5)
    runner = scripted([scripts.buy] * 5, workers=2, start_method=start_method)
    runner.simulator.agents[3].rule = culprit
    error = run_and_catch(runner, Exception)
    assert isinstance(error, type(of_pickle.value))
    assert "simulator.agents[3].rule" in str(error)
    if kind == "open file":
        culprit.close()


@pytest.mark.parametrize(
    ("holder", "path"),
    [
        (lambda simulator: simulator, "simulator.rule"),
        (lambda simulator: simulator.markets[0], "simulator.markets[0].rule"),
        (lambda simulator: simulator.sessions[0], "simulator.sessions[0].rule"),
        (lambda simulator: simulator.logger, "simulator.logger.rule"),
        (lambda simulator: simulator.fundamentals, "simulator.fundamentals.rule"),
    ],
)
def test_path_to_what_cannot_be_pickled(
    scripted: Any, holder: Callable[[Any], Any], path: str
) -> None:
    runner = scripted([scripts.buy])
    holder(runner.simulator).rule = threading.Lock()
    error = run_and_catch(runner, TypeError)
    assert path in str(error)


def test_simulation_that_cannot_be_pickled_in_a_later_batch(scripted: Any) -> None:
    class Spoiling(MultiProcessAgentParallelRunner):
        def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
            if self.simulator.markets[0].get_time() == 1:
                self.simulator.agents[0].rule = threading.Lock()
            return super()._split_agents_into_chunks(agents)

    runner = scripted([scripts.draw] * 2, runner_class=Spoiling, steps=3)
    with pytest.raises(TypeError, match=r"simulator\.agents\[0\]\.rule"):
        runner._run()
    assert runner.executor is None


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_agent_that_cannot_be_rebuilt_in_the_worker(scripted: Any, start_method: str) -> None:
    runner = scripted([scripts.buy] * 2, cls="FailingToRebuild", start_method=start_method)
    error = run_and_catch(runner, Exception)
    assert "this agent cannot be rebuilt" in traceback_text(error)


# ---------------------------------------------------------------- checks on submitted orders


class LaterCheck(MultiProcessAgentParallelRunner):
    """Has the method that a later pams brings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.checked: list[tuple[int, int]] = []

    def _check_submitted_orders(self, agent: Any, orders: Any) -> None:
        self.checked.append((agent.agent_id, len(orders)))
        if len(orders) > 1:
            raise PermissionError("too many orders")


def failed_sequentially(
    agent_scripts: list[Any], expected: type[BaseException], placement: bool = True
) -> tuple[str, list[Any], Any]:
    """Message, PRNG states and state of the runner after a sequential collect phase failed."""
    runner = build(SequentialRunner, scripted_settings(len(agent_scripts)), seed=InOrder(1))
    runner._setup()
    return failed_collect(give_scripts(runner, agent_scripts), expected, placement)


def failed_collect(
    runner: Any, expected: type[BaseException], placement: bool = True
) -> tuple[str, list[Any], Any]:
    runner.simulator.sessions[0].with_order_placement = placement
    with pytest.raises(expected) as caught:
        collect(runner)
    assert type(caught.value) is expected
    return str(caught.value), states(runner), runner._prng.getstate()


@pytest.mark.parametrize("spoofer", [misbehaviour.spoof, misbehaviour.spoof_in_second_order])
@pytest.mark.parametrize("workers", [1, 2])
def test_orders_in_the_name_of_another_agent(
    scripted: Any, spoofer: Callable[..., Any], workers: int
) -> None:
    """Agents asked before have been updated, those after have not."""
    agent_scripts = [scripts.buy, scripts.draw, spoofer, scripts.buy, scripts.buy]
    expected = failed_sequentially(agent_scripts, ValueError)
    assert "spoofing order is not allowed" in expected[0]
    runner = scripted(agent_scripts, workers=workers)
    before = states(runner)
    assert failed_collect(runner, ValueError) == expected
    changed = [a != b for a, b in zip(states(runner), before, strict=True)]
    assert changed == [True, True, True, False, False]


@pytest.mark.parametrize("workers", [1, 2])
def test_orders_while_none_are_accepted(scripted: Any, workers: int) -> None:
    agent_scripts = [scripts.draw, scripts.buy, scripts.buy]
    expected = failed_sequentially(agent_scripts, AssertionError, placement=False)
    assert expected[0] == "currently order is not accepted"
    runner = scripted(agent_scripts, workers=workers)
    assert failed_collect(runner, AssertionError, placement=False) == expected


def test_no_orders_while_none_are_accepted(scripted: Any) -> None:
    runner = scripted([scripts.draw] * 3, workers=2)
    runner.simulator.sessions[0].with_order_placement = False
    assert collect(runner) == []


def test_orders_are_checked_before_spoofing(scripted: Any) -> None:
    runner = scripted([misbehaviour.spoof])
    message, _, _ = failed_collect(runner, AssertionError, placement=False)
    assert message == "currently order is not accepted"


@pytest.mark.parametrize(
    ("script", "expected"),
    [(misbehaviour.return_number, TypeError), (misbehaviour.return_numbers, AttributeError)],
)
def test_results_that_are_no_orders(
    scripted: Any, script: Callable[..., Any], expected: type[Exception]
) -> None:
    """They give the errors of a sequential run."""
    agent_scripts = [scripts.buy, script, scripts.buy]
    message, _, _ = failed_sequentially(agent_scripts, expected)
    assert failed_collect(scripted(agent_scripts, workers=2), expected)[0] == message


def test_failing_check_ends_the_run(scripted: Any) -> None:
    runner = scripted([misbehaviour.spoof])
    with pytest.raises(ValueError, match="spoofing order is not allowed"):
        runner._run()
    assert runner.executor is None


def test_check_of_a_later_pams_is_called_instead(scripted: Any) -> None:
    runner = scripted(
        [scripts.buy, scripts.draw, misbehaviour.spoof, scripts.buy], runner_class=LaterCheck
    )
    assert len(collect(runner)) == 3
    submitting = [(i, n) for i, n in runner.checked if n]
    assert submitting == [(0, 1), (2, 1), (3, 1)]


def test_check_of_a_later_pams_in_the_base_class(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []

    def check(self: Any, agent: Any, orders: Any) -> None:
        checked.append(agent.agent_id)

    monkeypatch.setattr(SequentialRunner, "_check_submitted_orders", check, raising=False)
    assert len(collect(scripted([scripts.buy, misbehaviour.spoof]))) == 2
    assert checked == [0, 1]


def test_check_of_a_later_pams_that_fails(scripted: Any) -> None:
    runner = scripted([scripts.buy, scripts.two_orders, scripts.buy], runner_class=LaterCheck)
    before = states(runner)
    with pytest.raises(PermissionError, match="too many orders"):
        collect(runner)
    changed = [a != b for a, b in zip(states(runner), before, strict=True)]
    assert changed == [True, True, False]

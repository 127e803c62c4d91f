"""``simulation.snapshotMode``, and where it does not matter."""

from __future__ import annotations

import warnings
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support.comparison import outcome
from runner_support.executors import DelegatingExecutor, InlineExecutor, PicklingExecutor
from runner_support.runner_classes import with_executor
from runner_support.scenarios import (
    build,
    collect,
    expected_warnings_ignored,
    run,
    scripted_settings,
)


def settings(steps: int = 3, **keys: Any) -> dict[str, Any]:
    config = scripted_settings(5, quota=3, steps=steps, cls="Canceller")
    config["simulation"].update(keys)
    return config


def set_up(**keys: Any) -> Any:
    runner = build(MultiProcessAgentParallelRunner, settings(**keys), startMethod="fork")
    with expected_warnings_ignored():
        runner._setup()
    return runner


def kinds(runner: Any) -> list[str]:
    return [record.frame_kind for record in runner.batch_records]


@pytest.mark.parametrize("value", ["delta", "full"])
def test_valid_values(value: str) -> None:
    runner = set_up(snapshotMode=value)
    assert runner.snapshot_mode == value
    runner._shutdown_executor()


def test_default_is_delta() -> None:
    runner = build(MultiProcessAgentParallelRunner, settings())
    assert runner.snapshot_mode == "delta"
    runner = set_up()
    assert runner.snapshot_mode == "delta"
    runner._shutdown_executor()


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "Delta", "FULL", " delta", "deltas", "keyframe"),
        *(1, True, False, 0.5, float("nan"), b"full", ["full"], {"full": 1}),
    ],
)
def test_invalid_values(value: Any) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings(snapshotMode=value))
    with expected_warnings_ignored(), pytest.raises(ValueError, match="snapshotMode") as caught:
        runner._setup()
    message = str(caught.value)
    assert message.startswith("simulation.snapshotMode must be one of [")
    assert "'delta'" in message
    assert "'full'" in message
    assert repr(value) in message
    assert runner.executor is None


@pytest.mark.parametrize(
    "key", ["snapshotmode", "SnapshotMode", "snapshot_mode", "snapshot-mode", "snapshotMod"]
)
def test_key_that_is_nearly_right(key: str) -> None:
    runner = build(MultiProcessAgentParallelRunner, settings(**{key: "full"}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner._setup()
    texts = [str(entry.message) for entry in caught if key in str(entry.message)]
    assert len(texts) == 1
    assert "simulation.snapshotMode" in texts[0]
    assert runner.snapshot_mode == "delta"
    runner._shutdown_executor()


def test_a_second_setup_begins_with_the_default() -> None:
    runner = set_up(snapshotMode="full")
    assert runner.snapshot_mode == "full"
    del runner.settings["simulation"]["snapshotMode"]
    runner._read_settings(runner.settings["simulation"])
    assert runner.snapshot_mode == "delta"
    runner._shutdown_executor()


def test_kinds_of_frames() -> None:
    delta, full = set_up(), set_up(snapshotMode="full")
    for runner in (delta, full):
        for _ in range(3):
            collect(runner)
        runner._shutdown_executor()
    assert kinds(delta)[0] == "keyframe"
    assert set(kinds(delta)[1:]) == {"delta"}
    assert set(kinds(full)) == {"full"}
    assert outcome(delta) == outcome(full)


def test_mode_may_be_changed_before_the_first_batch() -> None:
    """E.g. by a subclass; the attribute decides, not the configuration."""
    runner = set_up()
    runner.snapshot_mode = "full"
    collect(runner)
    runner._shutdown_executor()
    assert set(kinds(runner)) == {"full"}


def sequential_outcome(steps: int = 3) -> dict[str, object]:
    return outcome(run(build(SequentialRunner, settings(steps))))


EXECUTORS: dict[str, Any] = {
    "threads": lambda: ThreadPoolExecutor(2),
    "inline": InlineExecutor,
    "pickling": PicklingExecutor,
    "delegating": lambda: DelegatingExecutor(2, "fork"),
}


@pytest.mark.parametrize("mode", ["delta", "full"])
@pytest.mark.parametrize("name", EXECUTORS)
def test_other_executors_get_whole_snapshots(name: str, mode: str) -> None:
    """Their workers may share the interpreter with the main process, or be far away."""
    cls = with_executor(EXECUTORS[name])
    runner = run(build(cls, settings(snapshotMode=mode), numParallel=2))
    assert set(kinds(runner)) == {"full"}
    assert outcome(runner) == sequential_outcome()


def test_a_provider_of_threads_gets_whole_snapshots() -> None:
    class Threads(MultiProcessAgentParallelRunner):
        _parallel_pool_provider = ThreadPoolExecutor

    runner = run(build(Threads, settings(), numParallel=2))
    assert set(kinds(runner)) == {"full"}
    assert outcome(runner) == sequential_outcome()


class Pool(ProcessPoolExecutor):
    """A process pool of the user's own class."""


def test_process_pools_of_the_user_get_deltas() -> None:
    runner = run(build(with_executor(lambda: Pool(2)), settings(), numParallel=2))
    assert {"keyframe", "delta"} == set(kinds(runner))
    assert outcome(runner) == sequential_outcome()


class Changing(MultiProcessAgentParallelRunner):
    """Has another executor for every batch or so."""

    makers: tuple[Any, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_batches = 0
        self.retired: list[Executor] = []

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        make = self.makers[self.n_batches // 2 % len(self.makers)]
        if self.n_batches % 2 == 0:
            if self.executor is not None:
                self.retired.append(self.executor)
            self.executor = make()
        self.n_batches += 1
        return super()._split_agents_into_chunks(agents)

    def _shutdown_executor(self) -> None:
        super()._shutdown_executor()
        for executor in getattr(self, "retired", []):
            executor.shutdown()


def test_executor_of_another_type_between_batches() -> None:
    class Alternating(Changing):
        makers = (
            lambda: ProcessPoolExecutor(1),
            lambda: ThreadPoolExecutor(1),
            lambda: ProcessPoolExecutor(2),
            InlineExecutor,
        )

    runner = run(build(Alternating, settings(steps=8), numParallel=2))
    assert runner.n_batches >= 8
    found = kinds(runner)
    for start in range(0, len(found), 8):
        processes = found[start : start + 2] + found[start + 4 : start + 6]
        assert "full" not in processes
        assert {"full"} >= set(found[start + 2 : start + 4] + found[start + 6 : start + 8])
    assert Counter(found)["delta"] >= 2
    assert outcome(runner) == sequential_outcome(8)


def test_another_pool_of_processes_between_batches() -> None:
    """Its workers know nothing of the frames so far."""

    class Renewing(Changing):
        makers = (lambda: ProcessPoolExecutor(2),)

    runner = run(build(Renewing, settings(steps=6), numParallel=2))
    assert Counter(kinds(runner))["delta"] > 2
    assert "full" not in kinds(runner)
    assert outcome(runner) == sequential_outcome(6)

"""Deltas, whole snapshots and the sequential runner have one and the same outcome."""

from __future__ import annotations

import copy
import functools
import random
from collections import Counter
from typing import Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner, examples
from runner_support import delta_worlds, initializers
from runner_support.comparison import describe, digest, exact, outcome
from runner_support.delta_vandals import NOT_COMPARED, Planning, Vandal, differences
from runner_support.runner_classes import OneAgentPerChunk, with_initializer
from runner_support.scenarios import (
    POPULATIONS,
    RowLogger,
    build,
    expected_warnings_ignored,
    run,
)

START_METHODS = ("fork", "spawn", "forkserver")
MODES = ("delta", "full")

# JAX must not be forked; the tests of the JAX runner compare its example.
EXAMPLES = [name for name in examples.names() if name != "flax"]


def kinds(runner: Any) -> Counter[str]:
    return Counter(record.frame_kind for record in runner.batch_records)


# ------------------------------------------------------------------------------ bundled examples


def example_outcome(name: str, runner_class: type[Any], **keys: Any) -> dict[str, object]:
    example = examples.load(name)
    config = copy.deepcopy(example.config)
    sessions = config["simulation"]["sessions"]
    for session in sessions:
        session["iterationSteps"] = min(session["iterationSteps"], 4)
    sessions.append({**sessions[0], "sessionName": "one at a time", "maxNormalOrders": 1})
    sessions[-1].pop("events", None)
    config["simulation"].update(keys)
    runner = runner_class(config, prng=random.Random(3), logger=RowLogger())
    for cls in example.classes:
        runner.class_register(cls)
    found = outcome(run(runner))
    if runner_class is not SequentialRunner:
        if keys["snapshotMode"] == "full":
            assert set(kinds(runner)) == {"full"}
        else:
            assert kinds(runner)["delta"] > 0
    return found


@functools.cache
def sequential_example(name: str) -> dict[str, object]:
    return example_outcome(name, SequentialRunner)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore:.*is experimental")
def test_examples(name: str, mode: str, workers: int) -> None:
    keys = {"startMethod": "fork", "snapshotMode": mode, "numParallel": workers}
    assert example_outcome(name, MultiProcessAgentParallelRunner, **keys) == sequential_example(
        name
    )


# ------------------------------------------------- populations, which other tests run with deltas


@functools.cache
def sequential_population(name: str) -> dict[str, object]:
    return outcome(run(build(SequentialRunner, POPULATIONS[name])))


@pytest.mark.parametrize(
    ("start_method", "workers"),
    [
        ("fork", 1),
        pytest.param("fork", 3, marks=pytest.mark.slow),
        pytest.param("spawn", 2, marks=pytest.mark.slow),
        ("forkserver", 2),
    ],
)
@pytest.mark.parametrize("name", POPULATIONS)
def test_whole_snapshots_of_every_kind_of_agent(name: str, start_method: str, workers: int) -> None:
    cls: type[Any] = MultiProcessAgentParallelRunner
    if name == "ModelTrader":
        cls = with_initializer(initializers.load_model)
    keys = {"startMethod": start_method, "snapshotMode": "full", "numParallel": workers}
    runner = run(build(cls, POPULATIONS[name], **keys))
    assert set(kinds(runner)) == {"full"}
    assert outcome(runner) == sequential_population(name)


# ------------------------------------- a simulation that the main process changes in every step


def changing_result(runner_class: type[Any], **keys: Any) -> list[str]:
    runner = build(runner_class, delta_worlds.settings(), **keys)
    for cls in delta_worlds.CLASSES:
        runner.class_register(cls)
    with expected_warnings_ignored():
        runner._setup()
        delta_worlds.furnish(runner)
        runner._run()
    if runner_class is not SequentialRunner:
        found = kinds(runner)
        if keys.get("snapshotMode") == "full":
            assert set(found) == {"full"}
        else:
            assert found["delta"] > 10
            assert found["full"] == 0
    lines = [f"{name}: {value!r}" for name, value in outcome_of_world(runner).items()]
    return [*lines, *describe(runner.simulator.playground)]


def outcome_of_world(runner: Any) -> dict[str, object]:
    """As ``outcome``, which cannot describe that objects refer to each other in cycles."""
    simulator = runner.simulator
    models = [vars(agent).pop("model", None) for agent in simulator.agents]
    found = outcome(runner)
    found["models"] = [describe(model and model["weights"]) for model in models]
    found["lengths"] = [len(model["history"]) for model in models if model]
    return found


@functools.cache
def sequential_changing_result() -> list[str]:
    return changing_result(SequentialRunner)


@pytest.mark.parametrize("workers", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3])
@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("mode", MODES)
def test_simulation_that_changes(mode: str, start_method: str, workers: int) -> None:
    keys = {"startMethod": start_method, "snapshotMode": mode, "numParallel": workers}
    found = changing_result(MultiProcessAgentParallelRunner, **keys)
    expected = sequential_changing_result()
    assert found == expected, differences(found, expected)


def test_simulation_that_changes_with_more_tasks_than_workers() -> None:
    found = changing_result(OneAgentPerChunk, startMethod="fork", numParallel=2)
    expected = sequential_changing_result()
    assert found == expected, differences(found, expected)


def test_agents_saw_the_changes() -> None:
    """Otherwise these comparisons would say little."""
    runner = build(SequentialRunner, delta_worlds.settings())
    for cls in delta_worlds.CLASSES:
        runner.class_register(cls)
    with expected_warnings_ignored():
        runner._setup()
        delta_worlds.furnish(runner)
        first = delta_worlds.number_of(runner.simulator.playground)
        runner._run()
    numbers = {n for a in runner.simulator.agents for n in getattr(a, "seen", [])}
    assert len(numbers - {first}) > 10
    rows = {row[0] for row in runner.logger.rows}
    assert {"OrderLog", "ExecutionLog", "CancelLog"} <= rows


# ------------------------------------------------------------------- changes between two batches


class ChangingBetweenBatches(Planning):
    """Changes the simulation before each batch; the first agent of each task compares it."""

    agents_per_chunk = 2

    def _before_batch(self) -> None:
        prng = random.Random(self.n_planned)
        simulator = self.simulator
        delta_worlds.change_playground(simulator, prng, (0.0, 0.05, 0.5, 1.0)[self.n_planned % 4])
        # Objects of pams that are replaced and dropped, and contents that move.
        extra = simulator.extra
        kind = self.n_planned % 6
        if kind == 0:
            extra["kept"] = simulator.playground
        elif kind == 1:
            extra["new"] = [delta_worlds.make_playground()]
        elif kind == 2:
            extra["moved"] = extra.pop("new", None)
        elif kind == 3:
            extra.clear()
        elif kind == 4:
            extra["agent"] = simulator.agents.pop()
            simulator.agents.append(extra["agent"])
        else:
            simulator.extra = dict(reversed(list(extra.items())))


def between_batches_result(workers: int, **keys: Any) -> list[str]:
    config = delta_worlds.settings(steps=8)
    for group in ("Agents", "Sharers", "Traders"):
        config[group]["class"] = "Vandal"
    config["simulation"]["sessions"][0].pop("events")
    runner = build(ChangingBetweenBatches, config, numParallel=workers, **keys)
    runner.class_register(Vandal)
    with expected_warnings_ignored():
        runner._setup()
        runner.simulator.extra = {}
        delta_worlds.furnish(runner)
        runner._run()
    assert runner.n_planned > 30
    assert len(runner.worlds) == runner.n_planned
    if keys.get("snapshotMode") != "full":
        assert kinds(runner)["delta"] > 10
    return [*describe(runner.simulator, NOT_COMPARED), digest(exact(runner._prng))]


@functools.cache
def between_whole_snapshots() -> list[str]:
    return between_batches_result(2, startMethod="fork", snapshotMode="full")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_changes_between_batches(workers: int) -> None:
    found = between_batches_result(workers, startMethod="fork")
    assert found == between_whole_snapshots(), differences(found, between_whole_snapshots())


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_changes_between_batches_with_other_start_methods(start_method: str) -> None:
    found = between_batches_result(2, startMethod=start_method)
    assert found == between_whole_snapshots(), differences(found, between_whole_snapshots())

"""Runs of the process runner have exactly the outcome of ``SequentialRunner``."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import random
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from fault_support.selection import slow_unless
from pams import Simulator
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import initializers, scripts
from runner_support.comparison import outcome
from runner_support.executors import InlineExecutor
from runner_support.runner_classes import (
    OneAgentPerChunk,
    OneChunk,
    with_executor,
    with_initializer,
)
from runner_support.scenarios import (
    CLASSES,
    KINDS,
    POPULATIONS,
    RowLogger,
    build,
    give_scripts,
    run,
    scripted_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

START_METHODS = ("fork", "spawn", "forkserver")


RUNNER_CLASSES = {"ModelTrader": with_initializer(initializers.load_model)}
SCENARIOS = {**KINDS, **POPULATIONS}


@functools.cache
def sequential_outcome(kind: str, seed: int = 1) -> dict[str, object]:
    return outcome(run(build(SequentialRunner, SCENARIOS[kind], seed=seed)))


def parallel_outcome(
    kind: str,
    runner_class: type[MultiProcessAgentParallelRunner] | None = None,
    **settings: Any,
) -> dict[str, object]:
    cls = runner_class or RUNNER_CLASSES.get(kind, MultiProcessAgentParallelRunner)
    runner = run(build(cls, SCENARIOS[kind], **settings))
    assert runner.executor is None
    return outcome(runner)


@pytest.mark.parametrize(
    ("start_method", "workers"),
    slow_unless(
        lambda method, workers: method == "fork" or workers == 2,
        itertools.product(START_METHODS, [1, 2, 3]),
    ),
)
@pytest.mark.parametrize("population", POPULATIONS)
def test_outcome_equals_sequential(population: str, start_method: str, workers: int) -> None:
    """The sessions of every simulation have the quotas all, 1, 3 and 0."""
    found = parallel_outcome(population, startMethod=start_method, numParallel=workers)
    assert found == sequential_outcome(population)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_outcome_equals_sequential_for_one_kind_of_agent(kind: str, workers: int) -> None:
    found = parallel_outcome(kind, startMethod="fork", numParallel=workers)
    assert found == sequential_outcome(kind)


@pytest.mark.parametrize("seed", range(2, 7))
def test_outcome_equals_sequential_for_other_seeds(seed: int) -> None:
    found = parallel_outcome("mixed", startMethod="fork", numParallel=2, seed=seed)
    assert found == sequential_outcome("mixed", seed)


def test_outcomes_of_different_seeds_differ() -> None:
    """The comparison is able to see a difference."""
    assert sequential_outcome("mixed", 1) != sequential_outcome("mixed", 2)


def test_scenarios_contain_what_they_are_for() -> None:
    """Without cancels, executions and events in them the comparisons would say little."""

    def rows(kind: str) -> set[str]:
        logger = RowLogger()
        run(build(SequentialRunner, SCENARIOS[kind], logger=logger))
        return {row[0] for row in logger.rows}

    every = {"OrderLog", "CancelLog", "ExecutionLog", "ExpirationLog"}
    assert every <= rows("mixed")
    assert every <= rows("events")
    assert every <= rows("OrderKeeper")
    assert every <= rows("CancelKeeper")
    assert {"CancelLog", "ExecutionLog"} <= rows("Canceller")
    assert "ExecutionLog" in rows("MarketOrderTrader")
    assert not every & rows("Silent")

    events = {e.name: e for e in run(build(SequentialRunner, SCENARIOS["events"])).simulator.events}
    assert events["Halt"].activation_count > 0
    assert events["Limit"].activation_count > 0
    assert events["Mistake"].triggerd
    assert len(events["Recorder"].kinds) == 9
    arbitrage = run(build(SequentialRunner, SCENARIOS["arbitrage and market maker"])).simulator
    assert any(getattr(agent, "asked", 0) > 0 for agent in arbitrage.agents)


class ThreadRunner(MultiProcessAgentParallelRunner):
    _parallel_pool_provider = ThreadPoolExecutor


class OwnPoolRunner(MultiProcessAgentParallelRunner):
    def _create_executor(self) -> Executor:
        return ProcessPoolExecutor(self.num_parallel, mp_context=self._get_mp_context())


@pytest.mark.parametrize(
    "runner_class", [ThreadRunner, OwnPoolRunner, with_executor(InlineExecutor)]
)
@pytest.mark.parametrize("workers", [1, 3])
def test_outcome_equals_sequential_with_other_executors(
    runner_class: type[MultiProcessAgentParallelRunner], workers: int
) -> None:
    found = parallel_outcome("mixed", runner_class, numParallel=workers, startMethod="fork")
    assert found == sequential_outcome("mixed")


@pytest.mark.parametrize("runner_class", [OneAgentPerChunk, OneChunk])
def test_outcome_does_not_depend_on_the_chunks(
    runner_class: type[MultiProcessAgentParallelRunner],
) -> None:
    found = parallel_outcome("mixed", runner_class, numParallel=2, startMethod="fork")
    assert found == sequential_outcome("mixed")


def test_without_a_logger() -> None:
    def result(runner_class: type[Any], **keys: Any) -> dict[str, object]:
        runner = build(runner_class, SCENARIOS["mixed"], **keys)
        runner.logger = runner.simulator.logger = None
        return outcome(run(runner))

    keys = {"numParallel": 2, "startMethod": "fork"}
    assert result(MultiProcessAgentParallelRunner, **keys) == result(SequentialRunner)


def test_two_runs_in_one_process_do_not_influence_each_other() -> None:
    for _ in range(2):
        found = parallel_outcome("mixed", numParallel=2, startMethod="fork")
        assert found == sequential_outcome("mixed")


@pytest.mark.filterwarnings("ignore:order price does not accord to the tick size")
def test_main_method() -> None:
    runner = build(
        MultiProcessAgentParallelRunner, SCENARIOS["mixed"], numParallel=2, startMethod="fork"
    )
    runner.main()
    assert outcome(runner) == sequential_outcome("mixed")


def share_one_prng(runner: Any) -> None:
    """All agents draw from one generator object."""
    prng = random.Random(7)
    for agent in runner.simulator.agents:
        agent.prng = prng


def shared_prng_outcome(runner_class: type[Any], quota: int, **keys: Any) -> dict[str, object]:
    runner = build(runner_class, scripted_settings(6, quota, steps=3), **keys)
    runner._setup()
    give_scripts(runner, [scripts.buy, scripts.draw] * 3)
    share_one_prng(runner)
    runner._run()
    return outcome(runner)


# In one task the agents share the copy of the generator as they share the generator itself;
# how copies in different tasks go together is not defined.
@pytest.mark.parametrize(
    ("runner_class", "quota", "workers"),
    [
        (MultiProcessAgentParallelRunner, 1000, 1),
        (MultiProcessAgentParallelRunner, 2, 1),
        (MultiProcessAgentParallelRunner, 1, 3),
        (OneChunk, 1000, 3),
        (OneChunk, 2, 2),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is experimental", "ignore:.*maximum number of parallel")
def test_agents_that_share_one_prng(runner_class: type[Any], quota: int, workers: int) -> None:
    found = shared_prng_outcome(runner_class, quota, numParallel=workers, startMethod="fork")
    assert found == shared_prng_outcome(SequentialRunner, quota)


def replaced_outcome(runner_class: type[Any], **keys: Any) -> dict[str, object]:
    settings = copy.deepcopy(POPULATIONS["mixed"])
    settings["simulation"]["sessions"][0]["events"] = ["Replacer"]
    runner = run(build(runner_class, settings, **keys))
    assert runner.simulator.n_agents > len(settings["simulation"]["agents"])
    return outcome(runner)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_simulation_that_is_replaced_while_it_runs(start_method: str, workers: int) -> None:
    """Agents that come, go and change class, other generators, other quotas."""
    keys = {"numParallel": workers, "startMethod": start_method}
    found = replaced_outcome(MultiProcessAgentParallelRunner, **keys)
    assert found == replaced_outcome(SequentialRunner)


def quota_outcome(runner_class: type[Any], quota: Any, **keys: Any) -> dict[str, object]:
    return outcome(run(build(runner_class, scripted_settings(5, quota, 2, "Sometimes"), **keys)))


@pytest.mark.parametrize("quota", [-1, 2.5, 3.0, 1e6, float("inf"), True])
def test_quotas_that_pams_takes_as_well(quota: Any) -> None:
    """It only compares them, so ``1e6`` in a JSON file is a quota, too."""
    keys = {"numParallel": 2, "startMethod": "fork"}
    found = quota_outcome(MultiProcessAgentParallelRunner, quota, **keys)
    assert found == quota_outcome(SequentialRunner, quota)


def test_no_normal_agents() -> None:
    settings = copy.deepcopy(POPULATIONS["arbitrage and market maker"])
    settings["simulation"]["agents"] = ["Arbitrage", "Maker"]
    found = outcome(run(build(MultiProcessAgentParallelRunner, settings, numParallel=2)))
    assert found == outcome(run(build(SequentialRunner, settings)))


class OwnSimulator(Simulator):
    """A simulator of the user's own."""


def simulator_outcome(runner_class: type[Any], settings: Any) -> dict[str, object]:
    runner = runner_class(
        settings, prng=random.Random(3), logger=RowLogger(), simulator_class=OwnSimulator
    )
    for cls in CLASSES:
        runner.class_register(cls)
    assert type(runner.simulator) is OwnSimulator
    return outcome(run(runner))


@pytest.mark.filterwarnings("ignore:.*is experimental")
@pytest.mark.parametrize("form", ["dict", "path", "str", "file"])
def test_arguments_of_the_constructor(tmp_path: Path, form: str) -> None:
    """As those of ``SequentialRunner``: settings in any form, and a simulator class."""
    settings = copy.deepcopy(POPULATIONS["cancels"])
    settings["simulation"]["numParallel"] = 2
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    with path.open(encoding="utf-8") as file:
        given = {"dict": settings, "path": path, "str": str(path), "file": file}[form]
        found = simulator_outcome(MultiProcessAgentParallelRunner, given)
    assert found == simulator_outcome(SequentialRunner, settings)

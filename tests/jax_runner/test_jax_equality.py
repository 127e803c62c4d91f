"""Runs of the JAX runner have exactly the outcome of ``SequentialRunner``."""

from __future__ import annotations

import functools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

from jax_support import agents
from jax_support.comparison import jax_outcome
from jax_support.running import warnings_recorded
from pams.runners import SequentialRunner
from pams_parallel import JaxAgentParallelRunner, examples
from runner_support.loggers import RowLogger
from runner_support.scenarios import build

PARALLEL = [
    *(pytest.param({"numParallel": n}, id=f"{n}, default") for n in (1, 2, 4)),
    pytest.param({"numParallel": 2, "startMethod": "forkserver"}, id="2, forkserver"),
    pytest.param({"numParallel": 2, "jaxNumThreads": 1}, id="2, one thread each"),
]


def finished(runner: Any) -> dict[str, object]:
    with warnings_recorded() as texts:
        runner._setup()
        runner._run()
    assert [text for text in texts if "tick size" not in text] == []
    assert getattr(runner, "executor", None) is None
    return jax_outcome(runner)


def population(runner_class: type[Any], seed: int = 1, **keys: Any) -> dict[str, object]:
    runner = build(runner_class, agents.population(), seed=seed, **keys)
    for cls in agents.CLASSES:
        runner.class_register(cls)
    return finished(runner)


def example(runner_class: type[Any], **keys: Any) -> dict[str, object]:
    loaded = examples.load("flax")
    simulation = loaded.config["simulation"]
    for session in simulation["sessions"]:
        session["iterationSteps"] = min(session["iterationSteps"], 3)
    extra = {**simulation["sessions"][0], "sessionName": "three", "maxNormalOrders": 3}
    extra.pop("events", None)
    simulation["sessions"].append(extra)
    simulation.update(keys)
    with warnings_recorded():
        runner = runner_class(loaded.config, prng=random.Random(1), logger=RowLogger())
    for cls in loaded.classes:
        runner.class_register(cls)
    return finished(runner)


@functools.cache
def sequential_population(seed: int = 1) -> dict[str, object]:
    return population(SequentialRunner, seed)


@functools.cache
def sequential_example() -> dict[str, object]:
    return example(SequentialRunner)


@pytest.mark.parametrize("keys", PARALLEL)
def test_agents_that_use_jax(keys: dict[str, Any]) -> None:
    assert population(JaxAgentParallelRunner, **keys) == sequential_population()


def test_agents_that_use_jax_in_threads() -> None:
    class Threads(JaxAgentParallelRunner):
        _parallel_pool_provider = ThreadPoolExecutor

    assert population(Threads, numParallel=2) == sequential_population()


@pytest.mark.parametrize("keys", PARALLEL[:2])
def test_bundled_example(keys: dict[str, Any]) -> None:
    assert example(JaxAgentParallelRunner, **keys) == sequential_example()


def test_comparison_sees_differences() -> None:
    assert sequential_population(1) != sequential_population(2)


def test_simulations_are_worth_comparing() -> None:
    """Orders are executed, and what is trained and drawn is among what is compared."""
    for found in (sequential_population(), sequential_example()):
        rows = str(found["log"])
        assert "OrderLog" in rows
        assert "ExecutionLog" in rows
        assert any("array" in str(value) for value in found.values())
    names = {name.partition(".")[2] for name in sequential_population()}
    assert {"params", "state", "key", "optimizer_state", "losses"} <= names


def test_training_changes_the_agents() -> None:
    runner = build(SequentialRunner, agents.population())
    for cls in agents.CLASSES:
        runner.class_register(cls)
    runner._setup()
    before = jax_outcome_of_params(runner)
    with warnings_recorded():
        runner._run()
    assert jax_outcome_of_params(runner) != before


def jax_outcome_of_params(runner: Any) -> list[str]:
    return [
        str(agent.params)
        for agent in runner.simulator.agents
        if type(agent) is agents.TrainingTrader
    ]

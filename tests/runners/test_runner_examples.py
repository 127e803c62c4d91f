"""The bundled examples have the outcome of ``SequentialRunner``, too."""

from __future__ import annotations

import copy
import functools
import json
import random
from typing import Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner, examples
from runner_support.comparison import outcome
from runner_support.scenarios import RowLogger, run

STEPS = 2

# JAX must not be forked; the tests of the JAX runner compare its example.
NAMES = [name for name in examples.names() if name != "flax"]


def with_quotas(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with few steps, and sessions with quotas of 1, 3 and 0 besides."""
    config = copy.deepcopy(config)
    sessions = config["simulation"]["sessions"]
    for session in sessions:
        session["iterationSteps"] = min(session["iterationSteps"], STEPS)
    for quota in (1, 3, 0):
        extra = {**sessions[0], "sessionName": f"quota {quota}", "maxNormalOrders": quota}
        extra.pop("events", None)
        sessions.append(extra)
    return config


def result(name: str, runner_class: type[Any], **keys: Any) -> dict[str, object]:
    example = examples.load(name)
    config = with_quotas(example.config)
    config["simulation"].update(keys)
    runner = runner_class(config, prng=random.Random(1), logger=RowLogger())
    for cls in example.classes:
        runner.class_register(cls)
    return outcome(run(runner))


@functools.cache
def sequential(name: str) -> dict[str, object]:
    return result(name, SequentialRunner)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*is experimental")
def test_outcome_equals_sequential(name: str, start_method: str, workers: int) -> None:
    keys = {"startMethod": start_method, "numParallel": workers}
    assert result(name, MultiProcessAgentParallelRunner, **keys) == sequential(name)


@pytest.mark.parametrize("name", NAMES)
def test_examples_trade(name: str) -> None:
    """Comparing simulations in which nothing happens would say nothing."""
    rows = str(sequential(name)["log"])
    assert "OrderLog" in rows
    assert "ExecutionLog" in rows


@pytest.mark.parametrize("name", NAMES)
def test_loading_twice_gives_independent_configurations(name: str) -> None:
    first, second = examples.load(name), examples.load(name)
    assert first.config == second.config
    first.config["simulation"]["sessions"].clear()
    assert first.config != second.config
    assert json.loads(json.dumps(second.config)) == second.config

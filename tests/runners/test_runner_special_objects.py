"""Simulation objects with ``__reduce__`` and the like keep their identity as the others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import lost_changes, special_objects
from runner_support.comparison import outcome
from runner_support.scenarios import (
    InOrder,
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def loggers() -> Iterator[list[special_objects.FileLogger]]:
    """Two loggers with an open file each."""
    made = [special_objects.FileLogger() for _ in range(2)]
    yield made
    for logger in made:
        logger.file.close()


def set_up(runner_class: type[Any], logger: Any, **keys: Any) -> Any:
    settings = scripted_settings(4, steps=3, cls="ReducingAgent")
    settings["Market"]["class"] = "ReducingMarket"
    runner = build(runner_class, settings, seed=InOrder(1), logger=logger, **keys)
    with expected_warnings_ignored():
        runner._setup()
    give_scripts(runner, [special_objects.keep_everything] * 4, special_objects.KEPT)
    for agent in runner.simulator.agents:
        agent.prng = special_objects.ReducingPrng(agent.agent_id, number=agent.agent_id)
    return runner


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_identity_and_outcome(loggers: list[Any], start_method: str, workers: int) -> None:
    runner = set_up(
        MultiProcessAgentParallelRunner,
        loggers[0],
        numParallel=workers,
        startMethod=start_method,
    )
    runner._run()
    sequential = set_up(SequentialRunner, loggers[1])
    sequential._run()

    simulator = runner.simulator
    agents = simulator.agents
    for agent, other in zip(agents, [*agents[1:], agents[0]], strict=True):
        expected = [simulator.logger, simulator.markets[0], agent, other, agent.prng, other.prng]
        assert [id(kept) for kept in agent.kept] == [id(obj) for obj in expected]
        assert agent.alias is agent.prng
        assert agent.prng.number == agent.agent_id
        assert agent.others == ["ReducingAgent"] * 4
    assert simulator.logger is loggers[0]
    assert outcome(runner) == outcome(sequential)


def test_lost_changes_of_such_an_agent(loggers: list[Any]) -> None:
    cls = MultiProcessAgentParallelRunner
    runner = set_up(cls, loggers[0], numParallel=2, startMethod="fork")
    give_scripts(runner, [lost_changes.assign_a_and_b] * 4, ("a",))
    with pytest.warns(UserWarning, match=r"ReducingAgent assigned or deleted 'b' in"):
        collect(runner)
    assert [agent.a for agent in runner.simulator.agents] == [1] * 4
    runner._shutdown_executor()

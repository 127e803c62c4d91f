"""What a runner tells of objects that are slow to copy."""

from __future__ import annotations

import collections
import functools
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
from pams.order import LIMIT_ORDER
from pams_parallel import MultiProcessAgentParallelRunner
from pams_parallel.snapshot import SlowPath
from runner_support import scripts, special_objects
from runner_support.comparison import outcome
from runner_support.scenarios import (
    POPULATIONS,
    build,
    expected_warnings_ignored,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Rule:
    """An ordinary class, of which tests say otherwise."""


def reports(runner: Any) -> dict[str, SlowPath]:
    """Entries by class."""
    found = runner.slow_path_report()
    by_name = {entry.class_name: entry for entry in found}
    assert len(by_name) == len(found)
    assert [entry.seconds for entry in found] == sorted(
        (entry.seconds for entry in found), reverse=True
    )
    return by_name


def test_ordinary_simulation(scripted: Callable[..., Any]) -> None:
    """Nothing but the generator of NumPy of pams itself."""
    entries = reports(scripted([scripts.draw] * 3))
    assert [(entry.path, entry.n_objects, entry.tracking) for entry in entries.values()] == [
        ("simulator.fundamentals._np_prng", 1, "native")
    ]


def test_objects_of_agents(scripted: Callable[..., Any]) -> None:
    runner = scripted([scripts.draw] * 5)
    agents = runner.simulator.agents
    agents[3].rule = functools.partial(scripts.draw, 1)
    agents[4].rule = functools.partial(scripts.draw, bytes(1000))
    agents[1].recent = collections.deque([1])
    entries = reports(runner)
    partial = entries["functools.partial"]
    assert (partial.path, partial.n_objects) == ("simulator.agents[3].rule", 2)
    assert partial.tracking == "reducer"
    assert 1_000 < partial.n_bytes < 1_500
    recent = entries["collections.deque"]
    assert (recent.path, recent.tracking) == ("simulator.agents[1].recent", "native")


def test_agents_with_hooks(scripted: Callable[..., Any]) -> None:
    cls = special_objects.ReducingAgent
    runner = scripted([scripts.draw] * 4, cls=cls.__name__)
    entry = reports(runner)[f"{cls.__module__}.{cls.__name__}"]
    assert (entry.path, entry.n_objects) == ("simulator.agents[0]", 4)
    assert entry.tracking == "none"


def test_reducers_of_libraries_and_constants(
    scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reduce(obj: Any) -> tuple[Any, ...]:
        return type(obj), ()

    name = f"{Rule.__module__}.{Rule.__qualname__}"
    runner = scripted([scripts.draw] * 2)
    agent = runner.simulator.agents[1]
    agent.rule, agent.kind = Rule(), LIMIT_ORDER
    assert name not in reports(runner)
    registered = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    monkeypatch.setitem(registered, Rule, reduce)
    monkeypatch.setitem(registered, type(LIMIT_ORDER), reduce)
    entries = reports(runner)
    assert (entries[name].path, entries[name].n_objects) == ("simulator.agents[1].rule", 1)
    # A constant is the workers' own, and not copied.
    assert not any(entry.class_name.startswith("pams.order.") for entry in entries.values())


def test_object_that_cannot_be_copied(scripted: Callable[..., Any]) -> None:
    runner = scripted([scripts.draw] * 2)
    runner.simulator.agents[1].rule = [threading.Lock()]
    with pytest.raises(TypeError, match=r"cannot pickle.*found at simulator\.agents\[1\]\.rule"):
        runner.slow_path_report()


def test_without_a_simulation() -> None:
    runner = build(MultiProcessAgentParallelRunner, scripted_settings(2), numParallel=1)
    with pytest.raises(RuntimeError, match=r"slow_path_report\(\) .* before _setup\(\)"):
        runner.slow_path_report()


def test_report_changes_nothing() -> None:
    """Neither before a run nor after it."""
    outcomes = []
    for with_report in (True, False):
        runner = build(
            MultiProcessAgentParallelRunner,
            POPULATIONS["state"],
            numParallel=2,
            startMethod="fork",
        )
        with expected_warnings_ignored():
            runner._setup()
            if with_report:
                before = reports(runner)
            runner._run()
        if with_report:
            assert "numpy.random._generator.Generator" in before
            assert set(before) <= set(reports(runner))
        outcomes.append(outcome(runner))
    assert outcomes[0] == outcomes[1]

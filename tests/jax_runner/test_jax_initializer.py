"""Order on a worker: environment, ``jax_platforms``, the user's initializer, tasks."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("jax")

import jax.numpy as jnp
from jax_support import reports, runs_jax_at_import
from jax_support.running import run_scripted
from pams_parallel import JaxAgentParallelRunner
from runner_support.initializers import RebuildsNever
from runner_support.misbehaviour import traceback_text
from runner_support.runner_classes import with_initializer


class OwnVariable(JaxAgentParallelRunner):
    def _get_worker_environment(self) -> dict[str, str]:
        return {**super()._get_worker_environment(), "PAMS_TEST_OWN": "1"}


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_order(monkeypatch: pytest.MonkeyPatch, start_method: str) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    found = run_scripted(
        [reports.report_worker_and_use_jax] * 4,
        runner_class=with_initializer(
            reports.remember, (reports.Witness("argument"), 3), OwnVariable
        ),
        workers=2,
        steps=3,
        startMethod=start_method,
        jaxPlatforms="cpu",
    )
    assert found.warnings == []
    for agent in found.agents:
        assert agent.report["sum"] == 6.0
        # Once per worker, whatever the number of tasks.
        rebuilt, called = agent.report["events"]
        assert (rebuilt[0], called[0]) == ("rebuilt argument", "initializer")
        for event in (rebuilt, called):
            assert event[1]["PAMS_TEST_OWN"] == "1"
            assert event[1]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
            assert event[2]["jax_platforms"] == "cpu"
        assert called[3] == ["argument", 3]
    assert reports.STATE.events == []  # nothing on the main process
    assert "PAMS_TEST_OWN" not in os.environ


def test_arrays_may_be_given_to_the_initializer(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made after JAX has been configured, so the settings hold."""
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    found = run_scripted(
        [reports.report_worker_and_use_jax],
        runner_class=with_initializer(
            reports.remember_kind, (jnp.arange(3, dtype=jnp.bfloat16),), JaxAgentParallelRunner
        ),
        jaxPlatforms="cpu",
    )
    assert found.warnings == []
    assert found.agents[0].report["events"] == [(True, "bfloat16", [0.0, 1.0, 2.0])]
    assert found.agents[0].report["backend"] == "cpu"


def test_modules_that_run_jax_when_they_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the initializer and of the agents are imported after JAX has been configured."""
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    found = run_scripted(
        [runs_jax_at_import.report_with_weights],
        runner_class=with_initializer(
            runs_jax_at_import.remember_weights, base=JaxAgentParallelRunner
        ),
        jaxPlatforms="cpu",
    )
    assert found.warnings == []
    assert found.agents[0].report["events"] == ["weights 3.0"]
    assert found.agents[0].report["weights"] == 3.0


@pytest.mark.parametrize(
    ("initializer", "args", "text"),
    [
        (reports.fail, (), "LookupError: no model on this machine"),
        (reports.remember, (RebuildsNever(),), "LookupError: arguments cannot be rebuilt"),
    ],
)
def test_initializer_that_fails(initializer: Any, args: tuple[Any, ...], text: str) -> None:
    runner_class = with_initializer(initializer, args, JaxAgentParallelRunner)
    with pytest.raises(RuntimeError, match="the worker initializer failed on this worker") as error:
        run_scripted([reports.report_worker], runner_class=runner_class)
    assert text in traceback_text(error.value)

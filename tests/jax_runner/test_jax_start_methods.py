"""``spawn`` by default, which JAX needs; the config and subclasses may choose otherwise."""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import Any

import pytest

pytest.importorskip("jax")

import jax
from jax_support import reports
from jax_support.running import run_scripted, warnings_recorded
from pams_parallel import JaxAgentParallelRunner
from runner_support.scenarios import build, scripted_settings


class ForkServerRunner(JaxAgentParallelRunner):
    default_start_method = "forkserver"


class PlatformRunner(JaxAgentParallelRunner):
    default_start_method = None


def test_spawn_by_default_and_no_fork() -> None:
    """Forking a process in which JAX runs may hang the child; JAX warns when it happens."""
    assert jax.devices()
    found = run_scripted([reports.report_worker_and_use_jax] * 2, workers=2, steps=2)
    assert found.runner.start_method == "spawn"
    assert found.warnings == []
    for agent in found.agents:
        assert agent.report["pid"] != os.getpid()
        assert agent.report["sum"] == 6.0


@pytest.mark.parametrize(
    ("runner_class", "keys", "expected"),
    [
        (JaxAgentParallelRunner, {"startMethod": "forkserver"}, "forkserver"),
        (JaxAgentParallelRunner, {"startMethod": "fork"}, "fork"),
        (ForkServerRunner, {}, "forkserver"),
        (ForkServerRunner, {"startMethod": "spawn"}, "spawn"),
        (PlatformRunner, {}, None),
    ],
)
def test_choice_of_the_start_method(
    runner_class: type[Any], keys: dict[str, str], expected: str | None
) -> None:
    runner = build(runner_class, scripted_settings(2), numParallel=1, **keys)
    with warnings_recorded():
        runner._setup()
    try:
        assert runner.start_method == expected
        method = runner._get_mp_context().get_start_method()
        assert method == (expected or multiprocessing.get_start_method())
    finally:
        runner._shutdown_executor()


@pytest.mark.parametrize("keys", [{"startMethod": "forkserver"}, {}])
def test_forkserver(keys: dict[str, str]) -> None:
    runner_class = JaxAgentParallelRunner if keys else ForkServerRunner
    found = run_scripted(
        [reports.report_worker_and_use_jax] * 2, runner_class=runner_class, workers=2, **keys
    )
    assert found.warnings == []
    assert [agent.report["sum"] for agent in found.agents] == [6.0, 6.0]


FORK = """
import json
import os
import sys

from jax_support import reports
from jax_support.running import run_scripted

if __name__ == "__main__":
    found = run_scripted(
        [reports.report_worker_and_use_jax] * 2, workers=2, startMethod="fork", jaxPlatforms="cpu"
    )
    print(json.dumps({
        "main": os.getpid(),
        "start_method": found.runner.start_method,
        "warnings": found.warnings,
        "reports": [agent.report for agent in found.agents],
    }))
"""


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this platform"
)
def test_fork_before_jax_is_initialized(run_script: Any) -> None:
    """Safe, and what the config asks for is what happens."""
    done = run_script(FORK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["start_method"] == "fork"
    assert found["warnings"] == []
    for report in found["reports"]:
        assert report["pid"] != found["main"]
        assert report["sum"] == 6.0
        assert report["environment"]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        assert report["configuration"]["jax_platforms"] == "cpu"

"""JAX that runs on a worker before it could be configured: the main process is told."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("jax")

from jax_support import reports
from jax_support.running import run_scripted

# {top} stands at the top level, which spawned workers run again, and {main} under the guard.
SCRIPT = """
import json
import sys

import jax
import jax.numpy as jnp
from jax_support import reports
from jax_support.running import run_scripted

{top}

if __name__ == "__main__":
    {main}
    found = run_scripted(
        [reports.{script}] * 4, workers=2, steps=3, jaxPreallocate=False, **json.loads(sys.argv[1])
    )
    print(json.dumps([found.warnings, [agent.report for agent in found.agents]]))
"""


def run(
    run_script: Any, top: str = "", main: str = "", script: str = "report_worker", **keys: Any
) -> tuple[list[str], list[dict[str, Any]]]:
    """Warnings and reports of a run of the script."""
    text = SCRIPT.format(top=top, main=main or "pass", script=script)
    done = run_script(text, json.dumps(keys))
    assert done.returncode == 0, done.stderr
    texts, found = json.loads(done.stdout.splitlines()[-1])
    return texts, found


def about_jax(texts: list[str]) -> list[str]:
    return [text for text in texts if "JAX" in text and "os.fork()" not in text]


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_script_that_runs_jax_at_its_top_level(run_script: Any, start_method: str) -> None:
    """One warning for the run, though two workers have it in each of three steps."""
    texts, found = run(
        run_script,
        top="WEIGHTS = jnp.ones(3)",
        script="report_worker_and_use_jax",
        startMethod=start_method,
    )
    assert len(texts) == 1
    assert re.search(r"^JAX .*initiali[sz]ed", texts[0])
    # The way out: not at the top level of a module.
    assert "top level" in texts[0] or "__main__" in texts[0]
    assert [report["sum"] for report in found] == [6.0] * 4


def test_fork_of_a_process_that_has_run_jax(run_script: Any) -> None:
    """The agents leave JAX alone, because it may hang there: hence a warning before that, too."""
    texts, found = run(run_script, main="jnp.ones(3).sum()", startMethod="fork")
    assert len(about_jax(texts)) == 2
    assert re.search(r"^JAX is initiali[sz]ed on the main process.*can hang", about_jax(texts)[0])
    assert re.search(r"^JAX was initiali[sz]ed on a worker", about_jax(texts)[1])
    # The way out: workers that are started in another way.
    assert all("spawn" in text for text in about_jax(texts))
    assert len(found) == 4


def test_jax_that_is_only_imported(run_script: Any) -> None:
    """By the script, at its top level, as most scripts do; and run on the main process."""
    texts, found = run(
        run_script, main="jnp.ones(3).sum()", script="report_worker_and_use_jax", jaxPlatforms="cpu"
    )
    assert texts == []
    assert all(report["configuration"]["jax_platforms"] == "cpu" for report in found)
    assert all(report["sum"] == 6.0 for report in found)


def test_jax_that_is_only_imported_before_a_fork(run_script: Any) -> None:
    texts, found = run(
        run_script, script="report_worker_and_use_jax", startMethod="fork", jaxPlatforms="cpu"
    )
    assert texts == []
    assert all(report["backend"] == "cpu" for report in found)


def test_another_runner_warns_again(run_script: Any) -> None:
    """Once per run is what counts, not once per process."""
    texts, _ = run(
        run_script,
        top="WEIGHTS = jnp.ones(3)",
        main="first = run_scripted([reports.report_worker]); assert len(first.warnings) == 1",
    )
    assert len(texts) == 1


def test_workers_that_run_jax_in_a_task_are_no_reason() -> None:
    """A task initialises JAX after it was configured; the next batch sees it initialised."""
    found = run_scripted([reports.report_worker_and_use_jax] * 2, steps=4)
    assert found.warnings == []


def test_numeric_settings_apply_all_the_same(run_script: Any) -> None:
    """They can still be changed, and without them the numbers would be wrong."""
    texts, found = run(
        run_script,
        top="WEIGHTS = jnp.ones(3)",
        main="jax.config.update('jax_enable_x64', True)",
        script="report_worker_and_use_jax",
    )
    assert len(texts) == 1
    assert all(report["configuration"]["jax_enable_x64"] for report in found)

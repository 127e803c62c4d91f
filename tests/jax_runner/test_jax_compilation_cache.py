"""``jaxCompilationCacheDir``: workers share JAX's persistent compilation cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

import jax
from jax_support import agents, reports
from jax_support.comparison import jax_outcome
from jax_support.running import run_scripted, warnings_recorded
from pams.runners import SequentialRunner
from pams_parallel import JaxAgentParallelRunner
from runner_support.scenarios import build, run

if TYPE_CHECKING:
    from pathlib import Path


def result(runner_class: type[Any], **keys: Any) -> dict[str, object]:
    runner = build(runner_class, agents.population(number=1, steps=1), **keys)
    for cls in agents.CLASSES:
        runner.class_register(cls)
    with warnings_recorded() as texts:
        run(runner)
    assert texts == []
    return jax_outcome(runner)


def entries(directory: Path) -> set[str]:
    """Compiled functions in the cache; JAX also notes when it has used them."""
    return {path.name for path in directory.rglob("*-cache")}


def test_cache_is_filled_and_used(tmp_path: Path) -> None:
    directory = tmp_path / "not made yet" / "cache"
    keys = {"numParallel": 2, "jaxCompilationCacheDir": str(directory)}
    before = reports.configuration()
    first = result(JaxAgentParallelRunner, **keys)
    found = entries(directory)
    assert any("forecast" in name for name in found)
    second = result(JaxAgentParallelRunner, **keys)
    # Nothing is compiled again, small functions included.
    assert entries(directory) == found
    assert first == second == result(SequentialRunner)
    assert reports.configuration() == before


def test_cache_of_the_worker_only(tmp_path: Path) -> None:
    found = run_scripted([reports.report_worker], jaxCompilationCacheDir=str(tmp_path))
    (agent,) = found.agents
    assert agent.report["configuration"]["jax_compilation_cache_dir"] == str(tmp_path)
    assert jax.config.jax_compilation_cache_dir != str(tmp_path)


# Spawned workers import JAX with the script, before the cache can be set.
SCRIPT = """
import sys

import jax
from jax_support import reports
from jax_support.running import run_scripted

if __name__ == "__main__":
    found = run_scripted(
        [reports.report_worker_and_use_jax], jaxCompilationCacheDir=sys.argv[1]
    )
    assert found.warnings == []
    print(found.agents[0].report["configuration"]["jax_compilation_cache_dir"])
"""


def test_cache_if_jax_was_imported_before(run_script: Any, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    done = run_script(SCRIPT, str(directory))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(directory)
    assert entries(directory)


def test_no_cache_without_the_key() -> None:
    found = run_scripted([reports.report_worker])
    configuration = found.agents[0].report["configuration"]
    assert configuration["jax_compilation_cache_dir"] is None


def test_cache_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As all variables it is inherited, and the key overrides it."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "inherited"))
    for keys in ({}, {"jaxCompilationCacheDir": str(tmp_path / "key")}):
        found = run_scripted([reports.report_worker], **keys)
        seen = found.agents[0].report["configuration"]["jax_compilation_cache_dir"]
        assert seen == keys.get("jaxCompilationCacheDir", str(tmp_path / "inherited"))


def test_environment_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path is that of the main process; the user's own limit stays."""
    limit = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    monkeypatch.chdir(tmp_path)
    runner = build(JaxAgentParallelRunner, agents.population(number=1, steps=1))
    for directory, seen in (("cache", str(tmp_path / "cache")), ("gs://bucket", "gs://bucket")):
        runner.jax_compilation_cache_dir = directory
        monkeypatch.delenv(limit, raising=False)
        environment = runner._get_worker_environment()
        assert environment["JAX_COMPILATION_CACHE_DIR"] == seen
        assert environment[limit] == "0"
        monkeypatch.setenv(limit, "2.5")
        assert runner._get_worker_environment()[limit] == "2.5"


def test_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = run_scripted([reports.report_worker], jaxCompilationCacheDir="~/cache")
    (agent,) = found.agents
    directory = agent.report["configuration"]["jax_compilation_cache_dir"]
    assert directory == str(tmp_path / "cache")

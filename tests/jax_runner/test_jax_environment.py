"""What the worker processes see of the environment, and of ``jax_platforms``."""

from __future__ import annotations

import os
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("jax")

import jax
from jax_support import reports
from jax_support.running import jax_configured, run_scripted
from pams_parallel import JaxAgentParallelRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
OTHER_FRACTION = "XLA_CLIENT_MEM_FRACTION"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PREALLOCATE, FRACTION, OTHER_FRACTION, "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)


def reported(
    monkeypatch: pytest.MonkeyPatch,
    environment: Mapping[str, str],
    runner_class: type[Any] = JaxAgentParallelRunner,
    script: Any = reports.report_worker,
    **keys: Any,
) -> dict[str, Any]:
    """Report of an agent whose main process has ``environment``, which does not change."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before, platforms = dict(os.environ), jax.config.jax_platforms
    found = run_scripted([script], runner_class=runner_class, **keys)
    assert found.warnings == []
    assert dict(os.environ) == before
    assert jax.config.jax_platforms == platforms
    (agent,) = found.agents
    report: dict[str, Any] = agent.report
    return report


@pytest.mark.parametrize(
    ("environment", "keys", "expected"),
    [
        pytest.param({}, {}, {PREALLOCATE: "false"}, id="default"),
        pytest.param(
            {PREALLOCATE: "true", FRACTION: "0.5"},
            {},
            {PREALLOCATE: "true", FRACTION: "0.5"},
            id="inherited",
        ),
        pytest.param(
            {OTHER_FRACTION: "0.5"},
            {},
            {PREALLOCATE: "false", OTHER_FRACTION: "0.5"},
            id="inherited with the other name",
        ),
        pytest.param(
            {PREALLOCATE: "true", FRACTION: "0.5", OTHER_FRACTION: "0.5"},
            {"jaxPreallocate": False, "jaxMemoryFraction": 0.25},
            {PREALLOCATE: "false", FRACTION: "0.25"},
            id="overridden",
        ),
        pytest.param(
            {PREALLOCATE: "false", OTHER_FRACTION: "0.5"},
            {"jaxPreallocate": True, "jaxMemoryFraction": 1},
            {PREALLOCATE: "true", FRACTION: "1.0"},
            id="overridden with the other name",
        ),
    ],
)
def test_environment(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    keys: dict[str, Any],
    expected: dict[str, str],
) -> None:
    found = reported(monkeypatch, {**environment, "PAMS_TEST_INHERITED": "yes"}, **keys)
    seen = found["environment"]
    assert seen.pop("PAMS_TEST_INHERITED") == "yes"
    names = (PREALLOCATE, FRACTION, OTHER_FRACTION)
    assert {name: seen[name] for name in names if name in seen} == expected


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_platforms_beat_the_environment(monkeypatch: pytest.MonkeyPatch, start_method: str) -> None:
    """JAX could not run at all if the variable counted."""
    found = reported(
        monkeypatch,
        {"JAX_PLATFORMS": "nonsense"},
        script=reports.report_worker_and_use_jax,
        jaxPlatforms="cpu",
        startMethod=start_method,
    )
    assert found["configuration"]["jax_platforms"] == "cpu"
    assert (found["backend"], found["sum"]) == ("cpu", 6.0)


def test_platforms_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reported(monkeypatch, {"JAX_PLATFORMS": "cpu"})
    assert found["configuration"]["jax_platforms"] == "cpu"


def test_jax_chooses_the_platform_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the main process's own configuration says: it is for the main process."""
    with jax_configured(jax_platforms="cpu"):
        found = reported(monkeypatch, {}, script=reports.report_worker_and_use_jax)
    assert not found["configuration"]["jax_platforms"]
    assert found["sum"] == 6.0


def test_platform_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key takes effect: the worker's JAX does not start, and the agent's error says so."""
    with pytest.raises(RuntimeError, match="nonsense"):
        reported(monkeypatch, {}, script=reports.report_worker_and_use_jax, jaxPlatforms="nonsense")


class Extended(JaxAgentParallelRunner):
    def _get_worker_environment(self) -> dict[str, str]:
        return {**super()._get_worker_environment(), "PAMS_TEST_OWN": "1", PREALLOCATE: "true"}


class Replaced(JaxAgentParallelRunner):
    def _get_worker_environment(self) -> dict[str, str]:
        return {"PAMS_TEST_OWN": "2"}


class Threads(JaxAgentParallelRunner):
    _parallel_pool_provider = ThreadPoolExecutor


class OwnPool(JaxAgentParallelRunner):
    """A pool that knows nothing of the configuration; the tasks see to it."""

    def _create_executor(self) -> Executor:
        return ProcessPoolExecutor(self.num_parallel, mp_context=self._get_mp_context())


def test_override_that_adds_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a subclass returns counts, also against the keys."""
    found = reported(monkeypatch, {}, Extended, jaxPreallocate=False, jaxMemoryFraction=0.5)
    seen = found["environment"]
    assert seen["PAMS_TEST_OWN"] == "1"
    assert seen[PREALLOCATE] == "true"
    assert seen[FRACTION] == "0.5"


def test_override_that_starts_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = reported(monkeypatch, {"PAMS_TEST_OWN": "1"}, Replaced)["environment"]
    assert seen["PAMS_TEST_OWN"] == "2"
    assert PREALLOCATE not in seen


@pytest.mark.parametrize("way", ["instance", "monkeypatch"])
def test_hook_may_be_replaced(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """In any of Python's ways."""

    class Patched(JaxAgentParallelRunner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if way == "instance":
                self._get_worker_environment = lambda: {"PAMS_TEST_OWN": way}

    if way == "monkeypatch":
        monkeypatch.setattr(
            JaxAgentParallelRunner, "_get_worker_environment", lambda self: {"PAMS_TEST_OWN": way}
        )
    assert reported(monkeypatch, {}, Patched)["environment"]["PAMS_TEST_OWN"] == way


def test_pool_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reported(
        monkeypatch,
        {"JAX_PLATFORMS": "nonsense", PREALLOCATE: "true"},
        OwnPool,
        script=reports.report_worker_and_use_jax,
        jaxPlatforms="cpu",
        jaxPreallocate=False,
    )
    assert found["environment"][PREALLOCATE] == "false"
    assert found["configuration"]["jax_platforms"] == "cpu"
    assert found["sum"] == 6.0


def test_threads_leave_the_main_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the workers are the main process, which must not be configured."""
    for name in ("PAMS_TEST_OWN", PREALLOCATE):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    configuration = reports.configuration()

    class OwnVariables(Threads):
        def _get_worker_environment(self) -> dict[str, str]:
            return {**super()._get_worker_environment(), "PAMS_TEST_OWN": "1"}

    found = run_scripted(
        [reports.report_worker_and_use_jax],
        runner_class=OwnVariables,
        jaxPlatforms="nonsense",
        jaxMemoryFraction=0.5,
        jaxPreallocate=True,
        jaxNumThreads=1,
        jaxCompilationCacheDir="/nonsense",
    )
    assert dict(os.environ) == before
    assert reports.configuration() == configuration
    (agent,) = found.agents
    assert agent.report["pid"] == os.getpid()
    assert "PAMS_TEST_OWN" not in agent.report["environment"]
    assert agent.report["sum"] == 6.0

"""Fixtures that tests in several folders share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pams_parallel import MultiProcessAgentParallelRunner

from .scenarios import (
    InOrder,
    build,
    expected_warnings_ignored,
    give_scripts,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@pytest.fixture
def scripted() -> Iterator[Callable[..., Any]]:
    """Factory of runners, set up, whose agents have the given scripts and are asked in order."""
    runners: list[Any] = []

    def make(
        agent_scripts: Sequence[Any],
        *,
        runner_class: type[Any] = MultiProcessAgentParallelRunner,
        listed: Sequence[str] | None = None,
        workers: int = 1,
        start_method: str | None = "fork",
        quota: int = 1000,
        steps: int = 1,
        cls: str = "Scripted",
        seed: Any = None,
        settings: dict[str, Any] | None = None,
    ) -> Any:
        keys = {} if start_method is None else {"startMethod": start_method}
        runner = build(
            runner_class,
            {**scripted_settings(len(agent_scripts), quota, steps, cls), **(settings or {})},
            seed=InOrder(1) if seed is None else seed,
            numParallel=workers,
            **keys,
        )
        runners.append(runner)
        with expected_warnings_ignored():
            runner._setup()
        return give_scripts(runner, agent_scripts, listed)

    yield make
    for runner in runners:
        if getattr(runner, "executor", None) is not None:
            runner._shutdown_executor()
    runners.clear()  # pytest still refers to this fixture when leaks are looked for

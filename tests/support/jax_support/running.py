"""Short runs of the JAX runner with scripted agents, and the warnings that they gave."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from pams_parallel import JaxAgentParallelRunner
from runner_support.scenarios import InOrder, build, give_scripts, scripted_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# What every run of a short simulation warns about.
_EXPECTED = ("is experimental", "maximum number of parallel agents is limited")


class Finished(NamedTuple):
    """A run that has ended.

    Attributes:
        agents: the agents of the main process.
        warnings: texts of the warnings that not every run gives.
        runner: the runner.
    """

    agents: list[Any]
    warnings: list[str]
    runner: Any


@contextlib.contextmanager
def warnings_recorded() -> Iterator[list[str]]:
    """List that has, afterwards, the texts of the warnings that not every run gives."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    found = [str(entry.message) for entry in caught if entry.category is not ResourceWarning]
    texts += [text for text in found if not any(part in text for part in _EXPECTED)]


def run_scripted(
    scripts: Sequence[Any],
    *,
    listed: Sequence[str] = ("report",),
    prepare: Callable[[list[Any]], None] | None = None,
    runner_class: type[Any] = JaxAgentParallelRunner,
    workers: int = 1,
    steps: int = 1,
    **simulation: Any,
) -> Finished:
    """Run agents with the given scripts, which are asked in order.

    Args:
        scripts: script of each agent.
        listed: ``synced_attributes`` of each agent.
        prepare: gets the agents after the set-up, to give them attributes.
        runner_class: class of the runner.
        workers: ``numParallel``.
        steps: number of steps.
        **simulation: more keys for ``simulation``.
    """
    runner = build(
        runner_class,
        scripted_settings(len(scripts), steps=steps),
        seed=InOrder(1),
        numParallel=workers,
        **simulation,
    )
    try:
        with warnings_recorded() as texts:
            runner._setup()
            give_scripts(runner, scripts, listed)
            if prepare is not None:
                prepare(runner.simulator.agents)
            runner._run()
    finally:
        runner._shutdown_executor()
    return Finished(runner.simulator.agents, texts, runner)


@contextlib.contextmanager
def jax_configured(**settings: Any) -> Iterator[None]:
    """Settings of JAX on the main process, put back afterwards."""
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)

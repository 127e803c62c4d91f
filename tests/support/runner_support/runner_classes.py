"""Subclasses of the process runner that several tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pams_parallel import MultiProcessAgentParallelRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


class OneChunk(MultiProcessAgentParallelRunner):
    """All agents of a batch in one task, and empty chunks around it."""

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        return [[], list(agents), []]


class OneAgentPerChunk(MultiProcessAgentParallelRunner):
    """As many tasks as agents, also if there are fewer workers."""

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        return [[agent] for agent in agents]


def with_executor(
    make: Callable[[], Executor], base: type[Any] = MultiProcessAgentParallelRunner
) -> type[Any]:
    """Runner class with an executor of the user's own."""

    class WithExecutor(base):  # type: ignore[misc]
        def _create_executor(self) -> Executor:
            return make()

    return WithExecutor


def with_initializer(
    initializer: Callable[..., Any],
    args: tuple[Any, ...] = (),
    base: type[Any] = MultiProcessAgentParallelRunner,
) -> type[Any]:
    """Runner class with a worker initializer."""

    class WithInitializer(base):  # type: ignore[misc]
        def _get_worker_initializer(self) -> Callable[..., Any]:
            return initializer

        def _get_worker_initargs(self) -> tuple[Any, ...]:
            return args

    return WithInitializer

"""Which agents are asked, in which order, in how many batches, chunks and tasks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts
from runner_support.comparison import outcome
from runner_support.executors import InlineExecutor
from runner_support.runner_classes import with_executor
from runner_support.scenarios import InOrder, build, collect, give_scripts, scripted_settings

if TYPE_CHECKING:
    from collections.abc import Callable

WHO_SUBMITS = {
    "all": [True] * 10,
    "none": [False] * 10,
    "every third": [i % 3 == 0 for i in range(10)],
    "the last ones": [i >= 7 for i in range(10)],
    "the first ones": [i < 4 for i in range(10)],
}


class RecordingRunner(MultiProcessAgentParallelRunner):
    """Remembers the batches and the chunks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[list[int]] = []
        self.chunks: list[list[list[int]]] = []

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        assert all(any(agent is own for own in self.simulator.agents) for agent in agents)
        chunks = super()._split_agents_into_chunks(agents)
        self.batches.append([agent.agent_id for agent in agents])
        self.chunks.append([[agent.agent_id for agent in chunk] for chunk in chunks])
        return chunks


def expected_batches(submits: list[bool], quota: int) -> list[list[int]]:
    """First as many agents as may submit, then always as many as submitters are missing."""
    batches: list[list[int]] = []
    asked, submitted = 0, 0
    while submitted < quota and asked < len(submits):
        batch = list(range(len(submits)))[asked : asked + quota - submitted]
        batches.append(batch)
        asked += len(batch)
        submitted += sum(submits[i] for i in batch)
    return batches


@pytest.mark.parametrize("quota", [0, 1, 2, 3, 5, 9, 10, 11, 1000])
@pytest.mark.parametrize("who", WHO_SUBMITS)
def test_batches(scripted: Any, who: str, quota: int) -> None:
    submits = WHO_SUBMITS[who]
    agent_scripts = [scripts.buy if s else scripts.draw for s in submits]
    runner = scripted(agent_scripts, runner_class=RecordingRunner, quota=quota, workers=2)
    orders = collect(runner)

    assert runner.batches == expected_batches(submits, quota)
    asked = [i for batch in runner.batches for i in batch]
    assert [o[0].agent_id for o in orders] == [i for i in asked if submits[i]]
    assert len(orders) == min(quota, sum(submits))


def test_quota_zero_asks_nobody(scripted: Any) -> None:
    runner = scripted([scripts.buy] * 3, runner_class=RecordingRunner, quota=0)
    states = [agent.prng.getstate() for agent in runner.simulator.agents]
    assert collect(runner) == []
    assert runner.batches == []
    assert [agent.prng.getstate() for agent in runner.simulator.agents] == states


@pytest.mark.parametrize("quota", [1, 2, 4, 1000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_agents_are_asked_in_the_order_of_the_sequential_runner(
    scripted: Any, seed: int, quota: int
) -> None:
    sequential = build(SequentialRunner, scripted_settings(9, quota), seed=seed)
    sequential._setup()
    give_scripts(sequential, [scripts.count_call_and_buy_if_even] * 9)
    sequential_orders = collect(sequential)
    called = list(scripts.CALLS)
    assert len(called) == len(set(called)) > 0

    runner = scripted(
        [scripts.count_call_and_buy_if_even] * 9,
        runner_class=RecordingRunner,
        quota=quota,
        workers=2,
        seed=seed,
    )
    orders = collect(runner)
    assert [i for batch in runner.batches for i in batch] == called
    assert [[o.agent_id for o in own] for own in orders] == [
        [o.agent_id for o in own] for own in sequential_orders
    ]
    assert runner._prng.getstate() == sequential._prng.getstate()
    assert outcome(runner) == outcome(sequential)


def test_quota_counts_agents_not_orders(scripted: Any) -> None:
    runner = scripted([scripts.two_orders] * 5, runner_class=RecordingRunner, quota=3)
    assert [len(orders) for orders in collect(runner)] == [2, 2, 2]
    assert runner.batches == [[0, 1, 2]]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 9, 10, 13])
def test_default_split(scripted: Any, number: int, workers: int) -> None:
    runner = scripted([scripts.draw] * number, workers=workers)
    agents = list(runner.simulator.agents)
    chunks = [chunk for chunk in runner._split_agents_into_chunks(agents) if chunk]

    quotient, rest = divmod(number, workers)
    sizes = [quotient + (i < rest) for i in range(workers)]
    assert [len(chunk) for chunk in chunks] == [size for size in sizes if size]
    joined = [agent for chunk in chunks for agent in chunk]
    assert len(joined) == number
    assert all(a is b for a, b in zip(joined, agents, strict=True))


def test_ten_agents_on_three_workers(scripted: Any) -> None:
    runner = scripted([scripts.draw] * 10, runner_class=RecordingRunner, workers=3)
    collect(runner)
    assert runner.chunks == [[[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]]


@pytest.mark.parametrize(("number", "workers", "tasks"), [(10, 3, 3), (2, 3, 2), (5, 1, 1)])
def test_a_chunk_is_one_task(scripted: Any, number: int, workers: int, tasks: int) -> None:
    runner = scripted(
        [scripts.draw] * number, runner_class=with_executor(InlineExecutor), workers=workers
    )
    collect(runner)
    assert runner.executor.submitted == tasks


class UnevenChunks(MultiProcessAgentParallelRunner):
    """One agent, nobody, the others, nobody."""

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        return [agents[:1], [], agents[1:], []]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_agents_of_a_chunk_are_asked_one_after_the_other_on_one_worker(
    scripted: Any, start_method: str
) -> None:
    runner = scripted(
        [scripts.count_call] * 5,
        runner_class=UnevenChunks,
        workers=1,
        start_method=start_method,
        listed=("calls_so_far", "pid"),
    )
    collect(runner)
    agents = runner.simulator.agents
    assert [agent.calls_so_far for agent in agents] == [1, 2, 3, 4, 5]
    assert len({agent.pid for agent in agents}) == 1


def test_tasks_of_a_batch_run_at_the_same_time_on_different_workers(
    scripted: Any, tmp_path: Any
) -> None:
    """The first task ends only after the second one has run."""
    runner = scripted(
        [scripts.wait_for_marker, scripts.report_process, scripts.make_marker],
        runner_class=RecordingRunner,
        workers=2,
        listed=scripts.PROCESS_NAMES,
    )
    for agent in runner.simulator.agents:
        agent.marker = str(tmp_path / "marker")
    collect(runner)
    assert runner.chunks == [[[0, 1], [2]]]


def split_none(agents: list[Any]) -> Any:
    return None


def split_flat(agents: list[Any]) -> Any:
    return list(agents)


def split_numbers(agents: list[Any]) -> Any:
    return [[agent.agent_id for agent in agents]]


def split_without_the_last(agents: list[Any]) -> Any:
    return [agents[:-1]]


def split_nothing(agents: list[Any]) -> Any:
    return []


def split_empty_chunks(agents: list[Any]) -> Any:
    return [[], []]


def split_with_a_duplicate(agents: list[Any]) -> Any:
    return [agents, agents[:1]]


def split_with_a_duplicate_for_a_missing_one(agents: list[Any]) -> Any:
    return [[agents[0], agents[0]], agents[2:]]


def split_in_other_order(agents: list[Any]) -> Any:
    return [agents[2:], agents[:2]]


def split_with_two_exchanged(agents: list[Any]) -> Any:
    return [[agents[1], agents[0]], agents[2:]]


def split_with_a_copy(agents: list[Any]) -> Any:
    return [[copy.copy(agents[0])], agents[1:]]


def split_with_a_foreign_agent(agents: list[Any]) -> Any:
    other = build(SequentialRunner, scripted_settings(len(agents), cls="Comparable"))
    other._setup()
    return [agents[:-1], [other.simulator.agents[-1]]]


WRONG_SPLITS = [
    split_none,
    split_flat,
    split_numbers,
    split_without_the_last,
    split_nothing,
    split_empty_chunks,
    split_with_a_duplicate,
    split_with_a_duplicate_for_a_missing_one,
    split_in_other_order,
    split_with_two_exchanged,
    split_with_a_copy,
    split_with_a_foreign_agent,
]


@pytest.mark.parametrize("split", WRONG_SPLITS)
def test_wrong_split(scripted: Any, split: Callable[[list[Any]], Any]) -> None:
    """Agents that compare equal do not hide that a chunk has other objects."""

    class WrongRunner(MultiProcessAgentParallelRunner):
        def _split_agents_into_chunks(self, agents: list[Any]) -> Any:
            return split(agents)

    runner = scripted([scripts.buy] * 5, runner_class=WrongRunner, cls="Comparable", workers=2)
    states = [agent.prng.getstate() for agent in runner.simulator.agents]
    with pytest.raises(ValueError, match="_split_agents_into_chunks"):
        runner._run()
    assert runner.executor is None
    assert [agent.prng.getstate() for agent in runner.simulator.agents] == states


def test_split_may_be_replaced_on_the_instance(scripted: Any) -> None:
    runner = scripted([scripts.draw] * 4, workers=2)
    seen: list[int] = []

    def split(agents: list[Any]) -> list[list[Any]]:
        seen.append(len(agents))
        return [agents]

    runner._split_agents_into_chunks = split
    collect(runner)
    assert seen == [4]


def test_sampling_uses_the_prng_of_the_runner(scripted: Any) -> None:
    """One ``sample`` over the normal agents per collect phase, as ``SequentialRunner`` does."""

    class Watched(InOrder):
        def __init__(self, seed: int) -> None:
            self.samples: list[list[int]] = []
            super().__init__(seed)

        def sample(self, population: Any, k: int, **kwargs: Any) -> list[Any]:
            self.samples.append([agent.agent_id for agent in population])
            assert k == len(population)
            return list(reversed(super().sample(population, k)))

    prng = Watched(1)
    runner = scripted([scripts.draw] * 4, runner_class=RecordingRunner, seed=prng)
    collect(runner)
    assert prng.samples == [[0, 1, 2, 3]]
    assert runner.batches == [[3, 2, 1, 0]]

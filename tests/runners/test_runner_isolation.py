"""What agents do in a worker is seen neither by the main process nor by a later task."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pams.order import LIMIT_ORDER, MARKET_ORDER, Order, OrderKind
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import observations, vandalism
from runner_support.comparison import describe
from runner_support.executors import InlineExecutor, MeddlingExecutor, MeddlingPool
from runner_support.runner_classes import OneAgentPerChunk, OneChunk, with_executor
from runner_support.scenarios import (
    InOrder,
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Comparing(MultiProcessAgentParallelRunner):
    """Compares the main process before a batch, the copy in every task, and afterwards."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.before: list[str] = []
        self.compared = 0
        self.order: list[str] = []

    def describe(self) -> list[str]:
        return describe(self.simulator, vandalism.NOT_DESCRIBED)

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        self.before = self.describe()
        return [[agent] for agent in agents]

    def _receive_synced_attributes_from_worker(
        self, agent: Any, attributes: dict[str, Any]
    ) -> None:
        self.order.append(agent.script.__name__)
        super()._receive_synced_attributes_from_worker(agent, attributes)
        assert_same(attributes["seen"].split("\n"), self.before)
        assert_same(self.describe(), self.before)
        self.compared += 1


def assert_same(found: list[str], expected: list[str]) -> None:
    """As ``==``, but with a short message: the lists have thousands of lines."""
    if found != expected:
        different = [(a, b) for a, b in zip(found, expected, strict=False) if a != b] or [
            (len(found), len(expected))
        ]
        pytest.fail(f"{len(different)} differences (found, expected): {different[:5]}")


def run_vandals(scripted: Any, damage: str, quota: int, steps: int = 2, **kwargs: Any) -> Comparing:
    runner = scripted(
        [vandalism.vandalise, vandalism.check, vandalism.vandalise, vandalism.check],
        listed=("seen",),
        quota=quota,
        steps=steps,
        **{"runner_class": Comparing, **kwargs},
    )
    for agent in runner.simulator.agents:
        agent.damage = damage
    runner.simulator._update_times_on_markets(runner.simulator.markets)
    vandalism.bury(runner)
    with expected_warnings_ignored():
        runner._iterate_market_updates(session=runner.simulator.sessions[0])
    assert runner.compared == 4 * steps
    assert runner.order == ["vandalise", "check", "vandalise", "check"] * steps
    return runner


# With quota 1 every agent is a batch of its own; with 1000 all are tasks of one batch.
@pytest.mark.parametrize("quota", [pytest.param(1, marks=pytest.mark.slow), 1000])
@pytest.mark.parametrize("damage", vandalism.ACTIONS)
@pytest.mark.filterwarnings("ignore:Changes to attributes not listed")
def test_damage_is_not_seen_by_later_tasks(scripted: Any, damage: str, quota: int) -> None:
    run_vandals(scripted, damage, quota)


@pytest.mark.filterwarnings("ignore:Changes to attributes not listed")
def test_all_damage_at_once(scripted: Any) -> None:
    run_vandals(scripted, "everything", 1000)


@pytest.mark.parametrize("executor", [InlineExecutor, lambda: ThreadPoolExecutor(1)])
@pytest.mark.filterwarnings("ignore:Changes to attributes not listed")
def test_all_damage_at_once_with_other_executors(scripted: Any, executor: Any) -> None:
    run_vandals(scripted, "everything", 1000, runner_class=with_executor(executor, Comparing))


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:Changes to attributes not listed")
def test_all_damage_at_once_with_other_start_methods(scripted: Any, start_method: str) -> None:
    run_vandals(scripted, "everything", 1000, start_method=start_method, workers=2)


def test_damage_is_real(scripted: Any) -> None:
    """Every kind of damage shows in the description; otherwise the tests above would be blind."""
    for damage in vandalism.ACTIONS:
        runner = scripted([vandalism.vandalise, vandalism.check])
        runner.simulator._update_times_on_markets(runner.simulator.markets)
        vandalism.bury(runner)
        simulator = runner.simulator
        before = describe(simulator, vandalism.NOT_DESCRIBED)
        assert before == describe(simulator, vandalism.NOT_DESCRIBED)
        agent = simulator.agents[0]
        agent.damage = damage
        vandalism.ACTIONS[damage](agent)
        assert describe(simulator, vandalism.NOT_DESCRIBED) != before, damage
        runner._shutdown_executor()


@pytest.mark.parametrize(
    ("runner_class", "seen"), [(OneChunk, [0, 1, 2, 3]), (OneAgentPerChunk, [0, 0, 0, 0])]
)
def test_agents_of_a_chunk_share_one_copy(
    scripted: Any, runner_class: type[Any], seen: list[int]
) -> None:
    runner = scripted(
        [observations.leave_a_note] * 4, runner_class=runner_class, listed=("notes_found",), steps=3
    )
    runner.simulator.notes = []
    runner._run()
    assert [agent.notes_found for agent in runner.simulator.agents] == seen
    assert runner.simulator.notes == []


@pytest.mark.parametrize("size", [0, 1, 100, 1_000_000])
def test_arrays_keep_writability(scripted: Any, size: int) -> None:
    """Whatever their size, in the worker and when they come back."""
    runner = scripted(
        [observations.report_writability] * 2, steps=2, listed=("flags", "array", "read_only")
    )
    for agent in runner.simulator.agents:
        agent.array = np.arange(size)
        agent.read_only = np.arange(size)
        agent.read_only.setflags(write=False)
    runner._run()
    for agent in runner.simulator.agents:
        assert agent.flags == (True, False)
        assert agent.array.flags.writeable
        assert not agent.read_only.flags.writeable
        assert agent.array.tolist() == [x + 2 for x in range(size)]


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_constants_of_pams_are_those_of_the_worker(scripted: Any, start_method: str) -> None:
    runner = scripted(
        [observations.report_kinds] * 2,
        start_method=start_method,
        listed=("kinds_are_constants", "equal_kind_is_constant", "kind", "kinds"),
    )
    own_kind = OrderKind(kind_id=1, name="LIMIT_ORDER")
    for agent in runner.simulator.agents:
        agent.kinds = [LIMIT_ORDER, MARKET_ORDER, {"key": LIMIT_ORDER}]
        agent.own_kind = own_kind
    market = runner.simulator.markets[0]
    runner.simulator._update_times_on_markets([market])
    market._add_order(Order(0, 0, True, LIMIT_ORDER, 1, price=290.0))
    market._add_order(Order(0, 0, False, MARKET_ORDER, 1))
    collected = collect(runner)
    for agent in runner.simulator.agents:
        assert agent.kinds_are_constants
        assert not agent.equal_kind_is_constant
        assert agent.kind is LIMIT_ORDER
        assert agent.kinds[0] is LIMIT_ORDER
        assert agent.kinds[1] is MARKET_ORDER
        assert agent.kinds[2]["key"] is LIMIT_ORDER
    assert all(order.kind is LIMIT_ORDER for orders in collected for order in orders)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_aliasing_is_kept(scripted: Any, start_method: str) -> None:
    runner = scripted(
        [observations.report_aliasing] * 2, start_method=start_method, listed=("same",)
    )
    first, second = runner.simulator.agents
    for agent in (first, second):
        agent.one = [1]
        agent.another_name = agent.one
        agent.equal = [1]
    first.of_both = second.of_both = {"shared": True}
    collect(runner)
    assert first.same == (True, False, True)
    assert second.same == (True, False, True)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_state_of_modules_classes_and_functions_persists_in_a_worker(
    scripted: Any, start_method: str
) -> None:
    runner = scripted(
        [observations.count_everywhere] * 2,
        runner_class=OneAgentPerChunk,
        start_method=start_method,
        steps=2,
        listed=("counts",),
    )
    runner._run()
    assert [agent.counts for agent in runner.simulator.agents] == [(3, 3, 3), (4, 4, 4)]
    assert observations.counts() == (0, 0, 0)


def test_log_entries_written_in_submit_orders_are_discarded(scripted: Any) -> None:
    runner = scripted([observations.write_logs] * 2, steps=2)
    runner._run()
    assert not any("from submit_orders" in str(row) for row in runner.logger.rows)
    assert runner.logger.rows
    assert runner.logger.pending_logs == []


def test_unlisted_attributes_are_discarded(scripted: Any) -> None:
    runner = scripted([observations.change_own_attributes] * 2, steps=2)
    agents = runner.simulator.agents
    for agent in agents:
        agent.history = [1]
        agent.level = 5
    with pytest.warns(UserWarning, match="^Changes to attributes not listed"):
        runner._run()
    for agent in agents:
        assert agent.history == [1]
        assert agent.level == 5
        assert not hasattr(agent, "extra")


def meddle_with(runner: Any) -> Callable[[int], None]:
    def meddle(n_tasks: int) -> None:
        runner.simulator.weather = f"changed {n_tasks}"
        runner.simulator.markets[0].forecast.append(n_tasks)
        for agent in runner.simulator.agents:
            agent.mood = f"changed {n_tasks}"

    return meddle


class MeddlingInline(MultiProcessAgentParallelRunner):
    def _create_executor(self) -> Executor:
        return MeddlingExecutor(meddle_with(self))


class MeddlingProcesses(MultiProcessAgentParallelRunner):
    def _create_executor(self) -> Executor:
        pool = MeddlingPool(self.num_parallel, mp_context=self._get_mp_context())
        pool.meddle = meddle_with(self)
        return pool


@pytest.mark.parametrize("runner_class", [MeddlingInline, MeddlingProcesses])
@pytest.mark.parametrize("payload", [0, 3_000_000])
def test_all_chunks_see_the_simulation_as_it_was_when_the_batch_was_submitted(
    scripted: Any, runner_class: type[Any], payload: int
) -> None:
    runner = scripted(
        [observations.report_weather] * 4,
        runner_class=runner_class,
        workers=4,
        listed=("weather", "forecast", "moods"),
    )
    runner.simulator.weather = "fine"
    runner.simulator.payload = bytes(payload)
    runner.simulator.markets[0].forecast = ["sun"]
    for agent in runner.simulator.agents:
        agent.mood = "calm"
    collect(runner)
    assert runner.simulator.weather == "changed 3"
    for agent in runner.simulator.agents:
        assert (agent.weather, agent.forecast, agent.moods) == ("fine", ["sun"], ["calm"] * 4)


@pytest.mark.parametrize("runner_class", [MultiProcessAgentParallelRunner, OneAgentPerChunk])
def test_simulation_is_copied_once_per_batch_on_the_calling_thread(
    scripted: Any, runner_class: type[Any]
) -> None:
    observations.COPIED_ON.clear()
    runner = scripted(
        [observations.read_number] * 6, runner_class=runner_class, workers=3, listed=("number",)
    )
    runner.simulator.counted = observations.CountsCopies()
    for n_batches in (1, 2, 3):
        collect(runner)
        assert [threading.get_ident()] * n_batches == observations.COPIED_ON
    assert [agent.number for agent in runner.simulator.agents] == [1] * 6


def test_later_batches_see_what_happened_on_the_main_process(scripted: Any) -> None:
    class Changing(MultiProcessAgentParallelRunner):
        def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
            self.simulator.weather = f"before agent {agents[0].agent_id}"
            return super()._split_agents_into_chunks(agents)

    runner = scripted(
        [observations.report_weather] * 3,
        runner_class=Changing,
        quota=1,
        listed=("weather", "forecast", "moods"),
    )
    runner.simulator.markets[0].forecast = []
    for agent in runner.simulator.agents:
        agent.mood = ""
    collect(runner)
    assert [agent.weather for agent in runner.simulator.agents] == [
        f"before agent {i}" for i in range(3)
    ]


def test_agents_of_later_batches_see_what_earlier_ones_have_changed(scripted: Any) -> None:
    """With one agent per batch it is as in a sequential run."""

    def totals(runner: Any) -> list[list[int]]:
        for agent in runner.simulator.agents:
            agent.count = agent.agent_id
            agent.totals = []
        collect(runner)
        collect(runner)
        return [agent.totals for agent in runner.simulator.agents]

    sequential = build(SequentialRunner, scripted_settings(4, quota=1), seed=InOrder(1))
    sequential._setup()
    give_scripts(sequential, [observations.add_up_others] * 4)
    runner = scripted([observations.add_up_others] * 4, quota=1, listed=("count", "totals"))
    assert totals(runner) == totals(sequential)


def test_long_chains_of_objects(scripted: Any) -> None:
    """No limit of recursion on the way to a worker or back."""
    runner = scripted([observations.extend_chain] * 2, steps=2, listed=("chain",))
    for agent in runner.simulator.agents:
        agent.chain = observations.make_chain(5_000)
    runner._run()
    for agent in runner.simulator.agents:
        assert observations.chain_length(agent.chain) == 5_002

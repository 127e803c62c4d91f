"""Attributes that come back from the workers, and the objects that they refer to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from pams.agents import Agent
from pams.order import Cancel, Order
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import references, scripts
from runner_support.comparison import describe
from runner_support.runner_classes import OneAgentPerChunk, OneChunk
from runner_support.scenarios import (
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable

LOST_CHANGES = "Changes to attributes not listed in synced_attributes are lost"


# ---------------------------------------------------------------- which names


@pytest.mark.parametrize("names", [("count", "items", "temporary", "fresh"), ["count"], (), []])
def test_only_listed_names_come_back(scripted: Any, names: Any) -> None:
    runner = scripted([references.change_attributes] * 2, steps=2)
    for agent in runner.simulator.agents:
        agent.synced_attributes = names
        agent.count = 0
        agent.items = ["first"]
        agent.temporary = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=LOST_CHANGES)
        runner._run()
    for agent in runner.simulator.agents:
        assert agent.count == (2 if "count" in names else 0)
        assert agent.items == (["first", 1, 2] if "items" in names else ["first"])
        assert hasattr(agent, "temporary") == ("temporary" not in names)
        assert hasattr(agent, "fresh") == ("fresh" in names)


INVALID = [
    ("count", "must be a tuple or list of str"),
    (None, "must be a tuple or list of str"),
    ({"count"}, "must be a tuple or list of str"),
    ({"count": 1}, "must be a tuple or list of str"),
    (1, "must be a tuple or list of str"),
    (("count", 1), "must be a tuple or list of str"),
    (["count", None], "must be a tuple or list of str"),
    ((b"count",), "must be a tuple or list of str"),
    ([["count"]], "must be a tuple or list of str"),
    (("count", "simulator"), "must not include 'simulator'"),
    (["logger"], "must not include 'logger'"),
    (("prng",), "must not include 'prng'"),
    (("__dict__", "count"), "must not include '__dict__'"),
]


@pytest.mark.parametrize(("names", "message"), INVALID, ids=[repr(names) for names, _ in INVALID])
def test_invalid_names_are_refused_by_setup(
    monkeypatch: pytest.MonkeyPatch, names: Any, message: str
) -> None:
    """Wherever the agent stands, and no executor is left behind."""
    created: list[Any] = []

    class Watching(MultiProcessAgentParallelRunner):
        def _create_executor(self) -> Any:
            created.append(super()._create_executor())
            return created[-1]

    settings = scripted_settings(2)
    settings["simulation"]["agents"].append("Last")
    settings["Last"] = {**settings["Agents"], "class": "PlainCounter", "numAgents": 1}
    monkeypatch.setattr(references.PlainCounter, "synced_attributes", names, raising=False)
    runner = build(Watching, settings, numParallel=2, startMethod="fork")
    with expected_warnings_ignored(), pytest.raises(ValueError) as caught:  # noqa: PT011
        runner._setup()
    assert str(caught.value).startswith(f"PlainCounter.synced_attributes {message}")
    assert runner.executor is None
    for executor in created:
        with pytest.raises(RuntimeError, match="shutdown"):
            executor.submit(int)


@pytest.mark.parametrize(("names", "message"), INVALID, ids=[repr(names) for names, _ in INVALID])
def test_invalid_names_are_refused_whenever_an_agent_is_asked(
    scripted: Any, names: Any, message: str
) -> None:
    runner = scripted([scripts.buy] * 3, workers=2)
    states = [agent.prng.getstate() for agent in runner.simulator.agents]
    runner.simulator.agents[2].synced_attributes = names
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        runner._run()
    assert str(caught.value).startswith(f"Scripted.synced_attributes {message}")
    assert runner.executor is None
    assert [agent.prng.getstate() for agent in runner.simulator.agents] == states


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_names_may_be_a_property(scripted: Any, start_method: str) -> None:
    """It is read on the main process, where the time is that of the step."""
    runner = scripted(
        [references.count_up] * 2, cls="AlternatingNames", start_method=start_method, steps=3
    )
    with pytest.warns(UserWarning, match=LOST_CHANGES):
        runner._run()
    for agent in runner.simulator.agents:
        assert agent.count == 2
        assert agent.other_count == 1


@pytest.mark.filterwarnings(f"ignore:{LOST_CHANGES}")
def test_names_may_change_at_run_time(scripted: Any) -> None:
    runner = scripted([references.count_up] * 2, listed=("count",))
    agents = runner.simulator.agents
    found = []
    for names in (("count",), (), ["count", "other_count"], ("other_count",)):
        for agent in agents:
            agent.synced_attributes = names
        collect(runner)
        assert vars(agents[0]).get("count") == vars(agents[1]).get("count")
        found.append((agents[0].count, getattr(agents[0], "other_count", None)))
    assert found == [(1, None), (1, None), (2, 1), (2, 2)]


def test_names_of_an_instance(scripted: Any) -> None:
    runner = scripted([references.count_up] * 2)
    first, second = runner.simulator.agents
    first.synced_attributes = ("count",)
    second.synced_attributes = ["other_count"]
    with pytest.warns(UserWarning, match=LOST_CHANGES):
        collect(runner)
    assert (first.count, hasattr(first, "other_count")) == (1, False)
    assert (second.other_count, hasattr(second, "count")) == (1, False)


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_worker_uses_the_names_of_the_main_process(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, start_method: str
) -> None:
    """A spawned worker imports the class as it stands in its module, without the patch."""
    monkeypatch.setattr(
        references.PlainCounter, "synced_attributes", ("count", "other_count"), raising=False
    )
    runner = scripted(
        [references.count_up] * 2, cls="PlainCounter", start_method=start_method, steps=2
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=LOST_CHANGES)
        runner._run()
    assert [(a.count, a.other_count) for a in runner.simulator.agents] == [(2, 2), (2, 2)]


def test_names_that_a_worker_changes_are_not_read(scripted: Any) -> None:
    runner = scripted([references.invalidate_names] * 2, listed=("count",), steps=2)
    with pytest.warns(UserWarning, match=LOST_CHANGES):
        runner._run()
    assert [agent.count for agent in runner.simulator.agents] == [5, 5]
    assert [agent.synced_attributes for agent in runner.simulator.agents] == [("count",)] * 2


def test_later_pams_with_an_empty_default(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that list nothing inherit it, the others are not concerned."""
    monkeypatch.setattr(Agent, "synced_attributes", (), raising=False)
    runner = scripted([references.count_up, scripts.buy], cls="WithCount")
    collect(runner)
    assert runner.simulator.agents[0].count == 1


# ---------------------------------------------------------------- which values


def test_values_are_set_even_without_orders_and_before_the_orders_are_handled(
    scripted: Any,
) -> None:
    seen: list[tuple[int, int]] = []

    class Looking(MultiProcessAgentParallelRunner):
        def _receive_orders_from_worker(self, agent: Any, orders: Any, prng_state: Any) -> Any:
            seen.append((agent.agent_id, agent.count))
            return super()._receive_orders_from_worker(agent, orders, prng_state)

    runner = scripted(
        [references.count_up] * 2, runner_class=Looking, listed=("count", "other_count"), steps=2
    )
    runner._run()
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 2)]


def test_slots_and_properties(scripted: Any) -> None:
    runner = scripted(
        [references.change_slots_and_property] * 2,
        cls="SlotsAndProperty",
        listed=("slot", "other_slot", "prop"),
        steps=2,
    )
    for agent in runner.simulator.agents:
        agent.slot = 0
        agent.other_slot = "x"
        agent.prop = 1
    runner._run()
    for agent in runner.simulator.agents:
        assert agent.slot == 2
        assert not hasattr(agent, "other_slot")
        assert agent.prop == 4


def test_names_that_only_the_class_has_are_left(scripted: Any) -> None:
    runner = scripted([scripts.draw] * 2, cls="WithLevel", listed=("level",), steps=2)
    runner._run()
    for agent in runner.simulator.agents:
        assert agent.level == 3
        assert "level" not in vars(agent)


def test_attribute_that_hides_one_of_the_class(scripted: Any) -> None:
    runner = scripted(
        [references.set_level, references.delete_level, scripts.draw],
        cls="WithLevel",
        listed=("level",),
    )
    first, second, third = runner.simulator.agents
    second.level = third.level = 5
    collect(runner)
    assert vars(first)["level"] == 7
    assert "level" not in vars(second)
    assert second.level == 3
    assert third.level == 5


def test_cached_property(scripted: Any) -> None:
    """It comes back if the agent used it, and is not computed for the sake of coming back."""
    runner = scripted(
        [references.use_features, scripts.draw], cls="WithFeatures", listed=("features", "computed")
    )
    user, other = runner.simulator.agents
    collect(runner)
    assert (user.features, user.computed) == ([1, 2], 1)
    assert "features" not in vars(other)
    assert other.computed == 0


def test_names_that_nobody_has(scripted: Any) -> None:
    runner = scripted([scripts.buy] * 2, listed=("nothing", "at all"), steps=2)
    runner._run()
    assert not any(hasattr(agent, "nothing") for agent in runner.simulator.agents)


def test_values_are_new_copies_after_every_call(scripted: Any) -> None:
    """Unchanged or not; an attribute that is not listed keeps the old object."""
    runner = scripted([scripts.draw] * 2, listed=("model", "items"))
    shared = references.Model()
    first, second = runner.simulator.agents
    for agent in (first, second):
        agent.model = shared
        agent.items = [shared]
        agent.unlisted = shared
    collect(runner)
    assert first.model is not shared
    assert second.model is not shared
    assert first.unlisted is second.unlisted is shared
    assert first.items[0] is first.model  # values of one agent keep their aliasing
    kept = first.model
    collect(runner)
    assert first.model is not kept
    assert describe(first.model) == describe(shared)


@pytest.mark.parametrize(("runner_class", "shared"), [(OneChunk, True), (OneAgentPerChunk, False)])
def test_values_of_all_agents_of_a_task_travel_together(
    scripted: Any, runner_class: type[Any], shared: bool
) -> None:
    runner = scripted([references.keep_model] * 2, runner_class=runner_class, listed=("model",))
    first, second = runner.simulator.agents
    first.model = second.model = references.Model()
    collect(runner)
    assert (first.model is second.model) == shared
    assert first.model.weights == ([1.0, 1, 2] if shared else [1.0, 1])


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_order_that_is_returned_and_kept_is_one_object(scripted: Any, start_method: str) -> None:
    runner = scripted(
        [references.return_and_keep_order] * 2,
        start_method=start_method,
        listed=("last", "history"),
        workers=2,
        steps=3,
    )
    agents = runner.simulator.agents
    for agent in agents:
        agent.history = []
    runner._run()
    queue = runner.simulator.markets[0].buy_order_book.priority_queue
    assert len(queue) == 6
    for agent in agents:
        assert agent.last is agent.history[-1]
        for order in agent.history:
            assert order.order_id is not None
            assert any(order is placed for placed in queue)


def test_collected_order_is_the_kept_one(scripted: Any) -> None:
    runner = scripted([references.return_and_keep_order] * 2, listed=("last", "history"))
    for agent in runner.simulator.agents:
        agent.history = []
    collected = collect(runner)
    for agent, orders in zip(runner.simulator.agents, collected, strict=True):
        assert agent.last is orders[0]
        assert agent.history[0] is orders[0]


def test_order_that_another_agent_of_the_task_keeps(scripted: Any) -> None:
    runner = scripted(
        [references.return_and_show_order, references.keep_shown_order],
        runner_class=OneChunk,
        listed=("seen",),
    )
    runner.simulator.board = []
    ((order,),) = collect(runner)
    assert runner.simulator.agents[1].seen is order
    assert runner.simulator.board == []


class Comparing(MultiProcessAgentParallelRunner):
    """Compares what an agent refers to with the main process's own objects, when it arrives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arrived = 0

    def _receive_synced_attributes_from_worker(
        self, agent: Any, attributes: dict[str, Any]
    ) -> None:
        self.arrived += 1
        expected = references.simulation_objects(agent)
        found = attributes["references"]
        assert list(found) == list(expected)
        assert [name for name in expected if found[name] is not expected[name]] == []
        assert attributes["direct_market"] is self.simulator.markets[0]

        originals = references.other_objects(agent)
        copies = attributes["copies"]
        assert list(copies) == list(originals)
        assert [name for name in originals if copies[name] is originals[name]] == []
        for name, original in originals.items():
            if "agent" not in name:
                assert type(copies[name]) is type(original), name
        super()._receive_synced_attributes_from_worker(agent, attributes)


def simulation_with_everything(runner_class: type[Any], **keys: Any) -> Any:
    settings = scripted_settings(3)
    settings["Market"]["class"] = "TaggedMarket"
    settings["Event"] = {"class": "HookedEvent"}
    settings["simulation"]["sessions"][0]["events"] = ["Event"]
    runner = build(runner_class, settings, **keys)
    with expected_warnings_ignored():
        runner._setup()
    references.enrich(runner)
    return runner


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_simulation_objects_come_back_as_the_main_processs_own(
    start_method: str, workers: int
) -> None:
    runner = simulation_with_everything(Comparing, numParallel=workers, startMethod=start_method)
    give_scripts(
        runner, [references.keep_references] * 3, ("references", "direct_market", "copies")
    )
    model = references.Model()
    executed, draft = (Order(0, 0, True, references.LIMIT_ORDER, 1, price=1.0) for _ in range(2))
    executed.order_id, executed.placed_at, executed.volume = 0, 0, 0
    for agent in runner.simulator.agents:
        agent.model, agent.executed, agent.draft = model, executed, draft
    collect(runner)
    collect(runner)  # with the references of the first time in the agents
    assert runner.arrived == 6
    runner._shutdown_executor()


def test_simulation_objects_within_containers(scripted: Any) -> None:
    runner = scripted([references.keep_containers] * 2, listed=("by_market", "pair"))
    collect(runner)
    market = runner.simulator.markets[0]
    first = runner.simulator.agents[0]
    for agent in runner.simulator.agents:
        assert list(agent.by_market) == [market]
        assert agent.by_market[market][0] is agent
        assert agent.by_market[market][1] is first
        assert agent.pair[0] is market
        assert agent.pair[1] is agent.by_market


def test_order_in_a_book_then_executed(scripted: Any) -> None:
    """It is the book's order as long as it is there, and a new copy after every call then."""
    runner = scripted([references.refer_to_order, scripts.draw], listed=("best", "kept"))
    market = runner.simulator.markets[0]
    runner.simulator._update_times_on_markets([market])
    order = Order(0, 0, True, references.LIMIT_ORDER, 1, price=290.0)
    market._add_order(order)
    agent = runner.simulator.agents[0]
    collect(runner)
    assert agent.best is order

    agent.kept = agent.best
    collect(runner)
    assert agent.kept is agent.best is order

    market._is_running = True
    market._add_order(Order(1, 0, False, references.LIMIT_ORDER, 1, price=290.0))
    assert len(market._execution()) == 1
    collect(runner)
    assert agent.best is None
    first_copy = agent.kept
    assert first_copy is not order
    assert vars(first_copy) == vars(order)
    assert first_copy.volume == 0
    collect(runner)
    assert agent.kept is not first_copy
    assert vars(agent.kept) == vars(order)


@pytest.mark.parametrize("script", [references.keep_cancel, references.cancel_a_copy])
def test_cancel_refers_to_the_order_in_the_book(scripted: Any, script: Any) -> None:
    runner = scripted([script] * 2, listed=("cancelled", "cancel"))
    market = runner.simulator.markets[0]
    runner.simulator._update_times_on_markets([market])
    placed = [Order(i, 0, True, references.LIMIT_ORDER, 1, price=290.0 - i) for i in (0, 1)]
    for order in placed:
        market._add_order(order)
    collected = collect(runner)
    for agent, order, (cancel,) in zip(runner.simulator.agents, placed, collected, strict=True):
        assert isinstance(cancel, Cancel)
        assert cancel.order is order
        if script is references.keep_cancel:
            assert agent.cancelled is order
            assert agent.cancel is cancel


def test_cancels_take_orders_out_of_the_book(scripted: Any) -> None:
    runner = scripted([references.cancel_a_copy] * 2, steps=2)
    runner._run()
    assert len(runner.simulator.markets[0].buy_order_book) == 0


def test_order_in_the_book_that_is_returned_again(scripted: Any) -> None:
    """It comes back as itself, so the market refuses it as in a sequential run."""

    def error(runner: Any) -> str:
        give_scripts(runner, [references.return_old_order])
        with pytest.raises(ValueError, match="already submitted") as caught:
            runner._run()
        return str(caught.value)

    sequential = build(SequentialRunner, scripted_settings(1, steps=2))
    sequential._setup()
    assert error(scripted([None], steps=2)) == error(sequential)


@pytest.mark.parametrize(
    ("script", "listed"),
    [
        (references.return_placed_order, ()),
        (references.keep_placed_order, ("kept",)),
        (references.keep_new_agent, ("kept",)),
    ],
)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_simulation_object_that_the_main_process_does_not_have(
    scripted: Any, script: Callable[..., Any], listed: tuple[str, ...], start_method: str
) -> None:
    runner = scripted([scripts.buy, script], listed=listed, start_method=start_method)
    states = [agent.prng.getstate() for agent in runner.simulator.agents]
    with pytest.raises(RuntimeError, match="main process"):
        runner._run()
    assert runner.executor is None
    assert len(runner.simulator.markets[0].buy_order_book) == 0
    assert [agent.prng.getstate() for agent in runner.simulator.agents] == states

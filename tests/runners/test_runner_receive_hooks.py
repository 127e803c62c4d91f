"""The hooks that take what comes back from the workers."""

from __future__ import annotations

import random
from types import MethodType
from typing import TYPE_CHECKING, Any

import pytest
from pams.order import Order
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts, trading_agents
from runner_support.comparison import outcome
from runner_support.scenarios import (
    POPULATIONS,
    InOrder,
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    run,
    scripted_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAYS = ("subclass", "instance", "monkeypatch")
ORDERS_HOOK = "_receive_orders_from_worker"
SYNCED_HOOK = "_receive_synced_attributes_from_worker"


@pytest.fixture
def scripted_with_hook(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """As ``scripted``, for a runner with one hook replaced; the hook is given the runner first."""

    def make(way: str, name: str, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if way == "subclass":
            cls = type("Overriding", (MultiProcessAgentParallelRunner,), {name: hook})
            return scripted(*args, runner_class=cls, **kwargs)
        runner = scripted(*args, **kwargs)
        if way == "instance":
            setattr(runner, name, MethodType(hook, runner))
        else:
            monkeypatch.setattr(MultiProcessAgentParallelRunner, name, hook)
        return runner

    return make


def sequential_states(agent_scripts: list[Any]) -> list[Any]:
    """PRNG states of the agents after one sequential collect phase."""
    runner = build(SequentialRunner, scripted_settings(len(agent_scripts)), seed=InOrder(1))
    runner._setup()
    give_scripts(runner, agent_scripts)
    collect(runner)
    return [agent.prng.getstate() for agent in runner.simulator.agents]


class Recording(MultiProcessAgentParallelRunner):
    """Notes the calls of both hooks and goes on as always."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[tuple[Any, ...]] = []

    def _receive_synced_attributes_from_worker(
        self, agent: Any, attributes: dict[str, Any]
    ) -> None:
        self.calls.append(("synced", agent.agent_id, dict(attributes)))
        super()._receive_synced_attributes_from_worker(agent=agent, attributes=attributes)

    def _receive_orders_from_worker(self, agent: Any, orders: Any, prng_state: Any) -> Any:
        self.calls.append(("orders", agent.agent_id, len(orders)))
        return super()._receive_orders_from_worker(
            agent=agent, orders=orders, prng_state=prng_state
        )


def test_hooks_are_called_for_every_asked_agent_in_the_order_asked(
    scripted: Any, tmp_path: Path
) -> None:
    """Also when a later chunk is finished first, for agents without orders, or without names."""
    runner = scripted(
        [scripts.wait_for_marker, scripts.buy, scripts.draw, scripts.make_marker, scripts.buy],
        runner_class=Recording,
        workers=2,
    )
    agents = runner.simulator.agents
    for agent in agents:
        agent.marker = str(tmp_path / "marker")
        agent.value = agent.agent_id * 10
    for i in (0, 1, 3):
        agents[i].synced_attributes = ("value",)
    agents[2].synced_attributes = ()
    collect(runner)
    assert runner.calls == [
        ("synced", 0, {"value": 0}),
        ("orders", 0, 0),
        ("synced", 1, {"value": 10}),
        ("orders", 1, 1),
        ("orders", 2, 0),
        ("synced", 3, {"value": 30}),
        ("orders", 3, 0),
        ("orders", 4, 1),
    ]


@pytest.mark.parametrize("quota", [1, 2, 1000])
def test_hooks_are_called_batch_after_batch(scripted: Any, quota: int) -> None:
    agent_scripts = [scripts.draw, scripts.buy, scripts.draw, scripts.buy]
    runner = scripted(agent_scripts, runner_class=Recording, quota=quota, workers=2)
    collect(runner)
    asked = {1: 2, 2: 4, 1000: 4}[quota]
    assert [call[1] for call in runner.calls] == list(range(asked))


def test_overriding_and_calling_super_changes_nothing() -> None:
    found = outcome(run(build(Recording, POPULATIONS["mixed"], numParallel=2, startMethod="fork")))
    assert found == outcome(run(build(SequentialRunner, POPULATIONS["mixed"])))


@pytest.mark.parametrize("way", WAYS)
def test_overridden_orders_hook(scripted_with_hook: Any, way: str) -> None:
    """It is given what the specification says, and only what it does happens."""
    received: list[tuple[Any, ...]] = []

    def hook(self: Any, agent: Any, orders: Any, prng_state: Any) -> Any:
        received.append((self, agent, orders, prng_state))
        return orders

    agent_scripts = [scripts.buy, scripts.draw, scripts.two_orders]
    runner = scripted_with_hook(way, ORDERS_HOOK, hook, agent_scripts, workers=2)
    agents = runner.simulator.agents
    before = [agent.prng.getstate() for agent in agents]
    collected = collect(runner)

    assert all(call[0] is runner for call in received)
    assert [id(call[1]) for call in received] == [id(agent) for agent in agents]
    assert [len(call[2]) for call in received] == [1, 0, 2]
    assert all(isinstance(order, Order) for call in received for order in call[2])
    assert [call[3] for call in received] == sequential_states(agent_scripts)
    assert [agent.prng.getstate() for agent in agents] == before  # the hook did not set it
    assert [len(orders) for orders in collected] == [1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_overridden_synced_hook(scripted_with_hook: Any, way: str) -> None:
    received: list[tuple[Any, ...]] = []

    def hook(self: Any, agent: Any, attributes: Any) -> None:
        received.append((self, agent, attributes))

    runner = scripted_with_hook(
        way, SYNCED_HOOK, hook, [scripts.count_call] * 2, listed=("calls_so_far", "pid", "missing")
    )
    agents = runner.simulator.agents
    collect(runner)
    assert all(call[0] is runner for call in received)
    assert [id(call[1]) for call in received] == [id(agent) for agent in agents]
    assert [call[2]["calls_so_far"] for call in received] == [1, 2]
    assert all(set(call[2]) == {"calls_so_far", "pid"} for call in received)
    assert not any(hasattr(agent, "calls_so_far") for agent in agents)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_orders_hook_returns_counts(scripted_with_hook: Any, way: str) -> None:
    """Orders that the hook drops leave room for other agents; its own are taken."""
    asked: list[int] = []

    def hook(self: Any, agent: Any, orders: Any, prng_state: Any) -> Any:
        asked.append(agent.agent_id)
        if agent.agent_id == 0:
            return []
        if agent.agent_id == 2:
            return [scripts.limit_order(agent, 250.0)]
        return orders

    agent_scripts = [scripts.buy, scripts.buy, scripts.draw, scripts.buy, scripts.buy]
    runner = scripted_with_hook(way, ORDERS_HOOK, hook, agent_scripts, quota=2)
    collected = collect(runner)
    assert asked == [0, 1, 2]
    assert [(o.agent_id, o.price) for orders in collected for o in orders] == [
        (1, 290.0),
        (2, 250.0),
    ]


def test_prng_state_of_a_generator_of_the_users_own(scripted_with_hook: Any) -> None:
    """It is what ``getstate`` of that class gives, and what ``setstate`` accepts."""
    states: list[Any] = []

    def hook(self: Any, agent: Any, orders: Any, prng_state: Any) -> Any:
        states.append(prng_state)
        return orders

    runner = scripted_with_hook("instance", ORDERS_HOOK, hook, [scripts.buy])
    agent = runner.simulator.agents[0]
    agent.prng = trading_agents.CountedRandom(3)
    agent.prng.random()
    collect(runner)
    agent.prng.random()  # what the script does in the worker
    assert states == [agent.prng.getstate()]
    assert states[0][0] == 2


def test_hooks_are_looked_up_in_every_batch(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = scripted([scripts.buy] * 2)
    collect(runner)
    calls: list[int] = []

    def hook(self: Any, agent: Any, orders: Any, prng_state: Any) -> Any:
        calls.append(agent.agent_id)
        return orders

    monkeypatch.setattr(MultiProcessAgentParallelRunner, ORDERS_HOOK, hook)
    collect(runner)
    assert calls == [0, 1]


def test_error_in_a_hook(scripted_with_hook: Any) -> None:
    def hook(self: Any, agent: Any, orders: Any, prng_state: Any) -> Any:
        raise LookupError("hook of the user")

    runner = scripted_with_hook("instance", ORDERS_HOOK, hook, [scripts.buy] * 3, workers=2)
    with pytest.raises(LookupError, match="hook of the user"):
        runner._run()
    assert runner.executor is None


class OldSignature(MultiProcessAgentParallelRunner):
    """As a subclass of the runner in pams 0.3.0 has it."""

    def _receive_orders_from_worker(self, agent: Any, future: Any) -> Any:  # type: ignore[override]
        return super()._receive_orders_from_worker(agent, future)


class InheritsOldSignature(OldSignature):
    pass


@pytest.mark.parametrize("runner_class", [OldSignature, InheritsOldSignature])
def test_old_signature_of_the_orders_hook(runner_class: type[Any]) -> None:
    with expected_warnings_ignored(), pytest.raises(TypeError) as caught:
        runner_class(scripted_settings(1))
    message = str(caught.value)
    assert "_receive_orders_from_worker" in message
    assert "orders" in message.replace("_receive_orders_from_worker", "")
    assert "prng_state" in message


class AnyArguments(MultiProcessAgentParallelRunner):
    def _receive_orders_from_worker(self, *args: Any, **kwargs: Any) -> Any:
        return super()._receive_orders_from_worker(*args, **kwargs)


class OneMoreArgument(MultiProcessAgentParallelRunner):
    def _receive_orders_from_worker(
        self, agent: Any, orders: Any, prng_state: Any, verbose: bool = False
    ) -> Any:
        return super()._receive_orders_from_worker(agent, orders, prng_state)


@pytest.mark.parametrize("runner_class", [AnyArguments, OneMoreArgument])
def test_other_signatures_that_fit(runner_class: type[Any]) -> None:
    found = outcome(
        run(build(runner_class, POPULATIONS["cancels"], numParallel=2, startMethod="fork"))
    )
    assert found == outcome(run(build(SequentialRunner, POPULATIONS["cancels"])))


def test_default_hooks_can_be_called_directly(scripted: Any) -> None:
    """For subclasses that do something with what they are given."""
    runner = scripted([scripts.draw])
    agent = runner.simulator.agents[0]
    agent.synced_attributes = ("kept", "gone")
    agent.gone = 1
    runner._receive_synced_attributes_from_worker(agent, {"kept": [1]})
    assert agent.kept == [1]
    assert not hasattr(agent, "gone")

    state = random.Random(5).getstate()
    orders = [scripts.limit_order(agent, 290.0)]
    returned = runner._receive_orders_from_worker(agent, orders, state)
    assert [id(order) for order in returned] == [id(order) for order in orders]
    assert agent.prng.getstate() == state

"""Classes that decide themselves how they are copied."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from runner_support import copying, initializers
from runner_support.runner_classes import with_initializer
from runner_support.scenarios import collect

if TYPE_CHECKING:
    pass

START_METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize("start_method", START_METHODS)
def test_model_that_getstate_drops_and_setstate_puts_back(scripted: Any, start_method: str) -> None:
    """The model refuses to be copied, so it is in no frame; putting it back is no lost change."""
    runner = scripted(
        [copying.use_model] * 3,
        cls="Restoring",
        runner_class=with_initializer(initializers.load_model),
        start_method=start_method,
        workers=2,
        steps=3,
        listed=("limit",),
    )
    models = [initializers.LargeModel() for _ in runner.simulator.agents]
    for agent, model in zip(runner.simulator.agents, models, strict=True):
        agent.model = model
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Changes to attributes not listed")
        runner._run()
    for agent, model in zip(runner.simulator.agents, models, strict=True):
        assert agent.limit == 1
        assert agent.model is model


def test_listed_attribute_that_getstate_drops_is_deleted(scripted: Any) -> None:
    runner = scripted(
        [copying.look_for_model] * 2, cls="Dropping", listed=("model", "has_model"), steps=2
    )
    for agent in runner.simulator.agents:
        agent.model = [1, 2]
    runner._run()
    for agent in runner.simulator.agents:
        assert agent.has_model is False
        assert not hasattr(agent, "model")


def test_listed_attribute_that_getstate_drops_and_the_worker_makes(scripted: Any) -> None:
    runner = scripted([copying.make_model] * 2, cls="Dropping", listed=("model",))
    for agent in runner.simulator.agents:
        agent.model = [1, 2]
    collect(runner)
    for agent in runner.simulator.agents:
        assert agent.model == ["made in the worker"]


def test_unlisted_attribute_that_getstate_drops_stays(scripted: Any) -> None:
    runner = scripted([copying.look_for_model] * 2, cls="Dropping", listed=("has_model",))
    models = [[1], [2]]
    for agent, model in zip(runner.simulator.agents, models, strict=True):
        agent.model = model
    collect(runner)
    for agent, model in zip(runner.simulator.agents, models, strict=True):
        assert agent.has_model is False
        assert agent.model is model


@pytest.mark.parametrize("start_method", START_METHODS)
def test_reducer_that_a_library_registered_with_multiprocessing(
    scripted: Any, start_method: str
) -> None:
    """It is used on the way to the worker and on the way back."""
    runner = scripted(
        [copying.use_handle] * 2,
        start_method=start_method,
        workers=2,
        steps=2,
        listed=("handle", "numbers"),
    )
    for agent in runner.simulator.agents:
        agent.handle = copying.LibraryHandle(agent.agent_id * 10)
        agent.numbers = []
    runner._run()
    for agent in runner.simulator.agents:
        first = agent.agent_id * 10
        assert agent.numbers == [first + 1, first + 2]
        assert agent.handle.rebuilt
        assert agent.handle.number == first + 2


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_reducer_of_copyreg(scripted: Any, start_method: str) -> None:
    runner = scripted(
        [copying.use_registered] * 2, start_method=start_method, steps=2, listed=("registered",)
    )
    for agent in runner.simulator.agents:
        agent.registered = copying.Registered(3)
    runner._run()
    for agent in runner.simulator.agents:
        assert (agent.registered.number, agent.registered.rebuilt) == (5, True)


@pytest.mark.parametrize("start_method", ["spawn"])
def test_tensors_of_pytorch_travel_by_value(scripted: Any, start_method: str) -> None:
    """In-place changes in a worker do not reach the main process, shared memory or not."""
    torch = pytest.importorskip("torch")
    runner = scripted(
        [copying.train_tensor] * 2,
        start_method=start_method,
        steps=2,
        listed=("weights", "trained"),
    )
    for agent in runner.simulator.agents:
        agent.weights = torch.zeros(3)
        agent.unlisted = torch.zeros(3)
        agent.shared = torch.zeros(3).share_memory_()
    runner._run()
    for agent in runner.simulator.agents:
        assert agent.weights.tolist() == [2.0] * 3
        assert agent.trained.tolist() == [4.0] * 3
        assert agent.unlisted.tolist() == [0.0] * 3
        assert agent.shared.tolist() == [0.0] * 3

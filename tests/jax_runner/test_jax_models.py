"""Flax models and compiled functions as attributes of agents."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

import flax.core
import jax
import jax.numpy as jnp
from flax import nnx
from jax_support import array_scripts, models
from jax_support.running import run_scripted

NOT_PICKLABLE = (pickle.PicklingError, AttributeError, TypeError)


def test_linen() -> None:
    """The module itself, and its parameters as ``dict`` and as ``FrozenDict``."""
    params = models.init(jax.random.PRNGKey(1))
    prices = jnp.arange(4.0)
    expected = float(models.MODEL.apply(params, prices))

    def prepare(agents: list[Any]) -> None:
        agents[0].model = models.MLP()
        agents[0].params = [params, flax.core.freeze(params)]

    found = run_scripted(
        [array_scripts.call_linen], listed=("report", "kinds", "params"), prepare=prepare
    )
    assert found.warnings == []
    (agent,) = found.agents
    assert agent.report == [expected, expected]
    assert agent.kinds == ["dict", "FrozenDict"]
    assert [type(item) for item in agent.params] == [dict, flax.core.FrozenDict]
    assert jax.tree.structure(agent.params[0]) == jax.tree.structure(params)


def test_state_of_an_nnx_module() -> None:
    """The documented way: the agent keeps the state, each process makes the graph itself."""
    module = models.NnxMLP(nnx.Rngs(3))

    def prepare(agents: list[Any]) -> None:
        _, agents[0].state = nnx.split(module)

    found = run_scripted([array_scripts.call_nnx], listed=("report", "state"), prepare=prepare)
    assert found.warnings == []
    (agent,) = found.agents
    expected = models.nnx_forecast(models.nnx_graph(), nnx.split(module)[1], jnp.arange(4.0))
    assert agent.report == float(expected)
    assert type(agent.state) is type(nnx.split(module)[1])
    again = nnx.merge(models.nnx_graph(), agent.state)(jnp.arange(4.0))
    assert float(again) == pytest.approx(agent.report)


def test_nnx_module_works_or_the_error_has_its_path() -> None:
    module = models.NnxMLP(nnx.Rngs(3))

    def prepare(agents: list[Any]) -> None:
        agents[1].model = module

    try:
        pickle.loads(pickle.dumps(module, protocol=5))
    except Exception:
        with pytest.raises(NOT_PICKLABLE, match=r"simulator\.agents\[1\]\.model\."):
            run_scripted([None, array_scripts.call_nnx_module], prepare=prepare)
    else:
        found = run_scripted([None, array_scripts.call_nnx_module], prepare=prepare)
        assert found.agents[1].report == float(module(jnp.arange(4.0)))


COMPILED = {
    "lambda": lambda: jax.jit(lambda x: x + 1),
    "decorated": lambda: models.forecast,
    "decorated with options": lambda: models.doubled_in_place,
}


@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_compiled_function_as_attribute(make: Any) -> None:
    function = make()
    with pytest.raises(NOT_PICKLABLE):
        pickle.dumps(function)

    def prepare(agents: list[Any]) -> None:
        agents[1].functions = {"model": function}

    path = r"simulator\.agents\[1\]\.functions\['model'\]"
    with pytest.raises(NOT_PICKLABLE, match=path):
        run_scripted([None, None], prepare=prepare)


def test_compiled_function_of_a_module() -> None:
    params = models.init(jax.random.PRNGKey(2))

    def prepare(agents: list[Any]) -> None:
        agents[0].params = params

    found = run_scripted([array_scripts.call_function], prepare=prepare)
    assert found.agents[0].report == float(models.forecast(params, jnp.ones(4)))

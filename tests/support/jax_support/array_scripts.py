"""Scripts that look at, use, or destroy the arrays of an agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from . import models
from .comparison import plain

if TYPE_CHECKING:
    from pams import Market


def describe_arrays(agent: Any, markets: list[Market]) -> None:
    """Tell all about the arrays in ``agent.arrays``, and send them back."""
    agent.report = {
        name: (type(array).__name__, isinstance(array, jax.Array), plain(array))
        for name, array in agent.arrays.items()
    }
    agent.copies = agent.arrays


def report_aliases(agent: Any, markets: list[Market]) -> None:
    deep = agent.nested["deep"]
    other = agent.simulator.agents[1 - agent.agent_id]
    agent.report = {
        "is array": isinstance(agent.one, jax.Array),
        "same as nested": agent.one is deep[0] and agent.one is deep[1][0],
        "same as other agent's": agent.one is other.one,
        "same as simulator's": agent.one is agent.simulator.forecast,
        "same as equal": agent.one is agent.equal,
    }
    agent.again = [agent.one, agent.one]


def report_commitment(agent: Any, markets: list[Market]) -> None:
    agent.report = agent.array.committed


def sums(arrays: dict[str, jax.Array]) -> list[tuple[str, str]]:
    """Types of sums with weakly and strongly typed arrays, by a function compiled anew."""

    @jax.jit
    def add(a: jax.Array, b: jax.Array) -> jax.Array:
        return a + b

    names = ("weak", "strong", "strong array", "weak array")
    return [(name, str(add(arrays["bfloat16"], arrays[name]).dtype)) for name in names]


def add_arrays(agent: Any, markets: list[Market]) -> None:
    agent.report = sums(agent.arrays)


def draw_from_key(agent: Any, markets: list[Market]) -> None:
    agent.report = float(jax.random.normal(agent.key))


def donate(agent: Any, markets: list[Market]) -> None:
    """Give the parameters to a function that reuses their memory."""
    before = jax.tree.map(lambda leaf: leaf.tolist(), agent.params)
    after = models.doubled_in_place(agent.params)
    agent.seen = [*agent.seen, before]
    agent.doubled = jax.tree.map(lambda leaf: leaf.tolist(), after)
    agent.deleted = [leaf.is_deleted() for leaf in jax.tree.leaves(agent.params)]


def delete(agent: Any, markets: list[Market]) -> None:
    """Free the parameters, as donation does on all platforms that have it."""
    agent.seen = [*agent.seen, jax.tree.map(lambda leaf: leaf.tolist(), agent.params)]
    for leaf in jax.tree.leaves(agent.params):
        leaf.delete()


def train_in_place(agent: Any, markets: list[Market]) -> None:
    """Donate the parameters and keep what comes back."""
    agent.params = models.doubled_in_place(agent.params)


def trace(agent: Any, markets: list[Market]) -> None:
    """Call a compiled function with this agent's shape and tell how often it was traced here."""
    models.forecast(agent.params, jnp.zeros((agent.rows, 4)))
    agent.pid = os.getpid()
    agent.traces = dict(models.TRACES)


def call_function(agent: Any, markets: list[Market]) -> None:
    agent.report = float(models.forecast(agent.params, jnp.ones(4)))


def call_nnx(agent: Any, markets: list[Market]) -> None:
    prices = jnp.arange(4.0)
    agent.report = float(models.nnx_forecast(models.nnx_graph(), agent.state, prices))


def call_nnx_module(agent: Any, markets: list[Market]) -> None:
    agent.report = float(agent.model(jnp.arange(4.0)))


def call_linen(agent: Any, markets: list[Market]) -> None:
    agent.report = [float(agent.model.apply(params, jnp.arange(4.0))) for params in agent.params]
    agent.kinds = [type(params).__name__ for params in agent.params]

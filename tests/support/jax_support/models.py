"""Models and compiled functions at the top level of a module, as users are told to write them."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

# How often each function below has been traced in this process, by name and shape.
TRACES: dict[tuple[str, tuple[int, ...]], int] = {}


def count_trace(name: str, shape: tuple[int, ...]) -> None:
    """To be called in a function that is traced: Python runs it only then."""
    TRACES[name, shape] = TRACES.get((name, shape), 0) + 1


class MLP(nn.Module):
    """Two layers of Flax Linen."""

    width: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))[..., 0]


MODEL = MLP()


@jax.jit
def init(key: jax.Array) -> Any:
    """Parameters for :data:`MODEL` with four inputs."""
    return MODEL.init(key, jnp.zeros(4))


@jax.jit
def forecast(params: Any, prices: jax.Array) -> jax.Array:
    """Forecast of :data:`MODEL`; counts its traces."""
    count_trace("forecast", prices.shape)
    return MODEL.apply(params, prices)


@functools.partial(jax.jit, donate_argnums=0)
def doubled_in_place(params: Any) -> Any:
    """Twice the parameters, in the memory of the parameters."""
    return jax.tree.map(lambda leaf: leaf * 2, params)


class NnxMLP(nnx.Module):
    """Two layers of ``flax.nnx``."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 8, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.tanh(self.hidden(x)))[..., 0]


@functools.cache
def nnx_graph() -> Any:
    """What :func:`flax.nnx.split` gives besides the state; one per process."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: NnxMLP(nnx.Rngs(0))))
    return graph


@functools.partial(jax.jit, static_argnums=0)
def nnx_forecast(graph: Any, state: Any, prices: jax.Array) -> jax.Array:
    return nnx.merge(graph, state)(prices)

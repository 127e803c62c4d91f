"""A script that makes XLA use all of its threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from pams import Market


@jax.jit
def product(a: jax.Array) -> jax.Array:
    """Large enough for XLA to split it among threads."""
    return jnp.sin(a @ a).sum()


def count_threads(agent: Any, markets: list[Market]) -> None:
    """Note the number of threads of this process after it has used JAX."""
    before = len(os.listdir("/proc/self/task"))
    numbers = jnp.arange(512.0 * 512.0).reshape(512, 512) / 1e6
    value = float(product(numbers))
    after = len(os.listdir("/proc/self/task"))
    agent.report = {
        "before": before,
        "after": after,
        "value": value.hex(),
        "flags": os.environ.get("XLA_FLAGS"),
        "cpus": len(os.sched_getaffinity(0)),
    }

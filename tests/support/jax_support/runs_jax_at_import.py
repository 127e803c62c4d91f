"""A module that initialises JAX when it is imported, which users are told not to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from .reports import STATE, report_worker

if TYPE_CHECKING:
    from pams import Market

WEIGHTS = jnp.arange(3.0)


def remember_weights(*args: Any) -> None:
    """Worker initializer: note the sum of the weights of this module."""
    STATE.events.append(f"weights {float(WEIGHTS.sum())}")


def report_with_weights(agent: Any, markets: list[Market]) -> None:
    report_worker(agent, markets)
    agent.report["weights"] = float(WEIGHTS.sum())

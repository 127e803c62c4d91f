"""What the tests look at in a worker: environment, configuration of JAX, order of events.

The functions are scripts of :class:`~runner_support.scripted_agents.Scripted` whose agents list
``report``, and worker initializers. State of a process lies in :data:`STATE`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Callable

    from pams import Market

# What JAX or the tests themselves name; the rest of the environment is nobody's business.
_PREFIXES = ("JAX_", "XLA_", "TF_", "OMP_", "PAMS_TEST_")

# Settings of JAX on which numbers depend: value that is not the default, and another one.
NUMERIC_SETTINGS: dict[str, tuple[Any, Any]] = {
    "jax_enable_x64": (True, False),
    "jax_default_matmul_precision": ("highest", "high"),
    "jax_default_prng_impl": ("rbg", "unsafe_rbg"),
    "jax_threefry_partitionable": (False, True),
    "jax_numpy_dtype_promotion": ("strict", "standard"),
    "jax_debug_nans": (True, False),
}


@dataclass
class ProcessState:
    """What has happened in this process, in order."""

    events: list[Any] = field(default_factory=list)


STATE = ProcessState()


def environment() -> dict[str, str]:
    """The part of the environment that concerns the tests."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}


def configuration() -> dict[str, Any]:
    """Values of JAX's configuration that the runner may have set."""
    names = ("jax_platforms", "jax_compilation_cache_dir", *NUMERIC_SETTINGS)
    return {name: getattr(jax.config, name) for name in names}


def report_worker(agent: Any, markets: list[Market]) -> None:
    """Tell what this process looks like, without initialising JAX."""
    agent.report = {
        "pid": os.getpid(),
        "environment": environment(),
        "configuration": configuration(),
        "events": list(STATE.events),
    }


def report_worker_and_use_jax(agent: Any, markets: list[Market]) -> None:
    report_worker(agent, markets)
    agent.report["sum"] = float(jnp.arange(4).sum())
    agent.report["backend"] = jax.default_backend()


def remember(*args: Any) -> None:
    """Worker initializer: note when, and in what environment, it has been called."""
    names = [getattr(arg, "name", arg) for arg in args]  # a report must not rebuild witnesses
    STATE.events.append(("initializer", environment(), configuration(), names))


def fail(*args: Any) -> NoReturn:
    raise LookupError("no model on this machine")


def _rebuild_witness(name: str) -> Witness:
    STATE.events.append((f"rebuilt {name}", environment(), configuration()))
    return Witness(name)


class Witness:
    """Notes in what environment it is unpickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return _rebuild_witness, (self.name,)


def remember_kind(array: Any) -> None:
    """Worker initializer: note the type and dtype of an array."""
    STATE.events.append((isinstance(array, jax.Array), str(array.dtype), array.tolist()))


def apply_settings(settings: dict[str, Any]) -> None:
    """Worker initializer: set JAX's configuration."""
    for name, value in settings.items():
        jax.config.update(name, value)


def numeric_behaviour() -> dict[str, Any]:
    """What each of the numeric settings does here."""
    threefry = jax.random.key(7, impl="threefry2x32")
    floats, square = jnp.ones(2, "float32"), jnp.ones((2, 2), "float32")
    program = jax.make_jaxpr(lambda x: jax.lax.dot(x, x))(square)
    (product,) = (eqn for eqn in program.eqns if eqn.primitive.name == "dot_general")
    return {
        "jax_enable_x64": str(jnp.arange(3.0).dtype),
        "jax_default_matmul_precision": str(product.params["precision"]),
        "jax_default_prng_impl": str(jax.random.key_impl(jax.random.key(0))),
        "jax_threefry_partitionable": jax.random.bits(threefry, (5,), "uint32").tolist(),
        "jax_numpy_dtype_promotion": _attempt(lambda: (jnp.ones(2, "int32") + floats).dtype),
        "jax_debug_nans": _attempt(lambda: jnp.log(-floats)),
    }


def _attempt(function: Callable[[], Any]) -> str:
    try:
        return str(function())
    except Exception as error:
        return type(error).__name__


def report_numeric_settings(agent: Any, markets: list[Market]) -> None:
    agent.report = {name: getattr(jax.config, name) for name in NUMERIC_SETTINGS}
    agent.behaviour = numeric_behaviour()

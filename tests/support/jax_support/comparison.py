"""Exact comparison of runs whose agents hold JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from runner_support.comparison import exact, outcome


def plain(array: jax.Array) -> tuple[str, str, bool, tuple[int, ...], bytes]:
    """All of an array that survives pickling, in a form whose ``==`` is exact."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(array)
        return "key", str(array.dtype), False, array.shape, np.asarray(data).tobytes()
    content = np.asarray(array).tobytes()
    return "array", str(array.dtype), array.weak_type, array.shape, content


def _exact_leaves(value: Any) -> Any:
    leaves = jax.tree_util.tree_leaves_with_path(value)
    return [
        (jax.tree_util.keystr(path), plain(leaf) if isinstance(leaf, jax.Array) else exact(leaf))
        for path, leaf in leaves
    ]


def jax_outcome(runner: Any) -> dict[str, object]:
    """As :func:`~runner_support.comparison.outcome`; the run has to be over."""
    found: dict[str, object] = {}
    for agent in runner.simulator.agents:
        for name, value in list(vars(agent).items()):
            if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
                found[f"{agent.name}.{name}"] = (
                    str(jax.tree.structure(value)),
                    _exact_leaves(value),
                )
                delattr(agent, name)
    return {**outcome(runner), **found}

"""Compiled functions: one compilation per worker and shape, and donated arrays."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

import jax
import jax.numpy as jnp
from jax_support import array_scripts, models
from jax_support.running import run_scripted

PARAMS = {"weights": [1.0, 2.0], "bias": [3.0]}


def params() -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in PARAMS.items()}


def give_params(agents: list[Any]) -> None:
    for agent in agents:
        agent.params = params()
        agent.seen = []


def share_params(agents: list[Any]) -> None:
    shared = params()
    for agent in agents:
        agent.params = shared
        agent.seen = []


@pytest.mark.parametrize("workers", [1, 2])
def test_one_trace_per_worker_and_shape(workers: int) -> None:
    """Ten steps; four agents, two shapes."""

    def prepare(agents: list[Any]) -> None:
        for agent in agents:
            agent.params = models.init(jax.random.PRNGKey(agent.agent_id))
            agent.rows = 2 + agent.agent_id % 2

    found = run_scripted(
        [array_scripts.trace] * 4,
        listed=("pid", "traces"),
        prepare=prepare,
        workers=workers,
        steps=10,
    )
    assert found.warnings == []
    assert 1 <= len({agent.pid for agent in found.agents}) <= workers
    for agent in found.agents:
        assert set(agent.traces) <= {("forecast", (2, 4)), ("forecast", (3, 4))}
        assert ("forecast", (agent.rows, 4)) in agent.traces
        assert set(agent.traces.values()) == {1}


@pytest.mark.parametrize("script", [array_scripts.donate, array_scripts.delete])
def test_donated_arrays_are_alive_in_the_next_task(script: Any) -> None:
    found = run_scripted(
        [script] * 2, listed=("seen", "doubled", "deleted"), prepare=give_params, steps=4
    )
    assert found.warnings == []
    for agent in found.agents:
        assert agent.seen == [PARAMS] * 4
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(agent.params))
        if script is array_scripts.donate:
            assert agent.doubled == {"weights": [2.0, 4.0], "bias": [6.0]}


def test_donation_frees_the_arrays() -> None:
    """Otherwise the test above says little; JAX frees them on the CPU, too, by now."""
    donated = params()
    models.doubled_in_place(donated)
    if not all(leaf.is_deleted() for leaf in jax.tree.leaves(donated)):
        pytest.skip("the installed JAX does not donate on this platform")
    found = run_scripted(
        [array_scripts.donate], listed=("seen", "doubled", "deleted"), prepare=give_params
    )
    assert found.agents[0].deleted == [True, True]


def test_donation_of_another_batch_with_shared_parameters() -> None:
    """One agent per batch: each gets a copy in which the parameters are alive."""
    found = run_scripted(
        [array_scripts.delete, None, None], listed=("seen",), prepare=share_params, steps=3
    )
    assert found.agents[0].seen == [PARAMS] * 3


def test_donation_with_listed_parameters() -> None:
    found = run_scripted(
        [array_scripts.train_in_place], listed=("params",), prepare=give_params, steps=3
    )
    assert found.warnings == []
    assert found.agents[0].params["weights"].tolist() == [8.0, 16.0]


def test_listed_array_that_was_deleted() -> None:
    """It cannot come back; the error names what is listed."""
    with pytest.raises(RuntimeError) as caught:
        run_scripted([array_scripts.delete], listed=("params", "seen"), prepare=give_params)
    text = str(caught.value)
    start = "The results of Scripted (agent_id=0) cannot be pickled on a worker process: "
    assert text.startswith(start)
    assert "params" in text
    assert "deleted" in text

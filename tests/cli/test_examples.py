"""The bundled examples."""

from __future__ import annotations

import functools
import importlib.util
import math
import multiprocessing
import random
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from pams.runners import SequentialRunner
from pams_parallel import examples
from pams_parallel.examples.agents import call_price

TIMEOUT = 240

needs_flax = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jax", "flax"))), reason="needs JAX and Flax"
)
NAMES = [
    pytest.param(name, marks=needs_flax if name == "flax" else ()) for name in examples.names()
]
PLAIN_NAMES = [name for name in examples.names() if name != "flax"]


def short_run(example, steps=15, seed=1):
    for session in example.config["simulation"]["sessions"]:
        session["iterationSteps"] = min(session["iterationSteps"], steps)
    for group in example.config.values():
        if "optionPaths" in group:
            group["optionPaths"] = 1
    runner = SequentialRunner(example.config, prng=random.Random(seed))
    for cls in example.classes:
        runner.class_register(cls)
    runner._setup()
    runner._run()
    return runner.simulator


def test_names():
    assert examples.names()[0] == "index"
    assert len(set(examples.names())) == len(examples.names()) >= 2


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no example is named 'x', only index, learning"):
        examples.load("x")


@pytest.mark.parametrize("name", NAMES)
def test_config_is_a_fresh_copy(name):
    examples.load(name).config["simulation"].clear()

    assert examples.load(name).config["simulation"]


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_there_is_trade_in_every_market(name):
    for market in short_run(examples.load(name)).markets:
        assert sum(market.get_executed_volumes()) > 0


def test_index_example_has_what_its_description_says():
    simulator = short_run(examples.load("index"), steps=1)
    classes = {type(agent).__name__ for agent in simulator.agents}

    assert classes == {"OptionPricingAgent", "ArbitrageAgent"}
    assert [type(market).__name__ for market in simulator.markets].count("IndexMarket") == 1


def test_load_of_the_agents_leaves_the_simulation_alone():
    with_load, without = examples.load("index"), examples.load("index")
    without.config["Agents"]["optionPaths"] = 0
    prices = []
    for example in (with_load, without):
        example.config["simulation"]["sessions"][0]["iterationSteps"] = 3
        prices.append([m.get_market_prices() for m in short_run(example).markets])

    assert prices[0] == prices[1]


def test_learning_changes_the_weights():
    example = examples.load("learning")
    simulator = short_run(example)
    example.config["LearningAgents"]["learningRate"] = 0.0
    unlearned = short_run(example)

    changed = [
        agent.chart_weight != other.chart_weight
        for agent, other in zip(simulator.agents, unlearned.agents, strict=True)
    ]
    assert any(changed)


def test_monte_carlo_price_is_close_to_the_exact_one():
    # Black and Scholes (1973) for price 100, strike 100, rate 0.1, volatility 0.3, 3 years.
    assert call_price(random.Random(1), 20_000, 20) == pytest.approx(33.6, abs=1.5)


def in_new_process(function, *arguments):
    """Call a function that runs JAX, which must not be initialised where other tests fork."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result(TIMEOUT)


def run_flax(seed=1, learning_rate=0.01):
    """Run the example.

    Returns:
        Executed volumes, and the parameters of the agents by class, each as one array.
    """
    from jax.flatten_util import ravel_pytree

    example = examples.load("flax")
    example.config["TrainingFlaxAgents"]["learningRate"] = learning_rate
    simulator = short_run(example, seed=seed)
    parameters = {cls.__name__: [] for cls in example.classes}
    for agent in simulator.agents:
        flat, _ = ravel_pytree(agent.parameters)
        parameters[type(agent).__name__].append(np.asarray(flat))
    return simulator.markets[0].get_executed_volumes(), parameters


@functools.cache
def flax_run(seed=1, learning_rate=0.01):
    return in_new_process(run_flax, seed, learning_rate)


@needs_flax
def test_flax_agents_trade_and_have_networks_of_their_own():
    volumes, parameters = flax_run()

    assert sum(volumes) > 0
    assert list(parameters) == ["FlaxAgent", "TrainingFlaxAgent"]
    everything = [values.tobytes() for group in parameters.values() for values in group]
    assert len(set(everything)) == len(everything)


@needs_flax
def test_flax_parameters_derive_from_the_seed():
    (_, first), (_, other) = flax_run(), flax_run(seed=2)

    for values, others in zip(first["FlaxAgent"], other["FlaxAgent"], strict=True):
        assert not np.array_equal(values, others)


@needs_flax
def test_only_training_agents_change_their_parameters():
    (_, trained), (_, untrained) = flax_run(), flax_run(learning_rate=0.0)

    assert np.array_equal(trained["FlaxAgent"], untrained["FlaxAgent"])
    for values, initial in zip(
        trained["TrainingFlaxAgent"], untrained["TrainingFlaxAgent"], strict=True
    ):
        assert not np.array_equal(values, initial)


def errors_while_training(steps):
    """Squared error of a forecast of alternating returns, before and after training."""
    import jax
    from pams_parallel.examples import flax_agents

    layers = (8,)
    returns = np.resize(np.array([1.0, -1.0], np.float32), flax_agents.WINDOW + flax_agents.SAMPLES)
    parameters = flax_agents.initial_parameters(layers, jax.random.key(1))
    errors = []
    for _ in range(2):
        forecast = flax_agents.forecast(layers, parameters, returns[: flax_agents.WINDOW])
        errors.append(float((forecast - returns[flax_agents.WINDOW]) ** 2))
        for _ in range(steps):
            parameters = flax_agents.train(layers, parameters, returns, 0.05)
    return errors


@needs_flax
def test_training_improves_the_forecast():
    before, after = in_new_process(errors_while_training, 100)

    assert after < before / 10


@needs_flax
def test_past_returns_are_always_as_many():
    from pams_parallel.examples.flax_agents import past_returns

    market = short_run(examples.load("learning")).markets[0]
    now = market.get_time()
    returns = past_returns(market, now + 5)

    assert returns.dtype == np.float32
    assert returns.shape == (now + 5,)
    assert not returns[:5].any()
    assert returns[5:].any()
    last = 100.0 * math.log(market.get_market_price() / market.get_market_price(now - 1))
    assert returns[-1] == np.float32(last)
    assert np.array_equal(past_returns(market, 3), returns[-3:])


@needs_flax
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_flax_is_identical(command, workers):
    done = command("compare", "flax", "--runner", "jax", "--workers", workers, "--steps", "10")

    assert done.returncode == 0, done.stderr
    assert "The outcomes are identical" in done.stdout
    assert "(spawn)" in done.stdout
    # Neither that JAX was initialised before it was configured, nor that it was forked.
    assert "JAX" not in done.stderr


# Stands in for a Python without JAX and Flax.
WITHOUT_FLAX = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "flax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
"""


def without_flax(code):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_FLAX + code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_the_other_examples_need_no_jax():
    done = without_flax(f"""
from pams_parallel import examples

assert "flax" in examples.names()
for name in {PLAIN_NAMES}:
    assert examples.load(name).classes
""")

    assert done.returncode == 0, done.stderr


def test_flax_without_jax_says_what_to_install():
    done = without_flax("from pams_parallel import examples\nexamples.load('flax')")

    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith("ImportError: the agents of the example 'flax' need JAX and Flax")
    assert last.endswith("install them with: pip install 'pams-parallel[jax]'")


def test_command_without_jax_says_what_to_install():
    done = without_flax("from pams_parallel.cli import main\nsys.exit(main(['compare', 'flax']))")

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("pams-parallel: error: flax: ")
    assert line.endswith("pip install 'pams-parallel[jax]'")

"""The bundled examples."""

from __future__ import annotations

import random

import pytest
from pams.runners import SequentialRunner
from pams_parallel import examples
from pams_parallel.examples.agents import call_price


def short_run(example, steps=15):
    for session in example.config["simulation"]["sessions"]:
        session["iterationSteps"] = min(session["iterationSteps"], steps)
    for group in example.config.values():
        if "optionPaths" in group:
            group["optionPaths"] = 1
    runner = SequentialRunner(example.config, prng=random.Random(1))
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


@pytest.mark.parametrize("name", examples.names())
def test_config_is_a_fresh_copy(name):
    examples.load(name).config["simulation"].clear()

    assert examples.load(name).config["simulation"]


@pytest.mark.parametrize("name", examples.names())
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

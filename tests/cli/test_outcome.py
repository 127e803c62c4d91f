"""The exact comparison of two runs."""

from __future__ import annotations

import pickle
import random

import pytest
from pams.runners import SequentialRunner
from pams_parallel import examples
from pams_parallel.outcome import RecordingLogger, differences, outcome


def finished_run(seed=1, logger=None):
    example = examples.load("learning")
    runner = SequentialRunner(example.config, prng=random.Random(seed), logger=logger)
    for cls in example.classes:
        runner.class_register(cls)
    runner._setup()
    runner._run()
    return runner


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (1, 1.0, ""),
        (1, True, ""),
        (0.0, -0.0, ""),
        ([1, 2, 3], [1, 2, 4], "[2]"),
        ([1, 2], [1, 2, 3], ": length"),
        ([1, 2], (1, 2), ""),
        ({"a": [0, 1]}, {"a": [0, None]}, "['a'][1]"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ""),
    ],
)
def test_differences_are_found_and_named(first, second, place):
    (difference,) = differences({"x": first}, {"x": second})

    assert difference.name == f"x{place}"
    assert " against " in str(difference)


@pytest.mark.parametrize("value", [float("nan"), -0.0, None, "a", [1, (2.5, {"k": True})]])
def test_equal_values(value):
    assert differences({"x": value}, {"x": pickle.loads(pickle.dumps(value))}) == []


def test_names_that_only_one_side_has():
    found = differences({"a": 1, "b": 2}, {"b": 2, "c": None})

    assert [str(difference) for difference in found] == [
        "a: 1 against absent",
        "c: absent against None",
    ]


def test_runs_of_one_seed_are_identical_and_of_two_are_not():
    first = outcome(finished_run(1, RecordingLogger()))

    assert differences(first, outcome(finished_run(1, RecordingLogger()))) == []
    assert differences(first, outcome(finished_run(2, RecordingLogger()))) != []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda r: r._prng.random(), "runner: prng"),
        (lambda r: r.simulator._prng.random(), "simulator: prng"),
        (lambda r: r.simulator.fundamentals._np_prng.random(), "fundamentals: NumPy prng"),
        (lambda r: r.simulator.agents[3].prng.random(), "agent 'LearningAgents-3': prng"),
        (lambda r: r.simulator.agents[3].prng.gauss(0, 1), "agent 'LearningAgents-3': prng"),
        (lambda r: r.simulator.markets[0]._prng.random(), "market 'Market': prng"),
        (lambda r: r.simulator.sessions[1].prng.random(), "session 'trading': prng"),
        (lambda r: r.simulator.agents[0].update_cash_amount(1e-9), "cash_amount"),
        (lambda r: r.simulator.agents[0].update_asset_volume(0, 1), "asset_volumes[0]"),
        (lambda r: r.simulator.markets[0].buy_order_book.priority_queue.pop(), "buy orders"),
        (lambda r: r.logger.rows.pop(), "logs: length"),
    ],
)
def test_every_part_counts(change, name):
    first = outcome(finished_run(1, RecordingLogger()))
    runner = finished_run(1, RecordingLogger())
    change(runner)

    found = [difference.name for difference in differences(first, outcome(runner))]
    assert len(found) == 1
    assert name in found[0]


def test_logger_keeps_every_order_and_execution():
    logger = RecordingLogger()
    market = finished_run(1, logger).simulator.markets[0]
    kinds = [row[0] for row in logger.rows]

    assert kinds.count("OrderLog") == market._next_order_id > 0
    volumes = [row[-1] for row in logger.rows if row[0] == "ExecutionLog"]
    assert sum(volumes) == sum(market.get_executed_volumes()) > 0
    assert kinds.count("MarketStepEndLog") == 60


def test_copies_of_the_logger_start_without_rows():
    logger = RecordingLogger()
    logger.rows.append(("OrderLog", 1))
    copy = pickle.loads(pickle.dumps(logger))

    assert copy.rows == []
    assert logger.rows == [("OrderLog", 1)]

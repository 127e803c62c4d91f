"""Replicas survive agents that damage everything in reach.

The agents compare the whole simulation with the main process's at the beginning of every task;
the outcome of a run is compared with that of a sequential run in which nobody damages anything.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from typing import Any

import pytest
from pams.runners import SequentialRunner
from runner_support import delta_vandals
from runner_support.comparison import describe, digest, exact
from runner_support.delta_damage import change, change_graph, mutable_objects
from runner_support.delta_vandals import (
    DAMAGES,
    NOT_COMPARED,
    Planning,
    differences,
    make_opaques,
    show_opaques,
    use_opaques,
)
from runner_support.delta_worlds import trackable
from runner_support.scenarios import build, expected_warnings_ignored, scripted_settings, session
from runner_support.vandalism import Treasure

pytestmark = pytest.mark.filterwarnings("ignore:Changes to attributes not listed")

CLASSES = ("Vandal", "ListingVandal")
MODES = ("delta", "full")
RUNS = [("delta", damage) for damage in DAMAGES] + [("full", "many objects"), ("full", "both")]


def settings(cls: str, number: int = 7) -> dict[str, Any]:
    config = scripted_settings(number, cls=cls)
    config["simulation"]["sessions"] = [
        session("everybody", 1000, 3),
        session("two", 2, 4),
        session("one", 1, 3),
    ]
    return config


def prepared(runner_class: type[Any], cls: str, **keys: Any) -> Any:
    """A runner that is set up, with treasures all over the simulation."""
    runner = build(runner_class, settings(cls), **keys)
    runner.class_register(getattr(delta_vandals, cls))
    with expected_warnings_ignored():
        runner._setup()
    simulator = runner.simulator
    shared = trackable(Treasure(3_000))
    for holder in (simulator, simulator.markets[0], simulator.sessions[0], *simulator.agents[:2]):
        holder.treasure = trackable(Treasure())
        holder.shared_treasure = shared
    return runner


def assert_mode(runner: Any, mode: str) -> None:
    """The run did use deltas, or did not."""
    kinds = Counter(record.frame_kind for record in runner.batch_records)
    assert len(runner.batch_records) > 12  # several per step
    if mode == "full":
        assert set(kinds) == {"full"}
    else:
        assert kinds["full"] == 0
        assert kinds["delta"] > kinds["keyframe"] > 0


def result(runner: Any) -> list[str]:
    """Run, and describe everything that is left."""
    with expected_warnings_ignored():
        runner._run()
    return [*describe(runner.simulator, NOT_COMPARED), digest(exact(runner._prng))]


@functools.cache
def honest_result(cls: str) -> list[str]:
    return result(prepared(SequentialRunner, cls))


def vandals_result(cls: str, damage: str, size: int | None = None, **keys: Any) -> list[str]:
    runner = prepared(Planning, cls, **keys)
    runner.damage = damage
    runner.agents_per_chunk = size
    found = result(runner)
    assert_mode(runner, keys["snapshotMode"])
    assert len(runner.worlds) > 12  # the simulation did go on from batch to batch
    return found


def assert_honest(found: list[str], cls: str) -> None:
    expected = honest_result(cls)
    assert found == expected, differences(found, expected)


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("mode", "damage"), RUNS)
@pytest.mark.parametrize("cls", CLASSES)
def test_outcome_is_that_of_honest_agents(cls: str, mode: str, damage: str, workers: int) -> None:
    keys = {"startMethod": "fork", "snapshotMode": mode, "numParallel": workers}
    assert_honest(vandals_result(cls, damage, **keys), cls)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("damage", [pytest.param("many objects", marks=pytest.mark.slow), "named"])
@pytest.mark.parametrize("cls", CLASSES)
def test_one_task_after_the_other_on_the_same_frame(cls: str, damage: str, workers: int) -> None:
    """More tasks than workers: the same frame serves a worker several times."""
    keys = {"startMethod": "fork", "snapshotMode": "delta", "numParallel": workers}
    assert_honest(vandals_result(cls, damage, size=1, **keys), cls)


@pytest.mark.parametrize("damage", ["both", "wipe out"])
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_other_start_methods(start_method: str, damage: str) -> None:
    keys = {"startMethod": start_method, "snapshotMode": "delta", "numParallel": 2}
    assert_honest(vandals_result("ListingVandal", damage, size=2, **keys), "ListingVandal")


def test_honest_agents_do_what_the_comparison_is_about() -> None:
    for cls in CLASSES:
        runner = prepared(SequentialRunner, cls)
        result(runner)
        rows = {row[0] for row in runner.logger.rows}
        assert {"OrderLog", "ExecutionLog", "CancelLog"} <= rows


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "none"])
def test_damage_is_real(damage: str) -> None:
    runner = prepared(SequentialRunner, "Vandal")
    result(runner)
    agent = runner.simulator.agents[2]
    before = describe(runner.simulator, NOT_COMPARED)
    agent._damage(DAMAGES[damage], 1)
    assert describe(runner.simulator, NOT_COMPARED) != before


def test_agents_notice_another_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they compare with does differ if a single bit does."""
    runner = prepared(Planning, "Vandal", startMethod="fork", numParallel=1)
    split = Planning._split_agents_into_chunks

    def tell_lies(self: Any, agents: list[Any]) -> list[list[Any]]:
        chunks = split(self, agents)
        self.simulator.treasure.array[0, 0] += 2.0**-50
        return chunks

    monkeypatch.setattr(Planning, "_split_agents_into_chunks", tell_lies)
    with pytest.raises(AssertionError, match=r"treasure\.array"):
        result(runner)


def test_random_damage_reaches_every_kind_of_object() -> None:
    """Each object of a treasure is changed by some of its random changes."""
    prng = random.Random(2)
    names = [name for name in vars(Treasure()) if name not in ("frozenset", "tuple", "frozen")]
    changed: set[str] = set()
    for _ in range(40):
        treasure = Treasure()
        for name in names:
            before = describe(vars(treasure)[name])
            obj = vars(treasure)[name]
            if mutable_objects(obj, []) and obj is not treasure.read_only:
                change_or_fail(obj, prng)
            if describe(obj) != before:
                changed.add(name)
    # Bytes cannot change, and an array without elements only its flags.
    assert set(names) - changed <= {"big_bytes", "read_only"}
    assert change_graph(Treasure(), prng, 1.0, []) > 25


def change_or_fail(obj: Any, prng: random.Random) -> None:
    try:
        change(obj, prng, [])
    except (TypeError, ValueError, AttributeError):
        return


# ------------------------------------------------- objects that show their state to pickle only


class Advancing(Planning):
    """Uses the opaque objects of the main process, too."""

    agents_per_chunk = 2

    def _before_batch(self) -> None:
        if self.n_planned % 3 == 0:  # in the other batches nothing changes
            use_opaques(self.simulator.opaques)
        self.simulator.opaques_shown = show_opaques(self.simulator.opaques)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_opaque_objects_are_rebuilt(mode: str, workers: int) -> None:
    runner = prepared(
        Advancing, "OpaqueVandal", startMethod="fork", snapshotMode=mode, numParallel=workers
    )
    runner.simulator.opaques = make_opaques()
    runner.simulator.alias = runner.simulator.opaques["count"]
    runner.damage = "a few objects"
    first = show_opaques(runner.simulator.opaques)
    result(runner)
    if mode == "full":
        assert_mode(runner, mode)
    assert len(runner.worlds) > 12
    assert show_opaques(runner.simulator.opaques) != first


# ---------------------------------------------------------------- what agents return nevertheless


@pytest.mark.parametrize("mode", MODES)
def test_orders_that_are_cancelled_and_taken_from_the_book_in_the_worker(mode: str) -> None:
    """The cancel refers to the main process's order, whatever has become of the copy."""
    runner = prepared(
        Planning, "PlaysThrough", startMethod="fork", snapshotMode=mode, numParallel=2
    )
    runner.agents_per_chunk = 1
    found = result(runner)
    assert_mode(runner, mode)
    sequential = prepared(SequentialRunner, "PlaysThrough")
    expected = result(sequential)
    assert "CancelLog" in {row[0] for row in sequential.logger.rows}
    assert found == expected, differences(found, expected)

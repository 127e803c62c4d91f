"""Workers that are new, behind or gone, frames that are no longer needed, and other accidents."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import delta_vandals, misbehaviour, scripts
from runner_support.comparison import describe, outcome
from runner_support.copying import Dropping
from runner_support.delta_vandals import NOT_COMPARED, Planning, ReportingVandal, open_files
from runner_support.runner_classes import OneAgentPerChunk
from runner_support.scenarios import (
    InOrder,
    build,
    collect,
    expected_warnings_ignored,
    give_scripts,
    run,
    scripted_settings,
)
from runner_support.vandalism import Plain

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc"),
    pytest.mark.filterwarnings("ignore:Changes to attributes not listed"),
]

START_METHODS = ("fork", "spawn", "forkserver")


def n_keyframes(runner: Any) -> int:
    """How often workers had to drop their replicas; all frames after the first can be deltas."""
    return kinds(runner).count("keyframe")


def kinds(runner: Any) -> list[str]:
    return [record.frame_kind for record in runner.batch_records]


class Steered(Planning):
    """The test says for every batch how many chunks there are, and changes the simulation."""

    n_chunks: Any = staticmethod(lambda n_batches: 1)
    change: Any = staticmethod(lambda simulator, n_batches: None)

    damage = "a few objects"

    def _before_batch(self) -> None:
        self.agents_per_chunk = -(-len(self.simulator.agents) // self.n_chunks(self.n_planned))
        self.change(self.simulator, self.n_planned)


def steered(
    n_agents: int, steps: int, pause: float = 0.0, cls: type[Any] = Steered, **keys: Any
) -> Any:
    config = scripted_settings(n_agents, 1000, steps, cls="ReportingVandal")
    runner = build(cls, config, **keys)
    runner.class_register(ReportingVandal)
    with expected_warnings_ignored():
        runner._setup()
    runner.simulator.pause = pause
    return runner


def run_to_the_end(runner: Any) -> None:
    with expected_warnings_ignored():
        runner._run()
    assert runner.executor is None


def pids(runner: Any, step: int) -> set[int]:
    return {agent.calls[step][0] for agent in runner.simulator.agents}


# ------------------------------------------------------------------------ workers that catch up


@pytest.mark.parametrize("start_method", START_METHODS)
def test_worker_that_is_new(start_method: str) -> None:
    """The second worker has its first task when there are many deltas; the agents compare."""
    runner = steered(4, 12, 0.05, startMethod=start_method, numParallel=2)
    runner.n_chunks = lambda n_batches: 1 if n_batches < 8 else 2
    run_to_the_end(runner)
    assert n_keyframes(runner) == 1
    assert {len(pids(runner, step)) for step in range(8)} == {1}
    assert any(len(pids(runner, step)) == 2 for step in range(8, 12))


@pytest.mark.parametrize("start_method", START_METHODS)
def test_worker_that_is_behind(start_method: str) -> None:
    """One worker idles in two of three batches."""
    runner = steered(4, 15, 0.03, startMethod=start_method, numParallel=3)
    runner.n_chunks = lambda n_batches: (2, 1, 1)[n_batches % 3]
    run_to_the_end(runner)
    assert n_keyframes(runner) == 1
    assert any(len(pids(runner, step)) == 2 for step in range(15))


def test_worker_that_has_missed_checkpoints() -> None:
    runner = steered(2, 12, 0.05, startMethod="spawn", numParallel=2)
    runner.n_chunks = lambda n_batches: 2 if n_batches in (0, 11) else 1

    def change(simulator: Any, n_batches: int) -> None:
        simulator.payload = random.Random(n_batches).randbytes(200_000)

    runner.change = change
    run_to_the_end(runner)
    assert n_keyframes(runner) == 1
    assert kinds(runner).count("checkpoint") >= 2
    assert any(len(pids(runner, step)) == 2 for step in (0, 11))


# --------------------------------------------------------------------- frames that are let go of


class Watched(MultiProcessAgentParallelRunner):
    """Notes its open files, and changes the simulation, which stays as small as it is."""

    size = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.files: list[tuple[int, int]] = []
        self.calls: list[tuple[int, int, int]] = []

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        simulator = self.simulator
        for agent in simulator.agents:
            self.calls += agent.calls
            agent.calls = ()
        simulator.payload = random.Random(len(self.files)).randbytes(self.size)
        del simulator.logger.rows[:]
        self.files.append(open_files())
        return super()._split_agents_into_chunks(agents)


@pytest.mark.parametrize("size", [0, 30_000])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_frames_are_released(start_method: str, size: int) -> None:
    """Over 300 batches, with small changes and with changes as large as the simulation."""
    runner = steered(2, 300, cls=Watched, startMethod=start_method, numParallel=2)
    runner.size = size
    run_to_the_end(runner)
    found = Counter(kinds(runner))
    assert len(runner.batch_records) == 300
    assert set(found) <= {"keyframe", "delta", "checkpoint"}
    assert n_keyframes(runner) == 1
    if size:
        assert found["checkpoint"] > 20
    # The file that is being written, the one before, and one that the latest batch needed.
    assert max(n_frames for _, n_frames in runner.files) <= 3
    others = [n_files - n_frames for n_files, n_frames in runner.files]
    assert max(others[10:]) <= max(others[:10])
    assert len(runner.calls) >= 590
    by_worker: dict[int, list[int]] = {}
    for pid, n_files, n_frames in runner.calls:
        by_worker.setdefault(pid, []).append(n_files - n_frames)
        assert n_frames <= 4  # a forked worker inherits what is open when it is forked
    for counts in by_worker.values():
        assert max(counts[10:], default=0) <= max(counts[:10])


def test_bytes_of_frames_follow_what_changes(scripted: Any) -> None:
    """In a large simulation in which hardly anything changes, until most of it is replaced."""
    runner = scripted([scripts.draw] * 3, workers=2)
    for n_batches in range(12):
        if n_batches in (0, 8):
            prng = random.Random(n_batches)
            runner.simulator.payload = [prng.randbytes(100) for _ in range(5_000)]
        collect(runner)
    sizes = [record.frame_bytes for record in runner.batch_records]
    assert min(sizes[0], sizes[8]) > 500_000
    assert max(sizes[1:8] + sizes[9:]) < 5_000


# ---------------------------------------------------------------------------------- after errors


def after(runner: Any, batches: int = 3) -> dict[str, object]:
    """Outcome of more batches whose orders are handled."""
    with expected_warnings_ignored():
        for _ in range(batches):
            orders = collect(runner)
            runner._handle_orders(runner.simulator.sessions[0], orders)
            runner.simulator._update_times_on_markets(runner.simulator.markets)
    return outcome(runner)


def on_the_same_way(runner_class: type[Any], accident: Any, **keys: Any) -> Any:
    """Two batches, an accident, and batches after it."""
    runner = build(runner_class, scripted_settings(4, 1000, cls="Canceller"), **keys)
    with expected_warnings_ignored():
        runner._setup()
    after(runner, 2)
    accident(runner)
    found = after(runner)
    if runner_class is not SequentialRunner:
        runner._shutdown_executor()
    return runner, found


def expected_outcome() -> Any:
    return on_the_same_way(SequentialRunner, lambda runner: None)[1]


def rewound(runner: Any, fail: Any) -> None:
    """Let a batch fail; nothing but the runner's own generator may have changed."""
    before, state = outcome(runner), runner._prng.getstate()
    fail()
    runner._prng.setstate(state)
    assert outcome(runner) == before


KEYS = {"numParallel": 2, "snapshotMode": "delta"}


@pytest.mark.parametrize("start_method", START_METHODS)
def test_runner_after_an_exception_of_an_agent(start_method: str) -> None:
    def accident(runner: Any) -> None:
        last = runner.simulator.agents[-1]

        def fail() -> None:
            last.prng, prng = None, last.prng
            with pytest.raises(AttributeError, match=r"choice|random"):
                collect(runner)
            last.prng = prng
            assert runner.executor is None

        rewound(runner, fail)

    keys = {**KEYS, "startMethod": start_method}
    runner, found = on_the_same_way(MultiProcessAgentParallelRunner, accident, **keys)
    assert found == expected_outcome()
    # A new pool, so a new keyframe.
    assert kinds(runner)[2:] == ["keyframe", "delta", "delta"]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_runner_after_the_death_of_its_workers(start_method: str) -> None:
    """New workers read the frames that are there, so the next one is a delta as ever."""

    def accident(runner: Any) -> None:
        workers = list(runner.executor._processes.values())
        for process in workers:
            os.kill(process.pid, signal.SIGKILL)
        for process in workers:
            wait([process.sentinel])

    keys = {**KEYS, "startMethod": start_method}
    with pytest.warns(UserWarning, match=r"died \(signal 9, SIGKILL\)"):
        runner, found = on_the_same_way(MultiProcessAgentParallelRunner, accident, **keys)
    assert found == expected_outcome()
    assert kinds(runner) == ["keyframe", "delta", "delta", "delta", "delta"]


@pytest.mark.parametrize("mode", ["delta", "full"])
def test_object_that_cannot_be_pickled_appears(mode: str) -> None:
    def accident(runner: Any) -> None:
        def fail() -> None:
            agent = runner.simulator.agents[3]
            agent.rule = {"key": [lambda: 0]}
            with pytest.raises(Exception, match=r"simulator\.agents") as caught:
                collect(runner)
            assert "simulator.agents[3].rule['key'][0]" in str(caught.value)
            assert runner.executor is None
            del agent.rule

        rewound(runner, fail)

    keys = {**KEYS, "snapshotMode": mode, "startMethod": "fork"}
    _, found = on_the_same_way(MultiProcessAgentParallelRunner, accident, **keys)
    assert found == expected_outcome()


def test_object_that_cannot_be_pickled_appears_and_goes_in_every_other_batch() -> None:
    def accident(runner: Any) -> None:
        market = runner.simulator.markets[0]
        for _ in range(4):

            def fail() -> None:
                market.extra = open(os.devnull)  # noqa: SIM115
                with pytest.raises(TypeError, match=r"simulator\.markets\[0\]\.extra"):
                    collect(runner)
                market.extra.close()
                del market.extra

            rewound(runner, fail)

    _, found = on_the_same_way(
        MultiProcessAgentParallelRunner, accident, **KEYS, startMethod="fork"
    )
    assert found == expected_outcome()


# ---------------------------------------------------- simulations that are copied as whole ones


class Restored:
    """Has a ``__setstate__``, so nobody knows what else there is to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cache = [number]

    def __getstate__(self) -> int:
        return self.number

    def __setstate__(self, number: int) -> None:
        self.number = number
        self.cache = [number]


def use_restored(agent: Any, markets: Any) -> Any:
    """Use the cache in place, which pickle does not see."""
    restored = agent.simulator.restored
    agent.seen = (*agent.seen, restored.number, len(restored.cache))
    restored.cache.append(1)
    agent.calls += 1
    return [scripts.limit_order(agent, 290.0 + restored.number)]


@pytest.mark.parametrize("first_batch", [0, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_object_with_setstate(scripted: Any, workers: int, first_batch: int) -> None:
    """Every task has a copy of its own, also of what pickle does not see."""
    runner = scripted(
        [use_restored] * 4, runner_class=OneAgentPerChunk, workers=workers, listed=("seen", "calls")
    )
    for agent in runner.simulator.agents:
        agent.seen, agent.calls = (), 0
    runner.simulator.restored = Plain([])
    runner.simulator.restored.number, runner.simulator.restored.cache = 3, [3]
    for n_batches in range(6):
        if n_batches == first_batch:
            runner.simulator.restored = Restored(3)
        collect(runner)
    for agent in runner.simulator.agents:
        assert agent.calls == 6
        assert agent.seen == (3, 1) * 6
    assert "delta" not in kinds(runner)[first_batch + 1 :]


@pytest.mark.parametrize("workers", [1, 2])
def test_agents_that_leave_something_out(scripted: Any, workers: int) -> None:
    """Of a class with ``__getstate__``."""
    runner = scripted([scripts.buy] * 4, workers=workers, steps=4, cls=Dropping.__name__)
    sequential = build(
        SequentialRunner, scripted_settings(4, steps=4, cls=Dropping.__name__), seed=InOrder(1)
    )
    sequential._setup()
    give_scripts(sequential, [scripts.buy] * 4)
    for each in (runner, sequential):
        for agent in each.simulator.agents:
            agent.model = open_nothing  # never asked for
        with expected_warnings_ignored():
            each._run()
    assert outcome(runner) == outcome(sequential)
    assert all(agent.model is open_nothing for agent in runner.simulator.agents)


def open_nothing() -> None:
    """A function."""


class Tainted(Planning):
    """The simulation becomes one that has to be copied as a whole, and is so no longer."""

    def _before_batch(self) -> None:
        simulator = self.simulator
        if self.n_planned == 5:
            simulator.agents[0].restored = Restored(1)
        elif self.n_planned > 5 and hasattr(simulator.agents[0], "restored"):
            simulator.agents[0].restored.number += 1
            simulator.agents[0].restored.cache = [simulator.agents[0].restored.number]
        if self.n_planned == 12:
            del simulator.agents[0].restored


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_simulation_that_has_to_be_copied_as_a_whole_later(workers: int) -> None:
    """The agents compare their world in every task."""

    def result(runner_class: type[Any], **keys: Any) -> Any:
        config = scripted_settings(5, 2, 10, cls="Vandal")
        runner = build(runner_class, config, **keys)
        runner.class_register(delta_vandals.Vandal)
        runner.damage = "a few objects"
        run(runner)
        return runner

    runner = result(Tainted, startMethod="fork", numParallel=workers)
    assert runner.n_planned > 14
    found = kinds(runner)
    assert "delta" in found[:5]
    assert "full" not in found[:5]
    assert "delta" not in found[6:12]  # the first one tells of the object that makes it so
    expected = describe(result(SequentialRunner).simulator, NOT_COMPARED)
    assert describe(runner.simulator, NOT_COMPARED) == expected


def test_misbehaviour_is_reported_as_ever(scripted: Any) -> None:
    """An error in a later batch, on a replica that has followed deltas."""
    runner = scripted([scripts.buy] * 4, workers=2)
    for _ in range(4):
        collect(runner)
    give_scripts(runner, [scripts.buy, misbehaviour.raise_value_error, scripts.buy, scripts.buy])
    with pytest.raises(ValueError, match="bad price") as caught:
        collect(runner)
    assert caught.value.args[1] == 1
    assert runner.executor is None

"""All chunks of a batch see one state of the simulation, whatever other threads and hooks do."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import re
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from pams_parallel import MultiProcessAgentParallelRunner
from torn_agents import (
    Changer,
    ChangingLogger,
    LingeringKey,
    LingeringReduction,
    LingeringState,
    Part,
    Witness,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

N_AGENTS = 7
STEPS = 40


def settings(mode: str, start_method: str, steps: int, workers: int = 3) -> dict[str, Any]:
    return {
        "simulation": {
            "markets": ["Market"],
            "agents": ["Agents"],
            "sessions": [
                {
                    "sessionName": "session",
                    "iterationSteps": steps,
                    "withOrderPlacement": True,
                    "withOrderExecution": True,
                    "withPrint": False,
                    "maxNormalOrders": N_AGENTS,
                }
            ],
            "numParallel": workers,
            "startMethod": start_method,
            "snapshotMode": mode,
        },
        "Market": {"class": "Market", "tickSize": 0.01, "marketPrice": 300.0},
        "Agents": {
            "class": "Witness",
            "numAgents": N_AGENTS,
            "markets": ["Market"],
            "assetVolume": 50,
            "cashAmount": 10000,
        },
    }


def make_runner(
    mode: str, start_method: str = "fork", steps: int = STEPS, runner_class: Any = None
) -> Any:
    runner_class = runner_class or MultiProcessAgentParallelRunner
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = runner_class(
            settings(mode, start_method, steps), prng=random.Random(1), logger=ChangingLogger()
        )
        runner.class_register(Witness)
        runner._setup()
    return runner


@contextlib.contextmanager
def quick_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def run_with_changes(runner: Any) -> list[list[Any]]:
    """What the agents have seen, by step."""
    changer = Changer(runner.logger)
    try:
        with quick_switches():
            changer.start()
            runner._run()
    finally:
        changer.stop()
    assert changer.n_changes > 100
    assert runner.executor is None
    return list(zip(*(agent.seen for agent in runner.simulator.agents), strict=True))


def check_agreement(seen: list[list[Any]], steps: int) -> None:
    assert len(seen) == steps
    for of_step in seen:
        assert len(of_step) == N_AGENTS
        assert all(of_agent == of_step[0] for of_agent in of_step), of_step
    # The thread did change things from step to step.
    assert len({of_step[0][0] for of_step in seen}) > steps / 4


@pytest.mark.parametrize(
    ("mode", "start_method"),
    [("delta", "fork"), ("full", "fork"), ("delta", "spawn"), ("full", "spawn")],
)
def test_all_chunks_see_one_state(mode: str, start_method: str) -> None:
    check_agreement(run_with_changes(make_runner(mode, start_method)), STEPS)


def test_a_delta_is_one_moment() -> None:
    """No Python code runs while objects are compared, so no other thread does.

    In other frames it does: NumPy and :mod:`copyreg` are partly written in Python.
    """
    runner = make_runner("delta", steps=100)
    seen = run_with_changes(runner)
    kinds = [record.frame_kind for record in runner.batch_records]
    assert kinds.count("delta") > 20
    for kind, of_step in zip(kinds, seen, strict=True):
        first, last = of_step[0][1]
        assert kind != "delta" or first == last


LINGERING: dict[str, Callable[[], Any]] = {
    "state": LingeringState,
    "reduction": LingeringReduction,
    "keys": lambda: {LingeringKey(n): [n] for n in range(5)},
    "ordered keys": lambda: collections.OrderedDict((LingeringKey(n), n) for n in range(5)),
    "elements": lambda: {LingeringKey(n) for n in range(5)},
    "frozen elements": lambda: frozenset(LingeringKey(n) for n in range(5)),
}


@pytest.mark.parametrize("mode", ["delta", "full"])
@pytest.mark.parametrize("kind", LINGERING)
def test_all_chunks_see_the_same_although_threads_run_in_the_walk(kind: str, mode: str) -> None:
    """As with pickle, the frame need not be one moment then, but it is one frame."""
    runner = make_runner(mode, steps=15)
    runner.logger.lingering = LINGERING[kind]()
    check_agreement(run_with_changes(runner), 15)


@pytest.mark.parametrize("mode", ["delta", "full"])
@pytest.mark.parametrize("container", ["list", "dict", "set", "deque", "attributes"])
def test_a_container_that_changes_in_its_own_walk(container: str, mode: str) -> None:
    """An ordinary error, or one frame for all."""
    runner = make_runner(mode, steps=10)
    lingering = [LingeringState() for _ in range(20)]
    logger = runner.logger
    if container == "list":
        logger.items = logger.more_items = list(lingering)
    elif container == "dict":
        logger.more = dict(enumerate(lingering))
    elif container == "set":
        logger.names = set(range(40))
        logger.lingering = {*lingering}
    elif container == "deque":
        logger.waiting = collections.deque(lingering)
    else:
        logger.lingering = Part()
        logger.lingering.__dict__ = logger.table = {
            f"a{n}": part for n, part in enumerate(lingering)
        }
    seen: list[list[Any]] = []
    error: Exception | None = None
    try:
        seen = run_with_changes(runner)
    except RuntimeError as raised:
        error = raised
    if error is None:
        check_agreement(seen, 10)
    else:
        assert re.search("changed size|changed while|mutated during", str(error))
        assert runner.executor is None
        # No agent of the batch has changed.
        assert len({len(agent.seen) for agent in runner.simulator.agents}) == 1


# --- hooks that come back to the runner -------------------------------------------------------


class Returning:
    """Its hooks call what a test wants."""

    action: Callable[[], Any] | None = None
    process = 0

    def __init__(self) -> None:
        self.value = 1

    @staticmethod
    def call() -> None:
        action, Returning.action = Returning.action, None
        # Forked workers inherit the action.
        if action is not None and os.getpid() == Returning.process:
            try:
                action()
            finally:
                Returning.action = action


class ByState(Returning):
    def __getstate__(self) -> Any:
        self.call()
        return dict(self.__dict__)


class ByReduce(Returning):
    def __reduce__(self) -> Any:
        self.call()
        return Part, ()


class ByHash(Returning):
    def __hash__(self) -> int:
        self.call()
        return 3

    def __eq__(self, other: object) -> bool:
        self.call()
        return self is other


def hooked(kind: str) -> Any:
    if kind == "__getstate__":
        return ByState()
    if kind == "__reduce__":
        return ByReduce()
    return collections.OrderedDict((ByHash(), n) for n in range(3))


def collect(runner: Any) -> Any:
    return runner._collect_orders_from_normal_agents(session=runner.simulator.current_session)


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "ask all agents": collect,
    "ask all agents on another thread": lambda runner: on_another_thread(lambda: collect(runner)),
    "shut down": lambda runner: runner._shutdown_executor(),
    "get the executor": lambda runner: runner._get_executor(),
    "set up": lambda runner: runner._setup(),
    "add an agent's attribute": lambda runner: runner.simulator.agents[0].__dict__.update(new=[1]),
    "drop the agents' attributes": lambda runner: [
        agent.__dict__.pop("new", None) for agent in runner.simulator.agents
    ],
    "empty the logger": lambda runner: [
        runner.logger.items.clear(),
        runner.logger.table.clear(),
        runner.logger.more.clear(),
    ],
    "exchange the parts": lambda runner: runner.logger.__dict__.update(last=Part(), first=Part()),
    "fail": lambda runner: 1 / 0,
}


def on_another_thread(use: Callable[[], Any]) -> None:
    def silently() -> None:
        with contextlib.suppress(Exception):
            use()

    thread = threading.Thread(target=silently, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "deadlock"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["delta", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["__getstate__", "__reduce__", "__hash__"])
@pytest.mark.parametrize("action", ACTIONS)
def test_hooks_that_come_back_to_the_runner(action: str, kind: str, mode: str) -> None:
    """An ordinary error or a correct run; no panic, no deadlock, nothing is left."""
    runner = make_runner(mode, steps=3)
    runner.logger.lingering = hooked(kind)
    Returning.action = lambda: ACTIONS[action](runner)
    Returning.process = os.getpid()
    try:
        with contextlib.suppress(Exception):  # a panic of Rust is none
            runner._run()
    finally:
        Returning.action = None
        runner._shutdown_executor()
    seen = [agent.seen for agent in runner.simulator.agents]
    assert len({len(of_agent) for of_agent in seen}) == 1, "a batch was torn"
    for of_step in zip(*seen, strict=True):
        assert len({of_agent[0] for of_agent in of_step}) == 1
    # Nothing interferes any more: the same simulation goes on.
    runner.logger.lingering = None
    before = len(seen[0])
    collect(runner)
    runner._shutdown_executor()
    assert {len(agent.seen) for agent in runner.simulator.agents} == {before + 1}

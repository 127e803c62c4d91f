"""Agents that compare their world with the main process's, use it, and leave it in ruins."""

from __future__ import annotations

import io
import itertools
import os
import random
import time
from array import array
from collections import ChainMap, UserDict
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pams.order import Cancel
from pams_parallel import MultiProcessAgentParallelRunner

from .comparison import describe
from .delta_damage import change_graph
from .trading_agents import Canceller
from .vandalism import ACTIONS

if TYPE_CHECKING:
    from pams import Market

# The plan of the test itself is not part of what is compared.
NOT_COMPARED = frozenset({"plan", "pause", "calls", "history", "opaques", "opaques_shown", "alias"})


class Plan:
    """What the main process tells the agents of one batch, as ``simulator.plan``.

    Args:
        world: lines that describe the simulation when the batch begins.
        first: numbers of the agents that are the first of their task.
        last: numbers of the agents that are the last of their task.
        damage: name of the damage to be done, a key of :data:`DAMAGES`.
        seed: seed of the damage.
    """

    def __init__(
        self, world: list[str], first: list[int], last: list[int], damage: str, seed: int
    ) -> None:
        self.world = "\n".join(world)
        self.first = first
        self.last = last
        self.damage = damage
        self.seed = seed


def _random_damage(share: float) -> Any:
    def damage(agent: Any, prng: random.Random, exempt: list[Any]) -> None:
        n_objects = change_graph(agent.simulator, prng, share, exempt)
        assert n_objects > 20, "there was hardly anything to be damaged"

    return damage


def _named_damage(agent: Any, prng: random.Random, exempt: list[Any]) -> None:
    """Everything in :mod:`~runner_support.vandalism`, in some order."""
    simulator = agent.simulator
    for name in prng.sample(list(ACTIONS), len(ACTIONS)):
        try:
            ACTIONS[name](agent)
        except Exception:  # another action has taken away what it wants to damage
            agent.simulator = simulator


def _both(agent: Any, prng: random.Random, exempt: list[Any]) -> None:
    simulator = agent.simulator
    _random_damage(0.3)(agent, prng, exempt)
    agent.simulator = simulator
    _named_damage(agent, prng, exempt)


def _wipe_out(agent: Any, prng: random.Random, exempt: list[Any]) -> None:
    """Replace the dicts of all that the simulator holds directly."""
    simulator = agent.simulator
    others = [a for a in simulator.agents if a is not agent]
    for obj in (*simulator.markets, *others, *simulator.sessions, simulator.logger):
        obj.__dict__ = {"nothing": "left"}
    simulator.__dict__ = {"agents": [], "markets": [1, None]}


DAMAGES: dict[str, Any] = {
    "none": lambda agent, prng, exempt: None,
    "a few objects": _random_damage(0.02),
    "many objects": _random_damage(0.5),
    "all objects": _random_damage(1.0),
    "named": _named_damage,
    "both": _both,
    "wipe out": _wipe_out,
}


def differences(found: Iterable[str], expected: Iterable[str]) -> list[tuple[str, str]]:
    """Some of the lines that differ."""
    found, expected = list(found), list(expected)
    pairs = [(a, b) for a, b in zip(found, expected, strict=False) if a != b][:4]
    if len(found) != len(expected):
        pairs.append((f"{len(found)} lines", f"{len(expected)} lines"))
    return pairs


class Vandal(Canceller):
    """Submits orders and cancels as a :class:`Canceller`; first it looks, at last it damages."""

    # Attributes whose contents the main process is to see.
    _kept_names: tuple[str, ...] = ()

    def submit_orders(self, markets: list[Market]) -> Any:
        plan = getattr(self.simulator, "plan", None)
        if plan is not None and self.agent_id in plan.first:
            found = describe(self.simulator, NOT_COMPARED)
            expected = plan.world.split("\n")
            if found != expected:
                raise AssertionError(differences(found, expected))
        orders = self.decide(markets)
        if plan is not None and self.agent_id in plan.last:
            self._damage(DAMAGES[plan.damage], plan.seed)
        return orders

    def decide(self, markets: list[Market]) -> Any:
        # Now and then nothing, so that there are several batches in a step.
        return super().submit_orders(markets) if self.prng.random() < 0.6 else []

    def _damage(self, damage: Any, seed: int) -> None:
        kept = {name: vars(self)[name] for name in ("prng", *self._kept_names)}
        state = self.prng.getstate()
        damage(self, random.Random(f"{seed} {self.agent_id}"), [self.prng])
        # What goes back to the main process is not damaged.
        for name, value in kept.items():
            self.__dict__[name] = value
        self.prng.setstate(state)


class ListingVandal(Vandal):
    """Lists attributes that refer to objects of the simulation."""

    synced_attributes = ("count", "watched")
    _kept_names = synced_attributes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = 0
        # No list: damage can make agents take the place of markets, whose lists are not sent.
        self.watched: tuple[Any, ...] = ()

    def decide(self, markets: list[Market]) -> Any:
        self.count += 1
        market = self.random_market(markets)
        self.watched = (market, *self.own_orders(markets)[:1], market.buy_order_book, self.count)
        return super().decide(markets)


class ReportingVandal(Vandal):
    """Tells for every call which process it was in, and which frames were open there."""

    synced_attributes = ("calls",)
    _kept_names = synced_attributes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: tuple[tuple[int, int, int], ...] = ()

    def decide(self, markets: list[Market]) -> Any:
        time.sleep(self.simulator.pause)  # gives every worker the time to take a task
        self.calls = (*self.calls, (os.getpid(), *open_files()))
        return super().decide(markets)


def open_files() -> tuple[int, int]:
    """How many files this process has open, and how many of them hold frames."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists the directory
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    return len(targets), sum("pams-parallel" in target for target in targets)


class PlaysThrough(Vandal):
    """Executes its cancels at once in the copy that it sees, and marks their orders."""

    def decide(self, markets: list[Market]) -> Any:
        orders = super().decide(markets)
        if hasattr(self.simulator, "plan"):  # not in a sequential run
            for cancel in [order for order in orders if isinstance(order, Cancel)]:
                order = cancel.order
                for market in markets:
                    for book in (market.buy_order_book, market.sell_order_book):
                        if any(placed is order for placed in book.priority_queue):
                            book._remove(order)
                            order.volume = 0
                            order.price = 1.0
        return orders


def make_opaques() -> dict[str, Any]:
    """Objects whose state only pickle's protocol shows."""
    return {
        "count": itertools.count(3),
        "iterator": iter(list(range(1000))),
        "bytes": io.BytesIO(b"some bytes"),
        "text": io.StringIO("some text"),
        "array": array("d", [1.0, -0.0]),
        "user dict": UserDict(a=[1]),
        "chain map": ChainMap({"a": 1}, {"b": 2}),
        "reducing": Reducing([1]),
    }


def show_opaques(opaques: dict[str, Any]) -> str:
    """Text that differs if any state differs."""
    return repr(
        [
            opaques["count"],
            opaques["iterator"].__reduce__()[1:],
            (opaques["bytes"].getvalue(), opaques["bytes"].tell()),
            (opaques["text"].getvalue(), opaques["text"].tell()),
            opaques["array"],
            opaques["user dict"].data,
            opaques["chain map"].maps,
            (opaques["reducing"].items, type(opaques["reducing"]).__name__),
        ]
    )


def use_opaques(opaques: dict[str, Any]) -> None:
    """Change the state of all of them in place."""
    next(opaques["count"])
    next(opaques["iterator"])
    opaques["bytes"].read(3)
    opaques["bytes"].write(b"!")
    opaques["text"].write("written")
    opaques["array"].append(2.0)
    opaques["user dict"]["b"] = 2
    opaques["chain map"]["c"] = 3
    opaques["reducing"].items.append(2)


class Reducing:
    """Has ``__reduce__``, so pickle knows how to copy it and nobody else does."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __reduce__(self) -> tuple[Any, ...]:
        return Reducing, (self.items,)


class OpaqueVandal(Vandal):
    """Looks at opaque objects, and uses them."""

    def decide(self, markets: list[Market]) -> Any:
        simulator = self.simulator
        if self.agent_id in simulator.plan.first:
            assert show_opaques(simulator.opaques) == simulator.opaques_shown
            assert simulator.alias is simulator.opaques["count"]
        use_opaques(simulator.opaques)
        return super().decide(markets)


class Planning(MultiProcessAgentParallelRunner):
    """Tells the agents what they have to find and which damage to do."""

    damage = "none"
    agents_per_chunk: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.n_planned = 0
        self.worlds: set[int] = set()

    def _split_agents_into_chunks(self, agents: list[Any]) -> list[list[Any]]:
        self._before_batch()
        size = self.agents_per_chunk
        if size is None:
            chunks = super()._split_agents_into_chunks(agents)
        else:
            chunks = [agents[i : i + size] for i in range(0, len(agents), size)]
        simulator = self.simulator
        with suppress(AttributeError):
            del simulator.plan
        world = describe(simulator, NOT_COMPARED)
        self.worlds.add(hash("\n".join(world)))
        simulator.plan = Plan(
            world,
            [chunk[0].agent_id for chunk in chunks],
            [chunk[-1].agent_id for chunk in chunks],
            self.damage,
            self.n_planned,
        )
        self.n_planned += 1
        return chunks

    def _before_batch(self) -> None:
        """Overridden to change the simulation before the snapshot is taken."""

    def _shutdown_executor(self) -> None:
        super()._shutdown_executor()
        if getattr(self, "simulator", None) is not None:
            with suppress(AttributeError):
                del self.simulator.plan

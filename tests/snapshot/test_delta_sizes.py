"""What a frame costs: about what has changed."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from delta_kinds import KINDS, NATIVE_KINDS
from delta_support import (
    Chain,
)
from sample_types import (
    Plain,
)

if TYPE_CHECKING:
    pass


class Sizes:
    """Measures frames against one in which nothing changed."""

    def __init__(self, *roots: Any) -> None:
        self.chain = Chain(*roots)
        self.keyframe = len(self._send())
        self._send()
        self.empty = self._delta()

    def _send(self) -> bytes:
        frame = self.chain.send()
        self.chain.catch_up(self.chain.replica)
        return frame

    def _delta(self) -> int:
        frame = self._send()
        assert not self.chain.source.is_keyframe
        return len(frame)

    def delta(self) -> int:
        return self._delta() - self.empty


def market(n_agents: int) -> Plain:
    agents = [
        Plain(
            number=number,
            name=f"agent {number}",
            prng=random.Random(number),
            prices=[float(n) for n in range(5)],
            weights={"chart": 0.5, "noise": float(number)},
        )
        for number in range(n_agents)
    ]
    made = Plain(agents=agents, by_name={agent.name: agent for agent in agents})
    for agent in agents:
        agent.market = made
    return made


def test_size_when_nothing_changed() -> None:
    sizes = Sizes(market(3000))
    assert sizes.empty < 1000
    for _ in range(3):
        assert sizes.delta() < 100


def test_size_when_another_kind_of_object_is_in_the_graph() -> None:
    """What is not native costs nothing either, as long as it stays the same."""
    graph = [KINDS[kind]() for kind in NATIVE_KINDS] * 50
    assert Sizes(graph).empty < 1000


def test_size_of_one_attribute_of_one_agent() -> None:
    root = market(1000)
    sizes = Sizes(root)
    root.agents[500].number = -1
    assert sizes.delta() < 100
    root.agents[500].new_attribute = [1.5, "text"]
    assert sizes.delta() < 200


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("append", lambda values: values.append(1.5)),
        ("append some", lambda values: values.extend([1.5, 2.5, 3.5])),
        ("replace", lambda values: values.__setitem__(5000, 1.5)),
        ("insert", lambda values: values.insert(5000, 1.5)),
        ("insert first", lambda values: values.insert(0, 1.5)),
        ("delete", lambda values: values.__delitem__(5000)),
        ("pop", lambda values: values.pop()),
        ("pop first", lambda values: values.pop(0)),
        ("cut", lambda values: values.__delitem__(slice(100, None))),
        ("clear", lambda values: values.clear()),
    ],
)
@pytest.mark.parametrize("make", [float, lambda n: f"text {n}", lambda n: [n], lambda n: n])
def test_size_of_a_change_in_a_long_list(name: str, edit: Any, make: Any) -> None:
    values = [make(n) for n in range(10_000)]
    sizes = Sizes(values, list(values))  # nothing is dropped for good
    edit(values)
    assert sizes.delta() < 100
    assert sizes.chain.replica.roots[0] == values


def test_size_of_several_changes_in_a_long_list() -> None:
    values = [float(n) for n in range(10_000)]
    sizes = Sizes(values)
    for index in (10, 3000, 3001, 9990):
        values[index] = -1.0
    values.append(1.5)
    assert sizes.delta() < 400


def test_size_of_a_change_in_a_heap() -> None:
    prng = random.Random(1)
    heap = [(prng.random(), n, Plain(n=n)) for n in range(1000)]
    heapq.heapify(heap)
    sizes = Sizes(heap)
    for number in range(20):
        heapq.heappush(heap, (prng.random(), 1000 + number, Plain(n=number)))
        assert sizes.delta() < 600
        heapq.heappop(heap)
        assert sizes.delta() < 600
    sizes.chain.check()


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("replace", lambda table: table.__setitem__("key 500", -1)),
        ("insert", lambda table: table.__setitem__("new", 1)),
        ("delete", lambda table: table.__delitem__("key 500")),
        ("delete first", lambda table: table.__delitem__("key 0")),
        ("reinsert", lambda table: table.__setitem__("key 500", table.pop("key 500"))),
        ("clear", lambda table: table.clear()),
    ],
)
@pytest.mark.parametrize("cls", [dict, Plain])
def test_size_of_a_change_in_a_large_dict(name: str, edit: Any, cls: Any) -> None:
    table = {f"key {n}": n for n in range(1000)}
    keys = list(table)
    root: Any = table if cls is dict else Plain(**table)
    sizes = Sizes(root, keys)
    edit(table if cls is dict else vars(root))
    assert sizes.delta() < 200
    sizes.chain.check()


def test_size_of_a_rebound_list(record_property: Any) -> None:
    """A market makes its histories longer by binding a new list now and then."""
    agent = Plain(prices=[float(n) for n in range(10_000)])
    sizes = Sizes(agent)
    agent.prices = [*agent.prices, 1.5]
    size = sizes.delta()
    record_property("bytes", size)
    assert size <= sizes.keyframe + 1000


def test_size_of_5000_generators_drawn_once() -> None:
    prngs = [random.Random(n) for n in range(5000)]
    for prng in prngs:
        prng.random()
    sizes = Sizes(prngs)
    for prng in prngs:
        prng.random()
    assert sizes.delta() < 5 * 5000
    twins = sizes.chain.replica.roots[0]
    assert all(a.getstate() == b.getstate() for a, b in zip(prngs, twins, strict=True))


def test_size_of_generators_drawn_different_numbers_of_times() -> None:
    prngs = [random.Random(n) for n in range(300)]
    for prng in prngs:
        prng.random()
    sizes = Sizes(prngs)
    for number, prng in enumerate(prngs):
        for _ in range(number % 50):
            prng.random()
    assert sizes.delta() < 8 * 300
    sizes.chain.check()


@pytest.mark.parametrize("n_twists", [1, 2])
def test_size_of_generators_that_twisted(n_twists: int) -> None:
    prngs = [random.Random(n) for n in range(100)]
    for prng in prngs:
        prng.random()
    sizes = Sizes(prngs)
    for prng in prngs:
        for _ in range(624 * n_twists):
            prng.getrandbits(32)
    assert sizes.delta() < 12 * 100
    sizes.chain.check()


def test_size_of_a_pending_gauss() -> None:
    prngs = [random.Random(n) for n in range(300)]
    for prng in prngs:
        prng.random()
    sizes = Sizes(prngs)
    for prng in prngs:
        prng.gauss(0.0, 1.0)
    assert sizes.delta() < 25 * 300
    for prng in prngs:
        prng.gauss(0.0, 1.0)
    assert sizes.delta() < 25 * 300


def test_size_of_a_new_seed() -> None:
    prngs = [random.Random(n) for n in range(10)]
    sizes = Sizes(prngs)
    prngs[0].seed(99)
    assert sizes.delta() < 2600


@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 50_000,
        lambda: bytes(50_000),
        lambda: tuple(float(n) for n in range(5_000)),
        lambda: frozenset(f"text {n}" for n in range(2_000)),
        lambda: np.arange(10_000.0),
        lambda: bytearray(50_000),
        lambda: [f"text {n}" for n in range(5_000)],
        lambda: random.Random(1),
    ],
)
def test_an_unchanged_object_costs_nothing(make: Any) -> None:
    large = make()
    holder, agent = [large, 1], Plain(large=large, other=1)
    sizes = Sizes(holder, agent, {"large": large, "other": 1}, (large, [1]))
    assert sizes.empty < 1000
    holder[1] = 2
    assert sizes.delta() < 100
    holder.reverse()
    assert sizes.delta() < 100
    agent.large, agent.other = 1, large
    assert sizes.delta() < 100
    sizes.chain.roots[2].clear()
    assert sizes.delta() < 100
    sizes.chain.roots[3][1].append(Plain(deeper=[large]))
    assert sizes.delta() < 200
    sizes.chain.check()


def test_size_of_a_draw_of_numpy() -> None:
    generator = np.random.default_rng(1)
    sizes = Sizes(generator)
    generator.random()
    assert sizes.delta() < 400


def test_size_of_changed_numbers_in_objects() -> None:
    agents = [Plain(cash=float(n), volumes={1: n}) for n in range(1000)]
    sizes = Sizes(agents)
    for agent in agents:
        agent.cash += 1.5
        agent.volumes[1] += 1000
    assert sizes.delta() < 60 * 1000


def test_sizes_do_not_grow() -> None:
    agents = [Plain(values=[]) for _ in range(20)]
    sizes = Sizes(agents)
    measured = []
    for step in range(300):
        for agent in agents:
            agent.values.append(float(step))
        agents[step % 20] = Plain(values=[])
        measured.append(len(sizes.chain.send()))
        sizes.chain.catch_up(sizes.chain.replica)
    sizes.chain.check()
    assert max(measured[-50:]) < 2 * max(measured[:50]) + 200

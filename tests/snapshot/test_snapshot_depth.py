"""Depth of a graph is bounded by memory, not by the stack."""

from __future__ import annotations

import collections
import subprocess
import sys
from typing import Any

import pytest
from checks import copy_of
from graph_compare import assert_same
from sample_types import Bag, MyList, Plain, Slotted, Stateful


def chain(make: Any, length: int) -> Any:
    graph: Any = "the end"
    for _ in range(length):
        graph = make(graph)
    return graph


def bag_args(inner: Any) -> Any:
    return Bag(2, inner)


def bag_state(inner: Any) -> Any:
    made = Bag(3)
    made.state = inner
    return made


def bag_setter(inner: Any) -> Any:
    made = Bag(6)
    made.state = [inner]
    return made


def bag_items(inner: Any) -> Any:
    made = Bag(4)
    made.items = [inner]
    return made


def bag_pairs(inner: Any) -> Any:
    made = Bag(5)
    made.pairs = [("key", inner)]
    return made


LINKS: dict[str, Any] = {
    "agents": lambda inner: Plain(before=1, next=inner, after=2),
    "lists": lambda inner: [0, inner],
    "tuples": lambda inner: (inner, 0),
    "long tuples": lambda inner: (0, 1, 2, 3, inner),
    "dicts": lambda inner: {"key": inner},
    "slots": lambda inner: Slotted(left=inner),
    "list subclasses": lambda inner: MyList([inner]),
    "deques": lambda inner: collections.deque([inner]),
    "ordered dicts": lambda inner: collections.OrderedDict(key=inner),
    "states": Stateful,
    "reducer arguments": bag_args,
    "reducer states": bag_state,
    "state setters": bag_setter,
    "list items": bag_items,
    "dict items": bag_pairs,
    "bound methods": lambda inner: Plain(inner=inner).method,
    "exceptions": ValueError,
    "sets of agents": lambda inner: {Plain(inner=inner)},
    "agents as keys": lambda inner: {Plain(inner=inner): 1},
    "mixed": lambda inner: Plain(a=[{"k": (collections.deque([inner]),)}]),
}


@pytest.mark.parametrize("kind", LINKS)
def test_chain_of_5000(kind: str) -> None:
    graph = chain(LINKS[kind], 5_000)
    copied = copy_of(graph)
    if kind in ("sets of agents", "agents as keys"):
        # The comparison would look for counterparts of all elements at once.
        depth = 0
        while copied != "the end":
            (agent,) = copied
            copied = agent.inner
            depth += 1
        assert depth == 5_000
    else:
        assert_same(graph, copied)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("agents", lambda obj: obj.next),
        ("lists", lambda obj: obj[1]),
        ("tuples", lambda obj: obj[0]),
        ("dicts", lambda obj: obj["key"]),
        ("slots", lambda obj: obj.left),
        ("states", lambda obj: obj.content[0]),
        ("reducer arguments", lambda obj: obj.args[0]),
        ("reducer states", lambda obj: obj.state),
    ],
)
def test_chain_of_100000(kind: str, step: Any) -> None:
    graph = chain(LINKS[kind], 100_000)
    copied = copy_of(graph)
    types = set()
    depth = 0
    while copied != "the end":
        types.add(type(copied))
        copied = step(copied)
        depth += 1
    assert depth == 100_000
    assert types == {type(graph)}


def test_ring_of_agents() -> None:
    agents = [Plain(number=number) for number in range(5_000)]
    for agent, after in zip(agents, [*agents[1:], agents[0]], strict=True):
        agent.next, after.previous = after, agent
    assert_same(agents[0], copy_of(agents[0]))
    assert_same(agents, copy_of(agents))


def test_many_references_to_one_object() -> None:
    shared = Plain(a=1)
    graph = [shared] * 100_000 + [(shared,)] * 10
    copied = copy_of(graph)
    assert len(set(map(id, copied[:100_000]))) == 1
    assert_same(graph, copied)


ENDLESS = """
import resource
from pams_parallel import snapshot

with open("/proc/self/statm") as file:
    in_use = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + (400 << 20),) * 2)

class Endless:
    def __init__(self, n=0):
        self.n = n
    def __reduce__(self):
        return Endless, (MAKE,)

try:
    snapshot.dumps([Endless()])
except (RecursionError, MemoryError, RuntimeError) as error:
    print("failed with", type(error).__name__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory that works")
@pytest.mark.parametrize("make", ["self", "Endless(self.n + 1)"])
def test_a_reducer_that_never_ends_is_an_error(make: str) -> None:
    """Pickle says RecursionError; without recursion it has to end as an exception, too."""
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS.replace("MAKE", make)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.startswith("failed with"), done.stderr[-2000:]
    assert done.returncode == 0

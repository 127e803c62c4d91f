"""Real frames: of sample graphs with every kind of object, and of a simulation of pams."""

from __future__ import annotations

import array
import collections
import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from pams.runners import SequentialRunner
from pams_parallel import examples
from pams_parallel.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Node:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Other(Node):
    pass


class Slots:
    __slots__ = ("left", "right")


class Keyed:
    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.key == other.key


class Stated(Node):
    def __getstate__(self) -> Any:
        return dict(self.__dict__)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class MyList(list):  # type: ignore[type-arg]
    pass


class Finalized(Node):
    def __del__(self) -> None:
        self.__dict__.clear()


def identity(obj: Any = None) -> Any:
    return obj


class Chain:
    """Frames of one source, a keyframe first."""

    def __init__(self, frames: Sequence[bytes], source: Source) -> None:
        self.frames = list(frames)
        self.source = source


def small_chain() -> Chain:
    """What is compared part by part, and little else: sizes must not be believed."""
    node: Any = Node(a=1, prng=random.Random(1), history=[n / 3 for n in range(40)])
    node.itself = node
    graph: Any = [
        node,
        Other(a=[1], prng=random.Random(2)),
        {"k": 1.5, 2: node, "text": "x" * 20},
        {1, "a", (2, "b")},
        [1, [2], ("t", 3.5)],
        bytearray(b"bytes"),
        random.Random(3),
        "é\ud800",
        10**30,
    ]
    source = Source()
    frames = [source.frame((graph, node))]
    for step in range(4):
        node.prng.random()
        graph[1].prng.gauss(0.0, 1.0)
        graph[6].seed(step)
        node.history = [*node.history, step / 7, 0.25]
        node.a = {"new": [step, "text"]}
        graph[1].__dict__[f"b{step}"] = 0.25
        graph[2]["k"] = graph[2].pop("text", step)
        graph[3].add(step + 10)
        graph[4].insert(step, [step])
        graph[5] += b"more"
        graph.append(Node(a=graph[-1]))
        if step:
            del graph[-3]
        frames.append(source.frame((graph, node)))
        assert not source.is_keyframe
    return Chain(frames, source)


def odd_objects() -> Any:
    key = Keyed("k")
    node = Node(a=key)
    slots = Slots()
    slots.left = [node]
    key.home = {key: node}
    return [
        node,
        slots,
        key.home,
        {Keyed(1), Keyed("a")},
        collections.deque([1, [2]], 5),
        collections.OrderedDict(a=1, b=[2]),
        collections.defaultdict(list, a=1),
        MyList([1, [2]]),
        np.arange(40.0),
        np.arange(6, dtype="i2").reshape(2, 3),
        np.random.default_rng(1),
        np.random.RandomState(2),
        array.array("d", [1.0, 2.5]),
        frozenset([(3, "a")]),
        Finalized(a=node),
        Node,
        identity,
        1 + 2j,
    ]


def odd_chain() -> Chain:
    """Slots, subclasses, arrays, generators of NumPy, keys with a hash of their own."""
    graph = odd_objects()
    source = Source()
    frames = [source.frame((graph,))]
    for step in range(3):
        graph[0].b = step
        graph[1].left.append(step)
        graph[1].right = graph[4]
        graph[2][Keyed(step)] = [step]
        graph[3].add(Keyed(step + 100))
        graph[4].append([step])
        graph[5].move_to_end("a")
        graph[6]["b"].append(step)
        graph[7].append(step)
        graph[8][step] = 7.5
        graph[9][1, 2] += 1
        graph[10].random()
        graph[11].random()
        graph.append(Finalized(n=step))
        frames.append(source.frame((graph,)))
        assert not source.is_keyframe
    return Chain(frames, source)


def stated_chain() -> Chain:
    """With hooks for pickle, so that every frame is a keyframe."""
    graph = [Stated(a=[1], b=2.5), {"k": Stated(c=None)}]
    source = Source()
    frames = [source.frame((graph,))]
    graph[0].a.append("more")  # type: ignore[index]
    frames.append(source.frame((graph,)))
    return Chain(frames, source)


class _Framing(SequentialRunner):
    frames: list[bytes]
    source: Source

    def _collect_orders_from_normal_agents(self, session: Any) -> Any:
        if len(self.frames) < 8:
            roots = (self.simulator, self.simulator.markets)
            self.frames.append(self.source.frame(roots))
        return super()._collect_orders_from_normal_agents(session)


def pams_chain() -> Chain:
    """A simulation of pams."""
    example = examples.load("learning")
    config = example.config
    for key, value in config.items():
        if isinstance(value, dict) and "numAgents" in value:
            config[key] = {**value, "numAgents": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = _Framing(settings=config, prng=random.Random(4))
        runner.frames, runner.source = [], Source()
        for cls in example.classes:
            runner.class_register(cls)
        runner.main()
    return Chain(runner.frames, runner.source)


CHAINS: dict[str, Callable[[], Chain]] = {
    "small": small_chain,
    "odd": odd_chain,
    "stated": stated_chain,
    "pams": pams_chain,
}

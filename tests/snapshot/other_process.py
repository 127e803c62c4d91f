"""What the tests run in other processes."""

from __future__ import annotations

import collections
import datetime
import functools
import pathlib
import pickle
import random
import sys
from typing import Any

import numpy as np
from graph_compare import assert_same
from pams_parallel import snapshot
from sample_types import (
    Bag,
    DropsModel,
    Frozen,
    FrozenSlotted,
    HashedByKey,
    Level,
    MyDict,
    MyList,
    MyStr,
    NewArgsEx,
    OfRegisteredMeta,
    Outer,
    Pair,
    Plain,
    Registered,
    Side,
    Slotted,
    StateOnly,
    function,
)


def make_graph() -> Any:
    """The same graph in every process: a bit of everything."""
    agents = [Plain(number=number, name=f"agent {number}") for number in range(5)]
    for agent, after in zip(agents, [*agents[1:], agents[0]], strict=True):
        agent.after = after
        agent.prng = random.Random(agent.number)
        agent.prng.gauss(0, 1)
    names = {f"name {number}" for number in range(40)}
    keys = {HashedByKey(f"key {number}") for number in range(8)}
    for key in keys:
        key.home = keys
    bag = Bag(6, 1)
    bag.state, bag.items, bag.pairs = {"k": agents}, [agents[0]], [(Side.BUY, Level.LOW)]
    array = np.arange(12.0).reshape(3, 4)
    return {
        "agents": agents,
        "names": names,
        "frozen names": frozenset(names),
        "by name": {name: len(name) for name in sorted(names)},
        "keys": keys,
        "bag": bag,
        "instances": [
            Slotted(left=agents[1]),
            Frozen("a", {"b": 1}),
            FrozenSlotted("a", [1]),
            Pair(1, [2]),
            NewArgsEx(1, second=2),
            Registered([1]),
            StateOnly(a=1),
            DropsModel("a"),
            OfRegisteredMeta(a=1),
            Outer.Inner(a=1),
            MyList([1]),
            MyDict(a=1),
            MyStr("text"),
        ],
        "library": [
            collections.OrderedDict(a=1),
            collections.defaultdict(list, a=[1]),
            collections.deque([1, 2], 5),
            collections.Counter("abracadabra"),
            datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
            functools.partial(function, 1, key=agents[0]),
            agents[0].method,
        ],
        "arrays": [array, array.T, array[::2], np.array([agents[0], "text"], object)],
        "generators": [np.random.default_rng(5), np.random.RandomState(5)],
        "leaves": [True, 1, 1.0, -0.0, None, "\ud800", 10**400, 1j, b"bytes", ...],
        "globals": [Plain, function, len, Side.SELL],
    }


def write(path: str) -> None:
    pathlib.Path(path).write_bytes(snapshot.dumps(make_graph()))


def round_trip(data: bytes) -> bytes:
    """Load, compare with what should be there, and send back."""
    graph = snapshot.loads(data)
    assert_same(make_graph(), graph, layout=False)
    return snapshot.dumps(graph)


def check_files(data: str, pickled: str) -> None:
    """Compare a snapshot and a pickle that another process has written."""
    ours = snapshot.loads(pathlib.Path(data).read_bytes())
    try:
        expected = pickle.loads(pathlib.Path(pickled).read_bytes())
    except AttributeError:
        expected = make_graph()  # keys within their own set, which pickle cannot load
    assert_same(expected, ours, layout=False)
    print("the same")


def check_interned(data: str) -> None:
    graph = snapshot.loads(pathlib.Path(data).read_bytes())
    for obj in (*graph["agents"], graph["bag"], graph["instances"][6]):
        names = list(vars(obj))
        assert names
        # A string that is put together is a new object, unless there is an interned one.
        assert all(name is sys.intern("".join(list(name))) for name in names), names
    print("interned")

"""Which objects of a graph go through reducers, where, how many, and how they are tracked."""

from __future__ import annotations

import collections
import copyreg
import datetime
import functools
import math
import pickle
import random
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from checks import having
from delta_kinds import KINDS, LEAVES, NATIVE_KINDS
from pams_parallel import snapshot
from pams_parallel.snapshot import SlowPath
from sample_types import (
    Bag,
    MyDeque,
    MyList,
    NewArgsEx,
    Outer,
    Plain,
    ReducedToGlobal,
    Side,
    Slotted,
    Stateful,
    function,
)

# Bytes of a snapshot apart from those of its root.
FRAMING = len(snapshot.dumps(None)) - 1


def class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def entry_of(cls: type, obj: Any, **options: Any) -> SlowPath:
    """The only entry of a class."""
    found = snapshot.slow_path(obj, **options)
    (entry,) = (entry for entry in found if entry.class_name == class_name(cls))
    return entry


class Repeating:
    """A key whose text is made by user code."""

    def __repr__(self) -> str:
        return "Repeating()"


class Sleeping:
    """Its reducer takes time."""

    def __init__(self, content: Any = None) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        time.sleep(0.01)
        return type(self), (self.content,)


class SleepingLonger(Sleeping):
    def __reduce__(self) -> tuple[Any, ...]:
        time.sleep(0.02)
        return super().__reduce__()


# ------------------------------------------------------------------------------ what is listed


def test_native_objects_are_not_listed() -> None:
    graph: list[Any] = [
        Plain(a=1, b=[2, {"key": (3, "text")}], c={4, b"bytes"}, d=frozenset([5.0])),
        Outer.Inner(prng=random.Random(1), data=bytearray(b"x")),
        Plain,
        function,
        10**30,
        math.inf,
        None,
    ]
    graph.append(graph)
    assert snapshot.slow_path(graph) == []


def test_one_entry_per_class() -> None:
    agents = [
        Plain(rule=None),
        Plain(rule=collections.deque([1])),
        Plain(rule=MyDeque([2])),
        Plain(rule=collections.deque([3])),
    ]
    found = snapshot.slow_path(Plain(agents=agents), name="simulator")
    assert {(entry.class_name, entry.path, entry.n_objects) for entry in found} == {
        ("collections.deque", "simulator.agents[1].rule", 2),
        ("sample_types.MyDeque", "simulator.agents[2].rule", 1),
    }
    for entry in found:
        assert isinstance(entry, SlowPath)
        assert entry.n_bytes > 0
        assert entry.seconds > 0


def test_class_names_are_qualified() -> None:
    found = snapshot.slow_path([slice(1), datetime.date(2024, 2, 29), Stateful()])
    names = {entry.class_name for entry in found}
    assert names == {"builtins.slice", "datetime.date", "sample_types.Stateful"}


def test_aliases_count_once() -> None:
    shared = Stateful(1)
    entry = entry_of(Stateful, [Plain(a=shared), Plain(a=shared), Stateful(2), shared])
    assert entry.path == "obj[0].a"
    assert entry.n_objects == 2


def test_externals_are_not_listed() -> None:
    external, other = collections.deque([Stateful(1)]), collections.deque()
    (entry,) = snapshot.slow_path([external, other], externals=[external])
    assert (entry.class_name, entry.path, entry.n_objects) == ("collections.deque", "obj[1]", 1)


@pytest.mark.parametrize("where", ["copyreg", "reducers"])
def test_registered_reducers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {}
    reducer = lambda obj: (Plain, (), {"rule": obj.rule})  # noqa: E731
    if where == "copyreg":
        monkeypatch.setitem(copyreg.dispatch_table, Plain, reducer)
    else:
        options = {"reducers": {Plain: reducer}}
    (entry,) = snapshot.slow_path([1, Plain(rule=2)], **options)
    assert (entry.class_name, entry.path, entry.n_objects) == ("sample_types.Plain", "obj[1]", 1)


# --------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda probe: probe, "obj"),
        (lambda probe: [0.5, 1.5, probe], "obj[2]"),
        (lambda probe: (1, (2, probe)), "obj[1][1]"),
        (lambda probe: {"a": 1, "key": probe}, "obj['key']"),
        (lambda probe: {Repeating(): probe}, "obj[Repeating()]"),
        (lambda probe: {probe: 1}, "obj.<key>"),
        (lambda probe: {probe}, "obj.<element>"),
        (lambda probe: Plain(a=1, b=Plain(c=probe)), "obj.b.c"),
        (lambda probe: Slotted(left=1, right=probe), "obj.right"),
        (lambda probe: MyList([1, probe]), "obj[1]"),
        (lambda probe: having(MyList([1]), note=probe), "obj.note"),
        (lambda probe: collections.deque([1, probe]), "obj[1]"),
        (lambda probe: collections.OrderedDict(a=1, b=probe), "obj['b']"),
        (lambda probe: Bag(2, 1, probe), "obj.<arguments>[2]"),
        (lambda probe: functools.partial(function, probe), "obj[1][0]"),
    ],
)
def test_path(make: Any, path: str) -> None:
    entry = entry_of(Stateful, make(Stateful()))
    assert entry.path == path
    assert entry.n_objects == 1
    with pytest.raises(TypeError) as caught:
        snapshot.slow_path(make(threading.Lock()))
    assert str(caught.value).endswith(f"(found at {path})")


def test_path_of_an_object_that_is_a_state() -> None:
    bag = Bag(3)
    bag.state = Stateful()
    assert entry_of(Stateful, [bag]).path == "obj[0]"


# ------------------------------------------------------------------------------------ tracking


@pytest.mark.parametrize(
    ("obj", "tracking"),
    [
        (collections.deque([1]), "native"),
        (collections.OrderedDict(a=1), "native"),
        (collections.defaultdict(list), "native"),
        (MyList([1]), "native"),
        (Slotted(left=1), "native"),
        (np.arange(3), "native"),
        (np.random.default_rng(1), "native"),
        (np.random.RandomState(1), "native"),
        (Side.BUY, "native"),
        (datetime.date(2024, 2, 29), "native"),
        (np.float64(1.0), "native"),
        (np.array([[1]], dtype=object), "reducer"),
        (functools.partial(function, 1), "reducer"),
        (Stateful(1), "none"),
        (Bag(2), "none"),
        (NewArgsEx(1, second=2), "none"),
        (ReducedToGlobal.__new__(ReducedToGlobal), "none"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_tracking(obj: Any, tracking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if type(obj) is ReducedToGlobal:
        monkeypatch.setattr(sys.modules[ReducedToGlobal.__module__], "THE_GLOBAL", obj)
    entry = entry_of(type(obj), [obj])
    assert (entry.tracking, entry.path, entry.n_objects) == (tracking, "obj[0]", 1)


@pytest.mark.parametrize("kind", [*KINDS, *LEAVES])
def test_tracking_is_what_a_source_does(kind: str) -> None:
    obj = {**KINDS, **LEAVES}[kind]()
    trackings = {entry.tracking for entry in snapshot.slow_path([obj])}
    source = snapshot.Source()
    source.frame(([obj],))
    assert source.is_trackable == ("none" not in trackings)
    source.close()
    if kind in NATIVE_KINDS or kind in LEAVES:
        assert trackings <= {"native"}


def test_a_class_whose_objects_are_tracked_differently() -> None:
    found = snapshot.slow_path([np.arange(3), np.array([[1]], dtype=object), np.arange(4)])
    arrays = [entry for entry in found if entry.class_name == class_name(np.ndarray)]
    assert {(entry.tracking, entry.path, entry.n_objects) for entry in arrays} == {
        ("native", "obj[0]", 2),
        ("reducer", "obj[1]", 1),
    }


# ----------------------------------------------------------------------------- bytes and seconds


def test_bytes_of_a_root_are_those_of_its_snapshot() -> None:
    """The profile changes nothing in what is encoded."""
    listed = set()
    for kind, make in {**KINDS, **LEAVES}.items():
        obj = make()
        length = len(snapshot.dumps(obj)) - FRAMING
        for entry in snapshot.slow_path(obj):
            if entry.path == "obj" and entry.class_name == class_name(type(obj)):
                listed.add(kind)
                assert (kind, entry.n_bytes, entry.n_objects) == (kind, length, 1)
            else:
                assert entry.n_bytes < length, kind
    assert {"deque", "slots", "array", "partial", "date"} <= listed
    assert not {"list", "instance", "generator of random", "str", "class"} & listed


def test_contents_count_where_they_are_met_first() -> None:
    payload = bytes(10_000)
    assert entry_of(Stateful, [payload, Stateful(payload)]).n_bytes < 1_000
    assert 10_000 < entry_of(Stateful, [Stateful(payload), payload]).n_bytes < 11_000


def test_contents_count_for_every_class_around_them() -> None:
    inner = collections.deque([bytes(5_000)])
    graph = [Stateful(inner, bytes(2_000)), collections.deque([bytes(1_000)])]
    outside, queues = entry_of(Stateful, graph), entry_of(collections.deque, graph)
    assert queues.path == "obj[0][0]"
    assert queues.n_objects == 2
    assert 7_000 < outside.n_bytes < 7_500
    assert 6_000 < queues.n_bytes < 6_500


def test_objects_within_others_of_their_class_count_once() -> None:
    graph: Any = bytes(1_000)
    for _ in range(100):
        graph = Stateful(graph)
    (entry,) = snapshot.slow_path(graph)
    assert (entry.path, entry.n_objects) == ("obj", 100)
    assert entry.n_bytes == len(snapshot.dumps(graph)) - FRAMING


def test_object_within_its_own_arguments_counts_once() -> None:
    arguments: list[Any] = []
    bag = Bag(2, arguments)
    arguments.append(bag)
    (entry,) = snapshot.slow_path(bag)
    assert (entry.path, entry.n_objects) == ("obj", 1)
    assert entry.n_bytes == len(snapshot.dumps(bag)) - FRAMING


def test_seconds_include_user_code_and_contents() -> None:
    graph = [Stateful(Sleeping(SleepingLonger())), Sleeping()]
    found = snapshot.slow_path(graph)
    seconds = {entry.class_name.rpartition(".")[2]: entry.seconds for entry in found}
    assert seconds["SleepingLonger"] >= 0.02
    assert seconds["Sleeping"] >= 0.04
    assert seconds["Stateful"] >= 0.03
    # The outer ones contain the inner ones, so noise cannot change this order.
    assert seconds["Sleeping"] > seconds["SleepingLonger"]
    assert seconds["Stateful"] > seconds["SleepingLonger"]


def test_most_seconds_come_first() -> None:
    graph = [collections.deque([Stateful(slice(index))]) for index in range(50)]
    found = snapshot.slow_path([datetime.date(2024, 2, 29), *graph])
    seconds = [entry.seconds for entry in found]
    assert seconds == sorted(seconds, reverse=True)
    assert [entry.class_name for entry in found if entry.n_objects == 50] == [
        "collections.deque",
        "sample_types.Stateful",
        "builtins.slice",
    ]


# -------------------------------------------------------------------------- errors and the graph


def raise_error(obj: Any) -> Any:
    raise LookupError("from the reducer")


def test_errors_are_those_of_a_copy() -> None:
    graph = Plain(agents=[Stateful(1), Plain(rule=collections.deque([threading.Lock()]))])
    with pytest.raises(TypeError) as expected:
        snapshot.dumps(graph)
    with pytest.raises(TypeError) as actual:
        snapshot.slow_path(graph)
    assert str(actual.value) == str(expected.value)
    with pytest.raises(TypeError, match=r"found at simulator\.agents\[1\]\.rule\[0\]"):
        snapshot.slow_path(graph, name="simulator")


def test_error_of_a_reducer() -> None:
    with pytest.raises(LookupError, match="from the reducer") as caught:
        snapshot.slow_path([1, Plain()], reducers={Plain: raise_error})
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["(found at obj[1])"]
    with pytest.raises(TypeError):
        snapshot.slow_path([], reducers=3)  # type: ignore[arg-type]


def test_graph_is_not_changed() -> None:
    graph = {kind: make() for kind, make in KINDS.items()}
    before = pickle.dumps(graph, protocol=5)
    snapshot.slow_path(graph)
    assert pickle.dumps(graph, protocol=5) == before


def test_nothing_of_the_graph_is_kept() -> None:
    graph = Plain(rule=Stateful(Plain(a=1)))
    references = [weakref.ref(graph), weakref.ref(graph.rule), weakref.ref(graph.rule.content[0])]
    entries = snapshot.slow_path(graph)
    del graph
    assert [reference() for reference in references] == [None] * 3
    assert entries[0].path == "obj.rule"


def test_deep_graph() -> None:
    graph: Any = None
    for _ in range(50_000):
        graph = collections.deque([graph])
    (entry,) = snapshot.slow_path(graph)
    assert entry.n_objects == 50_000

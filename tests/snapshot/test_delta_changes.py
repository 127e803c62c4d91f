"""Every kind of change to the original, one by one."""

from __future__ import annotations

import collections
import gc
import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from delta_edits import SeededChooser, edits_of, keeps_native
from delta_kinds import AROUND, KINDS, LEAVES, NATIVE_KINDS, UNTRACKED_KINDS
from delta_support import (
    Chain,
)
from pams_parallel.snapshot import Replica
from sample_types import (
    MyStr,
    Pair,
    Plain,
    Side,
    Slotted,
)

if TYPE_CHECKING:
    pass


# --- every kind of change ---------------------------------------------------------------------

EDITS = [(kind, name) for kind, make in KINDS.items() for name in edits_of(make())]


@pytest.mark.parametrize(("kind", "edit"), EDITS)
def test_edit(kind: str, edit: str) -> None:
    obj, other = KINDS[kind](), Plain(a=[1])
    chain = Chain(Plain(obj=obj, again=[obj]), other)
    chain.step()
    twin = chain.twin(obj)
    choose = SeededChooser([other, other.a])
    for _ in range(6):
        edits_of(obj)[edit](obj, choose)
        chain.step()
        if kind in NATIVE_KINDS and keeps_native(obj, edit) and edit != "class: class":
            assert not chain.source.is_keyframe
            assert chain.twin(obj) is twin
            assert chain.replica.roots[0].again[0] is twin


@pytest.mark.parametrize("kind", KINDS)
def test_all_edits_in_a_row(kind: str) -> None:
    obj, other = KINDS[kind](), Plain(a=[1])
    chain = Chain(Plain(obj=obj, again=[obj]), other)
    late = Replica()
    choose = SeededChooser([other, other.a], seed=1)
    for step in range(3):
        for edit in edits_of(obj).values():
            edit(obj, choose)
            if step:
                chain.step()
        chain.step()
        chain.catch_up(late)
        chain.check(late)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unchanged_object_is_not_sent_again(kind: str) -> None:
    obj = KINDS[kind]()
    chain = Chain([obj], [1])
    chain.step()
    chain.step()
    twin = chain.twin(obj)
    for _ in range(3):
        chain.roots[1].append(1)
        chain.step()
        if kind not in UNTRACKED_KINDS:
            assert not chain.source.is_keyframe
            assert chain.twin(obj) is twin


@pytest.mark.parametrize("kind", [*KINDS, *LEAVES])
def test_an_object_comes_goes_and_comes_back(kind: str) -> None:
    obj = (KINDS | LEAVES)[kind]()
    holder, table, agent = [], {}, Plain()
    chain = Chain(holder, table, agent)
    chain.step()
    for _ in range(2):
        holder.append(obj)
        chain.step()
        table["obj"] = obj
        agent.obj = obj
        chain.step()
        holder.clear()
        chain.step()
        del table["obj"]
        chain.step()
        holder.append(obj)
        del agent.obj
        chain.step()
        holder.clear()
        chain.step()


@pytest.mark.parametrize("kind", [*KINDS, *LEAVES])
def test_a_new_object_takes_the_place_of_an_equal_one(kind: str) -> None:
    make = (KINDS | LEAVES)[kind]
    old = make()
    chain = Chain([old], Plain(obj=old), (old, [old]))
    chain.step()
    chain.roots[0][0] = make()
    chain.step()
    chain.roots[1].obj = chain.roots[0][0]
    chain.step()
    if kind in NATIVE_KINDS:
        assert chain.replica.roots[0][0] is not chain.replica.roots[2][0]


@pytest.mark.parametrize(
    "part", [list, dict, Plain, set, lambda: [1, "text"], lambda: "".join("ab")]
)
@pytest.mark.parametrize("kind", AROUND)
def test_an_equal_part_takes_the_place_of_another(kind: str, part: Any) -> None:
    make, exchange = AROUND[kind]
    parts = [part() for _ in range(3)]
    obj = make(parts[0])
    chain = Chain(obj, parts)
    chain.step()
    exchange(obj, parts[1])
    chain.step()
    parts.append(part())
    exchange(obj, parts[3])
    chain.step()
    exchange(obj, part())
    chain.step()
    for mutable in parts:
        if isinstance(mutable, list):
            mutable.append("new")
            chain.step()


@pytest.mark.parametrize("before", LEAVES)
def test_leaves_replace_each_other(before: str) -> None:
    holder, agent, table = [LEAVES[before]()], Plain(a=LEAVES[before]()), {"k": LEAVES[before]()}
    slots, queue = Slotted(left=LEAVES[before]()), collections.deque([LEAVES[before]()])
    chain = Chain(holder, agent, table, slots, queue)
    chain.step()
    for make in LEAVES.values():
        holder[0], agent.a, table["k"] = make(), make(), make()
        slots.left, queue[0] = make(), make()
        chain.delta()
        holder[0] = agent.a = table["k"] = slots.left = queue[0] = LEAVES[before]()
        chain.delta()


EQUAL_VALUES = [
    [1, True, 1.0, np.float64(1), np.int64(1), np.bool_(True), complex(1), MyStr("1")],
    [0, False, 0.0, -0.0, complex(0, -0.0), np.float32(0)],
    ["ab", MyStr("ab"), np.str_("ab"), b"ab"],
    [(1, 2), (True, 2), (1, 2.0), Pair(1, 2), [1, 2]],
    [struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0000 + n))[0] for n in range(3)],
]


@pytest.mark.parametrize("values", EQUAL_VALUES)
def test_equal_values_of_other_types(values: list[Any]) -> None:
    holder, agent, table = [None], Plain(a=None), {"k": None}
    chain = Chain(holder, agent, table, collections.deque([None]))
    chain.step()
    for value in [*values, *reversed(values)]:
        holder[0] = agent.a = table["k"] = chain.roots[3][0] = value
        chain.step()


@pytest.mark.parametrize("values", EQUAL_VALUES[:4])
def test_equal_keys_of_other_types(values: list[Any]) -> None:
    table: dict[Any, Any] = {}
    elements: set[Any] = set()
    chain = Chain(table, elements)
    chain.step()
    hashable = [value for value in values if not isinstance(value, list)]
    for value in [*hashable, *reversed(hashable)]:
        table.clear()
        table[value] = "value"
        elements.clear()
        elements.add(value)
        chain.step()
        table[hashable[0]] = "another value under the old key"
        chain.step()


# --- identities -------------------------------------------------------------------------------


def test_a_new_object_where_an_old_one_was() -> None:
    """It may get the old one's address, unless somebody holds on to that."""
    holder: list[Any] = [None]
    chain = Chain(holder, {}, Plain())
    chain.step()
    makers = [list, dict, Plain, lambda: Plain(a=1), lambda: [[]], lambda: bytearray(b"a")]
    twins = []
    for step in range(60):
        holder[0] = None
        chain.roots[1].clear()
        holder[0] = chain.roots[1]["key"] = makers[step % len(makers)]()
        chain.delta()
        twins.append(chain.replica.roots[0][0])
        assert all(twin is not twins[-1] for twin in twins[:-1])


def test_addresses_that_are_free_for_a_frame() -> None:
    agents: list[Any] = [Plain(number=n) for n in range(50)]
    chain = Chain(agents)
    chain.step()
    for step in range(20):
        del agents[step % 7 :: 3]
        chain.step()
        gc.collect()
        agents += [Plain(number=n, step=step, values=[n]) for n in range(50 - len(agents))]
        chain.delta()


def test_an_object_moves() -> None:
    moving = Plain(a=[1])
    places = [[moving], {}, Plain(), collections.deque(), Slotted(), set()]
    chain = Chain(*places)
    chain.step()
    twin = chain.twin(moving)

    def put(place: Any, thing: Any) -> None:
        if isinstance(place, dict):
            place["key"] = thing
        elif isinstance(place, set):
            place.add(thing)
        elif isinstance(place, Plain):
            place.key = thing
        elif isinstance(place, Slotted):
            place.left = thing
        else:
            place.append(thing)

    def remove(place: Any) -> None:
        if isinstance(place, Plain):
            del place.key
        elif isinstance(place, Slotted):
            del place.left
        else:
            place.clear()

    for before, after in zip(places, [*places[1:], places[0]], strict=True):
        remove(before)
        put(after, moving)
        moving.a.append(2)
        chain.delta()
        assert chain.twin(moving) is twin


def test_an_object_leaves_and_returns_between_frames() -> None:
    agent = Plain(a=[1])
    chain = Chain([agent])
    chain.step()
    twin = chain.twin(agent)
    chain.roots[0].clear()
    agent.a.append(2)
    chain.roots[0].append(agent)
    chain.delta()
    assert chain.twin(agent) is twin


def test_a_tuple_stays_while_its_parts_change() -> None:
    parts = ([1], Plain(a=1), {"k": 1}, frozenset([Side.BUY]))
    chain = Chain([parts], {parts[1]: parts})
    chain.step()
    twin = chain.twin(parts)
    parts[0].append(parts)
    parts[1].a = parts[0]
    parts[2]["l"] = parts
    chain.delta()
    assert chain.twin(parts) is twin


def test_aliases_come_and_go() -> None:
    a, b = [1], [1]
    chain = Chain([a, b], {"a": a, "b": b})
    chain.step()
    chain.roots[0][1] = a
    chain.delta()
    assert chain.replica.roots[0][0] is chain.replica.roots[0][1]
    chain.roots[0][0] = b
    chain.delta()
    assert chain.replica.roots[0][0] is chain.replica.roots[1]["b"]


def test_equal_texts_are_different_objects() -> None:
    texts = ["".join(["te", "xt"]) for _ in range(3)]
    chain = Chain([texts[0], texts[0]], Plain(text=texts[0]))
    chain.step()
    chain.roots[0][1] = texts[1]
    chain.delta()
    chain.roots[1].text = texts[1]
    chain.delta()
    assert chain.replica.roots[1].text is chain.replica.roots[0][1]
    assert chain.replica.roots[1].text is not chain.replica.roots[0][0]
    chain.roots[0][:] = texts
    chain.delta()
    assert len({id(text) for text in chain.replica.roots[0]}) == 3


def test_new_cycles() -> None:
    a, b = Plain(), []
    chain = Chain(a)
    chain.step()
    a.b = b
    b.append(a)
    b.append(b)
    chain.delta()
    c = Plain(a=a, t=(a, b))
    c.me = c
    a.c = c
    chain.delta()
    del a.b, a.c
    chain.delta()


def test_new_objects_that_only_new_objects_refer_to() -> None:
    chain = Chain([])
    chain.step()
    inner = [Plain(n=n) for n in range(100)]
    for agent, after in zip(inner, [*inner[1:], inner[0]], strict=True):
        agent.after = after
        agent.all = inner
    chain.roots[0].append({"k": (inner[50],)})
    chain.delta()


def test_two_instances_with_one_dict() -> None:
    a, b = Plain(a=1), Plain(b=2)
    chain = Chain([a, b])
    chain.step()
    b.__dict__ = a.__dict__
    chain.step()
    a.c = 3
    chain.step()
    b.__dict__ = {"d": 4}
    chain.step()
    b.__dict__, a.__dict__ = a.__dict__, b.__dict__
    chain.step()


def test_the_dict_of_an_instance_as_an_object() -> None:
    agent = Plain(a=[1])
    chain = Chain([agent], [vars(agent)])
    chain.step()
    agent.b = agent.a
    chain.step()
    vars(agent)["c"] = agent
    chain.step()
    chain.roots[1].clear()
    chain.step()
    agent.d = 1
    chain.step()
    chain.roots[1].append(vars(agent))
    chain.step()


def test_a_dict_of_the_graph_becomes_that_of_an_instance() -> None:
    table: dict[str, Any] = {"a": [1]}
    agent = Plain(b=2)
    chain = Chain([table], [agent])
    chain.step()
    agent.__dict__ = table
    chain.step()
    agent.c = 3
    chain.step()


# --- orders -----------------------------------------------------------------------------------


def test_order_of_dicts() -> None:
    table = {name: [name] for name in "abcdefgh"}
    agent = Plain(**table)
    chain = Chain(table, agent)
    chain.step()
    prng = random.Random(1)
    for _ in range(40):
        for mapping in (table, vars(agent)):
            for _ in range(prng.randrange(4)):
                name = prng.choice("abcdefghij")
                if name in mapping:
                    value = mapping.pop(name)
                    if prng.random() < 0.8:
                        mapping[name] = value
                else:
                    mapping[name] = [name]
        chain.delta()


def test_order_of_attributes_that_a_class_shares() -> None:
    agents = [Plain(a=1, b=2), Plain(a=1, b=2), Plain(b=2, a=1)]
    chain = Chain(agents)
    chain.step()
    for agent in agents[:2]:
        del agent.a
        agent.a = 1
    chain.delta()
    agents.append(Plain(b=1, a=2))
    agents.append(Plain(c=1, a=2))
    chain.delta()


def test_order_of_an_ordered_dict_against_that_of_the_dict_within() -> None:
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    chain = Chain(ordered)
    chain.step()
    ordered.move_to_end("a")
    chain.delta()
    assert list(chain.replica.roots[0]) == ["b", "c", "a"]
    ordered.move_to_end("c", last=False)
    ordered["d"] = 4
    chain.delta()
    assert list(chain.replica.roots[0]) == ["c", "b", "a", "d"]


# --- depth ------------------------------------------------------------------------------------


def chain_of(length: int, end: Any) -> Any:
    for number in range(length):
        end = Plain(next=end, number=number)
    return end


def test_depth() -> None:
    end: list[Any] = []
    chain = Chain(chain_of(8_000, end), [end])
    chain.step()
    end.append(1)
    chain.delta()
    end.append(chain_of(8_000, "end"))
    chain.delta()
    end.pop()
    chain.delta()
    chain.roots = ([end],)
    chain.delta()


def test_depth_of_tuples() -> None:
    deep: Any = [1]
    for _ in range(5_000):
        deep = (deep,)
    chain = Chain([], [])
    chain.step()
    chain.roots[0].append(deep)
    chain.delta()
    chain.roots[1].append(1)
    chain.delta()
    chain.roots[0].clear()
    chain.delta()

"""Vandalism on a replica, and how it is undone: in place, or by asking for a new copy."""

from __future__ import annotations

import array
import collections
import contextlib
import gc
import itertools
import random
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks import copy_of
from delta_edits import OPAQUE_EDITS, SeededChooser, edits_of
from delta_kinds import AROUND, KINDS, NATIVE_KINDS
from delta_support import Chain, numbered, numbers_of, objects
from pams_parallel.snapshot import Replica
from sample_types import (
    MODEL,
    Bag,
    Cached,
    Derived,
    DropsModel,
    Frozen,
    FrozenSlotted,
    HashedByDefault,
    HashedByKey,
    KeyedState,
    MyDict,
    MyList,
    OfMeta,
    Outer,
    Plain,
    Record,
    Registered,
    Slotted,
    SlottedChild,
    SlottedOpen,
    Stateful,
    StateOnly,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Scene(Chain):
    """A chain whose replica is about to be vandalised."""

    def __init__(self, *roots: Any) -> None:
        super().__init__(*roots)
        self.step()
        self.remember()

    def remember(self) -> None:
        self._before = numbered(self.replica, tuple(self.replica.roots))
        self._orders = [
            (obj, list(set.__iter__(obj))) for obj in self._before.values() if isinstance(obj, set)
        ]

    def undo(self) -> bool:
        """Roll back, or rebuild, and compare; identities are those before if in place."""
        restored = self.roll_back()
        if restored:
            now = objects(self.replica, list(self._before))
            assert all(a is b for a, b in zip(now, self._before.values(), strict=True))
            for obj, before in self._orders:
                # A vandal could leave a message in it.
                assert all(a is b for a, b in zip(set.__iter__(obj), before, strict=True))
        self.remember()
        return restored

    def undo_in_place(self) -> None:
        assert self.undo()


VANDALISM = [(kind, name) for kind, make in KINDS.items() for name in edits_of(make(), vandal=True)]

# What cannot be undone in place even if the object is native: it takes another memory block.
MAY_REBUILD = {name for name in OPAQUE_EDITS if name.startswith("ndarray")}


@pytest.mark.parametrize(("kind", "vandalism"), VANDALISM)
def test_vandalism(kind: str, vandalism: str) -> None:
    obj, other = KINDS[kind](), Plain(a=[1])
    scene = Scene(Plain(obj=obj, again=[obj]), other)
    for seed in range(6):
        twin, other_twin = scene.twin(obj), scene.twin(other)
        edit = edits_of(twin, vandal=True)[vandalism]
        choose = SeededChooser([other_twin, other_twin.a], seed)
        for _ in range(1 + seed % 3):
            # Some objects do not work any more after the first time.
            with contextlib.suppress(Exception):
                edit(twin, choose)
        restored = scene.undo()
        # The order of a set cannot be restored if elements compete for their places.
        if kind in NATIVE_KINDS and kind != "set" and vandalism not in MAY_REBUILD:
            assert restored
    # The next frame finds everything in its place.
    other.a.append(2)
    scene.step()


@pytest.mark.parametrize("part", [list, dict, Plain, lambda: [1, "text"]])
@pytest.mark.parametrize("kind", AROUND)
def test_a_part_is_exchanged_for_an_equal_one(kind: str, part: Any) -> None:
    make, exchange = AROUND[kind]
    parts = [part(), part()]
    scene = Scene(make(parts[0]), parts)
    for choose in (lambda: scene.replica.roots[1][1], part, lambda: scene.replica.roots[1]):
        exchange(scene.replica.roots[0], choose())
        scene.undo()


@pytest.mark.parametrize("kind", KINDS)
def test_all_vandalism_at_once(kind: str) -> None:
    obj, other = KINDS[kind](), Plain(a=[1])
    scene = Scene(Plain(obj=obj, again=[obj]), other, {"key": obj})
    for seed in range(4):
        twin, other_twin = scene.twin(obj), scene.twin(other)
        choose = SeededChooser([other_twin, other_twin.a, twin], seed)
        for edit in edits_of(twin, vandal=True).values():
            with contextlib.suppress(Exception):
                edit(twin, choose)
        scene.undo()


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_taken_out_and_changed(kind: str) -> None:
    """It cannot be reached from the roots when it is rolled back."""
    obj = KINDS[kind]()
    scene = Scene(Plain(obj=obj))
    twin = scene.twin(obj)
    del scene.replica.roots[0].obj
    choose = SeededChooser([], 1)
    for edit in edits_of(twin, vandal=True).values():
        with contextlib.suppress(Exception):
            edit(twin, choose)
    scene.undo()


@pytest.mark.parametrize("kind", NATIVE_KINDS)
def test_nothing_done_is_nothing_undone(kind: str) -> None:
    scene = Scene(NATIVE_KINDS[kind](), (1, [2]))
    for _ in range(3):
        scene.undo_in_place()
        repr(scene.replica.roots)
        scene.undo_in_place()


# --- what a vandal does to several objects ----------------------------------------------------


def world() -> tuple[Any, ...]:
    agents = [
        Plain(number=n, prng=random.Random(n), prices=[1.5, 2.5], own={"k": n}) for n in range(6)
    ]
    market = Plain(agents=agents, book=collections.deque([(1.5, 0)]), times={1: agents[0]})
    market.array = np.arange(5.0)
    for agent in agents:
        agent.market = market
        agent.friends = [other for other in agents if other is not agent]
    slots = SlottedChild(left=agents, right=market)
    return market, agents, slots, {1, 2, 3}, frozenset([agents[2]])


def put_into_each_other(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    agents.append(agents)
    market.agents = market
    slots.left, slots.right, slots.extra = slots, agents, market
    agents[0].prices.append(agents[1].prices)
    agents[1].prices.append(agents[0].prices)
    elements.update(agents[:5])
    market.times[agents[0]] = market.times
    market.book.append(market.book)


def clear_everything(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    for agent in list(agents):
        agent.prices.clear()
        agent.own.clear()
        agent.__dict__.clear()
    agents.clear()
    elements.clear()
    market.book.clear()
    market.__dict__.clear()
    del slots.left, slots.right


def swap_dicts(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    agents[0].__dict__, agents[1].__dict__ = agents[1].__dict__, agents[0].__dict__
    market.__dict__, agents[2].__dict__ = agents[2].__dict__, market.__dict__


def share_dicts(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    for agent in agents[1:]:
        agent.__dict__ = agents[0].__dict__
    agents[3].number = "shared"
    market.__dict__ = market.times
    market.times = 5


def swap_classes(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    classes = [Derived, OfMeta, Outer.Inner, StateOnly, Stateful, Registered]
    for agent, cls in zip(agents, classes, strict=True):
        agent.__class__ = cls
    market.__class__ = Record


def delete_attributes(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    for agent in agents:
        for name in list(vars(agent))[::2]:
            delattr(agent, name)
    del slots.left
    for name in list(vars(market)):
        delattr(market, name)


def delete_and_set_again(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    """Same values in another order."""
    for obj in (*agents, market):
        for name in list(vars(obj))[:2]:
            value = getattr(obj, name)
            delattr(obj, name)
            setattr(obj, name, value)
    market.times[1] = market.times.pop(1)


def replace_by_equal(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    for agent in agents:
        agent.prices = list(agent.prices)
        agent.own = dict(agent.own)
        agent.friends[:] = [*agent.friends]
    market.agents = slots.left = list(agents)
    market.array = market.array.copy()
    agents[0] = Plain(**vars(agents[0]))


def permute(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    agents.reverse()
    random.Random(1).shuffle(agents)
    market.agents.sort(key=lambda agent: -agent.number)
    for agent in agents:
        agent.friends.reverse()


def draw_numbers(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    for number, agent in enumerate(agents):
        for _ in range(number * 200):
            agent.prng.random()
        agent.prng.gauss(0, 1)
    agents[0].prng.seed(99)
    agents[1].prng, agents[2].prng = agents[2].prng, agents[1].prng
    agents[3].prng.note = "an attribute of a generator"
    del agents[4].prng.gauss_next


def replace_generators(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    for agent in agents:
        state = agent.prng.getstate()
        agent.prng = random.Random()
        agent.prng.setstate(state)


def odd_keys(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    vars(agents[0])[5] = 1
    vars(agents[0])[agents[1]] = market
    vars(market)[("a", 1)] = 2
    setattr(agents[1], "not an identifier", 3)
    market.times[True] = "an equal key"


def equal_keys(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    market.times.pop(1)
    market.times[1.0] = agents[0]


def grow(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    agents[0].prices.extend(range(10_000))
    agents.extend(Plain() for _ in range(1000))
    market.book.extend(range(5000))
    market.times.update((n, [n]) for n in range(2, 3000))
    elements.update(range(2000))
    for n in range(200):
        setattr(market, f"attribute_{n}", n)


def arrays(market: Any, agents: Any, slots: Any, elements: Any, frozen: Any) -> None:
    market.array[:] = -market.array
    agents[0].view = market.array[1:3]
    agents[1].prices = market.array


WORLDLY: list[Callable[..., None]] = [
    put_into_each_other,
    clear_everything,
    swap_dicts,
    share_dicts,
    swap_classes,
    delete_attributes,
    delete_and_set_again,
    replace_by_equal,
    permute,
    draw_numbers,
    replace_generators,
    odd_keys,
    equal_keys,
    grow,
    arrays,
]


@pytest.mark.parametrize("vandal", WORLDLY)
def test_a_vandalised_world(vandal: Callable[..., None]) -> None:
    roots = world()
    scene = Scene(*roots)
    for step in range(3):
        vandal(*scene.replica.roots)
        scene.undo_in_place()
        roots[1][step].prices.append(float(step))
        roots[0].step = [step]
        scene.step()
        scene.remember()


def test_vandals_in_a_row() -> None:
    scene = Scene(*world())
    for vandal in WORLDLY:
        vandal(*scene.replica.roots)
        scene.undo_in_place()
    for first, second in itertools.pairwise(WORLDLY):
        with contextlib.suppress(Exception):  # the second may not find what it looks for
            first(*scene.replica.roots)
            second(*scene.replica.roots)
        scene.undo_in_place()


def test_a_world_after_many_steps() -> None:
    """The replica knows what its latest frame made of it, not what it was at first."""
    roots = world()
    scene = Scene(*roots)
    for step, vandal in enumerate(WORLDLY):
        for agent in roots[1]:
            agent.prng.gauss(0, 1)
            agent.prices.append(float(step))
        roots[0].book.append((float(step), step))
        roots[0].times[step] = roots[1][step % 6]
        roots[0].__dict__.pop("latest", None)
        roots[0].latest = {step}
        scene.step()
        scene.remember()
        vandal(*scene.replica.roots)
        scene.undo_in_place()


def test_what_is_done_after_a_rollback_is_undone_by_the_next() -> None:
    scene = Scene(*world())
    market, agents, *_ = scene.replica.roots
    held = [agents[0].prices, agents[0].__dict__, market.times, agents[0].prng, market.book]
    agents.clear()
    scene.undo_in_place()
    held[0].append("vandalism")
    held[1]["new"] = 1
    held[2].clear()
    held[3].random()
    held[4].rotate(1)
    held[4].append(2)
    scene.undo_in_place()


def test_objects_of_the_vandal_are_its_own() -> None:
    """What it holds outside is no part of the replica any more, whatever it does to it."""
    scene = Scene(*world())
    market, agents, *_ = scene.replica.roots
    mine: dict[str, Any] = {"mine": [1]}
    agents[0].__dict__ = mine
    agents[1].prices = mine["mine"]
    market.times = mine
    scene.undo_in_place()
    assert vars(agents[0]) is not mine
    mine["more"] = 2
    mine["mine"].append(2)
    scene.check()
    scene.undo_in_place()


def test_an_old_dict_in_the_hands_of_a_vandal() -> None:
    scene = Scene(*world())
    agent = scene.replica.roots[1][0]
    old = vars(agent)
    agent.__dict__ = {}
    old["vandalism"] = 1
    scene.undo_in_place()
    old["vandalism"] = 2
    old.pop("number", None)
    scene.undo_in_place()


def test_the_list_of_roots_is_a_copy() -> None:
    scene = Scene([1], [2])
    scene.replica.roots.clear()
    assert len(scene.replica.roots) == 2
    scene.check()
    scene.undo_in_place()


def test_roots_that_refer_to_themselves() -> None:
    root: list[Any] = [1]
    root.append(root)
    scene = Scene(root)
    scene.replica.roots[0][1] = 5
    scene.replica.roots[0].append(scene.replica.roots)
    scene.undo_in_place()


def test_the_replica_in_its_own_graph() -> None:
    scene = Scene(*world())
    scene.replica.roots[0].replica = scene.replica
    scene.replica.roots[1].append(scene.replica)
    scene.undo_in_place()


def test_deep_vandalism() -> None:
    scene = Scene([1], Plain(a=1))
    deep: Any = "the end"
    for _ in range(50_000):
        deep = [deep]
    scene.replica.roots[0].append(deep)
    scene.replica.roots[1].a = deep
    del deep
    scene.undo_in_place()


def test_vandalism_of_a_deep_graph() -> None:
    end: list[Any] = [1]
    root: Any = end
    for number in range(8_000):
        root = Plain(next=root, number=number)
    scene = Chain(root, end)
    scene.step()
    scene.replica.roots[1].append(2)
    scene.replica.roots[0].next.next.number = "vandalism"
    scene.replica.roots[0].next.next.next.next = None
    assert scene.roll_back()


# --- hashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [HashedByKey, HashedByDefault, KeyedState])
def test_keys_that_a_vandal_changed(cls: Any) -> None:
    nodes = [cls(n) for n in range(5)]
    scene = Scene(nodes, set(nodes), {node: [node] for node in nodes}, {(n, 1): n for n in nodes})
    for change in (
        lambda node, roots: setattr(node, "key", "another"),
        lambda node, roots: setattr(node, "key", 3),
        lambda node, roots: (setattr(node, "key", []), None),
        lambda node, roots: delattr(node, "key"),
        lambda node, roots: (setattr(node, "key", 77), roots[1].add(cls(2)), roots[1].add(node)),
        lambda node, roots: (roots[1].discard(node), setattr(node, "key", 9), roots[1].add(node)),
        lambda node, roots: (setattr(node, "key", 8), roots[2].__setitem__(node, "again")),
        lambda node, roots: (setattr(node, "key", 8), roots[1].clear(), roots[2].clear()),
        lambda node, roots: vars(node).clear(),
    ):
        roots = scene.replica.roots
        change(roots[0][2], roots)
        scene.undo()
    nodes[2].key = "new"
    scene.step()


@pytest.mark.parametrize("cls", [HashedByKey, HashedByDefault, Frozen, FrozenSlotted, KeyedState])
def test_containers_within_their_own_keys(cls: Any) -> None:
    frozen = cls in (Frozen, FrozenSlotted)
    nodes = [cls(n, Plain()) if frozen else cls(n) for n in range(3)]
    home = set(nodes)
    table = {node: [node] for node in nodes}
    for node in nodes:
        if frozen:
            node.value.home, node.value.table = home, table
        else:
            node.home, node.table = home, table
    scene = Chain(nodes, home, table)
    scene.oracle = copy_of
    scene.step()
    for change in (
        lambda roots: roots[1].clear(),
        lambda roots: (roots[1].clear(), roots[2].clear(), roots[0].clear()),
        lambda roots: object.__setattr__(roots[0][0], "name" if frozen else "key", 1),
        lambda roots: (roots[2].popitem(), roots[1].pop()),
    ):
        change(scene.replica.roots)
        scene.roll_back()


def test_sets_of_objects() -> None:
    """Restored with the order that they had, or not at all."""
    agents = [Plain(n=n) for n in range(9)]
    scene = Scene(agents, set(agents), {"text", "other text", *agents[:2]})
    for change in (
        lambda roots: roots[1].clear(),
        lambda roots: roots[1].pop(),
        lambda roots: roots[1].update(range(500)),
        lambda roots: roots[1].add(Plain()),
        lambda roots: (roots[1].discard(roots[0][0]), roots[1].add(roots[0][0])),
        lambda roots: (roots[1].clear(), roots[1].update(reversed(roots[0]))),
        lambda roots: roots[2].update(roots[1]),
        lambda roots: (roots[2].discard("text"), roots[2].add("text")),
    ):
        change(scene.replica.roots)
        scene.undo()


# --- special objects --------------------------------------------------------------------------


def test_a_bytearray_that_cannot_be_resized() -> None:
    """Somebody holds a view of it."""
    scene = Scene([bytearray(b"some bytes")])
    data = scene.replica.roots[0][0]
    data.extend(b"vandalism")
    with memoryview(data):
        scene.undo()
    scene.undo()
    data = scene.replica.roots[0][0]
    data[0] = 0
    with memoryview(data) as view:
        scene.undo_in_place()
        view[1] = 0
        scene.undo_in_place()


def test_a_memory_view_that_stays() -> None:
    scene = Scene([bytearray(b"some bytes"), array.array("d", [1.0, 2.0]), np.arange(4.0)])
    views = [memoryview(obj) for obj in scene.replica.roots[0]]
    for view in views:
        view.cast("B")[0] ^= 1
        scene.undo()
    for view in views:
        view.release()


def test_arrays_that_own_their_memory_or_do_not() -> None:
    values = np.arange(12.0)
    scene = Scene([values, values.reshape(3, 4).T, values[::2], np.zeros((2, 0)), np.array(1.5)])
    for twin in scene.replica.roots[0]:
        twin[...] = -5
        scene.undo()
    for twin in scene.replica.roots[0]:
        twin.flags.writeable = False
    scene.undo()
    for twin in scene.replica.roots[0]:
        with contextlib.suppress(AttributeError, ValueError):
            twin.shape = (1, *twin.shape)
    scene.undo()
    for twin in scene.replica.roots[0]:
        with contextlib.suppress(AttributeError, ValueError):
            twin.dtype = "i8"
    scene.undo()


def test_bits_of_floats_in_arrays() -> None:
    scene = Scene([np.array([0.0, np.nan, 1.0])])
    twin = scene.replica.roots[0][0]
    twin[0] = -0.0
    scene.undo_in_place()
    twin.view("i8")[1] ^= 1
    scene.undo_in_place()


def test_a_read_only_array_that_was_written_to() -> None:
    values = np.arange(3.0)
    values.flags.writeable = False
    scene = Scene([values], [np.array([[1], "text"], dtype=object)])
    twin = scene.replica.roots[0][0]
    with contextlib.suppress(ValueError):
        twin.flags.writeable = True
        twin[0] = 5
        twin.flags.writeable = False
    scene.undo()
    cells = scene.replica.roots[1][0]
    cells[0].append("vandalism")
    scene.undo()
    cells = scene.replica.roots[1][0]
    cells[1] = cells
    scene.undo()


def test_parts_of_objects_in_arrays() -> None:
    shared = [1]
    scene = Scene([np.array([shared, shared, None], dtype=object), shared])
    scene.replica.roots[0][0][0].append(2)
    scene.undo()
    scene.replica.roots[0][0][2] = scene.replica.roots
    scene.undo()


def test_generators() -> None:
    numpy = np.random.default_rng(1)
    scene = Scene([random.Random(1), numpy, numpy.bit_generator, np.random.RandomState(1)])
    for use in (
        lambda twins: twins[0].random(),
        lambda twins: twins[0].gauss(0, 1),
        lambda twins: [twins[0].random() for _ in range(1000)],
        lambda twins: twins[0].setstate((3, (*range(1, 625), 3), 0.25)),
        lambda twins: setattr(twins[0], "note", 1),
        lambda twins: delattr(twins[0], "gauss_next"),
        lambda twins: setattr(twins[0], "gauss_next", "text"),
        lambda twins: setattr(twins[0], "random", None),
        lambda twins: twins[1].random(),
        lambda twins: twins[1].integers(0, 3, dtype=np.uint16),
        lambda twins: twins[2].random_raw(),
        lambda twins: setattr(twins[2], "state", np.random.PCG64(5).state),
        lambda twins: twins[3].standard_normal(),
        lambda twins: twins[3].seed(5),
    ):
        twins = scene.replica.roots[0]
        use(twins)
        scene.undo()
        assert scene.replica.roots[0][0].random() == random.Random(1).random()
        scene.undo()


def test_one_word_of_a_generator() -> None:
    scene = Scene([random.Random(1)])
    twin = scene.replica.roots[0][0]
    version, words, gauss = twin.getstate()
    for position in (0, 1, 300, 622, 623):
        changed = list(words)
        changed[position] ^= 1
        twin.setstate((version, tuple(changed), gauss))
        scene.undo_in_place()
    for index in (0, 1, 623):
        twin.setstate((version, (*words[:624], index), gauss))
        scene.undo_in_place()


def test_a_class_without_a_common_layout() -> None:
    """A vandal cannot give an instance any class, but several."""
    scene = Scene([Plain(a=1), Slotted(left=1), SlottedOpen(left=2), MyList([1]), MyDict(a=1)])
    for twin in scene.replica.roots[0]:
        for cls in (Derived, OfMeta, SlottedOpen, Cached, type("Local", (Plain,), {})):
            with contextlib.suppress(TypeError):
                twin.__class__ = cls
    scene.undo()


def test_a_class_of_the_vandal() -> None:
    class Local(Plain):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AssertionError("a setter of the vandal")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("a getter of the vandal")

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("a reducer of the vandal")

        def __hash__(self) -> int:
            raise AssertionError("a hash of the vandal")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("a comparison of the vandal")

        def __len__(self) -> int:
            raise AssertionError("a length of the vandal")

    agents = [Plain(a=[1]), Plain(b=2)]
    scene = Scene(agents, {agents[0]: 1}, {agents[1]})
    twins = list(scene.replica.roots[0])
    for twin in twins:
        twin.a = [3]
        twin.__class__ = Local
    scene.undo_in_place()


def test_hooks_of_one_instance() -> None:
    scene = Scene([Plain(a=1), random.Random(1), MyList([1])])
    for twin in scene.replica.roots[0]:
        for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__class__", "__setstate__"):
            vars(twin)[name] = lambda *args: 1 / 0
    scene.undo()


def test_descriptors_of_a_class_are_not_asked() -> None:
    """Attributes are put back below properties and slots, not through them."""
    scene = Scene([Guarded(1)])
    twin = scene.replica.roots[0][0]
    vars(twin)["value"] = 2
    vars(twin)["hidden"] = 3
    scene.undo()
    assert vars(scene.replica.roots[0][0]) == {"value": 1}


class Guarded:
    """Every access is refused after construction."""

    def __init__(self, value: Any) -> None:
        self.__dict__["value"] = value

    @property
    def value(self) -> Any:
        raise AssertionError("asked")

    @value.setter
    def value(self, value: Any) -> None:
        raise AssertionError("set")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("set")

    def __delattr__(self, name: str) -> None:
        raise AssertionError("deleted")


# --- objects that are not native --------------------------------------------------------------


def test_hidden_state() -> None:
    """What ``__getstate__`` leaves out and ``__setstate__`` starts anew."""
    scene = Scene([Cached([1, 2]), Plain(a=1)])
    for change in (
        lambda cached: cached.cache.update(a=1),
        lambda cached: cached.cache.setdefault("deep", []).append(1),
        lambda cached: setattr(cached, "cache", {"other": 1}),
        lambda cached: delattr(cached, "cache"),
        lambda cached: setattr(cached, "unknown", 1),
        lambda cached: cached.values.append(cached.cache),
        lambda cached: (cached.cache.update(a=1), cached.values.append(1)),
    ):
        change(scene.replica.roots[0][0])
        scene.undo()
        assert scene.replica.roots[0][0].cache == {}


def test_hidden_state_after_frames() -> None:
    cached = Cached([1])
    scene = Scene([cached], [1])
    for step in range(3):
        scene.replica.roots[0][0].cache["vandalism"] = step
        scene.undo()
        scene.roots[1].append(step)
        scene.step()
        assert scene.replica.roots[0][0].cache == {}
        cached.cache["of the original"] = step
        scene.step()
        assert scene.replica.roots[0][0].cache == {}


def test_hidden_state_within_hidden_state() -> None:
    """An object that only the hidden part leads to does not survive."""
    scene = Scene([Cached([1])])
    twin = scene.replica.roots[0][0]
    twin.cache["agent"] = Plain(a=1)
    reference = weakref.ref(twin.cache["agent"])
    del twin
    scene.undo()
    scene.undo()
    gc.collect()
    assert reference() is None


def test_attributes_that_do_not_reach_a_copy() -> None:
    """The generator drops its attributes, arrays theirs, these objects what they are told to."""
    scene = Scene([StateOnly(a=[1]), random.Random(1), KINDS["array of a subclass"]()])
    for change in (
        lambda twins: setattr(twins[0], "dropped", [1]),
        lambda twins: setattr(twins[1], "note", [1]),
        lambda twins: setattr(twins[2], "note", [1]),
    ):
        change(scene.replica.roots[0])
        scene.undo()
        for twin in scene.replica.roots[0]:
            assert not {"dropped", "note"} & set(vars(twin))


def test_a_reducer_that_looks_unchanged() -> None:
    """Its state is equal and still somebody has changed it."""
    scene = Scene([Sneaky(1)])
    twin = scene.replica.roots[0][0]
    twin.hidden.append("vandalism")
    scene.undo()
    assert scene.replica.roots[0][0].hidden == []
    scene.replica.roots[0][0].extra = 1
    scene.undo()
    assert not hasattr(scene.replica.roots[0][0], "extra")


class Sneaky:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.hidden: list[Any] = []

    def __reduce__(self) -> Any:
        return Sneaky, (self.value,)


def test_an_object_put_back_from_a_module() -> None:
    scene = Scene([DropsModel("agent")])
    twin = scene.replica.roots[0][0]
    assert twin.model is MODEL
    twin.model = None
    scene.undo()
    assert scene.replica.roots[0][0].model is MODEL
    del scene.replica.roots[0][0].model
    scene.undo()
    assert scene.replica.roots[0][0].model is MODEL


def test_parts_of_opaque_objects() -> None:
    inner = Plain(a=[1])
    bag = Bag(6, "argument")
    bag.state, bag.items, bag.pairs = [inner], [inner], [("k", [inner])]
    scene = Scene([bag, Stateful([inner], 2), Registered([3])], inner)
    for change in (
        lambda twins: twins[0].state.append(1),
        lambda twins: twins[0].items.append(1),
        lambda twins: twins[0].pairs.clear(),
        lambda twins: twins[0].pairs[0][1].append(2),
        lambda twins: setattr(twins[0], "args", ()),
        lambda twins: setattr(twins[0], "arity", 2),
        lambda twins: vars(twins[0]).clear(),
        lambda twins: twins[1].content[0].append(3),
        lambda twins: setattr(twins[1], "content", ()),
        lambda twins: delattr(twins[1], "content"),
        lambda twins: twins[2].payload.append(4),
        lambda twins: setattr(twins[2], "payload", None),
    ):
        change(scene.replica.roots[0])
        scene.undo()
    scene.replica.roots[1].a.append("vandalism")
    scene.undo()


def test_a_replica_that_asked_to_be_rebuilt() -> None:
    scene = Scene([Sneaky(1)], [1])
    scene.roots[1].append(2)
    scene.step()
    scene.replica.roots[0][0].value = 5
    if not scene.replica.roll_back():
        assert scene.replica.sequence is None
        assert scene.replica.roll_back() is False
        fresh = Replica()
        scene.catch_up(fresh)
        scene.check(fresh)
        scene.catch_up(scene.replica)
    scene.check()


# --- objects with destructors -----------------------------------------------------------------


class Bomb:
    """Fails when it is dropped."""

    exploded = 0

    def __del__(self) -> None:
        Bomb.exploded += 1
        raise RuntimeError("dropped")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_destructors_that_fail() -> None:
    scene = Scene(*world())
    before = Bomb.exploded
    market, agents, slots, elements, _ = scene.replica.roots
    agents.append(Bomb())
    market.bomb = Bomb()
    slots.extra = Bomb()
    elements.add(Bomb())
    market.times[Bomb()] = Bomb()
    market.book.append(Bomb())
    scene.undo_in_place()
    gc.collect()
    assert Bomb.exploded == before + 7


def test_objects_of_a_vandal_are_released() -> None:
    scene = Scene(*world())
    market, agents, *_ = scene.replica.roots
    mine = [Plain() for _ in range(4)]
    market.mine, agents[0].prices[0] = mine[0], mine[1]
    agents.append(mine[2])
    market.times[mine[3]] = [mine]
    references = [weakref.ref(obj) for obj in mine]
    del mine
    scene.undo_in_place()
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_a_thousand_rollbacks_leave_nothing_behind() -> None:
    scene = Scene(*world())
    counts = []
    for step in range(1000):
        market, agents, *_ = scene.replica.roots
        agents[step % 6].__dict__ = {"vandalism": step}
        market.times[step] = [Plain(step=step) for _ in range(20)]
        agents.append([step])
        assert scene.replica.roll_back()
        if step % 100 == 99:
            gc.collect()
            counts.append(len(gc.get_objects()))
    scene.check()
    assert counts[-1] - counts[0] < 500


# --- the order of things ----------------------------------------------------------------------


def test_vandalism_before_a_keyframe() -> None:
    """A keyframe replaces everything, so nothing has to be rolled back before."""
    scene = Scene(*world())
    clear_everything(*scene.replica.roots)
    scene.roots[0].new = 1
    scene.step(keyframe=True)


def test_numbers_after_a_rollback() -> None:
    roots = world()
    scene = Scene(*roots)
    numbers = numbers_of(scene.source, [roots[0], roots[1], roots[1][0].prices])
    put_into_each_other(*scene.replica.roots)
    scene.replica.roots[1][0].prices = []
    scene.undo_in_place()
    market, agents, *_ = scene.replica.roots
    assert numbers_of(scene.replica, [market, agents, agents[0].prices]) == numbers


def test_namespaces() -> None:
    scene = Scene(types.SimpleNamespace(a=1, b=[2]))
    twin = scene.replica.roots[0]
    twin.c = 3
    del twin.a
    twin.b.append(3)
    scene.undo()

"""Changes that need more than a look at the object: hashes, classes, reducers, arrays, PRNGs."""

from __future__ import annotations

import collections
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks import copy_of, pickled_copy
from delta_support import (
    Chain,
)
from graph_compare import assert_same
from pams_parallel.snapshot import Replica, Source
from sample_types import (
    Bag,
    Derived,
    Frozen,
    FrozenSlotted,
    HashedByDefault,
    HashedByKey,
    KeyedState,
    MyDict,
    Pair,
    Plain,
    Registered,
    Stateful,
    StateOnly,
)

if TYPE_CHECKING:
    pass


# --- hashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [HashedByKey, HashedByDefault, KeyedState])
def test_a_key_changes_its_hash(cls: Any) -> None:
    """The original does not find it any more; a copy does."""
    nodes = [cls(n) for n in range(5)]
    chain = Chain(nodes, set(nodes), {node: [node] for node in nodes}, {(n, 1): n for n in nodes})
    chain.step()
    nodes[2].key = "another"
    assert nodes[2] not in chain.roots[1]
    chain.step()
    found = chain.replica.roots
    assert all(node in found[1] and node in found[2] for node in found[0])
    assert all((node, 1) in found[3] for node in found[0])
    nodes[2].key = 2
    chain.step()


@pytest.mark.parametrize("cls", [HashedByKey, HashedByDefault])
def test_keys_become_equal(cls: Any) -> None:
    nodes = [cls(n) for n in range(4)]
    chain = Chain(nodes, set(nodes), {node: node.key for node in nodes})
    chain.step()
    nodes[2].key = nodes[1].key
    chain.step()
    assert len(chain.replica.roots[1]) == len(chain.replica.roots[2]) == 3
    nodes[2].key = 2
    chain.step()
    assert len(chain.replica.roots[1]) == 4


@pytest.mark.parametrize("cls", [HashedByKey, HashedByDefault, Frozen, FrozenSlotted, KeyedState])
def test_keys_within_their_own_containers(cls: Any) -> None:
    nodes = [cls(n) for n in range(3)]
    for node in nodes:
        object.__setattr__(node, "value" if cls in (Frozen, FrozenSlotted) else "home", Plain())

    def extra(node: Any) -> Any:
        return node.value if cls in (Frozen, FrozenSlotted) else node.home

    if cls in (Frozen, FrozenSlotted):
        assert hash(nodes[0])
    home: Any = set(nodes[:2])
    table: Any = dict.fromkeys(nodes[:2])
    chain = Chain(nodes, home, table)
    chain.oracle = copy_of
    chain.step()
    for node in nodes:
        extra(node).home = home
        extra(node).table = table
        chain.step()
    home.add(nodes[2])
    table[nodes[2]] = home
    chain.step()
    home.discard(nodes[0])
    chain.step()
    assert all(node in chain.replica.roots[2] for node in chain.replica.roots[0])


def test_nothing_is_hashed_or_compared_for_what_did_not_change() -> None:
    class Counting(HashedByKey):
        calls = 0

        def __hash__(self) -> int:
            Counting.calls += 1
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            Counting.calls += 1
            return super().__eq__(other)

    Counting.__qualname__ = "Counting"
    globals()["Counting"] = Counting
    try:
        nodes = [Counting(n) for n in range(20)]
        chain = Chain(nodes, set(nodes), dict.fromkeys(nodes), [0])
        chain.send()
        Counting.calls = 0
        chain.roots[3].append(1)
        chain.send()
        assert not chain.source.is_keyframe
        assert Counting.calls == 0
        chain.catch_up(chain.replica)
        Counting.calls = 0
        assert chain.replica.roll_back()
        assert Counting.calls == 0
        chain.check()
    finally:
        del globals()["Counting"]


class ComparesBadly:
    """As an array does."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        raise AssertionError("compared")

    def __bool__(self) -> bool:
        raise AssertionError("asked for its truth")

    def __len__(self) -> int:
        raise AssertionError("asked for its length")


def test_values_that_cannot_be_compared() -> None:
    first, second = ComparesBadly(a=1), ComparesBadly(a=[1])
    chain = Chain([first], {"k": first}, Plain(a=first), collections.deque([first]))
    chain.step()
    chain.roots[0][0] = chain.roots[1]["k"] = chain.roots[2].a = chain.roots[3][0] = second
    chain.delta()
    second.a.append(first)
    chain.delta()
    assert chain.replica.roll_back()
    chain.check()


# --- classes ----------------------------------------------------------------------------------


def test_class_changes() -> None:
    agent = Plain(a=1)
    chain = Chain([agent, Plain(b=2)])
    chain.step()
    for cls in (Derived, StateOnly, Derived, Registered, Plain):
        agent.__class__ = cls
        agent.payload = [1]
        chain.step()


@pytest.mark.parametrize(
    "name", ["__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__getnewargs__"]
)
def test_a_class_gets_a_hook(name: str, new_class: Any) -> None:
    hooks: dict[str, Any] = {
        "__getstate__": lambda self: {"state": len(self.__dict__)},
        "__setstate__": lambda self, state: self.__dict__.update(state, restored=True),
        "__reduce__": lambda self: (Plain, (), {"reduced": len(self.__dict__)}),
        "__reduce_ex__": lambda self, protocol: (Plain, (), {"protocol": protocol}),
        "__getnewargs__": lambda self: (),
    }
    cls = new_class({})
    agent = cls()
    agent.a = [1]
    chain = Chain([agent], [1])
    chain.step()
    setattr(cls, name, hooks[name])
    chain.step()
    agent.b = 2
    chain.step()
    delattr(cls, name)
    chain.step()
    agent.b = 3
    chain.step()


def test_a_base_class_gets_a_hook(new_class: Any) -> None:
    base = new_class({})
    agent = new_class({}, (base,))()
    chain = Chain([agent])
    chain.step()
    base.__getstate__ = lambda self: {"state": 1}
    chain.step()
    agent.a = 1
    chain.step()


def test_an_instance_gets_a_hook() -> None:
    agent = Plain(a=1)
    chain = Chain([agent])
    chain.step()
    agent.__reduce_ex__ = lambda protocol: (Plain, (), {"protocol": protocol})  # type: ignore[method-assign, misc]
    chain.step()
    assert list(vars(chain.replica.roots[0][0])) == ["protocol"]
    del agent.__reduce_ex__
    chain.step()


def test_a_class_that_is_registered_with_copyreg(new_class: Any) -> None:
    import copyreg

    cls = new_class({})
    agent = cls()
    agent.a = [1]
    chain = Chain([agent])
    chain.step()
    copyreg.pickle(cls, lambda obj: (Plain, (), {"registered": obj.a}))  # type: ignore[arg-type, return-value]
    try:
        chain.step()
        agent.a.append(2)
        chain.step()
    finally:
        del copyreg.dispatch_table[cls]
    agent.a.append(3)
    chain.step()


def reduce_agent(agent: Plain) -> Any:
    return Plain, (), {"reduced": list(vars(agent))}


def test_reducers() -> None:
    reducers = {Plain: reduce_agent}
    source, replica = Source(reducers=reducers), Replica(reducers=reducers)
    agent = Plain(a=1)
    for name in ("b", "c", "d"):
        setattr(agent, name, [name])
        replica.apply(source.frame(([agent],)))
        assert_same([Plain(reduced=list(vars(agent)))], replica.roots[0], layout=False)


# --- what pickle does with objects that are not native ----------------------------------------


def test_native_objects_within_opaque_ones() -> None:
    inner = Plain(a=[1])
    bag = Bag(6, "argument")
    bag.state, bag.items, bag.pairs = [inner], [inner], [("k", inner)]
    opaque = [bag, Stateful(inner, [inner]), StateOnly(a=inner), Pair(inner, [1])]
    chain = Chain(opaque, inner)
    chain.step()
    for step in range(3):
        inner.a.append(step)
        chain.step()
        inner.step = step
        chain.step()


def test_opaque_objects_change() -> None:
    stateful, bag = Stateful(1, 2), Bag(4)
    chain = Chain([stateful], [bag], [1])
    chain.step()
    for step in range(3):
        stateful.content = (step, [step])
        chain.step()
        bag.items.append(step)
        chain.step()
        chain.roots[2].append(step)
        chain.step()


class Fresh:
    """Gives another state of new objects every time."""

    calls = 0

    def __getstate__(self) -> Any:
        return {"values": [float(n) for n in range(3)], "text": "".join(["te", "xt"])}


def test_a_state_of_new_objects_every_time() -> None:
    chain = Chain([Fresh(), Fresh()], [1])
    for step in range(5):
        chain.step()
        chain.roots[1].append(step)


class Shifting:
    """Its state depends on the outside."""

    outside = 0

    def __getstate__(self) -> Any:
        return {"value": Shifting.outside}


def test_a_state_that_depends_on_the_outside() -> None:
    chain = Chain([Shifting()], [1])
    chain.step()
    try:
        for _ in range(3):
            Shifting.outside += 1
            chain.step()
            assert chain.replica.roots[0][0].value == Shifting.outside
    finally:
        Shifting.outside = 0


def test_a_global_function_is_replaced(new_class: Any) -> None:
    """By then its name leads to another object, so pickle refuses the old one."""
    cls = new_class({})
    chain = Chain([cls], [1])
    chain.step()
    import sample_types

    replacement = type(cls.__name__, (), {"__module__": cls.__module__})
    setattr(sample_types, cls.__name__, replacement)
    chain.roots[1].append(1)
    with pytest.raises(pickle.PicklingError):
        pickled_copy(chain.roots)
    # It may have been sent once and for all, or be refused like that.
    with pytest.raises(pickle.PicklingError):
        chain.send(keyframe=True)
    chain.roots = ([replacement], [1])
    chain.step()


# --- arrays -----------------------------------------------------------------------------------


def test_arrays_that_share_memory() -> None:
    base = np.arange(12.0)
    views = [base[2:5], base.reshape(3, 4), base[::-1]]
    chain = Chain([base, *views])
    chain.step()
    base[3] = -1
    chain.step()
    views[0][0] = -2
    chain.step()


def test_a_read_only_array_whose_memory_changes() -> None:
    base = np.arange(6.0)
    view = base[1:4]
    view.flags.writeable = False
    chain = Chain([view])
    chain.step()
    base[2] = -1
    chain.step()
    assert chain.replica.roots[0][0][1] == -1
    assert not chain.replica.roots[0][0].flags.writeable


def test_an_array_over_a_bytearray() -> None:
    memory = bytearray(16)
    values = np.frombuffer(memory, dtype="u1")
    chain = Chain([values], [memory])
    chain.step()
    memory[3] = 7
    chain.step()
    assert chain.replica.roots[0][0][3] == 7


def test_bits_of_floats_in_arrays() -> None:
    values = np.array([0.0, np.nan, 1.0])
    chain = Chain([values])
    chain.step()
    values[0] = -0.0
    chain.step()
    values.view("i8")[1] += 1
    chain.step()
    values.view("i8")[1] ^= np.int64(-(2**63))
    chain.step()


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "SFC64", "Philox", "PCG64DXSM"])
def test_generators_of_numpy(kind: str) -> None:
    generator = np.random.Generator(getattr(np.random, kind)(1))
    chain = Chain([generator, generator.bit_generator], Plain(generator=generator))
    chain.step()
    for draw in (
        lambda: generator.random(),
        lambda: generator.integers(0, 5, dtype=np.uint16),
        lambda: generator.random(700),
        lambda: generator.standard_normal(3),
        lambda: setattr(generator.bit_generator, "state", getattr(np.random, kind)(2).state),
    ):
        draw()
        chain.step()
        drawn = chain.replica.roots[0][0].random()
        assert drawn == pickled_copy(generator).random()
        chain.roll_back()


# --- pseudo random number generators ----------------------------------------------------------


def test_shared_generators() -> None:
    prng = random.Random(1)
    chain = Chain([Plain(prng=prng), Plain(prng=prng)], prng)
    chain.step()
    twin = chain.twin(prng)
    for _ in range(4):
        for _ in range(400):
            prng.random()
        chain.delta()
        assert chain.replica.roots[0][1].prng is twin


@pytest.mark.parametrize("n_draws", [1, 2, 310, 312, 623, 624, 625, 1248, 3000, 30_000])
def test_draws(n_draws: int) -> None:
    prng = random.Random(1)
    chain = Chain([prng])
    chain.step()
    for _ in range(3):
        for _ in range(n_draws):
            prng.getrandbits(32)
        chain.delta()


def test_states_that_were_set() -> None:
    prng = random.Random(1)
    chain = Chain([prng])
    chain.step()
    version, words, _ = prng.getstate()
    changed = [*words]
    changed[0] ^= 1
    last = [*words]
    last[623] ^= 0x80000000
    for made in (
        (version, tuple(changed), None),
        (version, tuple(last), 0.5),
        (version, (*words[:624], 0), None),
        (version, (*words[:624], 623), -0.0),
        (version, (0,) * 624 + (624,), None),
        (version, (0xFFFFFFFF,) * 624 + (1,), None),
        (version, words, None),
        random.Random(2).getstate(),
    ):
        prng.setstate(made)
        chain.delta()


def test_pending_gauss() -> None:
    prng = random.Random(1)
    chain = Chain([prng])
    chain.step()
    for _ in range(5):
        prng.gauss(0.0, 1.0)
        chain.delta()
        assert chain.replica.roots[0][0].gauss_next == prng.gauss_next
    for pending in (1, True, "text", [prng], None, -0.0, float("nan")):
        prng.gauss_next = pending
        chain.step()


# ---------------------------------------------------- containers with keys that change with them


def keyed_containers(key: Any) -> list[Any]:
    return [
        collections.OrderedDict({key: 1}),
        collections.defaultdict(list, {key: 1}),
        MyDict({key: 1}),
        {key: 1},
        {key},
    ]


def change_container(container: Any) -> None:
    if isinstance(container, set):
        container.add("new")
    else:
        container["new"] = 2


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("is_known", [True, False])
def test_key_that_refers_to_its_container_changes_with_it(at: int, is_known: bool) -> None:
    """The change of the container is written among the attributes of its key."""
    key = HashedByKey("a")
    container = keyed_containers(key)[at]
    key.container = container if is_known else None  # type: ignore[attr-defined]
    chain = Chain([key, container])
    chain.step()
    change_container(container)
    # Other attributes in another order: none is left for a moment.
    vars(key).clear()
    key.container = container  # type: ignore[attr-defined]
    key.key = "a"
    chain.step()
    if isinstance(container, collections.OrderedDict):
        return  # with a key that it does not find any more, it can neither be read nor copied
    vars(key).clear()
    key.other = [container]  # type: ignore[attr-defined]
    key.key = "b"  # another hash, which the container does not know
    change_container(container)
    chain.step()
    assert chain.roll_back()

"""Checkpoints: new replicas begin with one, and follow the same deltas as all others."""

from __future__ import annotations

import array
import collections
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from delta_support import Chain, numbers_of, objects
from pams_parallel.snapshot import Replica, SnapshotDecodeError
from sample_types import Derived, Plain, Slotted

if TYPE_CHECKING:
    from collections.abc import Callable


class Setting:
    """A graph of many kinds of objects, and a chain that has sent some deltas of it.

    Args:
        has_hooks: whether there are objects whose classes may say how they are copied.
    """

    def __init__(self, *, has_hooks: bool = True) -> None:
        self.history: list[Any] = [float(i) for i in range(50)]
        self.prng = random.Random(3)
        self.agents = [
            Plain(prng=random.Random(seed), history=self.history, wealth=seed * 1.5)
            for seed in range(6)
        ]
        self.objects: dict[str, Any] = {
            "deque": collections.deque([1, [2]], maxlen=5),
            "set": {"a", "b"},
            "array": np.arange(6.0),
            "generator": np.random.default_rng(1),
            "bytes": bytearray(b"abc"),
            "opaque": array.array("d", [1.0]),
            "tuple": (self.history, ("x", (self.prng,))),
        }
        if has_hooks:
            self.objects["slots"] = Slotted(left=[1], right=self.prng)
        self.chain = Chain(self.agents, self.objects)
        self.chain.step()
        for _ in range(3):
            self.change()
            self.chain.delta()

    def change(self) -> None:
        """What a step of a simulation does: objects come, go and change."""
        n = len(self.history)
        self.history.append(n + 0.5)
        self.objects["new"] = [Plain(number=n), Derived(number=n), {"n": n}]
        self.agents[n % 6].prng.random()
        self.agents[n % 6].position = Plain(size=n)
        self.objects["generator"].random()
        self.objects["array"][n % 6] = n
        self.objects["deque"].append([n])

    def checkpoint(self) -> bytes:
        checkpoint = self.chain.checkpoint()
        assert checkpoint is not None
        return checkpoint


@pytest.fixture(params=[False, True], ids=["no hooks", "hooks"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(has_hooks=request.param)


def test_a_new_replica_begins_with_it(setting: Setting) -> None:
    sequence = setting.chain.source.sequence
    checkpoint = setting.checkpoint()
    assert setting.chain.source.sequence == sequence
    replica = Replica()
    replica.apply(checkpoint)
    assert replica.sequence == sequence
    setting.chain.check(replica)


def test_all_go_on_with_the_same_deltas(setting: Setting) -> None:
    chain = setting.chain
    replicas = [chain.replica]
    for _ in range(4):
        setting.checkpoint()
        replicas.append(Replica())
        for _ in range(3):
            for replica in replicas:
                chain.catch_up(replica)
            setting.change()
            frame = chain.delta()
            assert len(frame) < 3000
        for replica in replicas:
            chain.catch_up(replica)
            chain.check(replica)


def test_objects_have_the_same_numbers(setting: Setting) -> None:
    chain = setting.chain
    replica = Replica()
    replica.apply(setting.checkpoint())
    for _ in range(2):
        every = [*setting.agents, setting.history, *setting.objects.values()]
        numbers = numbers_of(chain.source, every)
        found = objects(replica, numbers)
        assert numbers_of(replica, found) == numbers
        assert list(map(type, found)) == list(map(type, every))
        setting.change()
        chain.delta()
        chain.catch_up(replica)


def test_replicas_that_follow_keep_their_objects(setting: Setting) -> None:
    chain = setting.chain
    before = list(chain.replica.roots)
    setting.checkpoint()
    setting.change()
    chain.delta()
    assert all(a is b for a, b in zip(before, chain.replica.roots, strict=True))


def test_roll_back_of_a_replica_that_began_with_it(setting: Setting) -> None:
    replica = setting.chain.replica = Replica()
    replica.apply(setting.checkpoint())
    setting.change()
    setting.chain.delta()
    agents, others = replica.roots
    agents[0].prng.random()
    agents[1].history.append(1)
    del agents[2].wealth
    others["deque"].clear()
    others["array"][:] = 0
    if "slots" in others:
        others["slots"].left = None
    others["generator"].random()
    others["new"][1].__class__ = Plain
    assert setting.chain.roll_back()


def test_what_was_dropped_comes_back(setting: Setting) -> None:
    """It still has its number, because somebody else refers to it."""
    kept = [setting.objects.pop("deque"), setting.agents.pop(), setting.objects.pop("new")[0]]
    setting.chain.delta()
    new = Replica()
    new.apply(setting.checkpoint())
    for obj in kept:
        setting.objects[str(id(obj))] = obj
        setting.chain.delta()
        setting.chain.catch_up(new)
        setting.chain.check(new)


def test_results_of_reducers_are_freed_on_both_sides(setting: Setting) -> None:
    setting.objects["more"] = [collections.Counter("abc"), array.array("i", [1, 2])]
    setting.chain.delta()
    new = Replica()
    new.apply(setting.checkpoint())
    for _ in range(4):
        setting.change()
        setting.objects["more"].append(collections.OrderedDict(a=[1]))
        setting.chain.delta()
        setting.chain.catch_up(new)
        setting.chain.check(new)


CHANGES: dict[str, Callable[[Setting], Any]] = {
    "list": lambda setting: setting.history.append(1.0),
    "attribute": lambda setting: setattr(setting.agents[0], "wealth", 0.0),
    "index of a generator": lambda setting: setting.prng.random(),
    "words of a generator": lambda setting: setting.prng.seed(5),
    "generator of NumPy": lambda setting: setting.objects["generator"].random(),
    "array": lambda setting: setting.objects["array"].fill(7.0),
    "opaque object": lambda setting: setting.objects["opaque"].append(2.0),
    "deque": lambda setting: setting.objects["deque"].pop(),
    "new object": lambda setting: setting.objects.update(more=Plain()),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_there_is_none_after_a_change(setting: Setting, kind: str) -> None:
    CHANGES[kind](setting)
    assert setting.chain.checkpoint() is None
    setting.chain.step()
    assert setting.chain.checkpoint() is not None


def test_there_is_none_after_a_change_of_a_slot() -> None:
    setting = Setting(has_hooks=True)
    setting.objects["slots"].left = None
    assert setting.chain.checkpoint() is None


def test_there_is_none_of_other_roots(setting: Setting) -> None:
    assert setting.chain.source.checkpoint((setting.agents,)) is None
    assert setting.chain.source.checkpoint((setting.objects, setting.agents)) is None


class Hooked:
    """Its hook may hide anything."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def test_there_is_none_if_deltas_cannot_follow() -> None:
    chain = Chain([Hooked()])
    chain.step()
    assert chain.checkpoint() is None


class ChangesInReducer:
    """Changes a list of the graph while it is being encoded."""

    def __init__(self, victim: list[int]) -> None:
        self.victim = victim
        self.is_armed = False

    def __reduce__(self) -> Any:
        if self.is_armed:
            self.victim.append(1)
        return list, ()


def test_a_change_during_it_is_noticed() -> None:
    victim = [1]
    nuisance = ChangesInReducer(victim)
    chain = Chain(victim, [nuisance])
    chain.oracle = lambda roots: ([*victim], [[]])
    chain.step()
    nuisance.is_armed = True
    assert chain.checkpoint() is None
    nuisance.is_armed = False
    chain.step()


def test_before_the_first_frame_and_after_the_last() -> None:
    chain = Chain([1])
    with pytest.raises(ValueError, match="there is no frame"):
        chain.source.checkpoint(chain.roots)
    chain.step()
    chain.source.close()
    with pytest.raises(ValueError, match="there is no frame"):
        chain.source.checkpoint(chain.roots)


def test_names_have_to_fit() -> None:
    chain = Chain([1])
    chain.step()
    with pytest.raises(ValueError, match="as many names as roots"):
        chain.source.checkpoint(chain.roots, names=())


def test_a_replica_that_is_in_use_can_begin_anew_with_it(setting: Setting) -> None:
    setting.chain.replica.apply(setting.checkpoint())
    setting.chain.check()
    setting.change()
    setting.chain.delta()


def test_a_delta_of_before_does_not_fit(setting: Setting) -> None:
    setting.change()
    old = setting.chain.delta()
    replica = Replica()
    replica.apply(setting.checkpoint())
    with pytest.raises(SnapshotDecodeError):
        replica.apply(old)

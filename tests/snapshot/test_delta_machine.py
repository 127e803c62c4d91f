"""Any graph, any changes, any vandalism: the replica is always a fresh copy by pickle."""

from __future__ import annotations

import collections
import contextlib
import gc
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks import copy_of
from delta_edits import edits_of, keeps_native
from delta_kinds import NATIVE_KINDS, OTHER_KINDS
from delta_support import (
    UNKNOWN,
    Chain,
    assert_graphs_replicate,
    has_identity,
    numbered,
    numbers_of,
    objects,
)
from graph_compare import Graph
from graph_strategies import LEAVES, MAKERS
from graph_strategies import Source as Parts
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pams_parallel.snapshot import Replica, SnapshotDecodeError
from sample_types import (
    Derived,
    Frozen,
    FrozenSlotted,
    HashedByDefault,
    HashedByKey,
    MyDict,
    MyList,
    OpenSlotted,
    Pair,
    Plain,
    Record,
    Slotted,
    SlottedOpen,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_OBJECTS = 24

# Updated in place whatever changes in them.
IN_PLACE = (
    list,
    dict,
    set,
    bytearray,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    random.Random,
    Plain,
    Derived,
    Slotted,
    SlottedOpen,
)

# What simulations consist of, much more often than the rest.
FREQUENT_MAKERS: list[Callable[[Parts], Any]] = [
    Parts.many,
    lambda parts: [parts.any() for _ in range(7)],
    lambda parts: {parts.stable_key(): parts.any() for _ in parts.count(5)},
    lambda parts: {parts.stable_key() for _ in parts.count(5)},
    lambda parts: (parts.any(), parts.any()),
    lambda parts: Plain(**parts.attributes()),
    lambda parts: Plain(prng=random.Random(1), others=parts.many()),
    lambda parts: random.Random(2),
    lambda parts: collections.deque(parts.many()),
    lambda parts: collections.OrderedDict((parts.stable_key(), parts.any()) for _ in range(3)),
    lambda parts: np.arange(5.0),
    lambda parts: bytearray(b"abc"),
    lambda parts: Slotted(left=parts.any()),
]
# All else whose changes can be sent as deltas.
NATIVE_MAKERS: list[Callable[[Parts], Any]] = [
    *(lambda parts, make=make: make() for make in NATIVE_KINDS.values()),
    *(
        lambda parts, make=OTHER_KINDS[kind]: make()
        for kind in (
            "slotted dataclass",
            "frozen dataclass",
            "instance with a metaclass",
            "instance of a nested class",
            "read-only array",
            "array without elements",
            "array without axes",
            "structured array",
            "RandomState",
            "list subclass",
            "dict subclass",
            "set subclass",
            "deque subclass",
            "ordered dict subclass",
            "default dict subclass",
            "slotted list subclass",
            "slotted dict subclass",
            "counter",
            "user dict",
            "chain map",
        )
    ),
    lambda parts: frozenset(parts.stable_key() for _ in parts.count(4)),
    lambda parts: Pair(parts.any(), parts.any()),
    lambda parts: Record(parts.any(), parts.many()),
    lambda parts: OpenSlotted(parts.any(), parts.any()),
    lambda parts: MyList(parts.many()),
    lambda parts: MyDict({parts.stable_key(): parts.any()}),
    lambda parts: collections.defaultdict(list, {parts.stable_key(): parts.any()}),
]
KEYED_MAKERS: list[Callable[[Parts], Any]] = [
    lambda parts: HashedByKey(parts.stable_key()),
    lambda parts: HashedByDefault(parts.stable_key()),
    lambda parts: Frozen(parts.key(), parts.key()),
    lambda parts: (parts.key(), parts.key()),
    lambda parts: {parts.key() for _ in parts.count(5)},
    lambda parts: {parts.key(): parts.any() for _ in parts.count(5)},
    lambda parts: frozenset(parts.key() for _ in parts.count(5)),
]


class DrawnChooser:
    """Parts of edits as hypothesis has them; new objects go to the pool."""

    def __init__(self, draw: Any, pool: list[Any], machine: DeltaMachine) -> None:
        self._draw = draw
        self._pool = pool
        self._machine = machine
        self._parts = Parts(draw, pool, machine.custom_hashes)

    def make(self) -> Any:
        made = self._draw(st.sampled_from(self._machine.makers))(self._parts)
        self._pool.append(made)
        return made

    def value(self) -> Any:
        if len(self._pool) < MOST_OBJECTS and self._draw(st.integers(0, 2)) == 0:
            return self.make()
        return self._parts.any()

    def leaf(self) -> Any:
        return self._draw(LEAVES)

    def key(self) -> Any:
        return self._parts.key()

    def index(self, n: int, /) -> int:
        return self._draw(st.integers(0, n - 1))

    def edit(self, *, vandal: bool) -> None:
        """Change one object of the pool, or add one."""
        fitting: dict[str, list[tuple[Any, str]]] = {}
        for obj in self._pool:
            if self._machine.custom_hashes and isinstance(obj, Frozen | FrozenSlotted):
                continue  # with itself inside, it has no hash
            for name in edits_of(obj, vandal=vandal):
                if not vandal and self._machine.native and not keeps_native(obj, name):
                    continue
                fitting.setdefault(name.partition(":")[0], []).append((obj, name))
        if not fitting:
            self.make()
            return
        # The kind of object comes first, or those with many edits would get most of them.
        kind = sorted(fitting)[self.index(len(fitting))]
        obj, name = fitting[kind][self.index(len(fitting[kind]))]
        note(f"{'vandal' if vandal else 'edit'}: {name} of a {type(obj).__name__}")
        # An edit that fails half-way is an edit, too.
        with contextlib.suppress(Exception):
            edits_of(obj, vandal=vandal)[name](obj, self)


@st.composite
def run(draw: Any, action: Callable[[Any], None]) -> None:
    """Run an action that draws, without showing each of the parts drawn."""
    action(draw)


def take(obj: Any, choose: DrawnChooser) -> list[Any]:
    """Take one object out of a container, if there is any."""
    if isinstance(obj, list | collections.deque) and obj:
        index = choose.index(len(obj))
        taken = obj[index]
        del obj[index]
        return [taken]
    mapping = obj if isinstance(obj, dict) else vars(obj) if type(obj) is Plain else None
    if mapping:
        return [mapping.pop(list(mapping)[choose.index(len(mapping))])]
    return []


def give(obj: Any, given: Any, choose: DrawnChooser) -> None:
    if isinstance(obj, list | collections.deque):
        obj.append(given)
    elif isinstance(obj, dict):
        obj[choose.key()] = given
    elif type(obj) is Plain:
        obj.given = given  # type: ignore[attr-defined]


def detach(obj: Any, pool: list[Any]) -> None:
    """Remove an object from the containers that hold it directly."""
    for other in pool:
        if type(other) is list:
            other[:] = [item for item in other if item is not obj]
        mapping = other if type(other) is dict else vars(other) if type(other) is Plain else {}
        for key in [key for key, value in mapping.items() if value is obj]:
            del mapping[key]


CONTAINERS = (list, dict, collections.deque, collections.OrderedDict, Plain)


class DeltaMachine(RuleBasedStateMachine):
    """A chain of frames, a replica that gets each, and one that lags behind.

    Attributes:
        makers: what objects are made by.
        custom_hashes: whether keys may be objects with hashes of their own.
        native: whether no object is to turn into one that takes a keyframe.
    """

    makers = FREQUENT_MAKERS * (len(MAKERS) // len(FREQUENT_MAKERS)) + MAKERS
    custom_hashes = False
    native = False

    def __init__(self) -> None:
        super().__init__()
        self.chain = Chain()
        if self.custom_hashes:
            # Pickle puts objects that are not finished into containers.
            self.chain.oracle = copy_of
        self.late = Replica()
        self.pool: list[Any] = []
        # By the address of an object in the pool: the type that it had, and its counterpart.
        self.twins: dict[int, tuple[type, Any]] = {}

    def teardown(self) -> None:
        self.chain.source.close()
        self.chain.replica.close()
        self.late.close()

    def act(self, data: Any, action: Callable[[DrawnChooser], None]) -> None:
        """Change the source, and see to it that the replica has the change."""
        data.draw(run(lambda draw: action(DrawnChooser(draw, self.pool, self))))
        self.synchronise()

    def synchronise(self, **options: Any) -> None:
        try:
            self.chain.oracle(self.chain.roots)
        except Exception as error:
            note(f"cannot be copied: {error!r}")
            self.give_up()
            return
        self.chain.send(**options)
        self.chain.catch_up(self.chain.replica)
        self.check()

    def give_up(self) -> None:
        """The graph cannot be copied: nobody may crash, and all goes on without the culprits."""
        with contextlib.suppress(Exception):
            self.chain.send()
            self.chain.catch_up(self.chain.replica)
        self.pool[:] = [obj for obj in self.pool if self.copyable(obj)]
        self.chain.roots = tuple(obj for obj in self.chain.roots if self.copyable(obj))
        self.twins.clear()
        self.synchronise(keyframe=True)

    def copyable(self, obj: Any) -> bool:
        try:
            self.chain.oracle(obj)
        except Exception:
            return False
        return True

    def check(self) -> None:
        """Values, aliasing and numbers are right, and identities were kept."""
        source, replica = self.chain.source, self.chain.replica
        pool = [obj for obj in self.pool if has_identity(obj)]
        numbers = numbers_of(source, pool)
        reachable = {id(node.obj) for node in Graph(self.chain.roots).nodes}
        for obj in self.chain.roots:
            assert type(obj) not in IN_PLACE or numbers_of(source, [obj]) != [UNKNOWN]
        present = [(o, n) for o, n in zip(pool, numbers, strict=True) if n != UNKNOWN]
        found = objects(replica, [number for _, number in present])
        assert numbers_of(replica, found) == [number for _, number in present]
        originals = objects(source, [number for _, number in present])
        assert all(a is b for a, (b, _) in zip(originals, present, strict=True))
        tracked = [
            (obj, twin)
            for (obj, _), twin in zip(present, found, strict=True)
            if type(obj) in IN_PLACE and id(obj) in reachable
        ]
        assert_graphs_replicate(
            self.chain.oracle((self.chain.roots, [obj for obj, _ in tracked])),
            (tuple(replica.roots), [twin for _, twin in tracked]),
        )
        before, self.twins = self.twins, {id(obj): (type(obj), twin) for obj, twin in tracked}
        if not source.is_keyframe:
            for key, (cls, twin) in self.twins.items():
                old_cls, old_twin = before.get(key, (None, None))
                assert old_cls is not cls or old_twin is twin, f"a {cls} was replaced"

    @initialize(data=st.data())
    def start(self, data: Any) -> None:
        def make(choose: DrawnChooser) -> None:
            for _ in range(1 + choose.index(10)):
                choose.make()
            for _ in range(choose.index(8)):
                choose.edit(vandal=False)
            self.chain.roots = (self.pool[-1], self.pool)

        self.act(data, make)

    @rule(data=st.data())
    def edit(self, data: Any) -> None:
        def edit(choose: DrawnChooser) -> None:
            for _ in range(1 + choose.index(4)):
                choose.edit(vandal=False)

        self.act(data, edit)

    @rule(data=st.data())
    def edit_without_looking(self, data: Any) -> None:
        """Several frames in a row, of which the other replica gets none for the time being."""
        for _ in range(2):
            self.edit(data)

    @rule(data=st.data())
    def move(self, data: Any) -> None:
        """An object goes from one container to another."""

        def move(choose: DrawnChooser) -> None:
            containers = [obj for obj in self.pool if isinstance(obj, CONTAINERS)]
            if not containers:
                containers = [choose.make()]
            for taken in take(containers[choose.index(len(containers))], choose):
                give(containers[choose.index(len(containers))], taken, choose)

        self.act(data, move)

    @rule(data=st.data())
    def forget(self, data: Any) -> None:
        """Objects go away, and new ones may get their addresses."""

        def forget(choose: DrawnChooser) -> None:
            index = choose.index(len(self.pool)) if self.pool else 0
            for obj in self.pool[index : index + 1]:
                self.twins.pop(id(obj), None)
                detach(obj, self.pool)
            del self.pool[index : index + 1]
            self.chain.roots = (*self.pool[:1], self.pool)

        self.act(data, forget)
        gc.collect()

        def refill(choose: DrawnChooser) -> None:
            new = [Plain(), [], {}, Plain(a=[])]
            for obj in new[choose.index(len(new)) :]:
                if len(self.pool) < MOST_OBJECTS:
                    self.pool.append(obj)

        self.act(data, refill)

    @rule(data=st.data())
    def change_roots(self, data: Any) -> None:
        def change(choose: DrawnChooser) -> None:
            n_roots = choose.index(4)
            chosen = [self.pool[choose.index(len(self.pool))] for _ in range(n_roots) if self.pool]
            self.chain.roots = (*chosen, *([self.pool] if choose.index(3) else []))

        self.act(data, change)

    @rule()
    def nothing(self) -> None:
        self.synchronise()

    @rule()
    def demand_a_keyframe(self) -> None:
        self.synchronise(keyframe=True)
        assert self.chain.source.is_keyframe

    @rule(data=st.data())
    def vandalise(self, data: Any) -> None:
        replica = self.chain.replica
        before = numbered(replica, tuple(replica.roots))

        def vandalise(draw: Any) -> None:
            pool = [twin for _, twin in self.twins.values()]
            pool += [obj for obj in before.values() if edits_of(obj) and has_identity(obj)]
            choose = DrawnChooser(draw, pool, self)
            for _ in range(1 + choose.index(4)):
                choose.edit(vandal=True)

        data.draw(run(vandalise))
        if self.chain.roll_back():
            same = zip(objects(replica, list(before)), before.values(), strict=True)
            assert all(now is then for now, then in same)
        else:
            self.twins.clear()
        self.check()

    @rule()
    def catch_up(self) -> None:
        self.chain.catch_up(self.late)
        self.chain.check(self.late)

    @rule()
    def start_a_fresh_replica(self) -> None:
        self.chain.replica = Replica()
        self.chain.catch_up(self.chain.replica)
        self.twins.clear()
        self.check()

    @rule()
    def begin_with_a_checkpoint(self) -> None:
        """A new replica begins with it, and the others go on with the same deltas."""
        self.synchronise()
        checkpoint = self.chain.checkpoint()
        if checkpoint is None:
            assert not self.chain.source.is_trackable
            return
        self.late = Replica()
        self.catch_up()
        pool = [obj for obj in self.pool if has_identity(obj)]
        numbers = [n for n in numbers_of(self.chain.source, pool) if n != UNKNOWN]
        copies = objects(self.late, numbers), objects(self.chain.replica, numbers)
        assert list(map(type, copies[0])) == list(map(type, copies[1]))
        if self.twins:  # either may be the one whose roll-backs are tried from now on
            self.chain.replica, self.late = self.late, self.chain.replica
            self.twins.clear()

    @precondition(lambda self: len(self.chain.frames) > 1)
    @rule(data=st.data())
    def apply_in_the_wrong_order(self, data: Any) -> None:
        position = data.draw(st.integers(1, len(self.chain.frames) - 1))
        replica = self.chain.replica
        with pytest.raises(SnapshotDecodeError):
            replica.apply(self.chain.frames[position][1])
        assert replica.sequence is None
        with pytest.raises(SnapshotDecodeError):
            replica.apply(self.chain.frames[-1][1])
        self.chain.catch_up(replica)
        self.twins.clear()
        self.check()


class NativeMachine(DeltaMachine):
    """Nothing but deltas, with few exceptions."""

    makers = FREQUENT_MAKERS * 4 + NATIVE_MAKERS
    native = True


class KeyedMachine(DeltaMachine):
    """Keys and elements whose hash depends on what changes in them."""

    makers = KEYED_MAKERS * 2 + FREQUENT_MAKERS
    custom_hashes = True
    native = True


# Always the same examples: what a search finds is for the long histories, and takes minutes to be
# made small.
_QUICK = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
_LONG = settings(_QUICK, derandomize=False, max_examples=1500, stateful_step_count=50)

MACHINES = [DeltaMachine, NativeMachine, KeyedMachine]


@pytest.mark.timeout(1200)  # a failure takes minutes to be made small
@pytest.mark.parametrize("machine", MACHINES)
def test_any_history(machine: type[DeltaMachine]) -> None:
    run_state_machine_as_test(machine, settings=_QUICK)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machine", MACHINES)
def test_any_long_history(machine: type[DeltaMachine]) -> None:
    run_state_machine_as_test(machine, settings=_LONG)

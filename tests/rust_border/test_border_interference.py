"""User code that runs inside of a source, a replica or a watch, and interferes with it.

What :mod:`test_border_reentrancy` does to the encoder and the decoder. The outcome is an ordinary
exception or a usable result, and whatever follows is right.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import gc
import random
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hostile import HashAct, Node
from pams_parallel._core import Replica, Source, Watch, positions_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Hook:
    """What runs when a class below is asked something; it does not interrupt itself."""

    action: Callable[[], Any] | None = None
    n_runs = 0

    @classmethod
    def run(cls) -> None:
        action, cls.action = cls.action, None
        if action is None:
            return
        cls.n_runs += 1
        try:
            action()
        finally:
            cls.action = action


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Iterator[None]:
    Hook.n_runs = 0
    yield
    Hook.action = None


class ByReduceEx(Node):
    def __reduce_ex__(self, protocol: Any) -> Any:
        Hook.run()
        return Node, (), dict(self.__dict__)


class ByCopyreg(Node):
    pass


def reduce_by_copyreg(obj: ByCopyreg) -> Any:
    Hook.run()
    return Node, (), dict(obj.__dict__)


class ByNewArgs(Node):
    def __new__(cls, *args: Any) -> Any:
        Hook.run()
        return super().__new__(cls)

    def __getnewargs__(self) -> Any:
        Hook.run()
        return (1,)


class ByGetattr:
    def __getattr__(self, name: str) -> Any:
        Hook.run()
        raise AttributeError(name)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        Hook.run()
        return super().__getattribute__(name)


class ByMeta(Node, metaclass=Meta):
    pass


class ByDel(Node):
    def __del__(self) -> None:
        Hook.run()


class ByKey(Node):
    def __hash__(self) -> int:
        Hook.run()
        return 5

    def __eq__(self, other: object) -> bool:
        Hook.run()
        return self is other


class ByDescriptor(Node):
    @property
    def prng(self) -> Any:
        Hook.run()
        return None

    @prng.setter
    def prng(self, value: Any) -> None:
        Hook.run()


class DyingDict(dict):  # type: ignore[type-arg]
    def __del__(self) -> None:
        Hook.run()


class Slotted:
    __slots__ = ("part",)

    def __setattr__(self, name: str, value: Any) -> None:
        Hook.run()
        object.__setattr__(self, name, value)


@pytest.fixture(autouse=True)
def _copyreg() -> Iterator[None]:
    copyreg.pickle(ByCopyreg, reduce_by_copyreg)  # type: ignore[arg-type]
    yield
    del copyreg.dispatch_table[ByCopyreg]


def make_graph() -> list[Any]:
    slotted = Slotted()
    slotted.part = [1]
    return [
        [1, [2], "text"],
        {"k": [3]},
        Node(a=[4], prng=random.Random(1)),
        ByReduceEx(a=1),
        ByCopyreg(a=2),
        ByNewArgs(),
        ByGetattr(),
        ByMeta(a=3),
        ByDel(a=4),
        {ByKey(): 1, ByKey(): 2},
        {ByKey()},
        collections.OrderedDict([(ByKey(), [1]), (ByKey(), [2])]),
        collections.defaultdict(list, a=1),
        collections.deque([ByKey()], 4),
        slotted,
        random.Random(2),
        ByDescriptor(b=1),
    ]


TRACKED = slice(7, None)  # what deltas are possible of


class World:
    """A source and a replica, and what hooks may do to them."""

    def __init__(self, graph: list[Any]) -> None:
        self.graph = graph
        self.source = Source()
        self.replica = Replica()
        self.frames: list[bytes] = []
        # While the replica is in use it does not tell its roots.
        self.copy: list[Any] = []
        self.send()

    def send(self, **options: Any) -> None:
        frame = self.source.frame((self.graph,), **options)
        if self.source.is_keyframe:
            self.frames.clear()
        self.frames.append(frame)

    def catch_up(self) -> None:
        for frame in self.frames:
            self.replica.apply(frame)
            (self.copy,) = self.replica.roots

    def numbers(self) -> bytes:
        return self.source.numbers_of(self.graph)

    def ask(self) -> None:
        """Ask the agents of the replica, as a worker does."""
        agents = [obj for obj in self.replica.roots[0] if isinstance(obj, Node)]
        numbers = self.replica.numbers_of(agents)
        packer = self.replica.random_state_packer(numbers)
        watch = Watch(agents, packer, self.replica, numbers)
        with contextlib.closing(packer):
            for agent in list(agents):
                watch.begin()
                agent.b = 5
                watch.end([])

    def settle(self) -> None:
        """Nothing interferes any more: all is right again."""
        Hook.action = None
        self.source = Source()
        self.replica = Replica()
        self.graph[:] = [[1], Node(a=[2])]
        self.frames.clear()
        self.send()
        self.graph[1].a.append(3)
        self.send()
        self.catch_up()
        (found,) = self.replica.roots
        assert found[0] == [1]
        assert found[1].a == [2, 3]
        found.clear()
        assert self.replica.roll_back()
        assert self.replica.roots[0][1].a == [2, 3]


def mutate(objs: Any) -> None:
    for obj in list(list.__iter__(objs)):
        if type(obj) is list or type(obj) is collections.deque:
            obj.append([1])
        elif type(obj) in (dict, collections.OrderedDict, collections.defaultdict):
            obj[len(obj)] = [1]
        elif type(obj) is set:
            obj.add(len(obj))
        elif type(obj) is random.Random:
            obj.seed(1)
    if len(objs) < 60:
        objs.append(Node(new=[1]))


def empty(objs: Any) -> None:
    for obj in list(list.__iter__(objs)):
        if type(obj) in (list, dict, set, collections.OrderedDict, collections.deque):
            obj.clear()
        elif isinstance(obj, Node):
            object.__getattribute__(obj, "__dict__").clear()
    objs.clear()


def reclass(objs: Any) -> None:
    class Another(random.Random):
        pass

    for obj in list(list.__iter__(objs)):
        if type(obj) is random.Random:
            obj.__class__ = Another
        elif type(obj) is Node:
            obj.__class__ = ByDel


def elsewhere(use: Callable[[], Any]) -> Callable[[], Any]:
    """The same on another thread, while this one waits."""

    def run() -> None:
        def silently() -> None:
            with contextlib.suppress(Exception):
                use()

        thread = threading.Thread(target=silently)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "deadlock"

    return run


ACTIONS: dict[str, Callable[[World], Any]] = {
    "frame": lambda world: world.send(),
    "keyframe": lambda world: world.send(keyframe=True),
    "close the source": lambda world: world.source.close(),
    "apply": lambda world: world.catch_up(),
    "roll back": lambda world: world.replica.roll_back(),
    "close the replica": lambda world: world.replica.close(),
    "ask": lambda world: world.ask(),
    "positions": lambda world: world.source.positions_with(world.numbers(), "a"),
    "frame elsewhere": lambda world: elsewhere(world.send)(),
    "apply elsewhere": lambda world: elsewhere(world.catch_up)(),
    "roll back elsewhere": lambda world: elsewhere(world.replica.roll_back)(),
    "wait": lambda world: time.sleep(0.001),
    "collect": lambda world: gc.collect(),
    "mutate": lambda world: mutate(world.graph),
    "empty": lambda world: empty(world.graph),
    "reclass": lambda world: reclass(world.graph),
    "mutate the copy": lambda world: mutate(world.copy),
    "empty the copy": lambda world: empty(world.copy),
    "reclass the copy": lambda world: reclass(world.copy),
    "fail": lambda world: 1 / 0,
}


def survives(use: Callable[[], Any]) -> None:
    """Ordinary exceptions only; a panic of Rust is none."""
    try:
        use()
    except Exception:
        return
    finally:
        gc.collect()


def send_all(world: World) -> None:
    mutate(world.graph)
    for _ in range(2):
        survives(world.send)
    survives(lambda: world.send(keyframe=True))


def apply_all(world: World) -> None:
    survives(world.catch_up)
    mutate(world.graph)
    del world.graph[:1]
    action, Hook.action = Hook.action, None
    survives(world.send)
    Hook.action = action
    survives(world.catch_up)


def roll_back_all(world: World) -> None:
    action, Hook.action = Hook.action, None
    world.catch_up()
    (copy,) = world.replica.roots
    mutate(copy)
    for obj in copy:
        if type(obj) is collections.defaultdict:
            obj.default_factory = ByDel
        elif type(obj) is random.Random:
            obj.__dict__ = DyingDict(gauss_next=None)
        elif type(obj) is Slotted:
            obj.part = ByDel()
        elif type(obj) is Node:
            obj.__dict__ = DyingDict(a=ByDel())
        elif type(obj) in (list, collections.deque):
            obj.append(ByDel())
    del copy, obj  # so that nothing but the copy has what is dropped
    Hook.action = action
    for _ in range(2):
        survives(world.replica.roll_back)


def ask_all(world: World) -> None:
    action, Hook.action = Hook.action, None
    world.catch_up()
    for obj in world.replica.roots[0]:
        if type(obj) is Node:
            obj.__dict__ = DyingDict(obj.__dict__)
    Hook.action = action
    survives(world.ask)


def look_for_all(world: World) -> None:
    for name in ("a", "prng", "synced_attributes"):
        survives(lambda name=name: world.source.positions_with(world.numbers(), name))
        survives(lambda name=name: positions_with(world.graph, name))
    survives(lambda: world.source.prngs_of(world.numbers()))


USES = {
    "frame": send_all,
    "apply": apply_all,
    "roll back": roll_back_all,
    "watch": ask_all,
    "positions": look_for_all,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("part", ["all", "tracked"])
def test_interference(part: str, use: str, action: str) -> None:
    graph = make_graph()
    world = World(graph if part == "all" else graph[TRACKED])
    Hook.action = lambda: ACTIONS[action](world)
    USES[use](world)
    world.settle()


@pytest.mark.parametrize("use", USES)
def test_hooks_do_run(use: str) -> None:
    """What the test above relies on."""
    world = World(make_graph() if use == "apply" else make_graph()[TRACKED])
    Hook.action = gc.collect
    USES[use](world)
    assert Hook.n_runs > 0


# --- generators that become something else ----------------------------------------------------


class OtherRandom(random.Random):
    pass


class FindsOut(HashAct):
    """A key that is compared with a name of a method."""

    def __init__(self, name: str, found: Callable[[], Any]) -> None:
        self.name = name
        self.found = found

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        self.found()
        return False


def packed_state(world: World, draw: Callable[[Any], Any]) -> Any:
    prngs = world.source.numbers_of(world.graph)
    packer = world.replica.random_state_packer(prngs)
    (copy,) = world.replica.roots[0]
    draw(copy)
    assert packer.add(copy)
    return world.source.random_states(packer.finish(), prngs)


@pytest.mark.parametrize("draw", [lambda p: p.random(), lambda p: p.seed(5), lambda p: p.gauss()])
@pytest.mark.parametrize("name", ["setstate", "gauss_next"])
def test_a_generator_gets_another_class_while_its_state_is_set(name: str, draw: Any) -> None:
    prng = random.Random(1)
    world = World([prng])
    world.catch_up()
    states = packed_state(world, draw)

    def become() -> None:
        prng.__class__ = OtherRandom

    prng.__dict__ = {FindsOut(name, become): 1, "gauss_next": None}
    with contextlib.suppress(RuntimeError):
        states.apply(0, prng)
    assert type(prng) is OtherRandom
    world.settle()


@pytest.mark.parametrize("way", ["words", "dict"])
def test_a_generator_gets_another_class_while_it_is_rolled_back(way: str) -> None:
    world = World([random.Random(1)])
    world.catch_up()
    (copy,) = world.replica.roots[0]

    def become() -> None:
        copy.__class__ = OtherRandom

    Hook.action = become
    if way == "dict":
        copy.__dict__ = DyingDict(gauss_next=None)
    else:
        copy.seed(5)
        copy.gauss_next = ByDel()
    is_restored = world.replica.roll_back()
    assert is_restored == (world.replica.sequence == 0)
    if is_restored:
        assert type(world.replica.roots[0][0]) is random.Random
        assert world.replica.roots[0][0].getstate() == random.Random(1).getstate()
    world.settle()


def test_what_the_finalizer_of_a_default_factory_does_is_undone() -> None:
    world = World([[1], collections.defaultdict(list, a=1)])
    world.catch_up()
    first, table = world.replica.roots[0]

    class Factory:
        def __del__(self) -> None:
            first.append("by the finalizer")

    table.default_factory = Factory()
    assert world.replica.roll_back()
    assert first == [1]
    assert table.default_factory is list
    world.settle()


# --- threads ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_threads_change_everything_while_frames_are_taken() -> None:
    """No lock is held while user code runs, and no thread sees anything half-done."""
    # CPython's own OrderedDict breaks when two threads change it and its keys have a hash in
    # Python (3.11: corrupted memory without any extension).
    graph = make_graph()[TRACKED]
    world = World([obj for obj in graph if type(obj) is not collections.OrderedDict])
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(use: Callable[[], Any]) -> None:
        while not stop.is_set():
            try:
                use()
            except Exception:
                continue
            except BaseException as error:  # a panic
                errors.append(error)
                return

    def churn() -> None:
        mutate(world.graph)
        for obj in world.graph:
            if type(obj) in (list, set, dict) and len(obj) > 50:
                obj.clear()
        del world.graph[20:]

    uses: list[Callable[[], Any]] = [
        churn,
        churn,
        world.send,
        world.catch_up,
        world.ask,
        world.replica.roll_back,
        lambda: mutate(world.replica.roots[0]),
        lambda: world.source.positions_with(world.numbers(), "a"),
        lambda: world.source.objects(struct.pack("<3I", 0, 1, 2)),
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    Hook.action = lambda: time.sleep(0)
    threads = [threading.Thread(target=work, args=(use,)) for use in uses]
    try:
        for thread in threads:
            thread.start()
        stop.wait(2)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not errors, errors
    world.settle()

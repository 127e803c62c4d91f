"""User code that runs in the middle of a frame, an update or a rollback, and interferes.

The outcome is an ordinary exception or a correct result, and everything after it is exact again.
Each scene runs in a process of its own, so that a crash is a failed test.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import gc
import multiprocessing
import os
import threading
import traceback
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from delta_support import Chain, numbers_of, objects
from pams_parallel.snapshot import Replica, SnapshotDecodeError, Source
from sample_types import Derived, Plain, Slotted

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 120.0


def run_apart(scenes: dict[str, Callable[[], None]]) -> None:
    """Run scenes in one forked process; whatever happens to them is reported here."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_all, args=(sender, scenes))
    process.start()
    sender.close()
    current, failures = "", []
    with contextlib.suppress(EOFError):
        while True:
            if not receiver.poll(SECONDS):
                process.kill()
                failures.append(f"{current}: hangs")
            current, failure = receiver.recv()
            if failure is not None:
                failures.append(f"{current}: {failure}")
    receiver.close()
    process.join()
    if process.exitcode:
        failures.append(f"{current}: the process ended with {process.exitcode}")
    assert not failures, "\n".join(failures)


def _run_all(sender: Any, scenes: dict[str, Callable[[], None]]) -> None:
    faulthandler.enable()
    gc.freeze()  # the collector runs often, and the objects of pytest are many
    for name, scene in scenes.items():
        sender.send((name, None))
        try:
            scene()
        except BaseException:
            sender.send((name, traceback.format_exc()))


def survives(use: Callable[[], Any]) -> Any:
    """The result, or the ordinary exception; a panic of Rust is none."""
    try:
        return use()
    except (Exception, KeyboardInterrupt) as error:
        return error
    finally:
        gc.collect()


# --- hooks ------------------------------------------------------------------------------------


class Hooks:
    """What runs at which event, a few times; it does not interrupt itself."""

    event: str | None = None
    action: Callable[[], Any] | None = None
    n_runs = 0
    n_left = 0

    @classmethod
    def run(cls, event: str) -> None:
        if event == cls.event and cls.action is not None and cls.n_left > 0:
            action, cls.action = cls.action, None
            cls.n_runs += 1
            cls.n_left -= 1
            try:
                action()
            finally:
                cls.action = action

    @classmethod
    @contextlib.contextmanager
    def at(cls, event: str, action: Callable[[], Any]) -> Any:
        cls.event, cls.action, cls.n_left = event, action, 4
        try:
            yield
        finally:
            cls.event = cls.action = None


class Stated:
    """Hooks of pickling."""

    def __init__(self, label: Any) -> None:
        self.label = label

    def __getstate__(self) -> Any:
        Hooks.run("getstate")
        return {"label": self.label}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        Hooks.run("setstate")


class Reduced:
    """Hooks of an object that is built from its items."""

    def __init__(self, label: Any, items: Any = ()) -> None:
        Hooks.run("init")
        self.label = label
        self.items = list(items)

    def __reduce__(self) -> Any:
        Hooks.run("reduce")
        return Reduced, (self.label,), None, self._iterate()

    def _iterate(self) -> Any:
        for item in list(self.items):
            Hooks.run("iterate")
            yield item

    def extend(self, items: Any) -> None:
        Hooks.run("extend")
        self.items.extend(items)

    def append(self, item: Any) -> None:
        self.extend([item])


class Keyed:
    """Hooks of hash tables."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        Hooks.run("hash")
        return 7  # so that all have to be compared

    def __eq__(self, other: object) -> bool:
        Hooks.run("eq")
        return isinstance(other, Keyed) and self.key == other.key


class Dropped:
    """The hook of destruction."""

    def __del__(self) -> None:
        Hooks.run("del")


class HookedList(list):
    def append(self, item: Any) -> None:
        Hooks.run("list method")
        super().append(item)

    def extend(self, items: Any) -> None:
        Hooks.run("list method")
        super().extend(items)

    def __iter__(self) -> Any:
        Hooks.run("iterate list")
        return super().__iter__()


class HookedDict(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        Hooks.run("dict method")
        super().__setitem__(key, value)

    def items(self) -> Any:
        Hooks.run("iterate dict")
        return super().items()


class HookedSlots:
    __slots__ = ("left",)

    def __setattr__(self, name: str, value: Any) -> None:
        Hooks.run("setattr")
        object.__setattr__(self, name, value)


FRAME_EVENTS = ["getstate", "reduce", "iterate", "iterate list", "iterate dict", "del"]
UPDATE_EVENTS = [
    "setstate",
    "init",
    "extend",
    "hash",
    "eq",
    "list method",
    "dict method",
    "setattr",
    "del",
]


def make_graph() -> list[Any]:
    """Every hook, surrounded by objects that an action can change."""
    agents = [Plain(number=n, own=[n], table={n: [n]}) for n in range(6)]
    slots = HookedSlots()
    slots.left = agents[1]
    graph: list[Any] = [
        agents,
        [Stated(1), agents[0], Stated([agents[1]])],
        {"first": agents[0], "hook": Stated(2), "last": [agents[2]]},
        {Keyed(n): agents[n] for n in range(4)},
        {Keyed(n) for n in range(10, 14)},
        frozenset(Keyed(n) for n in range(20, 23)),
        collections.deque([agents[3], Stated(3), agents[4]]),
        collections.OrderedDict((Keyed(n), [n]) for n in range(30, 33)),
        Reduced("a", [agents[0], [1], Reduced("b", [2])]),
        HookedList([1, agents[1], [2]]),
        HookedDict(a=1, b=agents[2]),
        Slotted(left=Stated(4), right=agents[5]),
        slots,
        (Stated(5), [1], agents[0]),
        np.array([Stated(6), agents[0]], dtype=object),
        [Dropped() for _ in range(5)],
    ]
    for agent in agents:
        agent.graph = graph
    return graph


# --- actions ----------------------------------------------------------------------------------


def shrink(graph: Any) -> None:
    """Empty much of what is there."""
    for obj in list(list.__iter__(graph)):
        if type(obj) in (list, dict, set, collections.deque):
            obj.clear()
    for obj in [graph, *graph]:
        if type(obj) is list:
            del obj[len(obj) // 2 :]


def grow(graph: Any) -> None:
    for obj in list(list.__iter__(graph)):
        if type(obj) is list or type(obj) is collections.deque:
            obj.extend([n] for n in range(100))
        elif type(obj) is dict:
            obj.update((n, [n]) for n in range(100))
        elif type(obj) is set:
            obj.update(range(100))
    graph.extend(Plain(n=n) for n in range(100))


def alter_agents(graph: Any) -> None:
    agents = graph[0] if graph and type(graph[0]) is list else []
    for number, agent in enumerate(list(agents)):
        if isinstance(agent, Plain):
            agent.__dict__ = {"new": number, "graph": graph}
            agent.__class__ = Derived if type(agent) is Plain else Plain


def root_of(side: Chain | Replica) -> Any:
    roots = side.roots
    return roots[0] if roots and type(roots[0]) is list else []


ACTIONS: dict[str, Callable[[Chain], Any]] = {
    "frame": lambda chain: chain.send(),
    "keyframe": lambda chain: chain.send(keyframe=True),
    "frame of other roots": lambda chain: chain.source.frame(([1], chain.roots[0])),
    "close the source": lambda chain: chain.source.close(),
    "ask the source": lambda chain: (
        objects(chain.source, numbers_of(chain.source, chain.roots)),
        chain.source.sequence,
        chain.source.is_keyframe,
    ),
    "apply": lambda chain: [chain.replica.apply(frame) for _, frame in chain.frames],
    "apply nonsense": lambda chain: chain.replica.apply(b"nonsense"),
    "roll back": lambda chain: chain.replica.roll_back(),
    "close the replica": lambda chain: chain.replica.close(),
    "ask the replica": lambda chain: (
        chain.replica.sequence,
        objects(chain.replica, numbers_of(chain.replica, chain.replica.roots)),
    ),
    "collect garbage": lambda chain: gc.collect(),
    "shrink the original": lambda chain: shrink(chain.roots[0]),
    "grow the original": lambda chain: grow(chain.roots[0]),
    "alter agents of the original": lambda chain: alter_agents(chain.roots[0]),
    "shrink the replica": lambda chain: shrink(root_of(chain.replica)),
    "grow the replica": lambda chain: grow(root_of(chain.replica)),
    "alter agents of the replica": lambda chain: alter_agents(root_of(chain.replica)),
    "fail": lambda chain: 1 / 0,
    "interrupt": lambda chain: (_ for _ in ()).throw(KeyboardInterrupt()),
}


def recover(chain: Chain) -> None:
    """Nothing interferes any more: whatever is accepted has to be exact."""
    if isinstance(survives(lambda: chain.source.frame(([1],))), ValueError):
        chain.source = Source()  # an action has closed it
    chain.frames.clear()
    chain.replica = Replica()
    chain.step(keyframe=True)
    graph = chain.roots[0]
    for step in range(2):
        graph.append([step])
        if type(graph[0]) is list:
            graph[0].append(Plain(step=step))
        chain.step()
    root = root_of(chain.replica)
    root.append("vandalism")
    chain.roll_back()


def go_on(chain: Chain) -> None:
    """Nothing interferes any more, nobody starts anew: errors are allowed, wrong results not."""
    chain.frames.sort()
    replica = chain.replica
    try:
        if replica.sequence is None or not replica.roll_back():
            replica = chain.replica = Replica()
        chain.send()
        for _ in range(2):
            chain.catch_up(replica)
            chain.check()
            chain.roots[0].append([1])
            chain.send()
    except (SnapshotDecodeError, ValueError):
        # Frames that were taken within another, or a side that was closed.
        return


def scene_of_a_frame(event: str, action: str, keyframe: bool) -> None:
    chain = Chain(make_graph())
    if not keyframe:
        chain.step()
        chain.roots[0][0].append(Plain(new=[Stated(7)]))
        chain.roots[0][15].pop()
        chain.roots[0][1][0].label = "changed"
        chain.roots[0][8].items.append("changed")
    with Hooks.at(event, lambda: ACTIONS[action](chain)):
        survives(chain.send)
    go_on(chain)
    recover(chain)


def scene_of_an_update(event: str, action: str, keyframe: bool) -> None:
    chain = Chain(make_graph())
    if not keyframe:
        chain.step()
        graph = chain.roots[0]
        graph[0].append(Plain(new=[Stated(7), Reduced("c", [1])]))
        graph[3][Keyed(40)] = graph[3].pop(next(iter(graph[3])))
        graph[4].add(Keyed(41))
        graph[7][Keyed(42)] = [1]
        graph[9].append(HookedList([1]))
        graph[10]["c"] = HookedDict(a=1)
        graph[12].left = HookedSlots()
        graph[15].pop()
    chain.send()
    with Hooks.at(event, lambda: ACTIONS[action](chain)):
        survives(lambda: chain.catch_up(chain.replica))
    # User code may have changed the copy while it was built, as it may under pickle.
    chain.replica = Replica()
    go_on(chain)
    recover(chain)


def scene_of_a_rollback(event: str, action: str) -> None:
    chain = Chain(make_graph())
    chain.step()
    root = root_of(chain.replica)
    root[0].append(Plain(new=[Stated(7)]))
    root[3].popitem()
    root[3][Keyed(43)] = Dropped()
    root[4].clear()
    root[7].clear()
    root[9].append(1)
    root[10]["c"] = Dropped()
    root[12].left = Dropped()
    root[15][:] = [Dropped()]
    root[6].rotate(1)
    root.append(Dropped())
    del root
    with Hooks.at(event, lambda: ACTIONS[action](chain)):
        restored = survives(chain.replica.roll_back)
    if restored is True and chain.replica.sequence == chain.source.sequence:
        chain.check()
    go_on(chain)
    recover(chain)


@pytest.mark.parametrize("keyframe", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("event", FRAME_EVENTS)
def test_interference_with_a_frame(event: str, keyframe: bool) -> None:
    run_apart({name: partial(scene_of_a_frame, event, name, keyframe) for name in ACTIONS})


@pytest.mark.parametrize("keyframe", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("event", UPDATE_EVENTS)
def test_interference_with_an_update(event: str, keyframe: bool) -> None:
    run_apart({name: partial(scene_of_an_update, event, name, keyframe) for name in ACTIONS})


@pytest.mark.parametrize("event", sorted({*FRAME_EVENTS, *UPDATE_EVENTS}))
def test_interference_with_a_rollback(event: str) -> None:
    run_apart({name: partial(scene_of_a_rollback, event, name) for name in ACTIONS})


def test_hooks_do_run() -> None:
    """What the tests above rely on."""

    def scene() -> None:
        chain = Chain(make_graph())
        for event, use in (
            ("getstate", chain.send),
            ("reduce", lambda: chain.send(keyframe=True)),
            ("iterate", lambda: chain.send(keyframe=True)),
            ("setstate", lambda: Chain.catch_up(chain, Replica())),
            ("init", lambda: Chain.catch_up(chain, Replica())),
            ("hash", lambda: Chain.catch_up(chain, Replica())),
            ("eq", lambda: Chain.catch_up(chain, Replica())),
        ):
            before = Hooks.n_runs
            with Hooks.at(event, gc.collect):
                use()
            assert Hooks.n_runs > before, event

    run_apart({"hooks": scene})


@pytest.mark.parametrize("end", [lambda: 1 / 0, os.abort, lambda: os._exit(3)])
def test_scenes_that_fail_are_reported(end: Callable[[], None]) -> None:
    with pytest.raises(AssertionError, match="first"):
        run_apart({"first": end, "second": lambda: None})


# --- single scenes ----------------------------------------------------------------------------


def scene_of_a_destructor() -> None:
    """The source lets go of an object whose destructor changes the graph."""
    chain = Chain([Dropped(), [1], {"k": 1}, Plain(a=1)])
    graph = chain.roots[0]
    chain.step()

    def change() -> None:
        graph[1].append("by the destructor")
        graph[2]["by the destructor"] = [1]
        graph[3].__dict__["by_the_destructor"] = {}

    with Hooks.at("del", change):
        graph[0] = None
        for _ in range(4):
            chain.send()
            gc.collect()
    assert graph[1] == [1, "by the destructor"]
    chain.catch_up(chain.replica)
    chain.step()


def scene_of_a_weak_reference() -> None:
    """The same with a callback."""
    chain = Chain([Plain(), [1]])
    graph = chain.roots[0]
    chain.step()
    called = []

    def callback(reference: Any) -> None:
        called.append(1)
        graph[1].append("by the callback")

    references = [weakref.ref(graph[0], callback)]
    graph[0] = None
    for _ in range(6):
        chain.send()
        gc.collect()
    assert called
    assert references
    chain.catch_up(chain.replica)
    chain.step()


def scene_of_a_destructor_in_the_replica() -> None:
    """An object of a vandal changes the replica when the rollback lets it go."""
    chain = Chain([[1], {"k": 1}, Plain(a=1), collections.deque([1])])
    chain.step()
    root = root_of(chain.replica)

    def change() -> None:
        root[0].append("by the destructor")
        root[1]["by the destructor"] = [1]
        root[2].by_the_destructor = {}
        root[3].clear()

    for place in range(4):
        if place == 0:
            root[0].append(Dropped())
        elif place == 1:
            root[1]["k"] = Dropped()
        elif place == 2:
            root[2].a = Dropped()
        else:
            root[3][0] = Dropped()
        with Hooks.at("del", change):
            chain.roll_back()
            gc.collect()
        root = root_of(chain.replica)


def scene_of_destructors_that_make_more() -> None:
    """Every destructor leaves another such object behind: there must be an end."""
    chain = Chain([[1]])
    chain.step()
    root = root_of(chain.replica)
    left = [200]

    class Hydra:
        def __del__(self) -> None:
            if left[0] > 0:
                left[0] -= 1
                root[0].append(Hydra())

    root[0].append(Hydra())
    restored = survives(chain.replica.roll_back)
    if restored is True:
        chain.check()
    left[0] = 0
    if chain.replica.sequence is not None:
        survives(chain.replica.roll_back)
    recover(chain)


def scene_of_immortal_destructors() -> None:
    """As before, without an end: the rollback ends all the same."""
    chain = Chain([[1]])
    chain.step()
    root = root_of(chain.replica)
    alive = [True]

    class Immortal:
        def __del__(self) -> None:
            if alive[0]:
                root[0].append(Immortal())

    root[0].append(Immortal())
    survives(chain.replica.roll_back)
    alive[0] = False
    recover(chain)


def scene_of_two_sources() -> None:
    """A hook takes a frame of the same graph with another source."""
    chain, other = Chain(make_graph()), Chain()
    other.roots = chain.roots

    with Hooks.at("getstate", lambda: other.step()):
        for step in range(3):
            chain.send()
            chain.roots[0].append([step])
    chain.catch_up(chain.replica)
    chain.step()
    other.step()


def scene_of_two_replicas() -> None:
    """A hook lets another replica catch up."""
    chain = Chain(make_graph())
    chain.send()
    other = Replica()
    with Hooks.at("setstate", lambda: chain.catch_up(other)):
        chain.catch_up(chain.replica)
    chain.check()
    chain.catch_up(other)
    chain.check(other)


def scene_of_a_changing_buffer() -> None:
    """A hook overwrites the frame that is being applied."""
    chain = Chain(make_graph())
    frame = bytearray(chain.send())
    pristine = bytes(frame)

    def zero() -> None:
        frame[:] = bytes(len(frame))

    def reverse() -> None:
        frame[:] = frame[::-1]

    def shrink_it() -> None:
        frame.clear()

    for change in (zero, reverse, shrink_it):
        for event in ("setstate", "hash", "init"):
            frame[:] = pristine
            with Hooks.at(event, change):
                survives(lambda: chain.replica.apply(frame))
                survives(lambda: chain.replica.apply(memoryview(frame)))
    chain.replica = Replica()
    chain.catch_up(chain.replica)
    chain.check()


def scene_of_iterables() -> None:
    """The arguments of a method run code, too."""
    chain = Chain([1], [2])
    chain.step()

    def objs(use: Callable[[], Any]) -> Any:
        yield chain.roots[0]
        use()
        yield chain.roots[1]

    for use in (
        chain.send,
        lambda: chain.source.frame(()),
        chain.source.close,
        gc.collect,
        chain.replica.roll_back,
        chain.replica.close,
    ):
        survives(lambda use=use: numbers_of(chain.source, objs(use)))
        survives(lambda use=use: numbers_of(chain.replica, objs(use)))
    survives(lambda: Source(externals=objs(lambda: 1 / 0)))
    survives(lambda: Replica(externals=objs(gc.collect)))
    chain.source = Source()
    recover_plain(chain)


def recover_plain(chain: Chain) -> None:
    chain.replica = Replica()
    chain.frames.clear()
    chain.step()
    chain.roots[0].append(5)
    chain.step()


def scene_of_threads() -> None:
    """Other threads use the same source and replica while a hook waits."""
    chain = Chain(make_graph())
    chain.step()
    errors: list[BaseException] = []

    def use_all() -> None:
        for use in (
            chain.source.frame,
            lambda: chain.source.frame(chain.roots),
            lambda: chain.source.objects(b"\0\0\0\0"),
            chain.replica.roll_back,
            lambda: chain.replica.apply(chain.frames[0][1]),
            lambda: chain.replica.roots,
        ):
            try:
                use()
            except Exception:
                pass
            except BaseException as error:
                errors.append(error)

    def in_a_thread() -> None:
        thread = threading.Thread(target=use_all)
        thread.start()
        thread.join()

    for event in ("getstate", "reduce"):
        with Hooks.at(event, in_a_thread):
            survives(lambda: chain.source.frame(chain.roots))
    for event in ("setstate", "hash"):
        with Hooks.at(event, in_a_thread):
            survives(lambda: chain.replica.apply(chain.frames[0][1]))
            survives(chain.replica.roll_back)
    assert not errors, errors
    recover(chain)


def scene_of_many_threads() -> None:
    """Threads without any order."""
    chain = Chain(make_graph())
    frames = [chain.send()]
    errors: list[BaseException] = []
    stop = threading.Event()

    def work(use: Callable[[], Any]) -> None:
        while not stop.is_set():
            try:
                use()
            except Exception:
                pass
            except BaseException as error:
                errors.append(error)

    def send() -> None:
        chain.roots[0].append([1])
        frames.append(chain.source.frame(chain.roots))
        del frames[:-3]

    threads = [
        threading.Thread(target=work, args=(use,))
        for use in (
            send,
            send,
            lambda: chain.replica.apply(frames[-1]),
            chain.replica.roll_back,
            lambda: numbers_of(chain.source, chain.roots[0][:20]),
            lambda: root_of(chain.replica).append(1),
        )
    ]
    for thread in threads:
        thread.start()
    stop.wait(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    recover(chain)


def scene_of_the_collector() -> None:
    """The collector runs at every opportunity, and its callbacks change the graph."""
    chain = Chain(make_graph())
    graph = chain.roots[0]

    def callback(phase: str, info: Any) -> None:
        if phase == "stop" and len(graph[0]) < 500:
            graph[0].append([1])

    gc.callbacks.append(callback)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(5):
            graph.append([step])
            chain.send()
            chain.catch_up(chain.replica)
            root_of(chain.replica).append(5)
            if not chain.replica.roll_back():
                chain.catch_up(chain.replica)
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*threshold)
    recover(chain)


def scene_of_properties() -> None:
    """A class whose reducers are looked up by code of its own."""

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name not in ("__name__", "__mro__", "__dict__", "__class__"):
                gc.collect()
            return super().__getattribute__(name)

    made = Meta("PropertiesOfThisScene", (Plain,), {"__module__": __name__})
    globals()["PropertiesOfThisScene"] = made
    obj = made()
    obj.a = [1]
    chain = Chain([obj])
    chain.step()
    obj.a.append(obj)
    chain.step()
    chain.replica.roots[0][0].a = 5
    chain.roll_back()


def scene_of_a_hash_that_fails() -> None:
    chain = Chain(make_graph())
    chain.step()
    chain.roots[0][3][Keyed(50)] = 1
    chain.roots[0][4].add(Keyed(51))
    chain.send()
    for error in (ValueError("no"), KeyboardInterrupt()):
        for event in ("hash", "eq"):

            def fail(error: BaseException = error) -> None:
                raise error

            with Hooks.at(event, fail):
                result = survives(lambda: chain.catch_up(chain.replica))
            assert result is error
            assert chain.replica.sequence is None
    chain.catch_up(chain.replica)
    chain.check()
    root = root_of(chain.replica)
    root[3].clear()
    root[4].clear()
    with Hooks.at("hash", lambda: 1 / 0):
        result = survives(chain.replica.roll_back)
    assert result is False or isinstance(result, Exception) or result is True
    if result is True:
        chain.check()
    recover(chain)


@pytest.mark.parametrize(
    "scene",
    [
        scene_of_a_destructor,
        scene_of_a_weak_reference,
        scene_of_a_destructor_in_the_replica,
        scene_of_destructors_that_make_more,
        scene_of_immortal_destructors,
        scene_of_two_sources,
        scene_of_two_replicas,
        scene_of_a_changing_buffer,
        scene_of_iterables,
        scene_of_threads,
        scene_of_many_threads,
        scene_of_the_collector,
        scene_of_properties,
        scene_of_a_hash_that_fails,
    ],
)
def test_scene(scene: Callable[[], None]) -> None:
    run_apart({scene.__name__: scene})

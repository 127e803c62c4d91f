"""Containers and objects that change while they are walked or built.

Whatever it does, the outcome is an ordinary exception or a usable result.
"""

from __future__ import annotations

import collections
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from hostile import Act, Node, survives
from pams_parallel import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


def containers() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    def fill(container: Any) -> None:
        for number in range(2000):
            if isinstance(container, dict):
                container[f"new {number}"] = [number]
            elif isinstance(container, set):
                container.add(f"new {number}")
            else:
                container.append([number])

    def clear(container: Any) -> None:
        container.clear()

    def replace(container: Any) -> None:
        container.clear()
        fill(container)

    def pop(container: Any) -> None:
        if isinstance(container, dict):
            container.popitem()
        elif container:
            container.pop()

    actions: dict[str, Callable[[Any], Any]] = {
        "fill": fill,
        "clear": clear,
        "replace": replace,
        "pop": pop,
    }
    kinds: dict[str, Callable[[], Any]] = {
        "list": lambda: [Act(), [1], Act(), "x" * 50, Act(), [2]],
        "dict": lambda: {"a": Act(), "b": [1], "c": Act(), "d": "x" * 50},
        "dict with such keys": lambda: {Act(): 1, "b": Act(), Act(): [1], "c": 2},
        "set": lambda: {Act(), "b", Act(), ("t", "u"), Act()},
        "deque": lambda: collections.deque([Act(), [1], Act(), [2]]),
        "OrderedDict": lambda: collections.OrderedDict(a=Act(), b=[1], c=Act()),
        "long list": lambda: [Act() if n % 700 == 0 else [n] for n in range(2500)],
        "long dict": lambda: {n: Act() if n % 700 == 0 else [n] for n in range(2500)},
    }
    return {
        f"{action} {kind}": (make, actions[action])
        for action in actions
        for kind, make in kinds.items()
    }


CONTAINERS = containers()


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("every_time", [True, False])
def test_container_changes_while_it_is_encoded(name: str, every_time: bool) -> None:
    make, change = CONTAINERS[name]
    container = make()
    calls = 0

    def act(obj: Any) -> None:
        nonlocal calls
        calls += 1
        if every_time or calls == 2:
            change(container)

    Act.out = act
    data = survives(lambda: snapshot.dumps([container, "after"]))
    assert calls
    Act.out = None
    if data is not None:
        copied = snapshot.loads(data)
        assert copied[1] == "after"
        assert type(copied[0]) is type(container)


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_changes_while_it_is_decoded(name: str) -> None:
    make, change = CONTAINERS[name]
    original = make()
    members = [*original, *original.values()] if isinstance(original, dict) else list(original)
    for member in members:
        if isinstance(member, Act):
            member.label = original
    data = snapshot.dumps([original, "after"])
    calls = 0

    def act(obj: Any) -> None:
        nonlocal calls
        calls += 1
        change(obj.label)

    Act.back = act
    result = survives(lambda: snapshot.loads(data))
    assert calls
    if result is not None:
        assert result[1] == "after"
        assert type(result[0]) is type(original)


def test_attributes_change_while_an_instance_is_encoded() -> None:
    for action in ("add", "delete", "clear", "replace", "class"):
        node = Node(a=Act(), b=[1], c=Act(), d=2)

        def act(obj: Any, node: Any = node, action: str = action) -> None:
            if action == "add":
                node.__dict__[f"new {len(vars(node))}"] = [1]
            elif action == "delete":
                node.__dict__.pop("b", None)
            elif action == "clear":
                node.__dict__.clear()
            elif action == "replace":
                node.__dict__ = {"e": 5}
            else:
                node.__class__ = Other

        Act.out = act
        data = survives(lambda node=node: snapshot.dumps([node, node, "after"]))
        Act.out = None
        if data is not None:
            copied = snapshot.loads(data)
            assert copied[2] == "after"
            assert copied[0] is copied[1]


class Other:
    pass


class Slots:
    __slots__ = ("a", "b", "c")


def test_slots_change_while_an_instance_is_encoded() -> None:
    obj = Slots()
    obj.a, obj.b, obj.c = Act(), [1], Act()

    def act(actor: Any) -> None:
        if hasattr(obj, "b"):
            del obj.b
        obj.c = Act()

    Act.out = act
    data = survives(lambda: snapshot.dumps([obj, "after"]))
    Act.out = None
    if data is not None:
        assert snapshot.loads(data)[1] == "after"


def test_objects_that_are_dropped_while_the_encoder_still_has_to_write_them() -> None:
    keeper: list[Any] = [Act(), ["x" * 100], Node(a=[1]), {"k": ("v" * 100,)}, (1, [2]), {1, 2}]
    refs = [weakref.ref(keeper[2])]

    def drop(obj: Any) -> None:
        keeper[1:] = [None] * (len(keeper) - 1)
        gc.collect()
        for _ in range(100):  # take the memory that is free now
            keeper.append(["y" * 100])
        del keeper[6:]

    Act.out = drop
    data = survives(lambda: snapshot.dumps(keeper))
    assert data is not None
    del refs
    Act.out = None
    assert len(snapshot.loads(data)) >= 6


def test_reducer_results_that_change_while_they_are_walked() -> None:
    state: dict[str, Any] = {"a": Act(), "b": [1]}
    args: list[Any] = [Act(), [1]]

    class Live:
        def __reduce__(self) -> Any:
            return list, (args,), None, iter(args), None

    Act.out = lambda obj: (state.clear(), args.clear())
    survives(lambda: snapshot.dumps([Live(), state]))


class BadIterator:
    """Items of a reducer that re-enter, fail or never fit."""

    def __init__(self, action: Callable[[int], Any]) -> None:
        self.action = action
        self.count = 0

    def __iter__(self) -> BadIterator:
        return self

    def __next__(self) -> Any:
        self.count += 1
        return self.action(self.count)


def test_iterators_of_a_reducer() -> None:
    def stop(count: int) -> Any:
        raise StopIteration

    def fail(count: int) -> Any:
        if count == 3:
            raise ValueError("in the middle")
        return (count, [count])

    def interrupt(count: int) -> Any:
        raise KeyboardInterrupt

    def dump_again(count: int) -> Any:
        if count > 3:
            raise StopIteration
        return (count, snapshot.dumps([count]))

    class Items:
        def __init__(self, action: Any, dicts: bool) -> None:
            self.action = action
            self.dicts = dicts

        def __reduce__(self) -> Any:
            items = BadIterator(self.action)
            return (dict, (), None, None, items) if self.dicts else (list, (), None, items)

    for dicts in (False, True):
        assert len(snapshot.loads(snapshot.dumps([Items(stop, dicts)]))[0]) == 0
        assert len(snapshot.loads(snapshot.dumps([Items(dump_again, dicts)]))[0]) == 3
        with pytest.raises(ValueError, match="in the middle"):
            snapshot.dumps([Items(fail, dicts)])
        with pytest.raises(KeyboardInterrupt):
            snapshot.dumps([Items(interrupt, dicts)])

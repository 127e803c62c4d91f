"""Reducers of two to six elements, and what user code sees while objects are rebuilt."""

from __future__ import annotations

import collections
import copyreg
import operator
from typing import Any

import pytest
import sample_types
from checks import (
    assert_copied,
    assert_error_of_pickle,
    assert_like_pickle,
    assert_loading_error_of_pickle,
    assert_outcome_of_pickle,
    copy_of,
    pickled_copy,
)
from sample_types import (
    Bag,
    Derived,
    EventLog,
    HashedByKey,
    Plain,
    RecordingAppendOnly,
    RecordingDict,
    RecordingList,
    RecordingNew,
    Slotted,
    SlottedOpen,
    Watcher,
)


class Given:
    """Its reducer returns whatever it is told to."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return self.value() if callable(self.value) else self.value


class ReduceEx:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), ((protocol, self.content),)


def bag(arity: int, *args: Any) -> Bag:
    made = Bag(arity, *args)
    if arity > 2:
        made.state = {"a": [1]}
    if arity > 3:
        made.items = [1, [2], made]
    if arity > 4:
        made.pairs = [("a", [1]), (1, made), (1, "again"), (HashedByKey(1), 2)]
    return made


@pytest.mark.parametrize("arity", [2, 3, 4, 5, 6])
def test_arity(arity: int) -> None:
    assert_copied(bag(arity))
    assert_like_pickle([bag(arity, [1], "b"), bag(arity)])
    shared = bag(arity)
    assert_copied([shared, Plain(a=shared), shared])


@pytest.mark.parametrize("arity", [4, 5])
@pytest.mark.parametrize("n_items", [0, 1, 2, 999, 1000, 1001, 2500])
def test_batches_of_items(arity: int, n_items: int) -> None:
    many = Bag(arity)
    many.items = [[index] for index in range(n_items)]
    if arity == 5:
        many.pairs = [(str(index), [index]) for index in range(n_items)]
    assert_copied(many)


@pytest.mark.parametrize("state", [None, 0, "", {}, (), [], False, (None, {}), ({}, None), 5])
def test_states_that_are_empty_or_odd(state: Any) -> None:
    with_setter = Bag(3)
    with_setter.state = state
    assert_copied(with_setter)


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1},
        ({"a": 1}, {"left": [2]}),
        (None, {"left": 1, "right": 2}),
        ({}, {}),
        {},
        sample_types.MyDict(a=1),
        {1: 2},
        (None, {sample_types.MyStr("left"): 1}),
    ],
)
def test_states_without_setstate(state: Any) -> None:
    assert_like_pickle(Given((SlottedOpen, (), state)))


@pytest.mark.parametrize(
    "state",
    [
        5,
        "text",
        [1],
        (1,),
        ({"a": 1}, {"b": 2}, {}),
        ("text", {}),
        ({"a": 1}, None),
        ({"a": 1}, 5),
        (None, {1: 2}),
    ],
)
def test_states_that_fail_when_loaded(state: Any) -> None:
    assert_loading_error_of_pickle(Given((SlottedOpen, (), state)))


def test_slot_state_for_a_class_without_the_slot() -> None:
    assert_loading_error_of_pickle(Given((Slotted, (), (None, {"unknown": 1}))))
    assert_loading_error_of_pickle(Given((Slotted, (), {"left": 1})))
    assert_loading_error_of_pickle(Given((object, (), {"a": 1})))
    assert_loading_error_of_pickle(Given((list, (), {"a": 1})))


@pytest.mark.parametrize(
    "value",
    [
        lambda: 5,
        lambda: None,
        lambda: [Plain, ()],
        lambda: (),
        lambda: (Plain,),
        lambda: (Plain, (), None, None, None, None, None),
        lambda: (5, ()),
        lambda: (None, ()),
        lambda: (Plain, []),
        lambda: (Plain, None),
        lambda: (Plain, "ab"),
        lambda: (Plain, (), None, 5),
        lambda: (Plain, (), None, [1]),
        lambda: (Plain, (), None, None, 5),
        lambda: (Plain, (), None, None, iter([5])),
        lambda: (Plain, (), None, None, iter([(1,)])),
        lambda: (Plain, (), None, None, iter([(1, 2, 3)])),
        lambda: (Plain, (), None, None, iter([[1, 2]])),
        lambda: (Plain, (), {}, None, None, 5),
        lambda: "no_such_global",
        lambda: "Plain",
        lambda: "Outer.NoSuch",
        lambda: "",
        lambda: (copyreg.__newobj__, ()),
        lambda: (copyreg.__newobj__, (5,)),
        lambda: (copyreg.__newobj__, (Plain,)),
        lambda: (copyreg.__newobj__, [Given]),
        lambda: (copyreg.__newobj_ex__, (Given, ())),
        lambda: (copyreg.__newobj_ex__, (Given, [], {})),
        lambda: (copyreg.__newobj_ex__, (Given, (), [])),
        lambda: (copyreg.__newobj_ex__, (Plain, (), {})),
        lambda: (copyreg.__newobj_ex__, (5, (), {})),
    ],
)
def test_malformed_reducers(value: Any) -> None:
    assert_outcome_of_pickle(Given(value))
    assert_outcome_of_pickle([Plain(a=Given(value))])


def test_malformed_reducers_are_located() -> None:
    assert_error_of_pickle([Plain(a=Given(lambda: 5))], "obj[0].a")
    assert_error_of_pickle({"k": (Given(lambda: (5, ())),)}, "obj['k'][0]")


def __newobj__(cls: Any, *args: Any) -> Any:
    raise AssertionError("pickle goes by the name of the function")


def test_constructors_by_the_name_of_the_function() -> None:
    """A reducer's function named ``__newobj__`` is not called, its class is."""
    for value in (
        (copyreg.__newobj__, (Given,), {"value": [1]}),
        (copyreg.__newobj_ex__, (Given, (), {}), {"value": [1]}),
        (__newobj__, (Given,), {"value": [1]}),
    ):
        assert_like_pickle(Given(value))
    assert_like_pickle(Given((copyreg._reconstructor, (Plain, object, None), {"a": 1})))


def test_reduce_ex_gets_the_protocol() -> None:
    assert copy_of(ReduceEx("a")).content == (5, "a")
    assert_like_pickle(ReduceEx("a"))


def test_constructor_is_any_callable() -> None:
    assert_like_pickle(Given((operator.methodcaller("upper"), ("text",))))
    assert_like_pickle(Given((dict.fromkeys, ([1, 2], "v"))))
    assert_like_pickle(Given((Plain.class_method, ())))
    assert_like_pickle(Given((getattr, (Plain(a=[1]), "a"))))


def test_two_objects_that_become_one() -> None:
    """A constructor may return what exists already."""
    assert_like_pickle([Given((operator.itemgetter(0), ([5],))), Given((type, (None,)))])
    original = [Given((sample_types.find_class, ("OfRegisteredMeta",))) for _ in range(2)]
    copied = copy_of(original)
    assert copied[0] is copied[1] is sample_types.OfRegisteredMeta


def test_a_reducer_that_leads_back_to_its_object() -> None:
    """The object turns up again within its own arguments, where pickle builds it twice."""

    class_args: list[Any] = []
    recursive = Given()
    recursive.value = lambda: (Plain, (), {"home": class_args})
    class_args.append(recursive)
    assert_like_pickle(recursive)
    assert_like_pickle(class_args)
    through_args: list[Any] = []
    inner = Bag(5, through_args)
    inner.items = [1]
    inner.pairs = [(1, 2)]
    through_args.append(inner)
    assert_like_pickle(inner)
    assert_like_pickle(through_args)
    assert_like_pickle([through_args, inner, inner])


def test_state_setter() -> None:
    with_setter = Bag(6)
    with_setter.state = {"itself": with_setter}
    assert_copied(with_setter)
    assert_like_pickle(Given((Plain, (), {"a": 1}, None, None, setter)))
    assert_like_pickle(Given((Plain, (), None, None, None, setter)))
    assert_like_pickle(Given((Plain, (), (1, [2]), None, None, setter)))


def setter(obj: Any, state: Any) -> str:
    obj.set_to = state
    return "what a setter returns does not matter"


def test_list_and_dict_items_for_other_types() -> None:
    for list_items in (
        lambda: (list, (), None, iter([1, [2]])),
        lambda: (collections.deque, (), None, iter([1, 2])),
        lambda: (bytearray, (), None, iter([1, 2])),
        lambda: (Plain, (), None, iter([1])),
        lambda: (Plain, (), None, iter([])),
        lambda: (set, (), None, iter([1])),
    ):
        assert_outcome_of_pickle(Given(list_items))
    for dict_items in (
        lambda: (dict, (), None, None, iter([(1, [2])])),
        lambda: (collections.OrderedDict, (), None, None, iter([(1, 2), (3, 4)])),
        lambda: (list, ([1, 2],), None, None, iter([(0, "first")])),
        lambda: (Plain, (), None, None, iter([(1, 2)])),
        lambda: (Plain, (), None, None, iter([])),
        lambda: (dict, (), None, None, iter([([], 2)])),
        lambda: (list, (), None, None, iter([(5, 2)])),
    ):
        assert_outcome_of_pickle(Given(dict_items))


class Refusing:
    """Fails while it is rebuilt."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __setstate__(self, state: Any) -> None:
        raise ValueError(f"refused {state}")


def test_errors_of_user_code_while_loading() -> None:
    assert_loading_error_of_pickle(Refusing("setstate"))
    assert_loading_error_of_pickle([Plain(a=1), {"k": Refusing("setstate")}])
    assert_loading_error_of_pickle(Given((int, ("no number",))))
    assert_loading_error_of_pickle(Given((Plain, (1, 2))))
    assert_loading_error_of_pickle(Given((abstract_class, ())))


def abstract_class() -> Any:
    raise LookupError("not here")


# ---------------------------------------------------------------------------
# What user code can observe has to be what it observes under pickle.


def events_of(copier: Any, obj: Any) -> list[Any]:
    EventLog.events.clear()
    copier(obj)
    return list(EventLog.events)


def assert_same_events(obj: Any) -> list[Any]:
    ours = events_of(copy_of, obj)
    assert ours == events_of(pickled_copy, obj)
    assert ours
    return ours


def test_order_of_hooks() -> None:
    leaf = Watcher("leaf")
    assert_same_events([Watcher("first", leaf), {"k": Watcher("second", [leaf])}, leaf])
    assert_same_events(Watcher("outer", Watcher("middle", (Watcher("inner"),))))
    assert_same_events({Watcher("key"): Watcher("value")})
    assert_same_events(Slotted(left=Watcher("left"), right=Watcher("right")))
    made = Bag(6, 1)
    made.state = Watcher("state")
    made.items = [Watcher("item")]
    made.pairs = [(Watcher("key"), Watcher("value"))]
    assert_same_events(made)


@pytest.mark.parametrize("make", [list, dict, Plain, collections.deque, set, Derived])
@pytest.mark.parametrize("n_items", [1, 2, 5])
def test_what_setstate_sees_of_a_container_around_it(make: Any, n_items: int) -> None:
    container = make()
    for index in range(n_items):
        watcher = Watcher(f"watcher {index}", container)
        if isinstance(container, dict):
            container[index] = watcher
        elif isinstance(container, Plain):
            setattr(container, f"a{index}", watcher)
        elif isinstance(container, set):
            container.add(watcher)
            if n_items > 1:
                break  # the order of several would be that of their addresses
        else:
            container.append(watcher)
    assert_same_events(container)
    assert_same_events([0, container, Watcher("outside", container)])


def test_what_setstate_sees_of_objects_around_it() -> None:
    parent = Plain(before=1)
    parent.child = Watcher("child", parent)
    parent.after = 2
    assert_same_events(parent)
    first, second = Watcher("first"), Watcher("second")
    first.surroundings, second.surroundings = second, first
    assert_same_events(first)
    assert_same_events([second, first])
    slotted = Slotted()
    slotted.left = Watcher("in a slot", slotted)
    assert_same_events(slotted)


@pytest.mark.parametrize("n_items", [0, 1, 2, 3, 1000, 1001, 2001])
def test_methods_that_fill_a_container(n_items: int) -> None:
    EventLog.events.clear()
    numbers = list(range(n_items))
    ours = events_of(copy_of, RecordingList(numbers))
    assert ours == events_of(pickled_copy, RecordingList(numbers))
    pairs = {number: number for number in numbers}
    recording = RecordingDict(pairs)
    assert events_of(copy_of, recording) == events_of(pickled_copy, recording)
    append_only = RecordingAppendOnly()
    append_only.items = numbers
    assert events_of(copy_of, append_only) == events_of(pickled_copy, append_only)


def test_constructor_calls() -> None:
    assert_same_events(RecordingNew(1, 2))
    assert_same_events(Given((RecordingNew, (1, "b"))))
    assert_same_events(Given((copyreg.__newobj__, (Given,), {"value": RecordingNew(1)})))


class Counting:
    """Counts how often its reducer is called."""

    def __reduce__(self) -> Any:
        EventLog.events.append("reduce")
        return Plain, ()


def test_a_reducer_is_called_once_per_object() -> None:
    counting = Counting()
    assert_same_events([counting, counting, {"k": counting}, Counting()])

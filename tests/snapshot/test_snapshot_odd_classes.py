"""Classes that use the hooks of pickle in ways that nobody should, and library classes that do."""

from __future__ import annotations

import argparse
import collections
import copyreg
import decimal
import enum
import functools
import ipaddress
import logging
import operator
import pickle
import statistics
import sys
import time
import types
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pytest
import sample_types
from checks import assert_like_pickle, assert_outcome_of_pickle, copy_of, pickled_copy
from sample_types import Derived, MyList, MyStr, Plain, Slotted, function

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

HOOKS = [
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
]


def check(obj: Any) -> None:
    """The object alone, twice, and among instances of plain classes."""
    assert_outcome_of_pickle(obj)
    assert_outcome_of_pickle([obj, obj])
    assert_outcome_of_pickle([Plain(a=1), Plain(a=obj), Slotted(left=obj)])


def with_attributes(cls: Any) -> Any:
    obj = cls.__new__(cls)
    obj.a, obj.b = 1, [2]
    return obj


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "value",
    [None, 5, "text", NotImplemented, Plain, (), property(lambda self: None)],
    ids=["None", "5", "text", "NotImplemented", "Plain", "()", "property"],
)
def test_hooks_that_are_no_functions(new_class: Any, hook: str, value: Any) -> None:
    check(with_attributes(new_class({hook: value})))


def state_of(*args: Any) -> dict[str, Any]:
    return {"state of": len(args)}


def reduce_of(*args: Any) -> Any:
    return Plain, (), {"reduced by": len(args)}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "wrap",
    [
        staticmethod,
        classmethod,
        functools.partial,
        lambda f: property(lambda self: f),
        lambda f: functools.partialmethod(f),
    ],
)
def test_hooks_that_are_odd_descriptors(
    new_class: Any, hook: str, wrap: Callable[[Any], Any]
) -> None:
    target: Any = reduce_of if "reduce" in hook else state_of
    if hook == "__getnewargs__":
        target = lambda *args: ()  # noqa: E731
    elif hook == "__getnewargs_ex__":
        target = lambda *args: ((), {})  # noqa: E731
    check(with_attributes(new_class({hook: wrap(target)})))


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_a_metaclass_are_not_those_of_instances(new_class: Any, hook: str) -> None:
    metaclass = type("Metaclass", (type,), {hook: lambda *args: pytest.fail("called")})
    check(with_attributes(new_class({}, metaclass=metaclass)))


@pytest.mark.parametrize("hook", ["__getnewargs__", "__getnewargs_ex__"])
@pytest.mark.parametrize(
    "value",
    [None, [], {}, "ab", (1,), ((), {}), ((1,), {}), ((), {"a": 1}), ([], {}), ((), [])],
    ids=repr,
)
def test_results_of_newargs(new_class: Any, hook: str, value: Any) -> None:
    cls = new_class({hook: lambda self: value, "__new__": lambda cls, *a, **k: object.__new__(cls)})
    check(with_attributes(cls))
    check(with_attributes(new_class({hook: lambda self: value})))


@pytest.mark.parametrize(
    "state",
    [None, {}, 0, False, (), [], "", ({}, {}), (None, None), {"a": 5}, ({"a": 5}, {"b": 6})],
    ids=repr,
)
@pytest.mark.parametrize("with_setstate", [False, True])
def test_results_of_getstate(new_class: Any, state: Any, with_setstate: bool) -> None:
    namespace: dict[str, Any] = {"__getstate__": lambda self: state}
    if with_setstate:
        namespace["__setstate__"] = lambda self, got: setattr(self, "got", [got])
    check(with_attributes(new_class(namespace)))


def test_constructors_that_need_arguments(new_class: Any) -> None:
    def needs(cls: Any, argument: Any) -> Any:
        return object.__new__(cls)

    obj = new_class({"__new__": needs})("argument")
    check(obj)


def test_constructors_that_return_something_else(new_class: Any) -> None:
    single = new_class({})
    one = single()
    single.__new__ = lambda cls: one
    check(one)
    check([one, one])
    other = new_class({})
    obj = other()
    other.__new__ = lambda cls: [1]
    check(obj)
    number = new_class({})
    obj = number()
    number.__new__ = lambda cls: 5
    check(obj)


def test_classes_derived_from_types_with_a_size(new_class: Any) -> None:
    for base, arguments in (
        (int, (5,)),
        (bytes, (b"ab",)),
        (tuple, ([1],)),
        (str, ("text",)),
        (float, (1.5,)),
        (frozenset, ([1],)),
        (BaseException, (1,)),
        (type, ("Name", (), {})),
        (types.ModuleType, ("name",)),
        (property, ()),
        (np.float64, (1.5,)),
        (decimal.Decimal, ("1.5",)),
        (collections.deque, ([1],)),
    ):
        cls = new_class({}, (base,))
        obj = cls(*arguments)
        if base is not type:
            obj.a = [1]
        assert_outcome_of_pickle([obj, obj])


def test_overridden_iteration(new_class: Any) -> None:
    """Pickle asks subclasses of list and dict for their items as they show them."""
    shown_list = new_class({"__iter__": lambda self: iter([7, 8])}, (list,))
    shown_dict = new_class({"items": lambda self: iter([("shown", 1)])}, (dict,))
    shown_set = new_class({"__iter__": lambda self: iter([7])}, (set,))
    shown_deque = new_class({"__iter__": lambda self: iter([7])}, (collections.deque,))
    for obj in (shown_list([1]), shown_dict(a=1), shown_set([1]), shown_deque([1])):
        check(obj)


def test_slots_and_dict_in_odd_combinations(new_class: Any) -> None:
    for slots in (("__dict__",), ("__dict__", "a"), ("__weakref__",), ("a", "__weakref__"), ()):
        cls = new_class({"__slots__": slots})
        obj = cls()
        if "a" in slots or "__dict__" in slots:
            obj.a = [1]
        check(obj)
    mixed = new_class({}, (new_class({"__slots__": ("a",)}), new_class({"__slots__": ()})))
    obj = mixed()
    obj.a, obj.b = 1, 2
    check(obj)


def test_slot_with_the_name_of_a_hook(new_class: Any) -> None:
    cls = new_class({"__slots__": ("__getstate__", "a")})
    obj = cls()
    obj.a = 1
    check(obj)
    obj.__getstate__ = function
    check(obj)


def test_class_attributes_are_not_copied(new_class: Any) -> None:
    cls = new_class({"shared": [1], "__slots__": ("a",)})
    obj = cls()
    check(obj)
    assert copy_of(obj).shared is cls.shared


def test_generic_classes() -> None:
    check(with_attributes(Box))
    check(Box[int]())
    check([Box[int], Box[str]])


class Box(Generic[T]):
    pass


class Planet(enum.Enum):
    EARTH = (1.0, 2)
    MARS = (0.5, 3)

    def __init__(self, mass: float, number: int) -> None:
        self.mass = mass
        self.number = number


class Word(str, enum.Enum):
    YES = "yes"


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class ByName(enum.Enum):
    UNHASHABLE_VALUE = [1]  # noqa: RUF012
    OTHER = object()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (type(self), self.name)


def test_enumerations() -> None:
    members = [Planet.EARTH, Word.YES, Bits.ONE | Bits.TWO, Bits(8), ByName.UNHASHABLE_VALUE]
    assert_like_pickle([members, members, Planet, {Planet.EARTH: Word.YES}])
    assert copy_of(members)[0] is Planet.EARTH
    check(list(ByName))


def test_functions_with_the_name_of_another() -> None:
    @functools.wraps(function)
    def wrapped() -> None: ...

    check(wrapped)
    check(cached)
    check(cached.__wrapped__)
    check(np.frompyfunc(lambda x: x, 1, 1))
    renamed = types.FunctionType(function.__code__, {}, "function")
    renamed.__module__ = "sample_types"
    check(renamed)
    unnamed = types.FunctionType(function.__code__, {}, "function")
    unnamed.__module__ = None  # type: ignore[assignment]
    check(unnamed)


@functools.lru_cache
def cached() -> int:
    return 1


class Callable_:
    """Has what functions have."""

    __qualname__ = "a_callable"

    def __call__(self) -> None: ...


a_callable = Callable_()


def test_global_names(new_class: Any) -> None:
    for name in (
        "Plain",
        "Outer.Inner",
        "Outer.missing",
        "missing",
        "",
        "Outer.",
        ".Outer",
        "a.b.c",
    ):
        cls = new_class({"__reduce__": lambda self, name=name: name})
        check(cls())
    lost = new_class({})
    lost.__module__ = "no_such_module"
    check(lost)
    check(lost())
    lost.__module__ = None
    check(lost())
    lost.__module__ = 5
    check(lost())
    lost.__module__ = sample_types.__name__
    lost.__qualname__ = "Plain"
    check(lost())
    check(a_callable)


def test_extension_registry(new_class: Any) -> None:
    cls = new_class({})
    copyreg.add_extension(cls.__module__, cls.__qualname__, 240)
    try:
        check([cls, with_attributes(cls)])
    finally:
        copyreg.remove_extension(cls.__module__, cls.__qualname__, 240)
    check([cls, with_attributes(cls)])


def test_pickle_buffers() -> None:
    check(pickle.PickleBuffer(b"read-only"))
    check(pickle.PickleBuffer(bytearray(b"writable")))
    shared = pickle.PickleBuffer(bytearray(b"shared"))
    check([shared, shared])
    check(pickle.PickleBuffer(np.arange(6)[::2]))
    check(pickle.PickleBuffer(np.arange(6).reshape(2, 3)))
    check(pickle.PickleBuffer(np.asfortranarray(np.arange(6).reshape(2, 3))))
    check(pickle.PickleBuffer(b""))
    released = pickle.PickleBuffer(bytearray(b"gone"))
    released.release()
    check(released)
    check(Buffered(bytearray(b"content")))


class Buffered:
    """Gives its content as a buffer, as large arrays do."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Buffered, (pickle.PickleBuffer(self.content),)


def test_library_objects() -> None:
    logger = logging.getLogger("tests.snapshot")
    for obj in (
        ipaddress.ip_address("127.0.0.1"),
        argparse.Namespace(a=1),
        statistics.NormalDist(1, 2),
    ):
        assert_like_pickle([obj, obj])
    assert copy_of(logger) is logger
    for obj in (
        time.gmtime(0),
        operator.itemgetter(1, 2),
        operator.attrgetter("a.b"),
        operator.methodcaller("f", 1, key=2),
        decimal.Context(prec=5),
        functools.partialmethod(function),
        logging.StreamHandler(),
        collections.abc.Mapping,
    ):
        try:
            expected = pickled_copy(obj)
        except Exception:
            # No comparison, as there is nothing to compare: the same error then.
            assert_outcome_of_pickle(obj)
        else:
            copied = copy_of(obj)
            assert type(copied) is type(expected)
            assert repr(copied) == repr(expected) or repr(expected).startswith("<")
    assert copy_of(operator.itemgetter(1))([5, 6]) == 6
    assert copy_of(object()).__class__ is object


def test_keys_that_are_subclasses_of_str() -> None:
    key = MyStr("key")
    key.note = [1]
    check([{key: 1}, {key: 2}, {"key": 3}])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="slices have a hash since Python 3.12")
def test_slices_as_keys() -> None:
    check({slice(1, 2): 1, slice(None): [slice(1, 2)]})


def test_a_class_that_changes_while_it_is_copied(new_class: Any) -> None:
    """The first instance adds a hook that the later ones have to heed."""
    cls = new_class({})
    trigger = new_class({"__getstate__": lambda self: add_hook(cls) or {"a": 1}})
    graph = [with_attributes(cls), trigger(), with_attributes(cls)]

    def remove_hook() -> None:
        if "__getstate__" in vars(cls):
            del cls.__getstate__

    remove_hook()
    expected = pickled_copy(graph)
    remove_hook()
    copied = copy_of(graph)
    assert [vars(obj) for obj in copied] == [vars(obj) for obj in expected]
    assert vars(copied[2]) == {"hook": "added"}


def add_hook(cls: Any) -> None:
    cls.__getstate__ = lambda self: {"hook": "added"}


def test_a_class_that_changes_while_it_is_loaded(new_class: Any) -> None:
    cls = new_class({})

    def set_state(self: Any, state: Any) -> None:
        self.__dict__.update(state)
        cls.__setstate__ = lambda self, state: self.__dict__.update(hook="added")

    trigger = new_class({"__setstate__": set_state})
    graph = [with_attributes(cls), with_attributes(trigger), with_attributes(cls)]
    expected = pickled_copy(graph)
    del cls.__setstate__
    copied = copy_of(graph)
    assert [vars(obj) for obj in copied] == [vars(obj) for obj in expected]
    assert vars(copied[2]) == {"hook": "added"}


def test_mixed_order_of_instances_and_their_hooks() -> None:
    """Attributes that look like hooks, between instances that have none."""
    graph = []
    for number in range(30):
        obj = Plain(number=number)
        if number % 3 == 1:
            obj.__reduce_ex__ = lambda protocol: (MyList, ([1],))
        elif number % 3 == 2:
            obj.__getstate__ = lambda: {"from": "the instance"}
        graph.append(obj)
    assert_outcome_of_pickle([*graph, Derived(a=1), *graph[::-1]])

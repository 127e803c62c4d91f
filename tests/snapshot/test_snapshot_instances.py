"""Instances of Python classes: attributes, slots and every hook that pickle looks for."""

from __future__ import annotations

import abc
import copyreg
import pickle
import random
import types
from typing import TYPE_CHECKING, Any

import pytest
import sample_types
from checks import (
    assert_copied,
    assert_error_of_pickle,
    assert_like_pickle,
    assert_loading_error_of_pickle,
    assert_outcome_of_pickle,
    copy_of,
    having,
    pickled_copy,
)
from graph_compare import assert_same
from pams_parallel import snapshot
from sample_types import (
    MODEL,
    Derived,
    DropsModel,
    EventLog,
    Frozen,
    FrozenSlotted,
    MyDict,
    NewArgs,
    NewArgsEx,
    NoSlots,
    OfMeta,
    OfRegisteredMeta,
    OpenSlotted,
    Outer,
    Plain,
    Record,
    RecordingAttributes,
    RecordingNew,
    Registered,
    SetStateOnly,
    Slotted,
    SlottedChild,
    SlottedOpen,
    SlottedSecret,
    Stateful,
    StateOnly,
    WithSecret,
)

if TYPE_CHECKING:
    pass


INSTANCES: dict[str, Any] = {
    "no attributes": Plain(),
    "attributes": Plain(a=1, b=[2], c=None),
    "many attributes": Plain(**{f"name_{index}": index for index in range(200)}),
    "names that are no identifiers": Plain(**{"a b": 1, "": 2, "größe": 3, "\ud800": 4}),
    "derived": Derived(a=1),
    "private name": WithSecret([1]),
    "nested class": Outer.Inner(a=1),
    "metaclass": OfMeta(a=1),
    "metaclass with registered reducer": OfRegisteredMeta(a=1),
    "slots": Slotted(left=1, right=[2]),
    "unset slots": [Slotted(), Slotted(left=None), Slotted(right=1)],
    "slots of base and derived": SlottedChild(left=1, extra=2),
    "slots and attributes": having(SlottedOpen(left=1), other=2),
    "slots without attributes": SlottedOpen(left=1),
    "attributes without slots": having(SlottedOpen(), other=2),
    "private slot": SlottedSecret([1]),
    "empty slots": NoSlots(),
    "dataclass": Record("a", 1, [Record("b")]),
    "frozen dataclass": Frozen("a", [1]),
    "frozen slotted dataclass": FrozenSlotted("a", [1]),
    "open slotted dataclass": OpenSlotted("a", [1]),
    "__getnewargs__": NewArgs("text", 5),
    "__getnewargs_ex__": NewArgsEx([1], second={"a": 1}),
    "copyreg": Registered([1, 2]),
    "state of another type": Stateful(1, [2]),
    "no state": Stateful(),
    "getstate alone": StateOnly(a=1, b=2),
    "setstate that restores": DropsModel("agent"),
}


@pytest.mark.parametrize("name", INSTANCES)
def test_instance(name: str) -> None:
    assert_copied(INSTANCES[name])


@pytest.mark.parametrize("name", INSTANCES)
def test_instance_among_others(name: str) -> None:
    obj = INSTANCES[name]
    assert_copied([obj, Plain(a=obj), {"k": (obj,)}, Slotted(left=obj)])


def test_state_that_is_dropped_and_restored() -> None:
    copied = copy_of([DropsModel("a"), DropsModel("b")])
    assert copied[0].model is copied[1].model is MODEL
    assert list(vars(copied[0])) == ["name", "model"]
    assert_like_pickle(StateOnly(a=1, dropped=2))
    assert_like_pickle(SetStateOnly(b=2, a=1))
    assert_like_pickle([SetStateOnly(), SetStateOnly(dropped=1)])


def test_neither_init_nor_setattr_is_called_for_attributes() -> None:
    obj = RecordingNew(1)
    other = RecordingAttributes()
    other.attribute = [1]
    other.slot = [2]
    pickled_events, our_events = [], []
    for copier, events in ((pickled_copy, pickled_events), (copy_of, our_events)):
        EventLog.events.clear()
        copied = copier([obj, other])
        events += EventLog.events
        assert copied[0].args == (1,)
        assert copied[1].attribute == [1]
        assert copied[1].slot == [2]
    assert our_events == pickled_events == [("new", (), []), ("setattr", "slot")]


def test_attributes_in_various_orders() -> None:
    """Instances of a class do not need to have the same attributes in the same order."""
    instances = [
        Plain(a=1, b=2, c=3),
        Plain(c=3, b=2, a=1),
        Plain(a=1),
        Plain(),
        Plain(a=1, b=2, c=3, d=4),
        Plain(b=2, d=4),
    ]
    again = Plain(a=1, b=2, c=3)
    del again.a
    again.a = 4
    gone = Plain(a=1, b=2)
    del gone.a, gone.b
    assert_copied([*instances, again, gone, *map(copy_of, instances)])
    for obj in (again, gone, instances[1]):
        assert_copied(obj)


def test_attributes_never_looked_at() -> None:
    """Newer versions keep attributes in the object until someone asks for ``__dict__``."""
    for _ in range(3):
        fresh = [having(Plain(), a=1, b=[2]), having(Derived(), b=1), having(Plain(), b=3)]
        copied = copy_of(fresh)
        assert [sorted(vars(obj)) for obj in copied] == [["a", "b"], ["b"], ["b"]]
        assert copied[0].b == [2]


def test_names_that_are_no_strings() -> None:
    obj = Plain(a=1)
    obj.__dict__[1] = "int"
    obj.__dict__[("a", "tuple")] = "tuple"
    obj.__dict__[sample_types.MyStr("a str")] = "subclass"
    assert_copied([Plain(a=1), obj, obj])


def test_dict_that_is_a_subclass() -> None:
    obj = Plain()
    obj.__dict__ = MyDict(a=[1], b=2)
    obj.__dict__.note = obj.a  # type: ignore[attr-defined]
    assert_like_pickle(obj)
    assert_like_pickle([obj, obj.__dict__, Plain(a=1)])


def test_dict_that_is_referred_to_elsewhere() -> None:
    obj = Plain(a=[1])
    assert_like_pickle([obj, obj.__dict__])
    assert_like_pickle([obj.__dict__, obj])
    obj.mine = obj.__dict__
    assert_like_pickle(obj)
    other = Plain()
    other.__dict__ = obj.__dict__
    assert_like_pickle([obj, other])


def test_hooks_in_the_dict_of_the_instance() -> None:
    """Pickle looks up hooks on the object, so an attribute of the instance counts."""
    own_reduce_ex = Plain(a=1)
    own_reduce_ex.__reduce_ex__ = lambda protocol: (Plain, (), {"by": protocol})
    copied = copy_of(own_reduce_ex)
    assert vars(copied) == vars(pickled_copy(own_reduce_ex)) == {"by": 5}
    own_getstate = Plain(a=1)
    own_getstate.__getstate__ = function_state
    assert_like_pickle(own_getstate)
    own_reduce = Plain(a=1)
    own_reduce.__reduce__ = function_state
    assert_like_pickle(own_reduce)
    own_setstate = Plain(a=1)
    own_setstate.__setstate__ = function_state
    assert_like_pickle(own_setstate)
    own_newargs = Plain(a=1)
    own_newargs.__getnewargs__ = function_state
    assert_outcome_of_pickle(own_newargs)
    own_newargs_ex = Plain(a=1)
    own_newargs_ex.__getnewargs_ex__ = function_state
    assert_outcome_of_pickle(own_newargs_ex)
    not_callable = Plain(a=1)
    not_callable.__getstate__ = 5
    assert_outcome_of_pickle(not_callable)
    own_class = Plain(a=1)
    own_class.__dict__["__class__"] = Derived
    assert_like_pickle(own_class)


def function_state() -> Any:
    return {"from": "the function"}


def test_getattr_that_answers_everything(new_class: Any) -> None:
    def answer(self: Any, name: str) -> Any:
        if name.startswith("__"):
            EventLog.events.append(name)
            raise AttributeError(name)
        return f"value of {name}"

    obj = new_class({"__getattr__": answer})()
    obj.a = 1
    seen = []
    for copier in (pickled_copy, copy_of):
        EventLog.events.clear()
        copied = copier([obj, obj])
        seen.append(sorted(EventLog.events))
        assert vars(copied[0]) == {"a": 1}
        assert copied[0].b == "value of b"
    assert seen[0] == seen[1]


def test_getattr_that_recurses_before_its_state_is_set(new_class: Any) -> None:
    """The classic mistake: ``__getattr__`` that needs an attribute that is not there yet."""

    def delegate(self: Any, name: str) -> Any:
        return getattr(self.target, name)

    obj = new_class({"__getattr__": delegate})()
    obj.target = Plain(a=1)
    assert_loading_error_of_pickle(obj)


def test_getattr_that_gives_hooks(new_class: Any) -> None:
    def give(self: Any, name: str) -> Any:
        if name == "__setstate__":
            return lambda state: self.__dict__.update(state, through="getattr")
        if name == "__getstate__":
            return lambda: {"state": "getattr"}
        raise AttributeError(name)

    obj = new_class({"__getattr__": give})()
    obj.a = 1
    assert_like_pickle(obj)


def test_getattribute(new_class: Any) -> None:
    def change(self: Any, name: str) -> Any:
        if name == "__dict__":
            return {"from": "__getattribute__"}
        return object.__getattribute__(self, name)

    obj = new_class({"__getattribute__": change})()
    obj.a = 1
    assert_like_pickle(obj)

    def refuse(self: Any, name: str) -> Any:
        raise ValueError(f"no {name}")

    refusing = new_class({"__getattribute__": refuse})()
    assert_error_of_pickle(refusing)


def test_class_property(new_class: Any) -> None:
    """``__class__`` that lies, as proxies do."""
    lying = new_class({"__class__": property(lambda self: Plain)})()
    lying.a = 1
    assert_error_of_pickle(lying)
    assert_error_of_pickle([Plain(a=1), lying])
    honest = new_class({"__class__": property(lambda self: type(self))})()
    honest.a = 1
    assert_like_pickle(honest)


def test_dict_property(new_class: Any) -> None:
    class_dict = {"__dict__": property(lambda self: {"a": 1, "b": [2]})}
    shown = new_class(class_dict)()
    assert_like_pickle(shown)
    hidden = new_class({"__dict__": property(lambda self: None)})()
    assert_outcome_of_pickle(hidden)


def test_slots_redefined_in_a_derived_class(new_class: Any) -> None:
    base = new_class({"__slots__": ("a",)})
    derived = new_class({"__slots__": ("a", "b")}, (base,))
    obj = derived()
    base.a.__set__(obj, "hidden")
    obj.a = "visible"
    obj.b = [1]
    assert_like_pickle(obj)


def test_slot_named_like_a_descriptor_with_side_effects(new_class: Any) -> None:
    def get(self: Any) -> Any:
        return [self.left]

    def put(self: Any, value: Any) -> None:
        Slotted.left.__set__(self, ("set", value))  # type: ignore[attr-defined]

    cls = new_class({"__slots__": (), "left": property(get, put)}, (Slotted,))
    obj = cls.__new__(cls)
    Slotted.left.__set__(obj, 1)  # type: ignore[attr-defined]
    with pytest.raises(RecursionError):
        _ = obj.left
    assert_error_of_pickle(obj)


def test_slots_as_a_single_string(new_class: Any) -> None:
    cls = new_class({"__slots__": "only"})
    obj = cls()
    obj.only = [1]
    assert_copied([obj, cls()])


def test_slots_listed_in_slotnames(new_class: Any) -> None:
    """``copyreg`` caches the names of slots on the class; user code may have set them."""
    cls = new_class({"__slots__": ("a", "b"), "__slotnames__": ["b", "a"]})
    obj = cls()
    obj.a, obj.b = 1, 2
    assert_like_pickle(obj)


@pytest.mark.parametrize(
    "hook",
    [
        "__getstate__",
        "__setstate__",
        "__reduce__",
        "__reduce_ex__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__getattr__",
        "__getattribute__",
        "__setattr__",
        "__new__",
        "copyreg",
    ],
)
@pytest.mark.parametrize("through_base", [False, True])
def test_hooks_that_a_class_gets_between_two_copies(
    new_class: Any, hook: str, through_base: bool
) -> None:
    """What is known about a class has to be forgotten when the class changes."""
    base = new_class({})
    cls = new_class({}, (base,))
    changed = base if through_base else cls
    obj = cls()
    obj.a = [1]
    assert_copied([obj, obj])
    hooks: dict[str, Any] = {
        "__getstate__": lambda self: {"late": "getstate"},
        "__setstate__": lambda self, state: self.__dict__.update(state, late="setstate"),
        "__reduce__": lambda self: (Plain, (), {"late": "reduce"}),
        "__reduce_ex__": lambda self, protocol: (Plain, (), {"late": protocol}),
        "__getnewargs__": lambda self: (),
        "__getnewargs_ex__": lambda self: ((), {}),
        "__getattr__": missing_attribute,
        "__getattribute__": lambda self, name: (
            {"late": 1} if name == "__dict__" else object.__getattribute__(self, name)
        ),
        "__setattr__": lambda self, name, value: object.__setattr__(self, name, ("set", value)),
        "__new__": lambda cls, *args: object.__new__(Derived),
    }
    if hook == "copyreg":
        copyreg.pickle(cls, lambda obj: (Plain, (), {"late": "copyreg"}))
    else:
        setattr(changed, hook, hooks[hook])
    try:
        for graph in (obj, [obj, obj], [cls(), obj]):
            assert_outcome_of_pickle(graph)
    finally:
        if hook == "copyreg":
            del copyreg.dispatch_table[cls]
        else:
            delattr(changed, hook)
    assert_copied([obj, obj])


def missing_attribute(self: Any, name: str) -> Any:
    if name == "__setstate__":
        return lambda state: self.__dict__.update(state, late="getattr")
    raise AttributeError(name)


def test_loading_hook_that_a_class_gets_after_the_dump(new_class: Any) -> None:
    cls = new_class({})
    obj = cls()
    obj.a = 1
    graph = [obj, cls()]
    data = snapshot.dumps(graph)
    pickled = pickle.dumps(graph, protocol=5)
    assert_same(pickle.loads(pickled), snapshot.loads(data))
    cls.__setstate__ = lambda self, state: self.__dict__.update(state, late=True)
    assert vars(snapshot.loads(data)[0]) == {"a": 1, "late": True}
    assert_same(pickle.loads(pickled), snapshot.loads(data))
    del cls.__setstate__
    cls.__new__ = lambda klass, *args: object.__new__(Derived)
    assert type(snapshot.loads(data)[0]) is Derived
    assert_same(pickle.loads(pickled), snapshot.loads(data))


def test_changed_class_of_an_instance() -> None:
    obj = Plain(a=1)
    assert_copied(obj)
    obj.__class__ = Derived
    assert_copied(obj)
    obj.__class__ = Outer.Inner
    assert_copied([Plain(a=1), obj])


def test_abstract_classes_and_generics() -> None:
    with pytest.raises(TypeError):
        abstract()
    assert_copied(Concrete())


class Abstract(abc.ABC):
    @abc.abstractmethod
    def rule(self) -> None: ...


class Concrete(Abstract):
    def rule(self) -> None: ...


def abstract() -> Any:
    return Abstract()  # type: ignore[abstract]


def test_reducer_registered_for_a_type_with_its_own_treatment() -> None:
    """``copyreg`` wins where pickle lets it win, and only there."""
    cases: list[tuple[type, Any]] = [
        (random.Random, random.Random(1)),
        (Plain, Plain(a=1)),
        (complex, 1 + 2j),
        (list, [1]),
        (dict, {"a": 1}),
        (str, "text"),
        (int, 5),
        (tuple, (1, 2)),
        (set, {1}),
        (frozenset, frozenset([1])),
        (bytes, b"abc"),
        (bytearray, bytearray(b"abc")),
        (types.FunctionType, sample_types.function),
        (type, Plain),
        (type(len), len),
        (Slotted, Slotted(left=1)),
        (range, range(3)),
    ]
    for cls, obj in cases:
        before = copyreg.dispatch_table.get(cls)
        copyreg.dispatch_table[cls] = replaced
        try:
            assert_like_pickle([obj, obj, 1])
        finally:
            if before is None:
                del copyreg.dispatch_table[cls]
            else:
                copyreg.dispatch_table[cls] = before


def replaced(obj: Any) -> tuple[Any, ...]:
    return Record, ("replaced", type(obj).__name__)

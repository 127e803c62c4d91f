"""Classes for the graphs that the snapshot tests copy; importable from any process."""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import random
from typing import Any, NamedTuple

import numpy as np


class Plain:
    """What most agents are: attributes, no hooks."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self) -> Plain:
        return self

    @classmethod
    def class_method(cls) -> type[Plain]:
        return cls

    @staticmethod
    def static_method() -> None:
        pass


class Derived(Plain):
    pass


class WithSecret:
    """A private name, which is mangled."""

    def __init__(self, secret: Any) -> None:
        self.__secret = secret


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class SlottedChild(Slotted):
    __slots__ = ("extra",)


class SlottedOpen(Slotted):
    """Slots of the base and a ``__dict__``."""


class SlottedSecret:
    __slots__ = ("__secret", "__weakref__")

    def __init__(self, secret: Any) -> None:
        self.__secret = secret


class NoSlots:
    __slots__ = ()


@dataclasses.dataclass
class Record:
    name: Any
    value: Any = None
    children: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: Any
    value: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    name: Any
    value: Any = None


@dataclasses.dataclass(slots=True)
class OpenSlotted:
    name: Any
    value: Any = None


Pair = collections.namedtuple("Pair", ["first", "second"])


class Triple(NamedTuple):
    first: Any
    second: Any = 2
    third: Any = None


class PairWithAttributes(Pair):
    """A named tuple that can have attributes."""


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyComplex(complex):
    pass


class MyStr(str):
    pass


class MyBytes(bytes):
    pass


class MyBytearray(bytearray):
    pass


class MyTuple(tuple):
    pass


class MyList(list):
    pass


class MyDict(dict):
    pass


class MySet(set):
    pass


class MyFrozenset(frozenset):
    pass


class SlottedList(list):
    __slots__ = ("tag",)


class SlottedDict(dict):
    __slots__ = ("tag",)


class SlottedSet(set):
    __slots__ = ("tag",)


class SlottedFloat(float):
    __slots__ = ("tag",)


class MyOrderedDict(collections.OrderedDict):
    pass


class MyDefaultDict(collections.defaultdict):
    pass


class MyDeque(collections.deque):
    pass


class MyCounter(collections.Counter):
    pass


class MyRandom(random.Random):
    """A subclass keeps a pending gauss value, and drops attributes, as pickle has it."""


class MyArray(np.ndarray):
    """An array class with an attribute, which NumPy does not pickle."""


class MyError(Exception):
    pass


class NewArgs(str):
    """Constructor arguments from ``__getnewargs__``."""

    __slots__ = ("tag",)

    def __new__(cls, text: str, tag: Any) -> NewArgs:
        self = super().__new__(cls, text)
        self.tag = tag
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (str(self), self.tag)


class NewArgsEx:
    """Constructor arguments by name from ``__getnewargs_ex__``."""

    def __new__(cls, first: Any, *, second: Any) -> NewArgsEx:
        self = super().__new__(cls)
        self.made_with = (first, second)
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.made_with[:1], {"second": self.made_with[1]})


class Bag:
    """Reducer of two to six elements, chosen by the ``arity`` given at construction."""

    def __init__(self, arity: int, *args: Any) -> None:
        self.arity = arity
        self.args = args
        self.items: list[Any] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.state: Any = None

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        whole = (
            type(self),
            (self.arity, *self.args),
            self.state,
            iter(self.items),
            iter(self.pairs),
            set_bag_state,
        )
        return whole[: self.arity]


def set_bag_state(bag: Bag, state: Any) -> None:
    bag.state = state


class ReducedToGlobal:
    """Reduced to the name of a global."""

    def __reduce__(self) -> str:
        return "THE_GLOBAL"


THE_GLOBAL = ReducedToGlobal()


class Stateful:
    """``__getstate__`` and ``__setstate__`` with a state that is no dict."""

    def __init__(self, *content: Any) -> None:
        self.content = content

    def __getstate__(self) -> Any:
        return list(self.content)

    def __setstate__(self, state: Any) -> None:
        self.content = tuple(state)


class StateOnly:
    """``__getstate__`` alone: the default for the way back."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getstate__(self) -> Any:
        return {name: value for name, value in self.__dict__.items() if name != "dropped"}


class SetStateOnly:
    """``__setstate__`` alone gets the default state."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        self.__dict__["restored"] = sorted(map(str, state))


MODEL = Plain(weights=[0.5] * 8)


class DropsModel:
    """Leaves a large object out and puts it back from a module variable."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model = MODEL

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["model"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.model = MODEL


class Registered:
    """Copied by a function registered with :mod:`copyreg`, and in no other way."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("the registered reducer comes first")


def _reduce_registered(obj: Registered) -> tuple[Any, ...]:
    return Registered, (obj.payload,)


copyreg.pickle(Registered, _reduce_registered)


class RegisteredMeta(type):
    """Classes of this metaclass are copied by a registered function."""


class OfRegisteredMeta(metaclass=RegisteredMeta):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def find_class(name: str) -> type:
    """Stand-in for a class registry."""
    return {"OfRegisteredMeta": OfRegisteredMeta}[name]


copyreg.pickle(RegisteredMeta, lambda cls: (find_class, (cls.__name__,)))  # type: ignore[arg-type, return-value]


class Meta(type):
    """A metaclass without hooks."""


class OfMeta(metaclass=Meta):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class HashedByKey:
    """Equal by a key that is an attribute: unhashable until its state is set."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(("HashedByKey", self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedByKey) and self.key == other.key


class HashedByDefault:
    """Hash from an attribute with a default, so an unfinished object has another hash."""

    key: Any = None

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(("HashedByDefault", self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedByDefault) and self.key == other.key


class Outer:
    class Inner:
        """A nested class with a dotted qualified name."""

        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

        def method(self) -> None:
            pass


def function(*args: Any) -> tuple[Any, ...]:
    return args


class EventLog:
    """Records what hooks of user code see while an object is rebuilt."""

    events: list[Any] = []  # noqa: RUF012  (shared on purpose)


class Watcher:
    """Looks at its surroundings from ``__setstate__``."""

    def __init__(self, name: str, surroundings: Any = None) -> None:
        self.name = name
        self.surroundings = surroundings

    def __getstate__(self) -> Any:
        EventLog.events.append(("getstate", self.name))
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        EventLog.events.append(("setstate", self.name, *seen(self.surroundings)))


def seen(obj: Any) -> tuple[Any, ...]:
    """How far an object is built, as user code can see it."""
    if isinstance(obj, list | dict | set | collections.deque):
        return (type(obj).__name__, len(obj))
    attributes = getattr(obj, "__dict__", None)
    return (type(obj).__name__, None if attributes is None else sorted(map(str, attributes)))


class RecordingList(list):
    """Records by which methods it is filled."""

    def append(self, item: Any) -> None:
        EventLog.events.append(("append", 1))
        super().append(item)

    def extend(self, items: Any) -> None:
        items = list(items)
        EventLog.events.append(("extend", len(items)))
        super().extend(items)


class RecordingAppendOnly:
    """Filled by ``append``: it has no ``extend``."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def append(self, item: Any) -> None:
        EventLog.events.append(("append", item))
        self.items.append(item)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (), None, iter(list(self.items))


class RecordingDict(dict):
    """Records the items set, in order."""

    def __setitem__(self, key: Any, value: Any) -> None:
        EventLog.events.append(("setitem", key))
        super().__setitem__(key, value)


class RecordingAttributes:
    """Records the attributes set through ``__setattr__``: slots are, attributes are not."""

    __slots__ = ("__dict__", "slot")

    def __setattr__(self, name: str, value: Any) -> None:
        EventLog.events.append(("setattr", name))
        object.__setattr__(self, name, value)


class RecordingNew:
    """Records constructor calls: ``__new__`` runs, ``__init__`` does not."""

    def __new__(cls, *args: Any, **kwargs: Any) -> RecordingNew:
        EventLog.events.append(("new", args, sorted(kwargs)))
        return super().__new__(cls)

    def __init__(self, *args: Any) -> None:
        EventLog.events.append(("init", args))
        self.args = args


class Cached:
    """Drops a cache when it is copied, and starts with an empty one."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.cache: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "cache"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.cache = {}


class KeyedState:
    """Hash from an attribute that ``__setstate__`` sets."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __hash__(self) -> int:
        return hash(("KeyedState", self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyedState) and self.key == other.key

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

"""Objects that cannot be copied: the error is pickle's, and says where the culprit is."""

from __future__ import annotations

import collections
import functools
import io
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest
from checks import (
    assert_error_of_pickle,
    copy_of,
    having,
)
from pams_parallel import snapshot
from sample_types import (
    Bag,
    DropsModel,
    Frozen,
    FrozenSlotted,
    MyDict,
    MyList,
    MyStr,
    NewArgsEx,
    Outer,
    Pair,
    Plain,
    Registered,
    Side,
    Slotted,
    SlottedChild,
    Stateful,
    StateOnly,
    WithSecret,
    function,
)

LOCK = threading.Lock()


def local_class() -> type:
    class Local:
        pass

    return Local


def local_function() -> Any:
    def local() -> None: ...

    return local


def generator() -> Any:
    yield 1


async def coroutine() -> None: ...


def shadowed() -> type:
    """A class whose name leads to another one."""
    return type("Plain", (), {"__module__": "sample_types"})


def module_less() -> Any:
    made = types.FunctionType(function.__code__, {}, "no_such_function_anywhere")
    made.__module__ = None
    return made


UNCOPYABLE: dict[str, Any] = {
    "lock": lambda: LOCK,
    "lambda": lambda: lambda: None,
    "local function": local_function,
    "local class": local_class,
    "instance of a local class": lambda: local_class()(),
    "shadowed class": shadowed,
    "instance of a shadowed class": lambda: shadowed()(),
    "function of no module": module_less,
    "class of a missing module": lambda: type("Lost", (), {"__module__": "no_such_module"}),
    "generator": generator,
    "module": lambda: sys,
    "memoryview": lambda: memoryview(b"abc"),
    "weak reference": lambda: weakref.ref(local_class()),
    "weak set": lambda: weakref.WeakValueDictionary(),
    "frame": sys._getframe,
    "code": lambda: function.__code__,
    "cell": lambda: types.CellType(1),
    "mapping proxy": lambda: types.MappingProxyType({}),
    "dict view": lambda: {}.keys(),
    "property": lambda: property(),
    "static method object": lambda: staticmethod(function),
    "thread": lambda: threading.Thread(),
    "text stream": lambda: io.TextIOWrapper(io.BytesIO()),
    "standard output": lambda: sys.__stdout__,
    "bound method of a lock": lambda: LOCK.acquire,
    "partial of a lambda": lambda: functools.partial(lambda: None),
    "default factory": lambda: collections.defaultdict(lambda: 1),
    "module attribute of a class": lambda: type(sys)("made up"),
    "super": lambda: super(MyList, MyList()),
    "NumPy flags": lambda: np.zeros(1).flags,
    "traceback": lambda: _traceback(),
}


def _traceback() -> Any:
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__


@pytest.mark.parametrize("name", UNCOPYABLE)
def test_what_pickle_refuses(name: str) -> None:
    culprit = UNCOPYABLE[name]()
    assert_error_of_pickle(culprit, "obj")
    assert_error_of_pickle([0, Plain(rule=culprit)], "obj[1].rule")
    assert_error_of_pickle({"k": (culprit,)}, "obj['k'][0]")


def test_open_files(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    for mode in ("r", "rb", "a"):
        with path.open(mode) as file:
            assert_error_of_pickle(Plain(log=file), "obj.log")


LOCATED: dict[str, tuple[Any, str]] = {
    "obj": (LOCK, "obj"),
    "list": ([0, [1, LOCK]], "obj[1][1]"),
    "tuple": ((0, (LOCK,)), "obj[1][0]"),
    "long tuple": ((0, 1, 2, 3, 4, LOCK), "obj[5]"),
    "attribute": (Plain(a=1, b=LOCK), "obj.b"),
    "mixed": (Plain(a=[0, 1, 2, {"k": Plain(b=LOCK)}]), "obj.a[3]['k'].b"),
    "key of type int": ({3: LOCK}, "obj[3]"),
    "key of type float": ({1.5: LOCK}, "obj[1.5]"),
    "key of type bytes": ({b"k": LOCK}, "obj[b'k']"),
    "key of type None": ({None: LOCK}, "obj[None]"),
    "key of type tuple": ({("a", 1): LOCK}, "obj[('a', 1)]"),
    "key with a quote": ({"it's": LOCK}, 'obj["it\'s"]'),
    "later item": ({index: LOCK if index == 1500 else 0 for index in range(2000)}, "obj[1500]"),
    "later element": ([0] * 1500 + [LOCK], "obj[1500]"),
    "slot": (Slotted(left=LOCK), "obj.left"),
    "slot of a derived class": (SlottedChild(left=1, extra=[LOCK]), "obj.extra[0]"),
    "private attribute": (WithSecret(LOCK), "obj._WithSecret__secret"),
    "dataclass": (Frozen("a", [LOCK]), "obj.value[0]"),
    "state of a hook": (StateOnly(a={"k": LOCK}), "obj.a['k']"),
    "nested class": (Outer.Inner(a=LOCK), "obj.a"),
    "deque": (collections.deque([0, LOCK]), "obj[1]"),
    "OrderedDict": (collections.OrderedDict(a=LOCK), "obj['a']"),
    "defaultdict": (collections.defaultdict(list, a=LOCK), "obj['a']"),
    "list subclass": (MyList([0, LOCK]), "obj[1]"),
    "dict subclass": (MyDict(a=LOCK), "obj['a']"),
    "attribute of a list": (having(MyList(), a=LOCK), "obj.a"),
    "attribute of a str": (having(MyStr(), a=LOCK), "obj.a"),
    "list items of a reducer": (having(Bag(4), items=[0, LOCK]), "obj[1]"),
    "dict items of a reducer": (having(Bag(5), pairs=[("k", LOCK)]), "obj['k']"),
    "aliased first": ([Plain(a=LOCK), LOCK], "obj[0].a"),
}


@pytest.mark.parametrize("name", LOCATED)
def test_path(name: str) -> None:
    obj, path = LOCATED[name]
    # No more than the path: what follows it must not be a part of a longer one.
    error = assert_error_of_pickle(obj, path)
    after = str(error).partition(path)[2]
    assert not after.startswith((".", "["))
    assert_error_of_pickle({"outer": [obj]}, path.replace("obj", "obj['outer'][0]", 1))


# Places that have no expression of their own: the path leads to the object around.
NEAR: dict[str, tuple[Any, str]] = {
    "key": (Plain(a={LOCK: 1}), "obj.a"),
    "inside of a key": (Plain(a={(1, LOCK): 1}), "obj.a"),
    "element of a set": (Plain(a={LOCK}), "obj.a"),
    "element of a frozenset": (Plain(a=frozenset([LOCK])), "obj.a"),
    "named tuple": (Plain(a=Pair(1, LOCK)), "obj.a"),
    "state that is a list": (Plain(a=Stateful(1, LOCK)), "obj.a"),
    "state of slots": (Plain(a=FrozenSlotted("a", LOCK)), "obj.a"),
    "constructor arguments": (Plain(a=Bag(2, LOCK)), "obj.a"),
    "named constructor arguments": (Plain(a=NewArgsEx(1, second=LOCK)), "obj.a"),
    "registered reducer": (Plain(a=Registered(LOCK)), "obj.a"),
    "state for a setter": (Plain(a=having(Bag(6), state=[LOCK])), "obj.a"),
    "partial": (Plain(a=functools.partial(function, LOCK)), "obj.a"),
    "bound method": (Plain(a=Plain(b=LOCK).method), "obj.a"),
    "object array": (Plain(a=np.array([1, LOCK], object)), "obj.a"),
    "exception": (Plain(a=ValueError(LOCK)), "obj.a"),
    "attribute that is no str": (Plain(a=having(Plain(), b=1)), "obj.a"),
    "a name that is no identifier": (Plain(a=Plain(**{"not an identifier": LOCK})), "obj.a"),
}
NEAR["attribute that is no str"][0].a.__dict__[5] = LOCK


@pytest.mark.parametrize("name", NEAR)
def test_path_of_the_object_around(name: str) -> None:
    obj, path = NEAR[name]
    assert_error_of_pickle(obj, path)


def test_names_of_roots() -> None:
    encoder = snapshot.Encoder()
    encoder.add([1], "simulator")
    with pytest.raises(TypeError, match=r"simulator\.agents\[1\]\.rule") as error:
        encoder.add(Plain(agents=[0, Plain(rule=LOCK)]), "simulator")
    assert "cannot pickle" in str(error.value)


def test_names_of_items_of_a_root() -> None:
    names = ("agents[7]", "orders of agent 7")
    for culprit, path in (
        ((Plain(a=LOCK), 1), "agents[7].a"),
        ((1, [LOCK]), "orders of agent 7[0]"),
    ):
        encoder = snapshot.Encoder()
        with pytest.raises(TypeError) as error:
            encoder.add(culprit, names)
        assert path in str(error.value)
        assert "obj" not in str(error.value).replace("object", "")


@pytest.mark.parametrize("root", [[1, 2], (1,), (1, 2, 3), "ab", None])
def test_names_that_do_not_fit(root: Any) -> None:
    encoder = snapshot.Encoder()
    with pytest.raises((TypeError, ValueError)):
        encoder.add(root, ("first", "second"))


class Raising:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


class OddError(Exception):
    """Cannot be made from its own ``args``."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text"),
        ValueError(),
        ValueError(1, 2),
        KeyError("key"),
        OSError(2, "no such file", "name"),
        OddError(1, 2),
        UnprintableError("a"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "reason"),
        StopIteration(1),
        RecursionError("deep"),
        MemoryError(),
        AttributeError("attribute"),
        AssertionError(),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
    ],
    ids=repr,
)
def test_errors_of_user_code_keep_their_type_and_content(error: BaseException) -> None:
    for obj in (Raising(error), [Plain(a=Raising(error))]):
        with pytest.raises(type(error)) as caught:
            copy_of(obj)
        assert type(caught.value) is type(error)
        if isinstance(error, OddError):
            assert caught.value.first == 1  # type: ignore[union-attr]
        elif isinstance(error, OSError):
            assert caught.value.filename == "name"  # type: ignore[union-attr]
        elif isinstance(error, SystemExit):
            assert caught.value.code == 3  # type: ignore[union-attr]
        elif len(error.args) != 1:
            assert caught.value.args == error.args


def test_traceback_of_user_code_is_kept() -> None:
    with pytest.raises(ValueError, match="text") as error:
        copy_of([Raising(ValueError("text"))])
    assert any(entry.name == "__reduce__" for entry in error.traceback)


def test_cause_of_an_error_is_kept() -> None:
    class Chained:
        def __reduce__(self) -> Any:
            raise ValueError("second") from KeyError("first")

    with pytest.raises(ValueError, match="second") as error:
        copy_of([Chained()])
    assert isinstance(error.value.__cause__, KeyError)


class BadRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class BadName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


def test_a_key_that_cannot_be_shown() -> None:
    """The path is a help: its own problems must not hide the error."""
    for key in (BadRepr(), (BadRepr(),), Side.BUY, "x" * 100_000, 10**5000):
        error = assert_error_of_pickle({key: Plain(a=LOCK)}, ".a")
        assert len(str(error)) < 200_000


def test_error_far_down() -> None:
    deep: Any = Plain(next=LOCK)
    for _ in range(20_000):
        deep = Plain(next=deep)
    with pytest.raises(TypeError, match="cannot pickle") as error:
        copy_of(deep)
    assert "obj.next.next" in str(error.value)


def test_the_original_is_unharmed_after_an_error() -> None:
    graph = [Plain(a=[1]), DropsModel("a"), {"k": {1}}, LOCK]
    with pytest.raises(TypeError):
        copy_of(graph)
    graph.pop()
    assert copy_of(graph)[0].a == [1]


def test_a_long_path_is_shortened() -> None:
    graph: object = threading.Lock()
    for _ in range(5000):
        graph = [graph]
    with pytest.raises(TypeError, match=r"kkk\.\.\.\]\[0\].* more\).*\[0\]\)$") as raised:
        snapshot.dumps({"k" * 300_000: graph})
    assert len(str(raised.value)) < 1000

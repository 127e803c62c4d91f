"""Changes to attributes that are not listed: which ones are worth a warning."""

from __future__ import annotations

import random
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numpy as np
from pams.logs import Logger

from .scripted_agents import Scripted

if TYPE_CHECKING:
    from pams import Market


class Text(str):
    """Not an exact ``str``."""

    __slots__ = ()


class Whole(int):
    """Not an exact ``int``."""


Pair = namedtuple("Pair", "a b")

_LIST = [1]
_NAN = float("nan")


def _text(value: str) -> str:
    """An equal string that is another object."""
    return "".join(list(value))


# Name: value before, function from it to the value after.
REPORTED: dict[str, tuple[Any, Any]] = {
    "another str": ("a", lambda v: "b"),
    "another int": (1, lambda v: 2),
    "another float": (1.5, lambda v: 1.25),
    "another bytes": (b"a", lambda v: b"b"),
    "another complex": (1j, lambda v: 2j),
    "another bool": (True, lambda v: False),
    "none to false": (None, lambda v: False),
    "value to none": (0, lambda v: None),
    "negative zero": (0.0, lambda v: -0.0),
    "positive zero": (-0.0, lambda v: 0.0),
    "complex zero, real": (complex(0.0, 1.0), lambda v: complex(-0.0, 1.0)),
    "complex zero, imaginary": (complex(1.0, 0.0), lambda v: complex(1.0, -0.0)),
    "nan to another nan": (float("nan"), lambda v: float("nan")),
    "int to float": (1, lambda v: 1.0),
    "int to bool": (1, lambda v: True),
    "bool to int": (True, lambda v: 1),
    "str to subclass": ("a", lambda v: Text("a")),
    "subclass to str": (Text("a"), lambda v: "a"),
    "subclass to equal subclass": (Text("a"), lambda v: Text("a")),
    "int to subclass": (1, lambda v: Whole(1)),
    "str to bytes": ("a", lambda v: b"a"),
    "list to equal list": ([1], lambda v: [1]),
    "list to its copy": ([], lambda v: list(v)),
    "dict to equal dict": ({"k": 1}, lambda v: {"k": 1}),
    "set to equal set": ({1}, lambda v: {1}),
    "frozenset to equal frozenset": (frozenset({1}), lambda v: frozenset({1})),
    "bytearray": (bytearray(b"a"), lambda v: bytearray(b"a")),
    "object": (Scripted, lambda v: Text),
    "array to equal array": (np.zeros(2), lambda v: np.zeros(2)),
    "numpy value": (np.float64(1.0), lambda v: np.float64(2.0)),
    "numpy to float": (np.float64(1.0), lambda v: 1.0),
    "float to numpy": (1.0, lambda v: np.float64(1.0)),
    "numpy of another type": (np.int64(1), lambda v: np.int32(1)),
    "numpy negative zero": (np.float64(0.0), lambda v: np.float64(-0.0)),
    "numpy float32 negative zero": (np.float32(0.0), lambda v: np.float32(-0.0)),
    "numpy complex zero": (
        np.complex128(complex(0.0, 1.0)),
        lambda v: np.complex128(complex(-0.0, 1.0)),
    ),
    "numpy nan": (np.float64("nan"), lambda v: np.float64("nan")),
    "tuple of another length": ((1, 2), lambda v: (1, 2, 3)),
    "tuple with another member": ((1, "a"), lambda v: (1, "b")),
    "tuple with negative zero": ((0.0,), lambda v: (-0.0,)),
    "tuple with bool for int": ((1,), lambda v: (True,)),
    "tuple with float for int": ((1, (2,)), lambda v: (1, (2.0,))),
    "tuple with another nan": ((float("nan"),), lambda v: (float("nan"),)),
    "tuple with an equal list": (([1],), lambda v: ([1],)),
    "tuple with an equal list deep inside": ((1, ([1],)), lambda v: (1, ([1],))),
    "tuple to list": ((1,), lambda v: [1]),
    "tuple to equal named tuple": ((1, 2), lambda v: Pair(1, 2)),
    "named tuple to equal named tuple": (Pair(1, 2), lambda v: Pair(1, 2)),
}

# Unless they say "same", the values after are equal but other objects where Python allows it.
NOT_REPORTED: dict[str, tuple[Any, Any]] = {
    "same object": (_LIST, lambda v: v),
    "same nan": (_NAN, lambda v: v),
    "equal str": ("a long text", lambda v: _text(v)),
    "equal empty str": ("", lambda v: _text(v)),
    "equal int": (10**30, lambda v: int(str(v))),
    "equal negative int": (-(10**6), lambda v: int(str(v))),
    "equal float": (1.1, lambda v: float(repr(v))),
    "equal negative zero": (-0.0, lambda v: float("-0.0")),
    "equal infinity": (float("inf"), lambda v: float("inf")),
    "equal bytes": (b"a long text", lambda v: bytes(bytearray(v))),
    "equal complex": (complex(1.5, -0.0), lambda v: complex(v.real, v.imag)),
    "equal bool": (True, lambda v: bool(1)),
    "equal none": (None, lambda v: None),
    "equal numpy float": (np.float64(1.1), lambda v: np.float64(1.1)),
    "equal numpy negative zero": (np.float64(-0.0), lambda v: np.float64(-0.0)),
    "equal numpy int": (np.int64(10**12), lambda v: np.int64(10**12)),
    "equal numpy uint8": (np.uint8(200), lambda v: np.uint8(200)),
    "equal numpy float32": (np.float32(0.1), lambda v: np.float32(0.1)),
    "equal numpy complex": (np.complex64(1j), lambda v: np.complex64(1j)),
    "equal tuple": ((1.1, "a", None, b"b"), lambda v: (*v,)),
    "equal nested tuple": (((1, (2.5,)), ()), lambda v: ((*v[0],), ())),
    "equal tuple with numpy": ((np.float64(1.1),), lambda v: (np.float64(1.1),)),
    "tuple with an unchanged list": (([1], 2), lambda v: (*v,)),
    "back to the same object": ([2], lambda v: v),
}


def assign_all(agent: Any, markets: list[Market]) -> None:
    """Assign every attribute of the tables above its value after."""
    for table in (REPORTED, NOT_REPORTED):
        for name, (_, after) in table.items():
            before = getattr(agent, name)
            setattr(agent, name, ["for a moment"])
            setattr(agent, name, after(before))


def change_in_place(agent: Any, markets: list[Market]) -> None:
    agent.items.append(1)
    agent.mapping["k"] = 2
    agent.array += 1
    agent.nested[0].append(2)
    agent.asset_volumes[0] = 5


def replace_what_cannot_be_listed(agent: Any, markets: list[Market]) -> None:
    agent.prng = random.Random(3)
    agent.logger = Logger()
    agent.simulator = type(agent.simulator)(random.Random(1))


def assign_a_and_b(agent: Any, markets: list[Market]) -> None:
    agent.b = 1
    agent.a = 1


def delete_a(agent: Any, markets: list[Market]) -> None:
    del agent.a


def add_through_dict(agent: Any, markets: list[Market]) -> None:
    agent.__dict__["added"] = 1
    agent.__dict__.pop("removed")


def replace_dict(agent: Any, markets: list[Market]) -> None:
    agent.__dict__ = {**agent.__dict__, "added": 1}


def add_and_remove(agent: Any, markets: list[Market]) -> None:
    agent.temporary = 1
    del agent.temporary


def change_others(agent: Any, markets: list[Market]) -> None:
    for other in agent.simulator.agents:
        if other is not agent:
            other.changed_by_another = agent.agent_id


def assign_time(agent: Any, markets: list[Market]) -> None:
    """Assign another name in every step."""
    setattr(agent, f"step_{markets[0].get_time()}", 1)


def change_slot(agent: Any, markets: list[Market]) -> None:
    agent.slot += 1
    del agent.other_slot


class FirstClass(Scripted):
    """One class of two."""


class SecondClass(Scripted):
    """The other one."""

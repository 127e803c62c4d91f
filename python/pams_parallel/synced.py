"""``Agent.synced_attributes``: which attributes an agent lists, and taking and setting them.

The names are read on the main process, the values are taken in a worker from the copy of the
agent and set on the main process on the agent itself. Only what belongs to the instance counts:
entries of its ``__dict__`` and data descriptors of its class, e.g. slots and properties with a
setter. A listed name that only the class has is neither sent nor deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ._core import positions_with

# What the runner manages itself, and the dict that holds all the attributes.
UNLISTABLE = frozenset({"simulator", "logger", "prng", "__dict__"})

# The attribute in which agents list names.
ATTRIBUTE = "synced_attributes"

_NONE: tuple[str, ...] = ()


def listed_names(
    agents: list[Any], candidates: Iterable[int] | None = None
) -> dict[int, tuple[str, ...]]:
    """Read and validate the ``synced_attributes`` of agents.

    Args:
        agents: agents.
        candidates: positions of those that may have the attribute. Default: all.

    Returns:
        Names by position in ``agents``; agents that list none are left out.

    Raises:
        ValueError: an agent's ``synced_attributes`` is not a tuple or list of ``str``, or
            contains a name that cannot be listed.
    """
    listed: dict[int, tuple[str, ...]] = {}
    # Agents of a class usually share one tuple, which needs to be checked only once. The values
    # keep the tuples alive, so an id cannot come to mean another tuple.
    checked: dict[int, tuple[Any, tuple[str, ...]]] = {}
    if candidates is None:
        candidates = positions_with(agents, ATTRIBUTE)
    for position in candidates:
        agent = agents[position]
        given = getattr(agent, ATTRIBUTE, _NONE)
        if given is _NONE:
            continue
        if id(given) in checked and type(given) is tuple:
            names = checked[id(given)][1]
        else:
            names = _validated(given, type(agent).__name__)
            checked[id(given)] = (given, names)
        if names:
            listed[position] = names
    return listed


def _validated(given: Any, class_name: str) -> tuple[str, ...]:
    if not isinstance(given, (tuple, list)) or not all(isinstance(name, str) for name in given):
        raise ValueError(
            f"{class_name}.synced_attributes must be a tuple or list of str, but {given!r} is given"
        )
    for name in given:
        if name in UNLISTABLE:
            raise ValueError(
                f"{class_name}.synced_attributes must not include {str(name)!r}: the runner "
                "manages it, or it stands for all the attributes"
            )
    return tuple(map(str.__str__, given))


def take_values(agent: Any, names: tuple[str, ...]) -> tuple[tuple[str, ...], list[Any]]:
    """Take the listed values that an agent has.

    Args:
        agent: agent.
        names: listed names.

    Returns:
        Those of ``names`` that the instance has (``names`` itself if it has them all), and
        their values.
    """
    own = getattr(agent, "__dict__", {})
    present, values = [], []
    for name in names:
        descriptor = _data_descriptor(type(agent), name)
        if descriptor is None:
            if name not in own:
                continue
            value = own[name]
        elif _is_read_only(descriptor):
            continue
        else:
            try:
                value = getattr(agent, name)
            except AttributeError:
                continue
        present.append(name)
        values.append(value)
    return (names if len(present) == len(names) else tuple(present)), values


def set_values(agent: Any, names: Iterable[str], attributes: Mapping[str, Any]) -> None:
    """Set the values in ``attributes``, and delete the listed attributes that are not in it.

    Args:
        agent: agent.
        names: listed names.
        attributes: values by name.
    """
    for name, value in attributes.items():
        setattr(agent, name, value)
    for name in names:
        if name not in attributes and take_values(agent, (name,))[0]:
            delattr(agent, name)


def _data_descriptor(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in base.__dict__:
            found = base.__dict__[name]
            return found if hasattr(type(found), "__set__") else None
    return None


def _is_read_only(descriptor: Any) -> bool:
    return isinstance(descriptor, property) and descriptor.fset is None

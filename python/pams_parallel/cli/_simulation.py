"""What to simulate: the config and the classes, read and checked."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pams.agents import Agent
from pams.events import EventABC
from pams.market import Market
from pams.utils import find_class, json_extends

from .. import examples
from ._errors import InputError, describe

if TYPE_CHECKING:
    import argparse


class Simulation(NamedTuple):
    """A config with the options applied.

    Attributes:
        name: what messages call the config.
        settings: settings of the runner.
        classes: classes to register with the runner.
        seed: seed of the runner's pseudo random number generator.
    """

    name: str
    settings: dict[str, Any]
    classes: tuple[type, ...]
    seed: int


def read_simulation(arguments: argparse.Namespace) -> Simulation:
    """Read what the command line names.

    Args:
        arguments: the shared options, ``config`` and ``example``.

    Returns:
        The simulation.

    Raises:
        InputError: something is missing, unreadable or unknown.
    """
    name: str = arguments.example or arguments.config
    classes: tuple[type, ...] = ()
    if arguments.example or (name in examples.names() and not Path(name).exists()):
        try:
            _, settings, classes = examples.load(name)
        except ImportError as error:
            raise InputError(f"{name}: {error}") from error
    else:
        settings = _read_json(name)
    # Dict: the same class named twice would be ambiguous to pams.
    classes = tuple(dict.fromkeys((*classes, *map(_import_class, arguments.classes))))
    _apply_options(settings, arguments, name)
    _check_classes(settings, classes, name)
    return Simulation(name, settings, classes, arguments.seed)


def _read_json(name: str) -> dict[str, Any]:
    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        known = ", ".join(examples.names())
        raise InputError(f"{name}: no such file, nor a bundled example ({known})") from None
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 at byte {error.start}") from error
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}:{error.colno}: {error.msg}") from error
    except RecursionError:
        raise InputError(f"{name}: nested too deeply") from None
    if not isinstance(settings, dict):
        raise InputError(f"{name}: must be a JSON object, not {type(settings).__name__}")
    return settings


def _import_class(reference: str) -> type:
    where = f"--class {reference}"
    module_name, _, qualname = reference.partition(":")
    if not module_name or not qualname:
        raise InputError(f"{where}: must be MODULE:CLASS")
    directory = os.getcwd()
    if directory not in sys.path:
        # Spawned workers get the path of the main process.
        sys.path.insert(0, directory)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{where}: no module named {error.name!r}") from error
        raise InputError(f"{where}: importing {module_name!r}: {describe(error)}") from error
    except (Exception, SystemExit) as error:
        described = f"{type(error).__name__}: {error}"
        raise InputError(f"{where}: importing {module_name!r}: {described}") from error
    for part in qualname.split("."):
        if not hasattr(found, part):
            raise InputError(f"{where}: {module_name!r} has no {qualname!r}")
        found = getattr(found, part)
    if not isinstance(found, type) or not issubclass(found, (Agent, Market, EventABC)):
        raise InputError(f"{where}: not a subclass of pams's Agent, Market or EventABC")
    return found


def _apply_options(settings: dict[str, Any], arguments: argparse.Namespace, name: str) -> None:
    simulation = settings.get("simulation")
    if not isinstance(simulation, dict):
        raise InputError(f"{name}: simulation must be an object")
    if arguments.workers is not None:
        simulation["numParallel"] = arguments.workers
    if arguments.start_method is not None:
        simulation["startMethod"] = arguments.start_method
    if arguments.steps is not None:
        for session in _items(simulation.get("sessions")):
            if isinstance(session, dict) and isinstance(session.get("iterationSteps"), int):
                session["iterationSteps"] = min(session["iterationSteps"], arguments.steps)


def _check_classes(settings: dict[str, Any], classes: tuple[type, ...], name: str) -> None:
    """Find unknown classes now: what pams says about them does not tell where they are.

    Everything else that can be wrong with a config is left to pams.
    """
    simulation = settings["simulation"]
    groups = [*_items(simulation.get("markets")), *_items(simulation.get("agents"))]
    for session in _items(simulation.get("sessions")):
        if isinstance(session, dict):
            groups += _items(session.get("events"))
    for group in groups:
        if not isinstance(group, str) or not isinstance(settings.get(group), dict):
            continue
        try:
            class_name = json_extends(settings, group, settings[group]).get("class")
        except (AttributeError, TypeError, ValueError):
            continue
        if not isinstance(class_name, str):
            continue
        try:
            find_class(class_name, list(classes))
        except AttributeError:
            same = [cls for cls in classes if cls.__name__ == class_name]
            if same:
                problem = "several classes have the name, of pams or given by --class:"
            else:
                problem = f"give it with --class MODULE:{class_name}; unknown class"
            raise InputError(f"{name}: {group}.class: {problem} {class_name!r}") from None


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

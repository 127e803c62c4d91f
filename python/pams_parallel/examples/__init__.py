"""Bundled examples: a pams config and the agent classes that it names.

The classes live in importable modules of this package, so every start method works::

    import random

    from pams_parallel import MultiProcessAgentParallelRunner, examples

    if __name__ == "__main__":
        example = examples.load("learning")
        runner = MultiProcessAgentParallelRunner(example.config, prng=random.Random(1))
        for cls in example.classes:
            runner.class_register(cls)
        runner.main()
"""

from __future__ import annotations

import importlib
import json
from importlib import resources
from typing import Any, NamedTuple

from .agents import LearningAgent, OptionPricingAgent

__all__ = ["Example", "LearningAgent", "OptionPricingAgent", "load", "names"]

# Module in this package and names of the classes. Modules are imported when an example is loaded,
# because they may need more than the package itself does.
_CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "index": ("agents", ("OptionPricingAgent",)),
    "learning": ("agents", ("LearningAgent",)),
    "flax": ("flax_agents", ("FlaxAgent", "TrainingFlaxAgent")),
}


class Example(NamedTuple):
    """A simulation that comes with the package.

    Attributes:
        name: the name that :func:`load` takes.
        config: settings for a runner, as ``json.load`` gives them; yours to change.
        classes: agent classes to hand to ``runner.class_register``.
    """

    name: str
    config: dict[str, Any]
    classes: tuple[type, ...]


def names() -> tuple[str, ...]:
    """Names of the bundled examples.

    Returns:
        ``"index"``: an index over several spot markets, agents that price an option by
        Monte Carlo before they trade, and arbitrage agents. ``"learning"``: one market,
        agents that change their own attributes and list them in ``synced_attributes``.
        ``"flax"``: one market, agents that forecast with a neural network of their own, which
        half of them train; needs JAX and Flax, and asks for ``spawn``, since JAX must not be
        forked.
    """
    return tuple(_CLASSES)


def load(name: str) -> Example:
    """Load a bundled example.

    Args:
        name: one of :func:`names`.

    Returns:
        The example, with a fresh copy of its config.

    Raises:
        ValueError: there is no example of that name.
        ImportError: the example needs a package that is not installed.
    """
    if name not in _CLASSES:
        raise ValueError(f"no example is named {name!r}, only {', '.join(names())}")
    module_name, class_names = _CLASSES[name]
    module = importlib.import_module(f".{module_name}", __package__)
    classes = tuple(getattr(module, class_name) for class_name in class_names)
    text = resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    return Example(name, json.loads(text), classes)

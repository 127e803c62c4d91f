"""Reducers that tests register: with them, objects go through pickle's protocol."""

from __future__ import annotations

import random
from typing import Any


def new_agent(cls: type[Any]) -> Any:
    return cls.__new__(cls)


def reduce_agent(agent: Any) -> Any:
    return new_agent, (type(agent),), vars(agent)


def random_of_state(state: Any) -> random.Random:
    prng = random.Random(0)
    prng.setstate(state)
    return prng


def reduce_random(prng: random.Random) -> Any:
    return random_of_state, (prng.getstate(),)

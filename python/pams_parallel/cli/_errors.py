"""Failures of the command, told in one line."""

from __future__ import annotations

import traceback
from types import NoneType
from typing import ClassVar

from pams.agents import Agent
from pams.events import EventABC
from pams.market import Market
from pams.session import Session


class CommandError(Exception):
    """Ends the command with a message and an exit code.

    Args:
        message: what is wrong and where; line breaks become spaces.
    """

    exit_code: ClassVar[int]

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @property
    def is_explained(self) -> bool:
        """Whether the message tells so much that a traceback would add little."""
        return isinstance(self.__cause__, (OSError, ValueError, ImportError, NoneType))


class InputError(CommandError):
    """What the user gave cannot be used."""

    exit_code = 2


class SimulationError(CommandError):
    """The simulation was set up and then failed."""

    exit_code = 3


def describe(error: BaseException) -> str:
    """One line for an exception from outside, with its place if pams tells none.

    Args:
        error: the exception.

    Returns:
        Type, message, and the agent, market, session or event whose method raised it, or
        the part of the config that was being read.
    """
    text = str(error)
    if not isinstance(error, ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text + _place(error)


# Methods of pams's runners that read the config, and the local variable with the key.
_READERS = {
    "_parse_group": "name",
    "_generate_markets": "name",
    "_generate_agents": "name",
    "_generate_sessions": "event_name",
}


def _place(error: BaseException) -> str:
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        variables = frame.f_locals
        owner = variables.get("self")
        if isinstance(owner, (Agent, Market, Session, EventABC)):
            method = f"{type(owner).__name__}.{frame.f_code.co_name}"
            place = f" (in {method} of {getattr(owner, 'name', '?')!r})"
        elif frame.f_code.co_name in _READERS:
            key = variables.get(_READERS[frame.f_code.co_name])
            place = f" (in {key!r})" if isinstance(key, str) else place
    return place

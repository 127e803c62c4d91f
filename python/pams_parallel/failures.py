"""An exception's way from a worker to the main process.

An exception travels as bytes that have been loaded once on the worker, so that nothing a user
raises can break the pool. The main process raises the exception itself where it can be rebuilt,
with the text of the remote traceback as its cause, as :mod:`concurrent.futures` does.
"""

from __future__ import annotations

import enum
import pickle
import traceback
from typing import Any, NamedTuple

_PROTOCOL = 5


class RemoteTraceback(Exception):
    """Text of a traceback in another process or thread; cause of a re-raised exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class FailureKind(enum.Enum):
    """What failed on a worker."""

    TASK = "task"
    RESULTS = "results"
    FOREIGN_OBJECT = "foreign object"
    INITIALIZER = "initializer"


class Failure(NamedTuple):
    """Picklable record of an exception.

    Attributes:
        kind: what failed.
        position: position in the chunk of the agent that was being handled.
        pickled: the exception, ``None`` if it cannot be rebuilt.
        type_name: name of its type.
        message: its message.
        traceback: its formatted traceback, with causes, contexts and notes.
    """

    kind: FailureKind
    position: int
    pickled: bytes | None
    type_name: str
    message: str
    traceback: str

    def rebuild(self) -> BaseException:
        """Build the exception, or a ``RuntimeError`` that describes it if that is impossible."""
        error = None if self.pickled is None else _load(self.pickled)
        if error is None:
            error = RuntimeError(
                f"{self.type_name}: {self.message} (raised on a worker; the exception itself "
                "cannot be rebuilt on the main process)"
            )
        _set_cause(error, RemoteTraceback(self.traceback))
        return error

    def to_exception(self, agent: Any, listed: tuple[str, ...]) -> BaseException:
        """Build what the runner raises.

        Args:
            agent: agent on the main process that was being handled.
            listed: names that it lists in ``synced_attributes``.
        """
        original = self.rebuild()
        if self.kind is FailureKind.TASK:
            return original
        if self.kind is FailureKind.INITIALIZER:
            error = RuntimeError("the worker initializer failed on this worker")
        else:
            name = type(agent).__name__
            results = f"The results of {name} (agent_id={getattr(agent, 'agent_id', None)})"
            names = ", ".join(map(repr, listed)) or "nothing"
            sent = f"Sent back: the orders and what {name}.synced_attributes lists ({names})."
            if self.kind is FailureKind.FOREIGN_OBJECT:
                error = RuntimeError(
                    f"{results} refer to a simulation object that the main process does not have, "
                    "e.g. an order that was put into an order book on the worker process: "
                    f"{self.message}. {sent}"
                )
            else:
                error = RuntimeError(
                    f"{results} cannot be pickled on a worker process: "
                    f"{self.type_name}: {self.message}. {sent}"
                )
        _set_cause(error, original)
        return error


def record_failure(kind: FailureKind, error: BaseException, position: int = 0) -> Failure:
    """Make a record of an exception.

    Args:
        kind: what failed.
        error: the exception.
        position: position in the chunk of the agent that was being handled.
    """
    cls = type(error)
    name = cls.__qualname__
    if cls.__module__ != "builtins":
        name = f"{cls.__module__}.{name}"
    return Failure(kind, position, _dump(error), name, _message(error), _format(error))


def _set_cause(error: BaseException, cause: BaseException) -> None:
    # As ``raise ... from`` does it: past the __setattr__ of a frozen dataclass, for example.
    BaseException.__setattr__(error, "__cause__", cause)


def _dump(error: BaseException) -> bytes | None:
    # Both directions run code of the user's, which can raise anything.
    try:
        data = pickle.dumps(error, _PROTOCOL)
    except BaseException:
        return None
    copy = _load(data)
    return data if type(copy) is type(error) else None


def _load(data: bytes) -> BaseException | None:
    try:
        error = pickle.loads(data)
    except BaseException:
        return None
    return error if isinstance(error, BaseException) else None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<no message: str() of the exception failed>"


def _format(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:
        return "<no traceback: formatting the exception failed>\n"

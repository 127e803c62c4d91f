"""The replica of the simulation that a worker process keeps from task to task."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

from .snapshot import Replica, library_reducers
from .transport import ChainReader

if TYPE_CHECKING:
    from .transport import Chain


# Part of the time that rolling back takes, and most seconds, for which it is put off.
_PAUSE_PART = 0.25
_MAX_PAUSE = 0.001


class KeptReplica:
    """A replica that follows the chain of one runner.

    The garbage collector need not look at a replica again and again: once it has survived a task,
    it is frozen (:func:`gc.freeze`). A replica that cannot be rolled back is dropped at once.
    """

    def __init__(self, externals: tuple[object, ...]) -> None:
        self.process = os.getpid()
        self._externals = externals
        self._reader = ChainReader()
        self._token = b""
        self._replica: Replica | None = None
        self._is_frozen = False
        self._is_used = False
        self._roll_back_seconds = 0.0

    def catch_up(self, chain: Chain) -> Replica:
        """Bring the replica to the end of a chain.

        Args:
            chain: the chain.

        Returns:
            The replica. Whatever is done to it has to be undone by :meth:`roll_back`.

        Raises:
            Exception: a frame cannot be read or decoded.
        """
        # A pool drops a task, and thereby rolls back, after it has sent the result.
        if self._is_used:
            self.roll_back()
        if self._token != chain.token:
            self.drop()
            self._reader.close()
            self._token = chain.token
        replica = self._replica
        if replica is None:
            replica = self._replica = Replica(self._externals, library_reducers())
        try:
            for frame in self._reader.frames_after(chain, replica.sequence):
                replica.apply(frame)
        except BaseException:
            self.drop()
            raise
        self._is_used = True
        return replica

    def pause(self) -> None:
        """Wait for a moment, if rolling back takes much longer than that.

        The result of the task has just been sent. On a machine with as many cores as workers the
        main process, which has waited for it, would get a core only when this process has used up
        its slice of time.
        """
        time.sleep(min(_PAUSE_PART * self._roll_back_seconds, _MAX_PAUSE))

    def roll_back(self) -> None:
        """Undo what a task has done to the replica; drop it if that is not possible."""
        self._is_used = False
        if self._replica is None:
            return
        start = time.perf_counter()
        if not self._replica.roll_back():
            self.drop()
        elif not self._is_frozen:
            gc.freeze()
            self._is_frozen = True
        self._roll_back_seconds = time.perf_counter() - start

    def drop(self) -> None:
        """Drop the replica."""
        if self._replica is not None:
            self._replica.close()
            self._replica = None
            if self._is_frozen:
                gc.unfreeze()
                self._is_frozen = False
            gc.collect()  # a replica is one large reference cycle
        self._is_used = False


class RollBack:
    """Rolls a replica back when it is deleted. A task holds it, and the pool drops the task."""

    __slots__ = ("_kept",)

    def __init__(self, kept: KeptReplica) -> None:
        self._kept = kept

    def __del__(self) -> None:
        self._kept.pause()
        self._kept.roll_back()


_kept: KeptReplica | None = None


def kept_replica(externals: tuple[object, ...]) -> KeptReplica:
    """The replica that this process keeps.

    Args:
        externals: the worker's counterparts of the source's externals.
    """
    global _kept
    # A forked child must not go on with the replica of its parent.
    if _kept is None or _kept.process != os.getpid():
        _kept = KeptReplica(externals)
    return _kept

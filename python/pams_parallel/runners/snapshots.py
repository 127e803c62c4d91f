"""Snapshots on the main process: of the whole simulation for every batch, or of what has changed.

Both kinds give the tasks of a batch something to find the simulation by, and decode results, which
refer to the simulation and to the states of its generators.
"""

from __future__ import annotations

import contextlib
from itertools import compress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._core import RandomStates, positions_with
from ..results import CONSTANTS
from ..simulation_objects import select_numbered, simulation_objects
from ..snapshot import Decoder, Encoder, Source, library_reducers
from ..transport import INLINE_LIMIT, FrameLog, Transport, no_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pams.agents import Agent
    from pams.simulator import Simulator

    from ..transport import Chain, Frame
    from ..worker import Result

# Sizes of a number and of an offset in the byte strings that the core takes and gives.
_NUMBER_SIZE = 4
_OFFSET_SIZE = 8

# Stands for an object that the snapshot does not contain.
_NO_NUMBER = 0xFFFF_FFFF


class Snapshot(Protocol):
    """The simulation as the tasks of one batch see it."""

    @property
    def frame(self) -> Frame | Chain:
        """Where a worker finds it."""

    @property
    def n_bytes(self) -> int:
        """Bytes that were encoded for it."""

    @property
    def kind(self) -> str:
        """Either ``"keyframe"``, ``"delta"``, ``"checkpoint"`` or ``"full"``."""

    def numbers_at(self, positions: range) -> bytes:
        """Numbers of the batch's agents at ``positions``."""

    def prngs_at(self, positions: range) -> bytes:
        """Numbers of the generators of the batch's agents at ``positions``, if needed."""

    def positions_with(self, name: str) -> list[int]:
        """Positions of the batch's agents that may have the attribute ``name``."""

    def decode(self, positions: range, result: Result) -> tuple[Sequence[Any], RandomStates]:
        """Roots of a result, and states of the generators of the agents at ``positions``."""

    def close(self) -> None:
        """Release what was needed to decode results."""


class FullSnapshots:
    """Encodes the whole simulation for every batch.

    Args:
        mapped: whether the workers can open a file of this machine.
    """

    def __init__(self, *, mapped: bool) -> None:
        self.mapped = mapped
        self._transport = Transport(mapped=mapped)

    def take(self, simulator: Simulator, agents: list[Agent]) -> FullSnapshot:
        """Take the snapshot of a batch."""
        return FullSnapshot(self._transport, simulator, agents)

    def close(self) -> None:
        """Release the memory of the frames."""
        self._transport.close()


class FullSnapshot:
    """See :class:`Snapshot`."""

    kind = "full"

    def __init__(self, transport: Transport, simulator: Simulator, agents: list[Agent]) -> None:
        encoder = Encoder(CONSTANTS, (), library_reducers(), transport.sink(), INLINE_LIMIT)
        with _memory_of_frames():
            encoder.add((simulator, agents, simulator.markets), ("simulator", "agents", "markets"))
            objects = simulation_objects(simulator)
            numbers = encoder.numbers_of(objects)
            encoder.add(numbers, "numbers")
        self._externals = (*CONSTANTS, *compress(objects, select_numbered(numbers)[1]))
        self._agents = agents
        self._agent_numbers = encoder.numbers_of(agents)
        self._prng_offsets = encoder.random_offsets(
            [getattr(agent, "prng", None) for agent in agents]
        )
        with _memory_of_frames():
            self.frame = transport.frame(encoder.finish(), encoder.size)
        self.n_bytes = encoder.size
        self._stack = contextlib.ExitStack()
        self._buffer: Any = None

    def numbers_at(self, positions: range) -> bytes:
        """Numbers of the batch's agents at ``positions``."""
        return _part(self._agent_numbers, positions, _NUMBER_SIZE)

    def prngs_at(self, positions: range) -> bytes:
        """None are needed: the worker finds the states in the snapshot."""
        return b""

    def positions_with(self, name: str) -> list[int]:
        """Positions of the batch's agents that may have the attribute ``name``."""
        return positions_with(self._agents, name)

    def decode(self, positions: range, result: Result) -> tuple[Sequence[Any], RandomStates]:
        """Roots of a result, and states of the generators of the agents at ``positions``."""
        if self._buffer is None:
            self._buffer = self._stack.enter_context(self.frame.open())
        roots = Decoder(result.data, self._externals).roots if result.positions else []
        offsets = _part(self._prng_offsets, positions, _OFFSET_SIZE)
        states = RandomStates(result.states, self._buffer, offsets)
        self._stack.callback(states.close)
        return roots, states

    def close(self) -> None:
        """Release what was needed to decode results."""
        self._stack.close()


class DeltaSnapshots:
    """Encodes what has changed since the batch before, for workers that can open a file."""

    mapped = True

    def __init__(self) -> None:
        self._source = Source(CONSTANTS, library_reducers())
        self._log = FrameLog()
        # Agents that cannot be reached from the simulator are roots of their own.
        self._are_agents_roots = False
        self._wants_keyframe = False

    @property
    def is_worthwhile(self) -> bool:
        """Whether the next frame can be a delta."""
        return self._source.is_trackable

    def take(self, simulator: Simulator, agents: list[Agent]) -> DeltaSnapshot:
        """Take the snapshot of a batch."""
        frame = self._frame(simulator, agents)
        numbers = self._source.numbers_of(agents)
        if not self._are_agents_roots and _NO_NUMBER in np.frombuffer(numbers, "<u4"):
            self._are_agents_roots = True
            frame = self._frame(simulator, agents)
            numbers = self._source.numbers_of(agents)
        snapshot = DeltaSnapshot(self._source, frame, self._chain, numbers)
        # Frames that cost a new worker more than a new keyframe would are no longer needed.
        if self._log.size > 2 * self._log.keyframe_size:
            snapshot.add_checkpoint(self._begin_anew(simulator, agents))
        return snapshot

    def _frame(self, simulator: Simulator, agents: list[Agent]) -> bytes:
        roots, names = self._roots(simulator, agents)
        frame = self._source.frame(roots, names=names, keyframe=self._wants_keyframe)
        self._wants_keyframe = False
        source = self._source
        self._chain = self._log.append(frame, source.sequence, is_keyframe=source.is_keyframe)
        return frame

    def _begin_anew(self, simulator: Simulator, agents: list[Agent]) -> int:
        roots, names = self._roots(simulator, agents)
        checkpoint = self._source.checkpoint(roots, names=names)
        if checkpoint is None:
            self._wants_keyframe = True
            return 0
        self._log.begin_with(checkpoint, self._source.sequence)
        return len(checkpoint)

    def _roots(
        self, simulator: Simulator, agents: list[Agent]
    ) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        if self._are_agents_roots:
            return (simulator, simulator.markets, agents), ("simulator", "markets", "agents")
        return (simulator, simulator.markets), ("simulator", "markets")

    def close(self) -> None:
        """Release the memory of the frames, and all references to the simulation."""
        try:
            self._source.close()  # which it refuses while a hook is called in the middle of a frame
        finally:
            self._log.close()


class DeltaSnapshot:
    """See :class:`Snapshot`."""

    def __init__(self, source: Source, frame: bytes, chain: Chain, numbers: bytes) -> None:
        self._source = source
        self._agent_numbers = numbers
        self._prng_numbers = source.prngs_of(numbers)
        self.frame = chain
        self.n_bytes = len(frame)
        self.kind = "keyframe" if source.is_keyframe else "delta"
        self._states: list[RandomStates] = []

    def add_checkpoint(self, n_bytes: int) -> None:
        """Take note of the size of the checkpoint, if any, that was encoded, too."""
        if n_bytes:
            self.kind = "checkpoint"
            self.n_bytes += n_bytes

    def numbers_at(self, positions: range) -> bytes:
        """Numbers of the batch's agents at ``positions``."""
        return _part(self._agent_numbers, positions, _NUMBER_SIZE)

    def prngs_at(self, positions: range) -> bytes:
        """Numbers of the generators of the batch's agents at ``positions``."""
        return _part(self._prng_numbers, positions, _NUMBER_SIZE)

    def positions_with(self, name: str) -> list[int]:
        """Positions of the batch's agents that may have the attribute ``name``."""
        return self._source.positions_with(self._agent_numbers, name)

    def decode(self, positions: range, result: Result) -> tuple[Sequence[Any], RandomStates]:
        """Roots of a result, and states of the generators of the agents at ``positions``."""
        roots: Sequence[Any] = []
        if result.positions:
            known = self._source.objects(result.references)
            roots = Decoder(result.data, (*CONSTANTS, *known)).roots
        states = self._source.random_states(result.states, self.prngs_at(positions))
        self._states.append(states)
        return roots, states

    def close(self) -> None:
        """Release what was needed to decode results."""
        for states in self._states:
            states.close()


@contextlib.contextmanager
def _memory_of_frames() -> Iterator[None]:
    """Explain an error of the file that frames are written to."""
    try:
        yield
    except OSError as error:
        # One that a user's reducer has raised shows its lines.
        traceback = error.__traceback__
        if traceback is None or traceback.tb_next is None or traceback.tb_next.tb_next is not None:
            raise
        raise no_memory(error) from error


def _part(numbers: bytes, positions: range, size: int) -> bytes:
    return numbers[positions.start * size : positions.stop * size]

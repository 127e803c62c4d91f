"""What a worker sends back for the agents of a task, as one snapshot."""

from __future__ import annotations

from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, NamedTuple

from pams.order import LIMIT_ORDER, MARKET_ORDER

from .failures import Failure, FailureKind, record_failure
from .simulation_objects import agents_of, order_books, select_numbered, simulation_objects
from .snapshot import Encoder, ForeignReferenceError, library_reducers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .snapshot import Replica

# Objects that are the process's own on either side instead of being copied.
CONSTANTS = (LIMIT_ORDER, MARKET_ORDER)

# Immutable, so never simulation objects, even if an agent puts one where such an object belongs.
_ATOMIC_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes, tuple, frozenset})


class Answer(NamedTuple):
    """What one agent sends back."""

    position: int
    orders: Any
    state: tuple[Any] | None
    present: tuple[str, ...]
    values: list[Any]


class Encoded(NamedTuple):
    """Encoded answers.

    Attributes:
        data: the snapshot.
        references: numbers of the simulation objects that are its externals, in addition to
            :data:`CONSTANTS`, if the main process does not know them.
        failure: what went wrong; then everything else is empty.
    """

    data: bytes = b""
    references: bytes = b""
    failure: Failure | None = None


def encode_answers(
    answers: Sequence[Answer], known: Iterable[Any], foreign: Iterable[Any]
) -> Encoded:
    """Encode answers, all in one snapshot to keep references among them.

    Args:
        answers: the answers.
        known: simulation objects that the main process has.
        foreign: simulation objects that only this worker has.
    """
    return _encode(Encoder((*CONSTANTS, *known), _changeable(foreign), library_reducers()), answers)


def _changeable(objects: Iterable[Any]) -> list[Any]:
    return [obj for obj in objects if type(obj) not in _ATOMIC_TYPES]


def _encode(encoder: Encoder, answers: Sequence[Answer]) -> Encoded:
    for answer in answers:
        try:
            encoder.add(
                (answer.orders, answer.state, answer.present, *answer.values),
                ("orders", "prng_state", "synced_attributes", *answer.present),
            )
        except ForeignReferenceError as error:
            failure = record_failure(FailureKind.FOREIGN_OBJECT, error, answer.position)
            return Encoded(failure=failure)
        except Exception as error:
            return Encoded(failure=record_failure(FailureKind.RESULTS, error, answer.position))
    data = encoder.finish()
    assert data is not None  # only an encoder with a sink returns None
    return Encoded(data)


class ResultsOfReplica:
    """Encodes what agents return that were asked on a replica.

    Most results are orders that consist of numbers. For these it is enough to make sure that no
    agent has put one of them into an order book; all else needs the simulation objects.

    Args:
        replica: the replica, before the agents are asked.
        simulator: its simulator.
        has_listed_values: whether any of the agents lists attributes.
    """

    def __init__(self, replica: Replica, simulator: Any, *, has_listed_values: bool) -> None:
        self._replica = replica
        self._simulator = simulator
        # What agents take away from the simulation can be in what they return all the same.
        self._at_first = simulation_objects(simulator, structure_only=not has_listed_values)
        self._agents = agents_of(simulator)
        self._has_listed_values = has_listed_values

    def encode(self, answers: Sequence[Answer]) -> Encoded:
        """Encode the answers of all agents."""
        if not self._has_listed_values:
            encoded = self._encode_simple(answers)
            if encoded is not None:
                return encoded
        now = simulation_objects(self._simulator)
        objects = [*self._at_first, *self._prngs_at_first(), *now]
        numbers, is_known = select_numbered(self._replica.numbers_of(objects))
        known = list(compress(objects, is_known))
        foreign = compress(objects, map(not_, is_known))
        return encode_answers(answers, known, foreign)._replace(references=numbers)

    def _prngs_at_first(self) -> list[Any]:
        """Generators that the agents had when the task began."""
        agents, _ = select_numbered(self._replica.numbers_of(self._agents))
        prngs, _ = select_numbered(self._replica.prngs_of(agents))
        return self._replica.objects(prngs)

    def _encode_simple(self, answers: Sequence[Answer]) -> Encoded | None:
        lists: list[Any] = []
        orders: list[Any] = []
        for answer in answers:
            if type(answer.orders) is not list or answer.state is not None or answer.present:
                return None
            lists.append(answer.orders)
            orders += answer.orders
        # Whatever occurs twice would be counted once.
        if len({*map(id, lists), *map(id, orders)}) != len(lists) + len(orders):
            return None
        try:
            queues = [
                book.priority_queue
                for market in self._simulator.markets
                for book in order_books(market)
            ]
            is_unchanged = self._replica.are_unchanged(queues)
        except Exception:  # agents can do anything to the replica
            return None
        if not is_unchanged or self._replica.owns_any([*lists, *orders]):
            return None
        encoder = Encoder(CONSTANTS, (), library_reducers())
        encoded = _encode(encoder, answers)
        # A tuple and a list for each agent, the orders and their classes, and nothing else.
        n_expected = 2 * len(answers) + len(orders) + len(set(map(type, orders)))
        if encoded.failure is not None or encoder.object_count != n_expected:
            return None
        return encoded

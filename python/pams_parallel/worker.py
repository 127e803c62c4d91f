"""Everything that runs on a worker: the initializer, and one task after the other.

A task names a frame and the agents to ask. The worker decodes the frame into a replica of the
simulation, asks the agents one after the other, and returns what the main process needs to know:
orders and listed values, the states of the agents' generators, names of lost attributes, or the
record of a failure. No exception that a user's code raises leaves :func:`run_chunk`, so none of
them can break the pool.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import uuid
from collections.abc import Callable, Mapping
from itertools import compress
from multiprocessing.reduction import ForkingPickler
from operator import is_, not_
from typing import Any, NamedTuple

from ._core import RandomStatePacker, Watch
from .failures import Failure, FailureKind, record_failure
from .interrupts import leave_interrupts_to_main_process
from .marks import MarkPlace, WorkerMark, begin
from .replicas import RollBack, kept_replica
from .results import CONSTANTS, Answer, Encoded, ResultsOfReplica, encode_answers
from .simulation_objects import select_numbered, simulation_objects
from .snapshot import Decoder
from .synced import UNLISTABLE, take_values
from .transport import Chain, Frame
from .worker_watch import MainProcess, end_with

_NO_NAMES: tuple[str, ...] = ()

# A function that prepares a worker process, and its arguments. What it returns, if anything, is
# the text of a warning for the main process.
Preparation = tuple[Callable[..., str | None], tuple[Any, ...]]

# Together with the process id, which a forked child does not share, it tells interpreters apart.
_INTERPRETER = uuid.uuid4().bytes


class Outcome(NamedTuple):
    """What came of an initialization.

    Attributes:
        failure: what went wrong.
        warnings: texts that the main process warns of.
    """

    failure: Failure | None = None
    warnings: tuple[str, ...] = ()


class Initialization:
    """What a worker does once, before its first task.

    Args:
        token: bytes that only one runner uses.
        preparation: what is called in this order before the initializer and its arguments are
            even unpickled. It changes the process, so it is left out on workers that share
            the interpreter with the runner, e.g. threads.
        function: the user's initializer, if any.
        args: its arguments.

    Being pickled while a worker is spawned, it keeps the function and the arguments as bytes and
    unpickles them when it runs. They are pickled at that moment, so they may contain what can
    only be inherited, e.g. a :class:`multiprocessing.Lock`.
    """

    __slots__ = ("_call", "_interpreter", "_pickled", "preparation", "token")

    def __init__(
        self,
        token: bytes,
        preparation: tuple[Preparation, ...],
        function: Callable[..., object] | None,
        args: tuple[Any, ...],
    ) -> None:
        self.token = token
        self.preparation = preparation
        self._interpreter = (os.getpid(), _INTERPRETER)
        self._call = (function, args)
        self._pickled: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = self._pickled
        if pickled is None:
            pickled = bytes(ForkingPickler.dumps(self._call))
        return _rebuild_initialization, (self.token, self.preparation, self._interpreter, pickled)

    @property
    def is_local(self) -> bool:
        """Whether this is the object that the runner made, not a copy that was sent."""
        return self._pickled is None

    def attempt(self) -> Outcome:
        """Run it; whatever fails is in the outcome."""
        warnings: list[str] = []
        try:
            if self._interpreter != (os.getpid(), _INTERPRETER):
                for function, args in self.preparation:
                    text = function(*args)
                    if text is not None:
                        warnings.append(text)
            call = self._call if self._pickled is None else pickle.loads(self._pickled)
            initializer, initargs = call
            if initializer is not None:
                initializer(*initargs)
        except BaseException as error:
            return Outcome(record_failure(FailureKind.INITIALIZER, error), tuple(warnings))
        return Outcome(None, tuple(warnings))


def _rebuild_initialization(
    token: bytes,
    preparation: tuple[Preparation, ...],
    interpreter: tuple[int, bytes],
    pickled: bytes,
) -> Initialization:
    initialization = Initialization(token, preparation, None, ())
    initialization._interpreter = interpreter
    initialization._pickled = pickled
    return initialization


# Outcome of the initializations of this process by (process id, token): a forked child inherits
# the dict, but not what its entries say. Threads that are workers keep their own.
_outcomes: dict[tuple[int, bytes], Outcome] = {}
_outcomes_lock = threading.Lock()


def _renew_lock() -> None:
    # A thread that is a worker can have held it when this process was forked.
    global _outcomes_lock
    _outcomes_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.outcomes: dict[tuple[int, bytes], Outcome] = {}


_of_thread = _OfThread()


def initialize_process(main_process: MainProcess, initialization: Initialization | None) -> None:
    """Initializer of a process pool. Never raises: the tasks report what went wrong.

    Args:
        main_process: with whom the worker ends.
        initialization: what else has to be done, if anything.
    """
    end_with(main_process)
    leave_interrupts_to_main_process()
    if initialization is not None:
        _attempt_in_process(initialization)


def _attempt_in_process(initialization: Initialization) -> None:
    _outcomes[os.getpid(), initialization.token] = initialization.attempt()


def _initialize(required: bytes | Initialization) -> Outcome:
    """Make sure that this worker is initialized.

    Args:
        required: token of an initialization that the pool itself has run, or an initialization
            that the first task of each worker runs.

    Returns:
        The outcome, the same for every task.
    """
    if isinstance(required, bytes):
        return _outcomes.get((os.getpid(), required), Outcome())
    key = (os.getpid(), required.token)
    if required.is_local and threading.current_thread() is not threading.main_thread():
        outcomes = _of_thread.outcomes
        if key not in outcomes:
            outcomes[key] = required.attempt()
        return outcomes[key]
    with _outcomes_lock:
        if key not in _outcomes:
            if required.is_local:
                # The executor runs tasks right on the main thread of the main process, where
                # an initializer of workers must not run.
                thread = threading.Thread(target=_attempt_in_process, args=(required,))
                thread.start()
                thread.join()
            else:
                _attempt_in_process(required)
        return _outcomes[key]


class Task:
    """One chunk of a batch. Picklable.

    Args:
        frame: snapshot of the simulation, or the frames that lead to it.
        agents: numbers of the agents in the snapshot, little-endian ``uint32``.
        prngs: numbers of their generators, if these are kept in a replica.
        names: names in ``synced_attributes`` by position in the chunk.
        initialization: what has to be done on the worker first, if anything; see
            :func:`_initialize`.
        owns_process: whether the worker is a process that runs nothing but this task.
        mark: where the worker tells how far it is.
        main_process: with whom the worker ends, if the pool has not seen to it.
    """

    __slots__ = (
        "agents",
        "frame",
        "initialization",
        "main_process",
        "mark",
        "names",
        "owns_process",
        "prngs",
        "replica",
        "rollback",
    )

    def __init__(
        self,
        frame: Frame | Chain,
        agents: bytes,
        prngs: bytes,
        names: Mapping[int, tuple[str, ...]],
        initialization: bytes | Initialization | None,
        owns_process: bool,
        mark: MarkPlace | None = None,
        main_process: MainProcess | None = None,
    ) -> None:
        self.frame = frame
        self.agents = agents
        self.prngs = prngs
        self.names = names
        self.initialization = initialization
        self.owns_process = owns_process
        self.mark = mark
        self.main_process = main_process
        # What the worker wants to be dropped together with the task.
        self.replica: _Replica | None = None
        self.rollback: RollBack | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (
            self.frame,
            self.agents,
            self.prngs,
            self.names,
            self.initialization,
            self.owns_process,
            self.mark,
            self.main_process,
        )


class Result(NamedTuple):
    """What a task returns. Picklable without any class of the user's.

    Attributes:
        states: packed states of the agents' generators.
        positions: positions in the chunk of the agents that have a root in ``data``.
        data: snapshot whose roots are tuples of the orders, the state of the generator (a tuple
            of one item) or ``None`` if ``states`` has it, the names of the listed attributes
            that exist, and their values. Empty if no agent has a root.
        references: numbers of the simulation objects that ``data`` refers to, if they are not
            those that came with the frame.
        lost: pairs of a position in the chunk and the sorted names of attributes whose changes
            are lost, each name once per class.
        failure: what went wrong; then everything else but the warnings is empty.
        warnings: texts about the worker that the main process warns of, once each.
    """

    states: bytes = b""
    positions: tuple[int, ...] = ()
    data: bytes = b""
    references: bytes = b""
    lost: tuple[tuple[int, tuple[str, ...]], ...] = ()
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of all that grows with what the agents return."""
        return len(self.states) + len(self.data) + len(self.references)


class _Replica:
    """Keeps a decoded simulation until the pool drops the task.

    A replica is one large reference cycle. The garbage collector would scan it again and again
    while it is being built, and freeing it takes as long as decoding it. So it is freed when the
    pool drops the task, which is after the result has been sent. Until then the collector waits
    for more garbage than usual; if none came together, the replica is still in the youngest
    generation, and one collection of that is enough.
    """

    __slots__ = ("_collections", "_thresholds", "decoder")

    # Objects that agents may leave behind before the collector runs while they are asked.
    _ALLOWANCE = 200_000

    def __init__(self) -> None:
        self.decoder: Decoder | None = None
        self._thresholds = gc.get_threshold()
        self._collections = _collections()
        gc.set_threshold(0, *self._thresholds[1:])  # off

    def decoded(self, decoder: Decoder) -> None:
        """Keep the replica, and have the collector look after what the agents leave behind."""
        self.decoder = decoder
        if self._thresholds[0] > 0:
            gc.set_threshold(gc.get_count()[0] + self._ALLOWANCE, *self._thresholds[1:])

    def __del__(self) -> None:
        self.decoder = None
        gc.collect(0 if _collections() == self._collections else 2)
        gc.set_threshold(*self._thresholds)


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def run_chunk(task: Task) -> Result:
    """Ask the agents of a task.

    Args:
        task: the task.

    Returns:
        The result. Exceptions are returned in it.
    """
    initialized = Outcome()
    mark = begin(task.mark)
    try:
        if task.main_process is not None:
            end_with(task.main_process)
        if task.initialization is not None:
            initialized = _initialize(task.initialization)
        failure = initialized.failure
        result = _run(task, mark) if failure is None else Result(failure=failure)
    except BaseException as error:
        result = Result(failure=record_failure(FailureKind.TASK, error))
    return result._replace(warnings=initialized.warnings)


def _run(task: Task, mark: WorkerMark | None) -> Result:
    if isinstance(task.frame, Chain):
        return _run_on_replica(task, task.frame, mark)
    if task.owns_process:
        task.replica = _Replica()
    with task.frame.open() as data:
        decoder = Decoder(data, CONSTANTS)
        agents = decoder.objects(task.agents)
        offsets = decoder.random_offsets([getattr(agent, "prng", None) for agent in agents])
        if task.replica is not None:
            task.replica.decoded(decoder)
        (simulator, _, markets), numbers = decoder.roots

        def encode(answers: list[Answer]) -> Encoded:
            sent, is_sent = select_numbered(numbers)
            known = decoder.objects(sent)
            foreign = simulation_objects(simulator)
            if len(foreign) == len(is_sent) and all(map(is_, compress(foreign, is_sent), known)):
                # The agents have replaced nothing.
                foreign = list(compress(foreign, map(not_, is_sent)))
            return encode_answers(answers, known, foreign)

        with contextlib.closing(RandomStatePacker(data, offsets)) as packer:
            watch = Watch(agents, packer, mark=None if mark is None else mark.state)
            return _ask_agents(task, agents, markets, watch, packer, encode, mark)


def _run_on_replica(task: Task, chain: Chain, mark: WorkerMark | None) -> Result:
    kept = kept_replica(CONSTANTS)
    task.rollback = RollBack(kept)
    replica = kept.catch_up(chain)
    simulator, markets, *_ = replica.roots
    agents = replica.objects(task.agents)
    results = ResultsOfReplica(replica, simulator, has_listed_values=bool(task.names))
    with contextlib.closing(replica.random_state_packer(task.prngs)) as packer:
        watch = Watch(agents, packer, replica, task.agents, None if mark is None else mark.state)
        return _ask_agents(task, agents, markets, watch, packer, results.encode, mark)


def _ask_agents(
    task: Task,
    agents: list[Any],
    markets: Any,
    watch: Watch,
    packer: RandomStatePacker,
    encode: Callable[[list[Answer]], Encoded],
    mark: WorkerMark | None,
) -> Result:
    classes = list(map(type, agents))
    answers: list[Answer] = []
    lost: dict[int, list[str]] = {}
    lost_by_class: set[tuple[type, str]] = set()
    position = 0
    try:
        for position, agent in enumerate(agents):
            watch.begin()
            orders = agent.submit_orders(markets=markets)
            is_silent = watch.end(orders)
            if is_silent and not task.names:
                continue
            names = task.names.get(position, _NO_NAMES)
            state = None if watch.is_packed else _state_of(getattr(agent, "prng", None))
            if names or state is not None or type(orders) is not list or orders:
                answers.append(Answer(position, orders, state, *take_values(agent, names)))
            for name in watch.changed:
                if isinstance(name, str) and name not in names and name not in UNLISTABLE:
                    key = (classes[position], name)
                    if key not in lost_by_class:
                        lost_by_class.add(key)
                        lost.setdefault(position, []).append(str.__str__(name))
    except BaseException as error:
        return Result(failure=record_failure(FailureKind.TASK, error, position))

    if mark is not None:
        mark.returning()
    encoded = encode(answers) if answers else Encoded()
    if encoded.failure is not None:
        return Result(failure=encoded.failure)
    return Result(
        states=packer.finish(),
        positions=tuple(answer.position for answer in answers),
        data=encoded.data,
        references=encoded.references,
        lost=tuple((position, tuple(sorted(names))) for position, names in lost.items()),
    )


def _state_of(prng: Any) -> tuple[Any] | None:
    if prng is None:
        return None
    try:
        return (prng.getstate(),)
    except NotImplementedError:  # e.g. random.SystemRandom, which has no state
        return None

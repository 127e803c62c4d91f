"""Runner that asks the agents of a simulation in worker processes.

One batch: the simulation is encoded once, as a frame; each chunk of agents becomes a task, which
decodes the frame, asks its agents and returns the result; when all results are decoded, the
agents are updated in the order in which they were asked.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import multiprocessing
import os
import random
import time
import uuid
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from io import TextIOWrapper
from multiprocessing.context import BaseContext
from operator import is_
from typing import Any

from pams.agents import Agent
from pams.logs.base import Logger
from pams.runners import MultiProcessAgentParallelRunner as _PamsProcessRunner
from pams.runners import MultiThreadAgentParallelRunner as _PamsThreadRunner
from pams.session import Session
from pams.simulator import Simulator

from .._core import chunk_bounds
from ..compatibility import max_workers
from ..executors import abandon, shut_down
from ..marks import Marks, MarksOfExecutor
from ..results import CONSTANTS
from ..settings import PROCESS_RUNNER_KEYS, Key, near_misses, parse_settings, parse_start_method
from ..snapshot import SlowPath, library_reducers, slow_path
from ..synced import listed_names, set_values
from ..worker import (
    Initialization,
    Preparation,
    Result,
    Task,
    initialize_process,
)
from ..worker_watch import MainProcess, watch_from_workers_of
from .attempts import Attempt
from .batches import Answers, Batch, BatchRecord, warnings_of_workers
from .deaths import Restarts, Scene, WorkerDiedError
from .lost_changes import LostChanges
from .orders import Orders, check_orders, resolve_cancels
from .snapshots import DeltaSnapshots, FullSnapshots, Snapshot

# Batches of which the runner keeps a record.
_MAX_RECORDS = 10_000

# How often workers are replaced in a run unless the config says otherwise.
_DEFAULT_RESTARTS = 3


class MultiProcessAgentParallelRunner(_PamsProcessRunner):
    """Runner that calls ``submit_orders`` of normal agents in worker processes. Experimental.

    Everything else, i.e. high-frequency agents, events, order handling and logging, happens on
    the main process as in :class:`pams.runners.SequentialRunner`, and so does the choice of the
    agents that are asked. For the same settings and seed the outcome is identical to that
    runner's if the agents are deterministic given their ``prng``, list what they change (see
    below) and do not depend on what is per process.

    Agents are asked in batches: at first as many as may submit (``maxNormalOrders``), then as
    many as are still missing, until enough have submitted or none is left. A batch is split into
    at most ``num_parallel`` chunks, and each chunk is one task on one worker.

    Keys in ``simulation`` of the config, in addition to those of pams:

    * ``numParallel`` (``int``, at least 1, on Windows at most 61): number of workers. Default:
      number of CPUs minus one, at least one.
    * ``startMethod`` (``str``): start method of the workers, one of
      :func:`multiprocessing.get_all_start_methods`. Default: :attr:`default_start_method`.
    * ``maxWorkerRestarts`` (``int``, at least 0): how often in a run a batch is repeated with new
      workers because one has died. Default: 3.
    * ``taskTimeout`` (number of seconds, more than 0): how long the task of a chunk may take.
      Default: no limit.
    * ``snapshotMode`` (``"delta"`` or ``"full"``): whether workers keep a replica of the simulation
      and are sent what has changed (default), or are sent the whole simulation for every batch.

    Subclasses can override ``default_start_method``; ``_parallel_pool_provider``, the class of
    the executor; ``_create_executor``, ``_get_executor``, ``_shutdown_executor`` and
    ``_get_mp_context``; ``_get_worker_initializer`` and ``_get_worker_initargs``;
    ``_split_agents_into_chunks``; ``_receive_synced_attributes_from_worker`` and
    ``_receive_orders_from_worker``.

    Attributes:
        default_start_method: start method if the config has none; ``None`` stands for the
            default of the platform.
        start_method: start method after ``_setup()``; ``None`` if nothing chose one.
        num_parallel: number of workers.
        snapshot_mode: ``"delta"`` or ``"full"``.
        max_worker_restarts: value of ``maxWorkerRestarts``.
        task_timeout: value of ``taskTimeout``; ``None`` if there is no limit.
        batch_records: a :class:`~pams_parallel.runners.batches.BatchRecord` of each of the latest
            10,000 batches: sizes and times.
        executor: executor; ``None`` before ``_setup()`` and after the run.

    Note:
        **Isolation.** An agent is asked on a copy of the whole simulation that is as it was when
        the batch began; agents of one chunk share a copy. Of what an agent does there, the main
        process sees the returned orders, the state of ``agent.prng``, and the listed attributes.
        All else is discarded, and later tasks do not see it either. Only what lies outside the
        simulation stays on a worker: module globals, attributes of classes and functions, and
        what the initializer keeps.

    Note:
        **synced_attributes.** An agent class (or an agent) that changes its attributes in
        ``submit_orders`` lists them: ``synced_attributes = ("model", "position")``, a tuple or
        list of ``str``. ``simulator``, ``logger``, ``prng`` and ``__dict__`` cannot be listed.
        After every call the listed values are set on the agent of the main process, and listed
        attributes that no longer exist are deleted. Assigning or deleting an attribute that is
        not listed gives a ``UserWarning``, once per class and name; in-place changes are not
        noticed. In listed values and orders, references to objects of the simulation (simulator,
        logger, fundamentals, markets, order books and the orders in them, agents, sessions,
        events and their hooks, their generators, and the lists, dicts and sets that these except
        the agents have as attributes) are references to the main process's own objects. All
        else is a new copy after every call, changed or not; an unlisted attribute goes on
        referring to the old object.

    Note:
        **Workers that die or hang.** If a worker process dies, all workers are replaced and the
        batch is repeated, with the same outcome, and a ``UserWarning`` tells of it. If the same
        task ends its worker twice, or ``maxWorkerRestarts`` is reached,
        :class:`~pams_parallel.WorkerDiedError` is raised. Agents whose ``submit_orders`` has
        effects outside the simulation, e.g. writes files or calls a paid service, would have these
        twice: set ``maxWorkerRestarts`` to 0 for them. If a task takes longer than
        ``taskTimeout``, its worker is ended and :class:`TimeoutError` raised. Workers end with
        the main process, also if it is killed. Other executors than process pools report the
        death of workers in their own way; their tasks have a ``taskTimeout``, too.

    Note:
        **Limits.** Agents of one batch do not see what the others change (listed attributes, a
        shared ``prng``), unlike under ``SequentialRunner``, which asks them one after the other.
        Whatever the simulation consists of has to be picklable, and importable by
        the workers unless they are forked. Log entries that ``submit_orders`` writes are lost.
        Copying the simulation costs more than light agents gain from a second core; the runner
        pays off if asking the agents takes much longer than copying them.
    """

    default_start_method: str | None = None

    _parallel_pool_provider: type[ThreadPoolExecutor] | type[ProcessPoolExecutor] = (
        ProcessPoolExecutor
    )

    # Keys in ``simulation`` that this class reads.
    _setting_keys: tuple[Key, ...] = PROCESS_RUNNER_KEYS

    def __init__(
        self,
        settings: dict[str, Any] | TextIOWrapper | os.PathLike[str] | str,
        prng: random.Random | None = None,
        logger: Logger | None = None,
        simulator_class: type[Simulator] = Simulator,
    ) -> None:
        """Create the runner; nothing is started yet.

        Args:
            settings: config as a dict, an open JSON file, or the path of one.
            prng: generator of the runner. Default: one with a random seed.
            logger: logger.
            simulator_class: class of the simulator.

        Raises:
            TypeError: ``_receive_orders_from_worker`` is overridden with parameters that it no
                longer has, as in pams 0.3.0.
        """
        self._check_signature_of_override()
        super().__init__(settings, prng, logger, simulator_class)
        self.num_parallel = min(self.num_parallel, max_workers() or self.num_parallel)
        self.start_method: str | None = None
        self.snapshot_mode = "delta"
        self.max_worker_restarts = _DEFAULT_RESTARTS
        self.task_timeout: float | None = None
        self._snapshots: FullSnapshots | DeltaSnapshots | None = None
        self._marks = MarksOfExecutor()
        self._restarts = Restarts(type(self).__name__)
        self._token = uuid.uuid4().bytes
        # What tasks for the executor that the first item returns carry so that their worker is
        # initialized: a token says that the executor has seen to it.
        self._initialization: tuple[Callable[[], object], bytes | Initialization | None] = (
            lambda: None,
            None,
        )
        # The latest pool that has our initializer, which also ends workers with the main process.
        self._own_pool: Callable[[], object] = lambda: None
        # The latest attempt to have the tasks of the current batch done.
        self._attempt: Attempt | None = None
        # Names that the agents of the current batch list, by id() of the agent.
        self._asked_names: dict[int, tuple[str, ...]] = {}
        self.batch_records: deque[BatchRecord] = deque(maxlen=_MAX_RECORDS)
        self._lost_changes = LostChanges(type(self).__name__)
        # Texts from workers that have been warned of.
        self._passed_on: set[str] = set()

    def slow_path_report(self) -> list[SlowPath]:
        """Tell which objects of the simulation are slow to copy because they go through a reducer.

        The simulation is encoded once for this, and not changed. Callable at any time from
        ``_setup()`` on, also after the run.

        Returns:
            An entry for each class (see :class:`~pams_parallel.snapshot.SlowPath`); those that
            took most time come first. An entry with tracking ``"none"`` means that the whole
            simulation is copied for every batch.

        Raises:
            RuntimeError: there is no simulation yet.
            Exception: what pickle raises for an object that it cannot copy, with the path from
                ``simulator`` to the culprit added to the message.
        """
        simulator = self.simulator
        if not (simulator.sessions or simulator.markets or simulator.agents):
            raise RuntimeError(
                "slow_path_report() needs a simulation, and there is none before _setup()"
            )
        return slow_path(
            simulator, name="simulator", externals=CONSTANTS, reducers=library_reducers()
        )

    # ------------------------------------------------------------------ setup and executor

    def _setup(self) -> None:
        """Set up the simulation and create the executor.

        Raises:
            ValueError: the config or ``synced_attributes`` of an agent is invalid. Then there is
                no executor.
        """
        self._shutdown_executor()
        self.batch_records.clear()
        self._restarts = Restarts(type(self).__name__)
        if isinstance(self.settings, Mapping):
            simulation = self.settings.get("simulation")
            if isinstance(simulation, Mapping):
                self._read_settings(simulation)
        # Not super(): the next two classes would create an executor of their own.
        super(_PamsThreadRunner, self)._setup()
        listed_names(self.simulator.agents)
        max_normal_orders = max(
            (session.max_normal_orders for session in self.simulator.sessions), default=0
        )
        if self.num_parallel > max_normal_orders:
            warnings.warn(
                f"When {type(self).__name__} is used, the maximum number of parallel agents is "
                f"limited by max_normal_orders ({max_normal_orders}) even if numParallel "
                f"({self.num_parallel}) is set to a larger value.",
                stacklevel=2,
            )
        self.executor = self._create_executor()

    def _read_settings(self, simulation: Mapping[str, Any]) -> None:
        values = parse_settings(simulation, self._setting_keys)
        for name, key in near_misses(simulation, self._setting_keys):
            warnings.warn(
                f"simulation.{name} is ignored; probably {key.full_name} is meant.", stacklevel=3
            )
        default = self.default_start_method
        if default is not None and "start_method" not in values:
            try:
                parse_start_method(default)
            except ValueError as error:
                raise ValueError(f"{type(self).__name__}.default_start_method {error}") from None
        self.start_method = default
        self.snapshot_mode = "delta"
        self.max_worker_restarts = _DEFAULT_RESTARTS
        self.task_timeout = None
        for attribute, value in values.items():
            setattr(self, attribute, value)

    def _create_executor(self) -> Executor:
        """Create an executor for the tasks.

        Returns:
            A new executor. An override may return any :class:`concurrent.futures.Executor`.
        """
        provider = self._parallel_pool_provider
        if not (isinstance(provider, type) and issubclass(provider, ProcessPoolExecutor)):
            return provider(max_workers=self.num_parallel)
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                f"{type(self).__name__} cannot start workers, because this process is daemonic, "
                "i.e. a worker of multiprocessing.Pool or another process with daemon=True, and "
                "such processes may not have children. Use "
                "concurrent.futures.ProcessPoolExecutor, whose workers may, or SequentialRunner."
            )
        initialization = self._get_initialization()
        try:
            pool = provider(
                max_workers=self.num_parallel,
                mp_context=self._get_mp_context(),
                initializer=initialize_process,
                initargs=(MainProcess.current(), initialization),
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror or error}: the pipes and semaphores of a process pool cannot be "
                "made. They need open files (ulimit -n) and, on Linux, a few bytes in /dev/shm; "
                "SequentialRunner needs neither",
            ) from error
        self._own_pool = weakref.ref(pool)
        self._initialization = self._own_pool, initialization and initialization.token
        return pool

    def _get_executor(self) -> Executor:
        """Get the executor, a new one if there is none.

        Returns:
            Executor.
        """
        if self.executor is None:
            self.executor = self._create_executor()
        executor: Executor = self.executor
        return executor

    def _shutdown_executor(self) -> None:
        """Shut down the executor, if there is one, and free the memory that is shared with it."""
        executor: Executor | None = self.executor
        self.executor = None
        try:
            if executor is not None:
                _shut_down(executor)
        finally:
            self._close_memory()

    def _close_memory(self) -> None:
        """Free the memory that is shared with workers."""
        self._marks.close()
        self._close_snapshots()

    def _close_snapshots(self) -> None:
        snapshots, self._snapshots = self._snapshots, None
        if snapshots is not None:
            snapshots.close()

    def _run(self) -> None:
        """Run the simulation; afterwards there is no executor, however the run ended."""
        try:
            super()._run()
        finally:
            self._shutdown_executor()
            self._close_memory()

    def _get_mp_context(self) -> BaseContext:
        """Get the multiprocessing context of the workers.

        Returns:
            The context of ``start_method``.
        """
        return multiprocessing.get_context(self.start_method)

    def _get_worker_initializer(self) -> Callable[..., object] | None:
        """Get the function that each worker calls once before its first task.

        If it raises, every task on that worker fails with a ``RuntimeError``.

        Returns:
            An importable function, or ``None``.
        """
        return None

    def _get_worker_initargs(self) -> tuple[Any, ...]:
        """Get the arguments of the worker initializer.

        Returns:
            Arguments. They can contain what is only inherited by processes, e.g. a
            :class:`multiprocessing.Lock`, unless ``_create_executor`` is overridden.
        """
        return ()

    def _get_worker_preparation(self) -> tuple[Preparation, ...]:
        """Get what each worker process calls before it unpickles the initializer's arguments.

        Workers that share the interpreter with the main process, e.g. threads, do not call it.

        Returns:
            Pairs of an importable function and its arguments. What a function returns is ``None``
            or the text of a warning for the main process.
        """
        return ()

    def _get_initialization(self) -> Initialization | None:
        preparation = self._get_worker_preparation()
        function = self._get_worker_initializer()
        if function is None and not preparation:
            return None
        args = tuple(self._get_worker_initargs())
        return Initialization(self._token, preparation, function, args)

    # ------------------------------------------------------------------------------- hooks

    def _split_agents_into_chunks(self, agents: list[Agent]) -> list[list[Agent]]:
        """Split the agents of a batch into chunks, one for each task.

        Args:
            agents: agents, in the order in which they are asked.

        Returns:
            At most ``num_parallel`` chunks of consecutive agents whose sizes differ by at most
            one, longer ones first.
        """
        bounds = chunk_bounds(len(agents), self.num_parallel)
        return [agents[start:stop] for start, stop in bounds]

    def _receive_synced_attributes_from_worker(
        self, agent: Agent, attributes: dict[str, Any]
    ) -> None:
        """Update the listed attributes of an agent.

        Called before :meth:`_receive_orders_from_worker` for every asked agent that lists names.
        By default the values are set, and listed attributes that are not among them are deleted.

        Args:
            agent: agent on the main process.
            attributes: values of the listed attributes that exist on the worker, by name.
        """
        names = self._asked_names.get(id(agent))
        if names is None:  # called outside of a batch
            names = listed_names([agent]).get(0, ())
        set_values(agent, names, attributes)

    def _receive_orders_from_worker(  # type: ignore[override]  # pams 0.3.0 passes a future
        self, agent: Agent, orders: Orders, prng_state: Any
    ) -> Orders:
        """Update the generator of an agent and take its orders.

        Called for every asked agent. By default a cancel order gets the order in the order book
        of the main process in place of a copy.

        Args:
            agent: agent on the main process.
            orders: what ``submit_orders`` has returned.
            prng_state: state of ``agent.prng`` after the call, as ``getstate()`` gives it.

        Returns:
            Orders.
        """
        if prng_state is not None:
            agent.prng.setstate(prng_state)
        resolve_cancels(self.simulator, orders)
        return orders

    def _is_overridden(self, hook: str) -> bool:
        return hook in vars(self) or getattr(type(self), hook) is not _DEFAULT_HOOKS[hook]

    def _check_signature_of_override(self) -> None:
        hook = "_receive_orders_from_worker"
        if not self._is_overridden(hook):
            return
        try:
            signature = inspect.signature(getattr(self, hook))
        except (TypeError, ValueError):  # not every callable has one
            return
        try:
            signature.bind(agent=None, orders=None, prng_state=None)
        except TypeError:
            raise TypeError(
                f"{type(self).__name__}.{hook}{signature} cannot be called any more: its "
                f"signature is now {hook}(agent, orders, prng_state), where orders are the "
                "returned orders and prng_state is the state of the agent's prng"
            ) from None

    # ----------------------------------------------------------------------------- batches

    def _collect_orders_from_normal_agents(self, session: Session) -> list[Orders]:
        """Ask normal agents until ``max_normal_orders`` of them have submitted orders.

        Args:
            session: current session.

        Returns:
            Orders of the agents that submitted some, in the order in which they were asked.

        Raises:
            Exception: what an agent raises; no agent of its batch has been updated then.
            RuntimeError: an agent's results, or its exception, cannot be sent back; the worker
                initializer has failed.
            ValueError: ``synced_attributes`` or an overridden ``_split_agents_into_chunks`` is
                invalid.
        """
        agents = self.simulator.normal_frequency_agents
        agents = self._prng.sample(agents, len(agents))
        submitted: list[Orders] = []
        start = 0
        while start < len(agents) and len(submitted) < session.max_normal_orders:
            n_missing = session.max_normal_orders - len(submitted)
            stop = start + math.ceil(min(n_missing, len(agents) - start))
            self._ask(session, agents[start:stop], submitted)
            start = stop
        return submitted

    def _ask(self, session: Session, agents: list[Agent], submitted: list[Orders]) -> None:
        """Ask the agents of a batch, update them, and append their orders to ``submitted``."""
        start = time.perf_counter()
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_attempt", None)
            try:
                chunks = self._chunks(agents)
                snapshot = self._take_snapshot(agents, self._get_executor())
                stack.callback(snapshot.close)
                batch = Batch(agents, snapshot)
                encoded = time.perf_counter()
                results = self._results(batch, chunks)
                arrived = time.perf_counter()
                answers = [Answers(batch, positions, result) for positions, result in results]
                self._lost_changes.warn_of(answers, stacklevel=1)
            except BaseException as error:
                attempt = self._attempt
                if attempt is None or (
                    attempt.has_ended_normally and not isinstance(error, BrokenExecutor)
                ):
                    self._shutdown_executor()
                else:
                    self._abandon_executor(attempt)
                raise
            self._asked_names = {id(agents[i]): names for i, names in batch.names.items()}
            stack.callback(self._asked_names.clear)
            for answer in answers:
                self._receive(session, answer, submitted)
        self.batch_records.append(
            BatchRecord(
                n_agents=len(agents),
                n_tasks=len(results),
                frame_kind=batch.snapshot.kind,
                frame_bytes=batch.snapshot.n_bytes,
                result_bytes=sum(result.n_bytes for _, result in results),
                encode_seconds=encoded - start,
                wait_seconds=arrived - encoded,
                decode_seconds=time.perf_counter() - arrived,
            )
        )

    def _results(self, batch: Batch, chunks: list[list[Agent]]) -> list[tuple[range, Result]]:
        """Have the tasks of a batch done, again and again if their workers die.

        Returns:
            Positions in the batch and result of every chunk that is not empty.

        Raises:
            WorkerDiedError: they have died too often.
            TimeoutError: a task has taken too long.
            BaseException: a task has failed.
        """
        deaths_by_chunk: Counter[int] = Counter()
        while True:
            executor = self._get_executor()
            marks = None
            if isinstance(executor, ProcessPoolExecutor):  # its workers can map our memory
                marks = self._marks.of_batch(executor, max(len(chunks), self.num_parallel))
            attempt = self._attempt = Attempt(batch, executor, marks)
            try:
                attempt.submit(self._tasks(batch, chunks, executor, marks))
                return attempt.wait(self.task_timeout)
            except BrokenExecutor as error:
                if not isinstance(executor, ProcessPoolExecutor):
                    raise
                scene = Scene(attempt)
                self._end_executor(attempt)
                limit = self.max_worker_restarts
                try:
                    text = self._restarts.decide(scene.deaths(), deaths_by_chunk, limit)
                except WorkerDiedError as died:
                    raise died from error
                warnings.warn(text, stacklevel=3)
            finally:
                self._pass_on_warnings(attempt.futures)

    def _chunks(self, agents: list[Agent]) -> list[list[Agent]]:
        if not self._is_overridden("_split_agents_into_chunks"):
            return self._split_agents_into_chunks(agents=agents)
        message = (
            f"{type(self).__name__}._split_agents_into_chunks must return chunks that are, "
            "joined together, exactly the given agents in the same order"
        )
        # A copy, so that an override that reorders its argument is found out.
        chunks = self._split_agents_into_chunks(agents=list(agents))
        try:
            chunks = [list(chunk) for chunk in chunks]
        except TypeError as error:
            raise ValueError(message) from error
        joined = [agent for chunk in chunks for agent in chunk]
        if len(joined) != len(agents) or not all(map(is_, joined, agents)):
            raise ValueError(message)
        return chunks

    def _take_snapshot(self, agents: list[Agent], executor: Executor) -> Snapshot:
        """Take the snapshot that all tasks of a batch of these agents see."""
        mapped = isinstance(executor, ProcessPoolExecutor)
        if self._snapshots is not None and self._snapshots.mapped != mapped:
            self._close_snapshots()
        wants_full = self.snapshot_mode == "full"
        if isinstance(self._snapshots, DeltaSnapshots) and not self._snapshots.is_worthwhile:
            self._close_snapshots()
            wants_full = True
        snapshots = self._snapshots
        if snapshots is None:
            # Other executors' workers may share this interpreter, or be on another machine.
            if wants_full or not mapped:
                snapshots = FullSnapshots(mapped=mapped)
            else:
                snapshots = DeltaSnapshots()
            self._snapshots = snapshots
        return snapshots.take(self.simulator, agents)

    def _tasks(
        self,
        batch: Batch,
        chunks: list[list[Agent]],
        executor: Executor,
        marks: Marks | None,
    ) -> list[tuple[Task, range]]:
        """Make a task of every chunk that is not empty, with its positions in the batch."""
        if self._initialization[0]() is not executor:
            self._initialization = weakref.ref(executor), self._get_initialization()
        _, initialization = self._initialization
        owns_process = isinstance(executor, ProcessPoolExecutor)
        main_process = None
        if isinstance(executor, ProcessPoolExecutor) and self._own_pool() is not executor:
            main_process = MainProcess.current()
            watch_from_workers_of(executor, main_process)
        tasks: list[tuple[Task, range]] = []
        start = 0
        for chunk in chunks:
            positions = range(start, start + len(chunk))
            start = positions.stop
            if chunk:
                task = Task(
                    batch.snapshot.frame,
                    batch.snapshot.numbers_at(positions),
                    batch.snapshot.prngs_at(positions),
                    batch.names_at(positions),
                    initialization,
                    owns_process,
                    None if marks is None else marks.place(len(tasks)),
                    main_process,
                )
                tasks.append((task, positions))
        return tasks

    def _end_executor(self, attempt: Attempt) -> None:
        """Shut the executor down without waiting for tasks that still run."""
        executor, self.executor = self.executor, None
        try:
            if executor is not None:
                abandon(executor, attempt.futures)
        finally:
            self._marks.close()

    def _abandon_executor(self, attempt: Attempt) -> None:
        """As :meth:`_end_executor`, and free the memory of the frames."""
        try:
            self._end_executor(attempt)
        finally:
            self._close_snapshots()

    def _pass_on_warnings(self, futures: Iterable[Future[Result]]) -> None:
        for text in warnings_of_workers(futures):
            if text not in self._passed_on:
                self._passed_on.add(text)
                warnings.warn(text, stacklevel=3)

    def _receive(self, session: Session, answer: Answers, submitted: list[Orders]) -> None:
        """Update the agents of a chunk one after the other, as far as their orders are valid."""
        if self._is_overridden("_receive_orders_from_worker"):
            receive_orders = self._receive_orders_from_worker
        elif self._asked_names:
            # Setters of listed attributes are the user's code, and can reach any agent.
            receive_orders = None
        else:
            self._receive_from_silent_and_submitting(session, answer, submitted)
            return
        set_attributes = None
        if self._is_overridden("_receive_synced_attributes_from_worker"):
            set_attributes = self._receive_synced_attributes_from_worker
        for position, agent in enumerate(answer.agents):
            # Without a root: no orders, nothing listed, and an ordinary generator.
            orders, _, present, *values = answer.roots.get(position, ([], None, ()))
            names = answer.names.get(position)
            if names is not None:
                attributes = dict(zip(present, values, strict=True))
                if set_attributes is None:
                    set_values(agent, names, attributes)
                else:
                    set_attributes(agent=agent, attributes=attributes)
            if receive_orders is None:
                answer.set_prng_state(position)
                resolve_cancels(self.simulator, orders)
            else:
                prng_state = answer.prng_state(position)
                orders = receive_orders(agent=agent, orders=orders, prng_state=prng_state)
            if len(orders) > 0:
                check_orders(self, session, agent, orders)
                submitted.append(orders)

    def _receive_from_silent_and_submitting(
        self, session: Session, answer: Answers, submitted: list[Orders]
    ) -> None:
        """Update agents that list nothing, with no hook to be called.

        Most of them are silent, so their generators are set in one go between two that submit.
        """
        start = 0
        for position, (orders, *_) in answer.roots.items():
            answer.set_prng_states(start, position + 1)
            start = position + 1
            resolve_cancels(self.simulator, orders)
            if len(orders) > 0:
                check_orders(self, session, answer.agents[position], orders)
                submitted.append(orders)
        answer.set_prng_states(start, len(answer.agents))


_DEFAULT_HOOKS = {
    hook: vars(MultiProcessAgentParallelRunner)[hook]
    for hook in (
        "_receive_orders_from_worker",
        "_receive_synced_attributes_from_worker",
        "_split_agents_into_chunks",
    )
}


def _shut_down(executor: Executor) -> None:
    try:
        shut_down(executor)
    except BaseException:  # interrupted while waiting, which a worker that hangs makes necessary
        abandon(executor, ())
        raise

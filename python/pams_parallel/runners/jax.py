"""Runner for agents that use JAX: configures JAX on each worker before anything there uses it."""

from __future__ import annotations

import os
import random
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor
from io import TextIOWrapper
from typing import Any

from pams.logs.base import Logger
from pams.simulator import Simulator

from ..jax_configuration import (
    check_environment,
    configure,
    is_initialized,
    numeric_settings,
)
from ..settings import JAX_RUNNER_KEYS, Key
from ..worker import Preparation
from .process import MultiProcessAgentParallelRunner


class JaxAgentParallelRunner(MultiProcessAgentParallelRunner):
    """Process runner for agents whose ``submit_orders`` uses JAX, e.g. Flax models. Experimental.

    It is :class:`MultiProcessAgentParallelRunner`, whose documentation holds here as well, with
    two differences: workers are spawned unless the config says otherwise, because a forked
    process must not use what JAX has initialized in its parent; and every worker process
    configures JAX once, before its first task, in this order:

    1. the environment variables that :meth:`_get_worker_environment` gives,
    2. ``jax_platforms`` from the key ``jaxPlatforms``,
    3. the numeric settings of the main process (see below),
    4. the initializer of :meth:`_get_worker_initializer`, whose arguments are unpickled only
       now, so they may contain arrays; it has the last word on all settings.

    Keys in ``simulation`` of the config, in addition to ``numParallel`` and ``startMethod``.
    They take precedence over the environment, which workers inherit; all are optional:

    * ``jaxPlatforms`` (``str``): platforms of the workers, e.g. ``"cpu"`` or ``"cuda"``.
      Default: ``JAX_PLATFORMS``, else JAX chooses.
    * ``jaxPreallocate`` (``bool``): whether each worker allocates its GPU memory at once, i.e.
      ``XLA_PYTHON_CLIENT_PREALLOCATE``. Default: that variable, else ``false``, since the
      first worker would otherwise leave the others little of a GPU that they share.
    * ``jaxMemoryFraction`` (number in (0, 1]): part of the memory of a GPU that each worker may
      use, i.e. ``XLA_PYTHON_CLIENT_MEM_FRACTION``; ``XLA_CLIENT_MEM_FRACTION``, JAX's other name
      for it, is removed on the workers. Default: either variable, else JAX's default.
    * ``jaxCompilationCacheDir`` (``str``): directory of JAX's persistent compilation cache, so
      that a worker takes from there what any process has compiled before. Functions that
      compile fast are cached as well, unless ``JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS`` is
      set. Default: ``JAX_COMPILATION_CACHE_DIR``, else none.
    * ``jaxNumThreads`` (``int``, at least 1): threads in each of the thread pools with which
      XLA computes on the CPU, i.e. ``PJRT_NPROC``. Default: that variable or ``NPROC``, else as
      many as there are CPUs, in every worker.

    Attributes:
        default_start_method: ``"spawn"``.
        jax_platforms: value of ``jaxPlatforms`` after ``_setup()``; here and below ``None`` if
            the config has no such key.
        jax_preallocate: value of ``jaxPreallocate``.
        jax_memory_fraction: value of ``jaxMemoryFraction``.
        jax_compilation_cache_dir: value of ``jaxCompilationCacheDir``.
        jax_num_threads: value of ``jaxNumThreads``.

    Note:
        **Same numbers.** A script sets, say, ``jax.config.update("jax_enable_x64", True)`` under
        its main guard, which a spawned worker does not run. So the settings of JAX that decide
        what a computation gives are passed on: number types (64 bits, promotion of types and
        ranks), random numbers (implementation, partitionability, kinds of keys, ...), rounding
        (precision of matrix products, optimization, ``jax_disable_jit``, ...) and checks (nan,
        infinities, reuse of keys, ...). Their values are those that ``jax.config`` has when the
        executor is created, on the thread that does it, so context managers around the run count,
        e.g. ``jax.default_matmul_precision("float32")``. A setting whose variable, e.g.
        ``JAX_ENABLE_X64``, is among those of :meth:`_get_worker_environment` is left to it. Other
        settings, e.g. the default device, are not passed on.

        XLA divides large matrix products among its threads on the CPU, and the last bits of
        their elements depend on how many these are. With JAX 0.7.1 on x86-64 no product of fewer
        than 2**20 multiplications did. Where ``jaxNumThreads`` must not make a difference from
        ``SequentialRunner``, start the script with the same number in ``PJRT_NPROC``.

    Note:
        **Compiled functions.** Workers live as long as the run, so what ``jax.jit`` compiles is
        compiled once per worker, for each shape and type of the arguments. Define compiled
        functions at the top level of a module: as attributes of agents they do not pickle. A
        method whose static argument is the agent is compiled again for every task, and JAX's
        cache keeps that task's whole simulation in the worker's memory. Many ``flax.nnx`` modules
        do not pickle, either, nor do typed keys (``jax.random.key``) in some versions of JAX; the
        error names the attribute.
        Let the agent keep the state of the module, and the compiled function make the structure::

            import jax
            from flax import nnx

            def network():
                return nnx.Linear(2, 1, rngs=nnx.Rngs(0))

            @jax.jit
            def predict(state, inputs):
                structure, _ = nnx.split(nnx.eval_shape(network))  # only when it is compiled
                return nnx.merge(structure, state)(inputs)

            if __name__ == "__main__":
                _, state = nnx.split(network())  # an attribute of the agent
                assert predict(state, jax.numpy.ones(2)).shape == (1,)

        In place of a typed key it keeps ``jax.random.key_data(key)``.

    Note:
        **Arrays.** An agent is copied for every task, with its arrays and parameters. In the
        copy they are arrays of the same type, weak type and values on the default device of the
        worker, so a function may donate them. Load large models once per worker with the
        initializer instead, and derive keys of ``jax.random`` from ``agent.prng``. Results of
        training come back if the attribute is listed in ``synced_attributes``.

    Note:
        **JAX must not be initialized too early.** Workers import the main module and the
        modules of the agents. If one of these runs JAX at its top level, e.g. creates an array,
        JAX is initialized before it is configured; then only numeric settings still apply,
        which a ``UserWarning`` says. The same holds for workers forked from a process in which
        JAX is initialized. The settings do not apply to the main process, nor to workers that
        are threads of it: of all the above, these only get the initializer. Context managers of
        JAX around the run do not hold in these threads, so set ``jax.config`` there. If agents
        create arrays on a GPU when they are set up, set ``XLA_PYTHON_CLIENT_PREALLOCATE=false``
        for the script, too. What is said about GPUs here is JAX's documentation; only CPUs were
        tested.
    """

    default_start_method: str | None = "spawn"

    _setting_keys: tuple[Key, ...] = JAX_RUNNER_KEYS

    def __init__(
        self,
        settings: dict[str, Any] | TextIOWrapper | os.PathLike[str] | str,
        prng: random.Random | None = None,
        logger: Logger | None = None,
        simulator_class: type[Simulator] = Simulator,
    ) -> None:
        """Create the runner, and import JAX; nothing is started yet.

        Args:
            settings: config as a dict, an open JSON file, or the path of one.
            prng: generator of the runner. Default: one with a random seed.
            logger: logger.
            simulator_class: class of the simulator.

        Raises:
            ImportError: JAX is not installed, or cannot be imported.
            TypeError: see :class:`MultiProcessAgentParallelRunner`.
        """
        try:
            import jax  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__} needs JAX, which cannot be imported ({error}); "
                "install it with: pip install 'pams-parallel[jax]'",
                name=error.name,
                path=error.path,
            ) from error
        super().__init__(settings, prng, logger, simulator_class)
        # There is a new executor after every death of a worker.
        self._has_warned_of_fork = False
        self.jax_platforms: str | None = None
        self.jax_preallocate: bool | None = None
        self.jax_memory_fraction: float | None = None
        self.jax_compilation_cache_dir: str | None = None
        self.jax_num_threads: int | None = None

    def _create_executor(self) -> Executor:
        """Create an executor for the tasks.

        A ``UserWarning`` says so if its workers would be forked from a process that cannot be.

        Returns:
            A new executor.
        """
        method = self._get_mp_context().get_start_method()
        provider = self._parallel_pool_provider
        has_processes = isinstance(provider, type) and issubclass(provider, ProcessPoolExecutor)
        is_risky = has_processes and method == "fork" and is_initialized()
        if is_risky and not self._has_warned_of_fork:
            self._has_warned_of_fork = True
            warnings.warn(
                "JAX is initialized on the main process, so workers that are forked from it can "
                "hang when they use JAX: leave simulation.startMethod out, or set it to 'spawn'.",
                stacklevel=3,
            )
        return super()._create_executor()

    def _get_worker_environment(self) -> dict[str, str]:
        """Get the environment variables that are set on each worker before JAX is configured.

        They are in effect even where the worker has imported JAX already, but not initialized it.
        ``XLA_PYTHON_CLIENT_MEM_FRACTION`` and ``XLA_CLIENT_MEM_FRACTION`` are two names of one
        setting: giving one of them removes an inherited value of the other.

        Returns:
            Value by name. An override can add to it, or give its own.
        """
        environment = {}
        if self.jax_preallocate is not None:
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = str(self.jax_preallocate).lower()
        elif "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ:
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if self.jax_memory_fraction is not None:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(self.jax_memory_fraction)
        if self.jax_compilation_cache_dir is not None:
            directory = self.jax_compilation_cache_dir
            if "://" not in directory:  # a worker may have another current directory
                directory = os.path.abspath(os.path.expanduser(directory))
            environment["JAX_COMPILATION_CACHE_DIR"] = directory
            # JAX's own limit is a second, which few functions of an agent take to compile.
            limit = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
            environment[limit] = os.environ.get(limit, "0")
        if self.jax_num_threads is not None:
            environment["PJRT_NPROC"] = str(self.jax_num_threads)
        return environment

    def _get_worker_preparation(self) -> tuple[Preparation, ...]:
        """Get what each worker process calls to configure JAX.

        Returns:
            Pairs of an importable function and its arguments.

        Raises:
            ValueError: :meth:`_get_worker_environment` returns what cannot be an environment.
        """
        environment = check_environment(
            self._get_worker_environment(), f"{type(self).__name__}._get_worker_environment"
        )
        settings: dict[str, Any] = {}
        if self.jax_platforms is not None:
            settings["jax_platforms"] = self.jax_platforms
        for name, value in numeric_settings().items():
            if name.upper() not in environment:
                settings[name] = value
        return (*super()._get_worker_preparation(), (configure, (environment, settings)))

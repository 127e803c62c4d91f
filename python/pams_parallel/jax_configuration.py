"""JAX on a worker: what the main process tells it, and how it is configured there.

JAX reads the environment when it is imported and again when it is initialized, i.e. when it is
first asked for a device. A worker configures it in between or before: the script of the user has
often been imported by then, and JAX with it. This module is imported without JAX.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

# Settings of JAX, i.e. names in ``jax.config``, that decide what a computation gives or whether
# it is refused. Each version of JAX has some of them.
NUMERIC_SETTINGS = (
    # Types of numbers
    "jax_enable_x64",
    "jax_explicit_x64_dtypes",
    "jax_default_dtype_bits",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    # Random numbers
    "jax_default_prng_impl",
    "jax_enable_custom_prng",
    "jax_legacy_prng_key",
    "jax_threefry_partitionable",
    "jax_threefry_gpu_kernel_lowering",
    "jax_random_seed_offset",
    "jax_safer_randint",
    "jax_high_dynamic_range_gumbel",
    # Rounding
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_use_direct_linearize",
    "jax_softmax_custom_jvp",
    "jax_accurate_erf_inv",
    "jax_use_hlo_logistic_lowering",
    "jax_bcoo_cusparse_lowering",
    "jax_use_magma",
    # Checks
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_debug_key_reuse",
    "jax_allow_f16_reductions",
    "jax_check_static_indices",
    "jax_error_checking_behavior_nan",
    "jax_error_checking_behavior_divide",
    "jax_error_checking_behavior_oob",
)

# Variables that are two names of one setting. JAX refuses to be given both.
_SYNONYMS = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "XLA_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION": "XLA_PYTHON_CLIENT_MEM_FRACTION",
}

_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
_FALSE = frozenset({"n", "no", "f", "false", "off", "0"})

_TOO_LATE = (
    "JAX was initialized on a worker before the runner configured it, so jaxPlatforms, "
    "jaxPreallocate, jaxMemoryFraction, jaxCompilationCacheDir, jaxNumThreads and the variables "
    "of _get_worker_environment have no effect there. Do not run JAX, e.g. create arrays, at the "
    "top level of the main module or of a module that it imports, and do not fork workers from "
    "a process in which JAX is initialized: simulation.startMethod 'spawn' does not."
)


def numeric_settings() -> dict[str, Any]:
    """Read the numeric settings of JAX that are in force on the calling thread.

    Returns:
        Value by name, of those :data:`NUMERIC_SETTINGS` that the installed JAX has. Members of an
        enumeration are given by name, since a worker that unpickled one would import JAX.
    """
    import jax

    values = jax.config.values
    return {
        name: values[name].name if isinstance(values[name], Enum) else values[name]
        for name in NUMERIC_SETTINGS
        if name in values
    }


def check_environment(environment: object, where: str) -> dict[str, str]:
    """Check variables that are to be set on workers.

    Args:
        environment: what the user gave.
        where: where it comes from, for messages.

    Returns:
        A copy of exact types.

    Raises:
        ValueError: it is not a mapping from ``str`` to ``str``, or cannot be an environment.
    """
    if not isinstance(environment, Mapping):
        raise ValueError(f"{where} must return a dict of str, but {environment!r} is given")
    checked = {}
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(
                f"{where} must return a dict with names and values that are str, "
                f"but it has {name!r}: {value!r}"
            )
        try:
            encoded = os.fsencode(name + value)
            is_valid = name != "" and "=" not in name and b"\0" not in encoded
        except UnicodeEncodeError:  # surrogates that stand for no byte
            is_valid = False
        if not is_valid:
            raise ValueError(
                f"{where} must return names and values that an environment can have, "
                f"but it has {name!r}: {value!r}"
            )
        checked[str.__str__(name)] = str.__str__(value)
    for name, synonym in _SYNONYMS.items():
        if name in checked and synonym in checked:
            raise ValueError(
                f"{where} must not return both {name} and {synonym}, which JAX refuses"
            )
    return checked


def configure(environment: Mapping[str, str], settings: Mapping[str, Any]) -> str | None:
    """Configure JAX on this worker process.

    Args:
        environment: variables to set. Where JAX has been imported already, they also set what it
            read from them then.
        settings: values by name in ``jax.config``, set after that.

    Returns:
        A warning for the main process if JAX had been initialized already. Then only numeric
        settings could be changed.
    """
    was_imported = "jax" in sys.modules
    for name, value in environment.items():
        os.environ[name] = value
        if name in _SYNONYMS:
            os.environ.pop(_SYNONYMS[name], None)
    import jax

    is_late = was_imported and is_initialized()
    updates = list(_settings_in(environment)) if was_imported else []
    for name, value in settings.items():
        kind = type(jax.config.values[name])
        updates.append((name, kind[value] if issubclass(kind, Enum) else value))
    for name, value in updates:
        is_possible = not is_late or name in NUMERIC_SETTINGS
        if is_possible and value != jax.config.values[name]:
            jax.config.update(name, value)
    return _TOO_LATE if is_late else None


def _settings_in(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Find settings that JAX takes from variables when it is imported.

    Args:
        environment: variables.

    Yields:
        Name and value of a setting.
    """
    import jax

    values = jax.config.values
    for variable, text in environment.items():
        name = variable.lower()
        if variable == name.upper() and name in values:
            kind = jax.config.meta[name][0]
            if not isinstance(kind, type):  # a word, for settings of a few values
                kind = type(values[name])
            yield name, _parse(variable, text, kind)


def _parse(variable: str, text: str, kind: type) -> Any:
    """Read the text of a variable as JAX does."""
    if kind is bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise ValueError(f"{variable} must be true or false, but {text!r} is given")
    return kind(text) if issubclass(kind, (int, float, Enum)) else text


def is_initialized() -> bool:
    """Whether JAX has been initialized in this process, i.e. runs threads of its own."""
    # There is no public way to ask. A JAX without this one counts as not initialized.
    module = sys.modules.get("jax._src.xla_bridge")
    ask = getattr(module, "backends_are_initialized", None)
    return bool(ask()) if callable(ask) else False

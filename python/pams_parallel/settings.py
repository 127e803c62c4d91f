"""The keys that our runners add to ``simulation`` of a pams config.

pams ignores keys that it does not know, so a misspelt one would silently do nothing. All keys
stand in tables of :class:`Key`; validation and the search for misspellings work on such a table.
"""

from __future__ import annotations

import difflib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .compatibility import max_workers

# Similarity (difflib) from which on a key counts as a misspelling of one of ours. High enough
# for the keys of pams itself ("markets", "fundamentalCorrelations", ...) to stay far below.
_NEAR_MISS_RATIO = 0.8


@dataclass(frozen=True)
class Key:
    """A key in ``simulation`` of the config.

    Attributes:
        name: the key.
        attribute: attribute of the runner that gets the value.
        parse: returns the value for the attribute; raises ``ValueError`` whose message is the
            end of a sentence that begins with the full name of the key.
    """

    name: str
    attribute: str
    parse: Callable[[Any], Any]

    @property
    def full_name(self) -> str:
        """The key as messages name it."""
        return f"simulation.{self.name}"


# Largest number of threads or processes that C libraries can be told.
_MAX_COUNT = 2**31 - 1


def _parse_positive_int(value: Any) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not 1 <= value <= _MAX_COUNT:
        limit = f" of at most {_MAX_COUNT}" if is_integer and value > 1 else ""
        raise ValueError(f"must be a positive integer{limit}, but {_shown(value)} is given")
    return int(value)


def _parse_worker_count(value: Any) -> int:
    count = _parse_positive_int(value)
    limit = max_workers()
    if limit is not None and count > limit:
        raise ValueError(
            f"must be at most {limit}, the largest number of processes that a pool can have on "
            f"{sys.platform}, but {count} is given"
        )
    return count


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of more digits than Python likes to write
        return "a huge integer"


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false (bool), but {value!r} is given")
    return value


def _parse_fraction(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0 < value <= 1):  # which nan is not
        raise ValueError(f"must be a number in (0, 1], but {_shown(value)} is given")
    return float(value)


def _parse_restarts(value: Any) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < 0:
        raise ValueError(f"must be an integer of at least 0, but {_shown(value)} is given")
    return int(value)


def _parse_seconds(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # No larger than what a lock can wait for.
    if not (is_number and 0 < value <= threading.TIMEOUT_MAX):  # which nan is not
        raise ValueError(f"must be a positive number of seconds, but {_shown(value)} is given")
    return float(value)


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"must be a non-empty string, but {value!r} is given")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"must be a string of Unicode text, but {value!r} is given") from None
    return str.__str__(value)


def parse_start_method(value: Any) -> str:
    """Check a start method of multiprocessing.

    Args:
        value: what the user gave.

    Returns:
        ``value``.

    Raises:
        ValueError: the platform has no start method of this name.
    """
    methods = multiprocessing.get_all_start_methods()
    if value not in methods:
        raise ValueError(f"must be one of {methods}, but {value!r} is given")
    return str(value)


SNAPSHOT_MODES = ("delta", "full")


def _parse_snapshot_mode(value: Any) -> str:
    if value not in SNAPSHOT_MODES:
        raise ValueError(f"must be one of {list(SNAPSHOT_MODES)}, but {value!r} is given")
    return str(value)


PROCESS_RUNNER_KEYS: tuple[Key, ...] = (
    Key("numParallel", "num_parallel", _parse_worker_count),
    Key("startMethod", "start_method", parse_start_method),
    Key("snapshotMode", "snapshot_mode", _parse_snapshot_mode),
    Key("maxWorkerRestarts", "max_worker_restarts", _parse_restarts),
    Key("taskTimeout", "task_timeout", _parse_seconds),
)

JAX_RUNNER_KEYS: tuple[Key, ...] = (
    *PROCESS_RUNNER_KEYS,
    Key("jaxPlatforms", "jax_platforms", _parse_text),
    Key("jaxPreallocate", "jax_preallocate", _parse_bool),
    Key("jaxMemoryFraction", "jax_memory_fraction", _parse_fraction),
    Key("jaxCompilationCacheDir", "jax_compilation_cache_dir", _parse_text),
    Key("jaxNumThreads", "jax_num_threads", _parse_positive_int),
)


def parse_settings(simulation: Mapping[str, Any], keys: Iterable[Key]) -> dict[str, Any]:
    """Validate the values of those ``keys`` that are in the config.

    Args:
        simulation: ``simulation`` of the config.
        keys: table of keys.

    Returns:
        Value by name of the runner's attribute.

    Raises:
        ValueError: a value is invalid; the message begins with the full name of the key.
    """
    values = {}
    for key in keys:
        if key.name in simulation:
            try:
                values[key.attribute] = key.parse(simulation[key.name])
            except ValueError as error:
                raise ValueError(f"{key.full_name} {error}") from None
    return values


def near_misses(simulation: Mapping[str, Any], keys: Iterable[Key]) -> list[tuple[str, Key]]:
    """Find keys that are nearly, but not exactly, one of ``keys``.

    Args:
        simulation: ``simulation`` of the config.
        keys: table of keys.

    Returns:
        Pairs of the key in the config and the key that is probably meant.
    """
    by_name = {key.name: key for key in keys}
    by_normal_form = {_normal_form(name): key for name, key in by_name.items()}
    found: list[tuple[str, Key]] = []
    for name in simulation:
        if not isinstance(name, str) or name in by_name:
            continue
        close = difflib.get_close_matches(
            _normal_form(name), by_normal_form, n=1, cutoff=_NEAR_MISS_RATIO
        )
        found.extend((name, by_normal_form[match]) for match in close)
    return found


def _normal_form(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")

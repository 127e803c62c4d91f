"""What the package cannot run on, and how many workers a platform allows."""

from __future__ import annotations

import sys
import sysconfig

# A process on Windows can wait for 63 objects at a time, of which ProcessPoolExecutor needs two.
_MAX_WORKERS_ON_WINDOWS = 61


def check_interpreter() -> None:
    """Refuse builds of CPython without a global interpreter lock.

    The extension relies on the lock. Loaded all the same, it would make the interpreter enable
    the lock for the whole process.

    Raises:
        ImportError: this is such a build.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError(
            "pams_parallel does not support free-threaded builds of CPython, such as "
            f"python{sys.version_info[0]}.{sys.version_info[1]}t: use an ordinary build of the "
            "same version. Agents run in processes, so they need no free threads.",
            name=__package__,
        )


def max_workers() -> int | None:
    """Largest number of worker processes of a pool, ``None`` if the platform has no limit."""
    return _MAX_WORKERS_ON_WINDOWS if sys.platform == "win32" else None

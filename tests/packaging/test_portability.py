"""Platforms and interpreters that are not at hand, as far as they can be imitated."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from pams_parallel import (
    MultiProcessAgentParallelRunner,
    compatibility,
    examples,
    snapshot,
    transport,
)
from pams_parallel.compatibility import check_interpreter
from runner_support.scenarios import expected_warnings_ignored

TIMEOUT = 240


def run(arguments: list[str], folder: Path, **environment: str) -> str:
    """Run Python in a folder; what it has printed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


# Runs at the start of every process. What it takes away is missing on Windows or macOS, or both,
# and Python itself can do without it here.
BARE = """
import os
import signal
import sys

for module, names in [
    (os, ["memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "eventfd", "O_CLOEXEC", "O_NOFOLLOW",
          "pread", "preadv", "pwrite", "pwritev", "posix_fallocate", "posix_fadvise", "sendfile",
          "geteuid", "getuid", "getegid", "getgid", "getpgid", "getpgrp", "setpgid", "killpg",
          "sched_getaffinity", "pidfd_open", "fork", "forkpty", "register_at_fork", "mkfifo"]),
    (signal, ["SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "pthread_kill",
              "pthread_sigmask", "sigwait", "sigpending", "setitimer", "alarm"]),
]:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ["fcntl", "resource", "pwd", "grp", "termios", "multiprocessing.shared_memory"]:
    sys.modules[name] = None
"""


@pytest.fixture
def bare_platform(tmp_path: Path) -> dict[str, str]:
    """Environment of processes that lack what :data:`BARE` takes away."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BARE)
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


@pytest.mark.parametrize("mode", ["delta", "full"])
def test_a_run_needs_nothing_that_only_linux_has(
    mode: str, tmp_path: Path, bare_platform: dict[str, str]
) -> None:
    config = examples.load("learning").config
    config["simulation"]["snapshotMode"] = mode
    (tmp_path / "config.json").write_text(json.dumps(config))
    missing = "import os; print(hasattr(os, 'pread'), hasattr(os, 'memfd_create'))"
    classes = [
        f"--class={cls.__module__}:{cls.__name__}" for cls in examples.load("learning").classes
    ]
    command = ["-m", "pams_parallel", "compare", "config.json", "--steps", "20", "--workers", "2"]

    assert run(["-c", missing], tmp_path, **bare_platform) == "False False\n"
    printed = run([*command, "--start-method", "spawn", *classes], tmp_path, **bare_platform)
    assert "identical" in printed


def test_frames_in_files_that_cannot_be_deleted_while_they_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_OPEN_FILES_CAN_BE_DELETED", False)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    source = snapshot.Source()
    log, reader, graph = transport.FrameLog(), transport.ChainReader(), [1]
    with contextlib.closing(source), contextlib.closing(log), contextlib.closing(reader):
        chain = log.append(source.frame((graph,)), source.sequence, is_keyframe=True)
        frames = list(reader.frames_after(chain, None))

        assert len(frames) == 1
        assert [Path(segment.path).is_file() for segment in chain.segments] == [True]
        if Path("/proc/self/fd").is_dir():
            path = os.path.realpath(chain.segments[0].path)
            links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            assert links.count(path) == 1  # the log's own


@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="no forkserver"
)
def test_forkserver_as_the_platform_default(tmp_path: Path) -> None:
    """As on Linux from Python 3.14 on."""
    script = """
import multiprocessing
import random

from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner, examples, outcome


class Runner(MultiProcessAgentParallelRunner):
    def _create_executor(self):
        pool = super()._create_executor()
        print("start method:", pool._mp_context.get_start_method())
        return pool


def run(runner_class):
    example = examples.load("learning")
    runner = runner_class(example.config, prng=random.Random(3))
    for cls in example.classes:
        runner.class_register(cls)
    runner.main()
    return outcome.outcome(runner)


if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")
    assert outcome.differences(run(SequentialRunner), run(Runner)) == []
"""
    (tmp_path / "script.py").write_text(script)

    assert run(["script.py"], tmp_path).splitlines().count("start method: forkserver") == 1


def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only for this module: the standard library looks at it, too.
    class System:
        platform = "win32"

    monkeypatch.setattr(compatibility, "sys", System)


def set_up(**simulation: Any) -> MultiProcessAgentParallelRunner:
    example = examples.load("learning")
    example.config["simulation"].pop("numParallel", None)
    example.config["simulation"].update(simulation)
    runner = MultiProcessAgentParallelRunner(example.config, prng=random.Random(1))
    for cls in example.classes:
        runner.class_register(cls)
    try:
        with expected_warnings_ignored():
            runner._setup()
    finally:
        runner._shutdown_executor()
    return runner


def test_more_workers_than_a_pool_can_have_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    windows(monkeypatch)

    with pytest.raises(ValueError, match=r"simulation\.numParallel must be at most 61.* 62 is"):
        set_up(numParallel=62)
    assert set_up(numParallel=61).num_parallel == 61


def test_default_number_of_workers_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert set_up().num_parallel == 127

    windows(monkeypatch)
    assert set_up().num_parallel == 61


def test_interpreters_with_a_lock() -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.fail("imported by a free-threaded build")
    check_interpreter()


def test_free_threaded_builds_are_refused_before_the_extension_is_loaded(tmp_path: Path) -> None:
    script = """
import sys
import sysconfig

real = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else real(name)
try:
    import pams_parallel
except ImportError as error:
    assert error.name == "pams_parallel", error.name
    print(error)
print("pams_parallel._core" in sys.modules)
"""
    message, is_loaded = run(["-c", script], tmp_path).splitlines()

    assert message.startswith("pams_parallel does not support free-threaded builds of CPython")
    assert is_loaded == "False"


SUBINTERPRETER = """
import sys

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

IMPORT = '''
try:
    import pams_parallel
except ImportError as error:
    print(type(error).__name__, error)
else:
    print("imported")
'''
kind, *before = sys.argv[1:]
if before:
    import pams_parallel
if sys.version_info >= (3, 13):
    failure = interpreters.exec(interpreters.create(kind), IMPORT)
    assert failure is None, failure
else:
    interpreters.run_string(interpreters.create(isolated=kind == "isolated"), IMPORT)
"""


@pytest.mark.parametrize("main_imports_first", [False, True])
@pytest.mark.parametrize("kind", ["isolated", "legacy"])
def test_subinterpreters_are_refused(kind: str, main_imports_first: bool, tmp_path: Path) -> None:
    arguments = [kind, "main"] if main_imports_first else [kind]

    # Warnings of NumPy about subinterpreters are none of ours.
    (line,) = run(["-W", "ignore", "-c", SUBINTERPRETER, *arguments], tmp_path).splitlines()

    assert line.startswith("ImportError ")
    assert "subinterpreter" in line

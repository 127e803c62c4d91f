"""Little memory to share, none at all, and few open files."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner, transport
from runner_support import scripts
from runner_support.comparison import outcome
from runner_support.scenarios import POPULATIONS, build, run

MODES = ("delta", "full")
LARGE = 3_000_000  # bytes; a frame of this size does not travel inside a task


def no_memfd(*_: Any) -> int:
    raise OSError(38, "Function not implemented")


def in_own_process(code: str, *prefix: str, **environment: str) -> str:
    """Output of a script on standard output; it must not be killed by a signal or fail."""
    result = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ------------------------------------------------------------------------- no anonymous memory


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_files_take_the_place_of_anonymous_memory(
    monkeypatch: pytest.MonkeyPatch, start_method: str, mode: str
) -> None:
    monkeypatch.setattr(os, "memfd_create", no_memfd, raising=False)
    keys = {"numParallel": 2, "startMethod": start_method, "snapshotMode": mode}
    runner = run(build(MultiProcessAgentParallelRunner, POPULATIONS["mixed"], **keys))
    assert outcome(runner) == outcome(run(build(SequentialRunner, POPULATIONS["mixed"])))


@pytest.mark.parametrize("mode", MODES)
def test_no_place_at_all(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, mode: str, tmp_path: Path
) -> None:
    """Neither anonymous memory nor a directory for temporary files: an error says what to do."""
    runner = scripted([scripts.buy] * 4, workers=2)
    runner.snapshot_mode = mode
    runner.simulator.payload = os.urandom(LARGE)
    monkeypatch.setattr(os, "memfd_create", no_memfd, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OSError, match="TMPDIR") as caught:
        runner._run()
    assert caught.value.errno is not None
    assert runner.executor is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_that_is_read_only(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / "read-only"
    directory.mkdir(mode=0o500)
    runner = scripted([scripts.buy] * 4, workers=2)
    monkeypatch.setattr(os, "memfd_create", no_memfd, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    with pytest.raises(PermissionError, match="TMPDIR"):
        runner._run()


@pytest.mark.parametrize("memfd", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_files_that_may_not_become_large(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, mode: str, memfd: bool
) -> None:
    """``ulimit -f`` holds for anonymous memory as well."""
    if not memfd:
        monkeypatch.setattr(os, "memfd_create", no_memfd, raising=False)
    runner = scripted([scripts.buy] * 4, workers=2)
    runner.snapshot_mode = mode
    runner.simulator.payload = os.urandom(LARGE)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, hard))
    try:
        with pytest.raises(OSError, match=r"ulimit -f.*TMPDIR"):
            runner._run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert runner.executor is None


class FailsToPickle:
    def __reduce__(self) -> Any:
        raise OSError(5, "an error of the user's own")


def test_errors_of_the_users_own_stay(scripted: Any) -> None:
    for mode in MODES:
        runner = scripted([scripts.buy] * 4, workers=2)
        runner.snapshot_mode = mode
        runner.simulator.payload = FailsToPickle()
        with pytest.raises(OSError, match="of the user's own") as caught:
            runner._run()
        assert "TMPDIR" not in str(caught.value)


# ----------------------------------------------------------------------------- other file systems

RUN = """
import os, sys
from pams.runners import SequentialRunner
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support.comparison import outcome
from runner_support.scenarios import POPULATIONS, build, expected_warnings_ignored, run
if {no_memfd}:
    del os.memfd_create
def result(cls, **keys):
    runner = build(cls, POPULATIONS["orders"], **keys)
    with expected_warnings_ignored():
        runner._setup()
    runner.simulator.payload = bytes(100) * {size}
    with expected_warnings_ignored():
        runner._run()
    del runner.simulator.payload
    return outcome(runner)
if __name__ == "__main__":
    keys = dict(numParallel=2, startMethod="fork", snapshotMode={mode!r})
    try:
        found = result(MultiProcessAgentParallelRunner, **keys)
    except OSError as error:
        print(type(error).__name__, error)
    else:
        print(found == result(SequentialRunner))
"""

SMALL, MANY = 40_000, 1_000_000  # times 100 bytes


def mounted(*commands: str) -> tuple[str, ...]:
    """Prefix that runs a command after others that mount something, for it alone."""
    script = " && ".join((*commands, 'exec "$@"'))
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    prefix = mounted("mount -t tmpfs -o size=1m none /dev/shm")
    return subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs user and mount namespaces")
SHM_64_MB = "mount -t tmpfs -o size=64m none /dev/shm"
FULL_SHM = "mount -t tmpfs -o size=4k none /dev/shm && { cat /dev/zero >/dev/shm/x || :; }"
NO_SHM = "mount -t tmpfs -o ro none /dev"


@needs_mounts
@pytest.mark.parametrize("mode", MODES)
def test_dev_shm_of_64_megabytes(mode: str) -> None:
    """With 100 MB to share."""
    code = RUN.format(no_memfd=False, mode=mode, size=MANY)
    assert in_own_process(code, *mounted(SHM_64_MB)) == "True\n"


@needs_mounts
@pytest.mark.parametrize("mode", MODES)
def test_directory_of_64_megabytes(mode: str) -> None:
    """As ``TMPDIR``, without anonymous memory: too small, but that is all."""
    for size, expected in ((SMALL, "True"), (MANY, "OSError [Errno 28] No space left on device")):
        code = RUN.format(no_memfd=True, mode=mode, size=size)
        output = in_own_process(code, *mounted(SHM_64_MB), TMPDIR="/dev/shm")
        assert output.startswith(expected)
        assert output == "True\n" or "TMPDIR" in output


@needs_mounts
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mount", [FULL_SHM, NO_SHM], ids=["full", "none"])
def test_dev_shm_that_is_of_no_use(mount: str, mode: str) -> None:
    """Python's own pools need a few bytes of it for semaphores."""
    code = RUN.format(no_memfd=False, mode=mode, size=SMALL)
    output = in_own_process(code, *mounted(mount))
    assert output == "True\n" or "/dev/shm" in output


@needs_mounts
@pytest.mark.parametrize("mode", MODES)
def test_read_only_directories_for_temporary_files(mode: str) -> None:
    """Of which Python tries several."""
    prefix = mounted("mount -o remount,bind,ro /")
    if can_write(prefix):
        pytest.skip("they are on other file systems")
    output = in_own_process(RUN.format(no_memfd=True, mode=mode, size=SMALL), *prefix)
    assert "No usable temporary directory" in output
    assert "TMPDIR" in output
    output = in_own_process(RUN.format(no_memfd=False, mode=mode, size=SMALL), *prefix)
    assert output == "True\n"


def can_write(prefix: tuple[str, ...]) -> bool:
    code = "import tempfile; tempfile.gettempdir()"
    command = [*prefix, sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# ------------------------------------------------------------------------------ the file itself


def test_nobody_can_shorten_the_anonymous_file() -> None:
    """Reading mapped memory that is gone would kill the process (SIGBUS)."""
    store = transport.Store("test")
    try:
        store.file.write(bytes(10_000))
        store.file.flush()
        if not store.path.startswith("/proc/"):
            pytest.skip("no anonymous memory")
        with pytest.raises(PermissionError):
            os.truncate(store.path, 100)
        with pytest.raises(PermissionError):
            os.ftruncate(store.file.fileno(), 100)
    finally:
        store.close()


def test_files_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", no_memfd, raising=False)
    stores = [transport.Store("test") for _ in range(2)]
    try:
        directories = {os.path.dirname(store.path) for store in stores}
        assert directories == {transport.private_directory()}
        (directory,) = directories
        assert os.stat(directory).st_mode & 0o777 == 0o700
        assert {os.stat(store.path).st_mode & 0o777 for store in stores} == {0o600}
        stores.pop().close()
        assert len(os.listdir(directory)) == 1
    finally:
        for store in stores:
            store.close()
    assert not os.path.exists(directory)


# -------------------------------------------------------------------------------- few open files

FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from pams_parallel import MultiProcessAgentParallelRunner
from runner_support import scripts
from runner_support.scenarios import build, expected_warnings_ignored, give_scripts
from runner_support.scenarios import scripted_settings
class Counting(MultiProcessAgentParallelRunner):
    def _update_markets(self, session):
        super()._update_markets(session)
        counts.append(len(os.listdir("/proc/self/fd")))
if __name__ == "__main__":
    counts = []
    runner = build(Counting, scripted_settings(4, steps={steps}), **{keys})
    with expected_warnings_ignored():
        runner._setup()
        give_scripts(runner, [scripts.draw] * 4)
        runner._run()
    n_replaced = 2  # files of frames that new ones have replaced
    print(len(counts), max(counts[10:]) <= max(counts[:10]) + n_replaced)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize(("mode", "steps"), [("delta", 2000), ("full", 300)])
def test_few_open_files(mode: str, steps: int) -> None:
    """``ulimit -n 64`` is enough, for any number of steps."""
    keys = {"numParallel": 2, "startMethod": "fork", "snapshotMode": mode}
    assert in_own_process(FEW_FILES.format(steps=steps, keys=keys)) == f"{steps} True\n"


def test_too_few_open_files(scripted: Any) -> None:
    """For the pool itself: the error names the limit."""
    code = """
        import os, resource
        from pams_parallel import MultiProcessAgentParallelRunner
        from runner_support.scenarios import build, expected_warnings_ignored, scripted_settings
        runner = build(MultiProcessAgentParallelRunner, scripted_settings(4), numParallel=2)
        n_open = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 2, n_open + 2))
        try:
            with expected_warnings_ignored():
                runner._setup()
        except OSError as error:
            print(error, runner.executor)
    """
    output = in_own_process(code)
    assert "ulimit -n" in output
    assert output.endswith("None\n")

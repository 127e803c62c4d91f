"""Progress bar, Ctrl-C and a reader that goes away."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time

import psutil
import pytest

TIMEOUT = 120

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")


def run_on_a_terminal(script, folder, *arguments):
    import fcntl
    import pty
    import termios

    main_end, terminal = pty.openpty()
    rows_and_columns = struct.pack("HHHH", 25, 80, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, rows_and_columns)
    process = subprocess.Popen(
        [script, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(main_end, 4096):
            shown += chunk
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(main_end)
    output, _ = process.communicate(timeout=TIMEOUT)
    return process.returncode, output, shown.decode()


def test_progress_bar_on_a_terminal(script, folder, write_config):
    code, output, shown = run_on_a_terminal(script, folder, "compare", write_config())

    assert code == 0
    assert "identical" in output
    assert "\r" not in output
    for runner in ("SequentialRunner", "MultiProcessAgentParallelRunner"):
        assert f"{runner}:" in shown
    assert "/8 [" in shown  # of the steps of both sessions


def test_quiet_on_a_terminal(script, folder, write_config):
    code, output, shown = run_on_a_terminal(script, folder, "compare", write_config(), "--quiet")

    assert code == 0
    assert "identical" in output
    assert "/8 [" not in shown


def test_no_progress_bar_elsewhere(command, write_config):
    assert "/8 [" not in command("compare", write_config()).stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ctrl_c(script, folder, write_config, method):
    name = write_config("Slow")
    arguments = ("--class", "my_agents:Slow", "--output", "out.csv", "--start-method", method)
    process = subprocess.Popen(
        [script, "run", name, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + TIMEOUT
        while not (folder / "asked").exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        output, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, errors
    assert output == ""
    assert "pams-parallel: interrupted" in errors
    _, alive = psutil.wait_procs(family, timeout=TIMEOUT)
    assert alive == []
    assert [path.name for path in folder.glob("*.csv*")] == []
    assert [path.name for path in folder.glob(".*.tmp")] == []


def test_reader_that_goes_away(script, folder, write_config):
    process = subprocess.Popen(
        [script, "compare", write_config()],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert process.wait(TIMEOUT) == 1
    assert b"Traceback" not in errors
    assert b"BrokenPipeError" not in errors

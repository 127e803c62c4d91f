"""``pams-parallel`` with the JAX runner."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("flax")

from pams_parallel import examples

SCRIPT = Path(sysconfig.get_path("scripts")) / "pams-parallel"


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_compare(tmp_path: Path) -> None:
    done = command(tmp_path, "compare", "flax", "--runner", "jax", "--steps", "2", "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical" in done.stdout
    assert "JaxAgentParallelRunner" in done.stdout
    assert "2 workers (spawn)" in done.stdout
    assert "os.fork()" not in done.stderr


def test_run_writes_the_same_file_as_the_sequential_runner(tmp_path: Path) -> None:
    for runner in ("sequential", "jax"):
        done = command(
            tmp_path,
            *("run", "flax", "--steps", "2", "--workers", "1", "--runner", runner),
            *("--output", f"{runner}.csv", "--quiet"),
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "jax.csv").read_text() == (tmp_path / "sequential.csv").read_text()
    assert (tmp_path / "jax.csv").read_text().count("\n") > 2


def test_invalid_setting_is_bad_input(tmp_path: Path) -> None:
    config = examples.load("index").config
    config["simulation"]["jaxNumThreads"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    classes = ("--class", "pams_parallel.examples:OptionPricingAgent")
    done = command(
        tmp_path, "compare", "config.json", *classes, "--runner", "jax", "--steps", "1", "--quiet"
    )
    assert done.returncode == 2
    assert "simulation.jaxNumThreads must be" in done.stderr
    assert "Traceback" not in done.stderr

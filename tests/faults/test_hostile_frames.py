"""Hostile frames: an ordinary exception or a usable replica, never a crash, a hang or a glut.

Frames are given to replicas in processes of their own with little memory (hostile_frames.py), so
that a crash is a failed test, and so is a size that is believed without looking. Nearly all frames
have a valid checksum, because the checksum alone would stop all of them. The process asserts what
is documented: after any error the replica has nothing and takes nothing but a keyframe.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

WORKER = pathlib.Path(__file__).with_name("hostile_frames.py")
# What the reconstruction of objects may raise.
ORDINARY = {
    "SnapshotDecodeError",
    "AttributeError",
    "BufferError",
    "EOFError",
    "IndexError",
    "ImportError",
    "KeyError",
    "MemoryError",
    "ModuleNotFoundError",
    "OverflowError",
    "RecursionError",
    "RuntimeError",
    "SystemError",
    "TypeError",
    "UnicodeDecodeError",
    "UnpicklingError",
    "ValueError",
    "accepted",
}


def run_worker(kind: str, seed: int, amount: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(WORKER), kind, str(seed), str(amount)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    outcomes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert set(outcomes) <= ORDINARY
    return outcomes


DAMAGE = ["damage small", "damage odd", "damage stated", "damage pams"]
COMPOSED = ["compose small", "compose odd", "compose stated", "compose pams"]
ORDER = ["order small", "order odd", "order pams"]


def test_every_change_of_a_frame_is_seen_by_the_checksum() -> None:
    assert run_worker("headers", 1, 400) == {"SnapshotDecodeError": 1600}


def test_frames_that_would_do_harm_if_they_were_believed() -> None:
    outcomes = run_worker("single", 0, 0)
    assert outcomes["SnapshotDecodeError"] > 20
    assert outcomes["MemoryError"] == 1


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_frames_with_a_valid_checksum(kind: str) -> None:
    outcomes = run_worker(kind, 2, 1500)
    # Both happen: what is refused, and what is accepted and has to be harmless.
    assert outcomes["SnapshotDecodeError"] > 100
    assert outcomes["accepted"] > 20


@pytest.mark.parametrize("kind", COMPOSED)
def test_frames_that_nobody_has_written(kind: str) -> None:
    outcomes = run_worker(kind, 3, 1500)
    assert outcomes["SnapshotDecodeError"] > 100
    assert outcomes["accepted"] > 20


@pytest.mark.parametrize("kind", ORDER)
def test_frames_in_the_wrong_order(kind: str) -> None:
    outcomes = run_worker(kind, 4, 300)
    assert set(outcomes) == {"SnapshotDecodeError", "accepted"}


@pytest.mark.parametrize("kind", ["numbers", "states", "results"])
def test_damaged_operands_and_results(kind: str) -> None:
    outcomes = run_worker(kind, 5, 800)
    assert outcomes["SnapshotDecodeError"] > 100
    assert outcomes["accepted"] > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("kind", [*DAMAGE, *COMPOSED, "numbers", "states", "results"])
def test_hostile_bytes_at_length(kind: str, seed: int) -> None:
    run_worker(kind, seed, 25_000)

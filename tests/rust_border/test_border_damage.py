"""Damaged snapshots: an ordinary exception or a harmless object, never a crash or a hang.

The decoding happens in processes of their own with little memory (damage_worker.py), so that a
crash is a failed test and a length that is believed without looking is one, too. Most of the
data has a valid checksum, because the checksum alone would stop all of it.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from pams_parallel import snapshot

WORKER = pathlib.Path(__file__).with_name("damage_worker.py")
# What reconstruction may raise.
ORDINARY = {
    "SnapshotDecodeError",
    "AttributeError",
    "EOFError",
    "IndexError",
    "ImportError",
    "KeyError",
    "MemoryError",
    "ModuleNotFoundError",
    "OverflowError",
    "RuntimeError",
    "SystemError",
    "TypeError",
    "UnicodeDecodeError",
    "UnpicklingError",
    "ValueError",
    "loaded",
}


def run_worker(graph: str, kind: str, seed: int = 0, amount: int = 0) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, str(WORKER), graph, kind, str(seed), str(amount)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"
    outcomes = json.loads(done.stdout)
    assert set(outcomes) <= ORDINARY
    assert sum(outcomes.values()) > 100
    return outcomes


@pytest.mark.parametrize("graph", ["natives", "everything"])
@pytest.mark.parametrize(
    "kind", ["header", "flips", "cuts", "removals", "overwrites", "insertions"]
)
def test_damaged_snapshots(graph: str, kind: str) -> None:
    assert run_worker(graph, kind)["SnapshotDecodeError"]


@pytest.mark.parametrize("graph", ["natives", "everything"])
def test_random_changes(graph: str) -> None:
    assert run_worker(graph, "random", seed=1, amount=1500)["SnapshotDecodeError"]


def test_packed_random_states() -> None:
    assert run_worker("natives", "states", seed=1, amount=500)["SnapshotDecodeError"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("graph", ["natives", "everything"])
@pytest.mark.parametrize("kind", ["every_value", "repetitions", "splices"])
def test_damaged_snapshots_at_length(graph: str, kind: str) -> None:
    assert run_worker(graph, kind)["SnapshotDecodeError"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(8))
def test_random_changes_at_length(seed: int) -> None:
    run_worker("natives", "random", seed=100 + seed, amount=60_000)
    run_worker("everything", "random", seed=100 + seed, amount=60_000)
    run_worker("natives", "states", seed=100 + seed, amount=20_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"P",
        b"PPSN",
        bytes(23),
        bytes(24),
        b"\x80\x05]\x94.",  # a pickle
        b"\xff" * 64,
        b"text of some other file" * 10,
    ],
)
def test_foreign_data(data: bytes) -> None:
    for wrapped in (data, bytearray(data), memoryview(data)):
        with pytest.raises(snapshot.SnapshotDecodeError):
            snapshot.loads(wrapped)
        with pytest.raises(snapshot.SnapshotDecodeError):
            snapshot.Decoder(wrapped)


def test_snapshot_of_another_version() -> None:
    data = bytearray(snapshot.dumps([1]))
    data[4] += 1
    with pytest.raises(snapshot.SnapshotDecodeError, match="version"):
        snapshot.loads(data)


def test_damage_is_a_value_error() -> None:
    data = bytearray(snapshot.dumps(["some text", 1.5]))
    data[-2] ^= 1
    with pytest.raises(ValueError, match=r"damaged|checksum"):
        snapshot.loads(data)

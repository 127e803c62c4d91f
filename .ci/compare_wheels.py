"""Compare the speed of two builds: ``compare_wheels.py SITE SITE LARGEST_RATIO``.

Each site is a folder into which a wheel has been installed (``pip install --target``). They are
measured in turn, each time in a process of its own, and the fastest of each counts. Exits with 1 if
the first one takes more than ``LARGEST_RATIO`` times as long as the second one.
"""

from __future__ import annotations

import os
import subprocess
import sys

ROUNDS = 9

# Tuples and arrays: the walk over objects, and hashing, which has a faster path for some CPUs.
SCRIPT = """
import time
import numpy
from pams_parallel import snapshot

def fastest(call):
    def seconds():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    return min(seconds() for _ in range(7))

rows = [(number, number / 7, str(number)) for number in range(100_000)]
data = snapshot.dumps(rows)
assert snapshot.loads(data) == rows
array = numpy.arange(4_000_000.0)
source = snapshot.Source()
source.frame((array,))

print(snapshot.__file__)
print(fastest(lambda: snapshot.dumps(rows)))
print(fastest(lambda: snapshot.loads(data)))
print(fastest(lambda: source.frame((array,))))
"""
MEASURED = ("dumps, 100,000 tuples", "loads, 100,000 tuples", "frame, an array of 32 MB")


def measure(site: str) -> list[float]:
    """Seconds of what is measured, with the build in ``site``."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": site},
        capture_output=True,
        text=True,
        check=True,
    )
    file, *seconds = result.stdout.split()
    assert file.startswith(site), file
    return [float(text) for text in seconds]


def main() -> None:
    """Measure, print a table, and judge."""
    sites, limit = sys.argv[1:3], float(sys.argv[3])
    best = [[float("inf")] * len(MEASURED) for _ in sites]
    for _ in range(ROUNDS):
        for number, site in enumerate(sites):
            best[number] = list(map(min, best[number], measure(site)))
    is_slower = False
    for name, first, second in zip(MEASURED, *best, strict=True):
        ratio = first / second
        is_slower |= ratio > limit
        print(f"{name:26} {first * 1e3:8.2f} ms {second * 1e3:8.2f} ms   ratio {ratio:.2f}")
    sys.exit(is_slower)


if __name__ == "__main__":
    main()

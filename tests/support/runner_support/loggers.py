"""The logger of the tests."""

from __future__ import annotations

from typing import Any

from pams.logs import Logger


class RowLogger(Logger):
    """Keeps one row per log entry, of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[Any, ...]] = []

    def process(self, logs: list[Any]) -> None:
        for log in logs:
            row = [type(log).__name__]
            for name, value in vars(log).items():
                if name != "simulator":
                    row.append(f"{name}={getattr(value, 'name', value)!r}")
            self.rows.append(tuple(row))

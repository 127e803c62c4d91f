"""Fixtures for the tests of faults."""

from __future__ import annotations

from runner_support.fixtures import scripted

__all__ = ["scripted"]

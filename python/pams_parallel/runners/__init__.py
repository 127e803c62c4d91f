"""Runners: the policy of a run, e.g. settings, batches, hooks and warnings."""

from __future__ import annotations

from .deaths import WorkerDiedError
from .jax import JaxAgentParallelRunner
from .process import MultiProcessAgentParallelRunner

__all__ = ["JaxAgentParallelRunner", "MultiProcessAgentParallelRunner", "WorkerDiedError"]

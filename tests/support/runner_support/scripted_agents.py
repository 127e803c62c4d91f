"""Agents whose behaviour a test gives as a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pams.agents import Agent, HighFrequencyAgent

if TYPE_CHECKING:
    from pams import Market


class Scripted(Agent):
    """Calls ``script(agent, markets)``; ``None`` from it stands for no orders.

    ``script`` has to be a function at the top level of an importable module.
    """

    script: Any = None

    def submit_orders(self, markets: list[Market]) -> Any:
        orders = self.script(self, markets) if self.script is not None else None
        return [] if orders is None else orders


class ScriptedHighFrequency(Scripted, HighFrequencyAgent):
    """As :class:`Scripted`, but asked on the main process."""


class Comparable(Scripted):
    """Equal to every agent with the same number."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Agent) and self.agent_id == other.agent_id

    def __hash__(self) -> int:
        return hash(self.agent_id)

"""Faults, where they happen, and agents that have them."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runner_support.scripts import buy

if TYPE_CHECKING:
    from pams import Market

EXIT_CODE = 7
# Longer than any test waits.
FOR_EVER = 3600


class Raised(Exception):
    """What the fault "raise" raises."""


def _raise() -> NoReturn:
    raise Raised("on purpose")


def _exit() -> None:
    os._exit(EXIT_CODE)


def _crash() -> None:
    """Read from address 0, without the report of faulthandler."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FOR_EVER)


def _hang_up() -> None:
    time.sleep(FOR_EVER)


def _hang_up_in_c() -> None:
    """As an extension module that never gives the interpreter back."""
    ctypes.PyDLL(None).sleep(FOR_EVER)


FAULTS = {
    "raise": _raise,
    "exit": _exit,
    "segfault": _crash,
    "SIGKILL": _kill,
    "SIGTERM": _terminate,
    "hang up": _hang_up,
    "hang up in C": _hang_up_in_c,
}

# Exit codes of workers with the faults that end a process.
EXIT_CODES = {"exit": 7, "segfault": -11, "SIGKILL": -9, "SIGTERM": -15}


def is_first(marker: str) -> bool:
    """Whether nobody has called this with the same path before, in any process."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Fault:
    """A fault that happens when it is :meth:`met`.

    Args:
        kind: key of ``FAULTS``.
        marker: path of a file that is made when the fault happens.
        lasting: whether it happens again.
    """

    def __init__(self, kind: str, marker: str, lasting: bool) -> None:
        self.kind = kind
        self.marker = marker
        self.lasting = lasting

    def met(self) -> None:
        if is_first(self.marker) or self.lasting:
            FAULTS[self.kind]()


class Trap:
    """Has a fault when it is pickled or unpickled.

    Args:
        phase: ``"pickle"``, on the process that has made it; ``"unpickle"``, on another one;
            ``"return"``: when it is pickled on another process.
        fault: the fault.
    """

    def __init__(self, phase: str, fault: Fault, home: int | None = None) -> None:
        self.phase = phase
        self.fault = fault
        self.home = os.getpid() if home is None else home

    def __reduce__(self) -> Any:
        is_home = os.getpid() == self.home
        if self.phase == ("pickle" if is_home else "return"):
            self.fault.met()
        return _open_trap, (self.phase, self.fault, self.home)


def _open_trap(phase: str, fault: Fault, home: int) -> Trap:
    if phase == "unpickle" and os.getpid() != home:
        fault.met()
    return Trap(phase, fault, home)


def meet_fault(agent: Any, markets: list[Market]) -> Any:
    """Script of an agent with a fault."""
    agent.fault.met()
    return buy(agent, markets)


def set_trap(runner: Any, phase: str, fault: Fault, number: int) -> None:
    """Let an agent, which lists ``trap``, have a fault.

    Args:
        runner: runner that has been set up.
        phase: ``"run"``, or as for :class:`Trap`.
        fault: the fault.
        number: number of the agent.
    """
    agent = runner.simulator.agents[number]
    if phase == "run":
        agent.fault = fault
        agent.script = meet_fault
    else:
        agent.trap = Trap(phase, fault)

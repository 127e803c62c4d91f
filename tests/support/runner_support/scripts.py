"""Scripts of :class:`~runner_support.scripted_agents.Scripted` that several tests share.

State of a worker process lies in module variables here.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pams.order import LIMIT_ORDER, Order

from . import initializers

if TYPE_CHECKING:
    from pams import Market

CALLS: list[int] = []


def limit_order(agent: Any, price: float, is_buy: bool = True, **settings: Any) -> Order:
    return Order(
        agent_id=settings.pop("agent_id", agent.agent_id),
        market_id=agent.simulator.markets[0].market_id,
        is_buy=is_buy,
        kind=LIMIT_ORDER,
        volume=settings.pop("volume", 1),
        price=price,
        **settings,
    )


def buy(agent: Any, markets: list[Market]) -> list[Order]:
    """Submit a buy order that meets no sell order."""
    agent.prng.random()
    return [limit_order(agent, 290.0)]


def two_orders(agent: Any, markets: list[Market]) -> list[Order]:
    return [*buy(agent, markets), *buy(agent, markets)]


def draw(agent: Any, markets: list[Market]) -> None:
    """Draw a random number and submit nothing."""
    agent.prng.random()


def count_call(agent: Any, markets: list[Market]) -> None:
    """Note the call in the process in which it happens, and how many there were in it."""
    CALLS.append(agent.agent_id)
    agent.calls_so_far = len(CALLS)
    agent.pid = os.getpid()


def count_call_and_buy_if_even(agent: Any, markets: list[Market]) -> list[Order]:
    CALLS.append(agent.agent_id)
    return buy(agent, markets) if agent.agent_id % 2 == 0 else []


PROCESS_NAMES = ("pid", "process_type", "on_main_thread")


def report_process(agent: Any, markets: list[Market]) -> None:
    agent.pid = os.getpid()
    agent.process_type = type(multiprocessing.current_process()).__name__
    agent.on_main_thread = threading.current_thread() is threading.main_thread()


def report_process_and_buy(agent: Any, markets: list[Market]) -> list[Order]:
    report_process(agent, markets)
    return buy(agent, markets)


def report_initialization(agent: Any, markets: list[Market]) -> None:
    """Tell what the worker initializer has left in this process."""
    time.sleep(0.02)  # time for every worker to get a task
    agent.pid = os.getpid()
    agent.thread = threading.get_ident()
    agent.initializations = list(initializers.STATE.calls)
    agent.initialized_threads = list(initializers.STATE.threads)


def use_process_model(agent: Any, markets: list[Market]) -> None:
    agent.limit = initializers.process_model().limit


def report_open_files(agent: Any, markets: list[Market]) -> None:
    agent.open_files.append((os.getpid(), len(os.listdir("/proc/self/fd"))))


def report_memory(agent: Any, markets: list[Market]) -> None:
    """Note the resident memory of the process, in bytes, and leave garbage in cycles."""
    garbage = [bytes(100_000)]
    garbage.append(garbage)  # type: ignore[arg-type]
    agent.memory.append(psutil.Process().memory_info().rss)


def wait_for_marker(agent: Any, markets: list[Market]) -> None:
    """Return once the file ``agent.marker`` exists."""
    wait_for(agent.marker)


def make_marker(agent: Any, markets: list[Market]) -> None:
    """Create the file ``agent.marker``."""
    agent.prng.random()
    Path(agent.marker).touch()


def wait_for(path: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} has not been made")
        time.sleep(0.01)

"""Executors of a user's own."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class InlineExecutor(Executor):
    """Runs every task within ``submit``, on the thread of the caller."""

    def __init__(self) -> None:
        self.submitted = 0
        self.shutdowns = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.shutdowns += 1


class PicklingExecutor(InlineExecutor):
    """Sends tasks and results through pickle, as executors for other machines do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        fn, args, kwargs = pickle.loads(pickle.dumps((fn, args, kwargs)))
        return super().submit(_pickled, fn, args, kwargs)


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return pickle.loads(pickle.dumps(fn(*args, **kwargs)))


class DelegatingExecutor(Executor):
    """Runs its tasks in a process pool without being one."""

    def __init__(self, workers: int, start_method: str) -> None:
        self._pool = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context(start_method)
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=cancel_futures)


class MeddlingPool(ProcessPoolExecutor):
    """As :class:`MeddlingExecutor`, with worker processes."""

    meddle: Callable[[int], None]
    submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.meddle(self.submitted)
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


class MeddlingExecutor(InlineExecutor):
    """Changes something between the tasks of a batch, as another thread of the user might.

    Args:
        meddle: called before each task is run, with the number of tasks so far.
    """

    def __init__(self, meddle: Callable[[int], None]) -> None:
        super().__init__()
        self._meddle = meddle

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._meddle(self.submitted)
        return super().submit(fn, *args, **kwargs)


class CountingPool(ProcessPoolExecutor):
    """Remembers how it has been made and which pools there are."""

    made: list[CountingPool] = []  # noqa: RUF012 - one list for all, cleared by the tests

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = (args, kwargs)
        self.submitted = 0
        self.made.append(self)
        super().__init__(*args, **kwargs)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)

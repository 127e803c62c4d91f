"""The warning about changes of attributes that are not listed, and so are lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from .batches import Answers


class LostChanges:
    """Warns once of each attribute of a class.

    Args:
        runner_name: name of the runner's class.
    """

    def __init__(self, runner_name: str) -> None:
        self._runner_name = runner_name
        # Pairs of an agent class and an attribute name that have been warned about.
        self._warned: set[tuple[type, str]] = set()

    def warn_of(self, answers: Iterable[Answers], stacklevel: int) -> None:
        """Warn of what the agents of a batch have changed in vain.

        Args:
            answers: answers of all chunks.
            stacklevel: as for :func:`warnings.warn`, seen from the caller.
        """
        names_by_class: dict[type, set[str]] = {}
        for answer in answers:
            for position, names in answer.lost:
                cls = type(answer.agents[position])
                new = {name for name in names if (cls, name) not in self._warned}
                if new:
                    names_by_class.setdefault(cls, set()).update(new)
        for cls, new in names_by_class.items():
            self._warned.update((cls, name) for name in new)
            warnings.warn(
                "Changes to attributes not listed in synced_attributes are lost: "
                f"{cls.__name__} assigned or deleted {', '.join(map(repr, sorted(new)))} in "
                f"submit_orders on a worker process of {self._runner_name}. List them in "
                f"{cls.__name__}.synced_attributes to keep the changes.",
                stacklevel=stacklevel + 1,
            )

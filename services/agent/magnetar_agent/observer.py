"""What models hold some time after their load, where each has processes of its own: a cache grows, a graph is compiled.

Of a server that holds all its models in one process nobody can say which of them grew; there is nothing to observe then.
"""

from collections.abc import Callable, Iterable, Mapping

from magnetar_agent.ledger import VersionKey
from magnetar_events.models import served_name
from magnetar_events.reports import ModelMemory

OF_THE_DEVICE, OF_THE_SIZE = 20, 10
"""Growth is told when it is more than a twentieth of the device, or more than a tenth of what was told last."""

MOST = 1_000
"""Versions and devices told in one report."""


class Observer:
    """Looks at what is held, and remembers what it told; for one thread.

    Args:
        held: returns device → bytes of the processes that serve a model (by its name in the server) alone.
    """

    def __init__(self, held: Callable[[str], Mapping[str, int]]) -> None:
        self._held = held
        self._told: dict[VersionKey, dict[str, int]] = {}

    def look(self, loaded: Iterable[VersionKey], totals: Mapping[str, int]) -> tuple[ModelMemory, ...]:
        """Return what grew since it was told last.

        Args:
            loaded: versions that answer; what was told of others is forgotten.
            totals: device → its bytes.
        """
        self._told = {key: self._told.get(key, {}) for key in sorted(loaded)}
        found: list[ModelMemory] = []
        for (model, generation), told in self._told.items():
            for device, size in self._held(served_name(model, generation)).items():
                before = told.get(device, 0)
                worth = min(totals.get(device, 0) // OF_THE_DEVICE, before // OF_THE_SIZE)
                if size > before + worth and len(found) < MOST:
                    told[device] = size
                    found.append(ModelMemory(model=model, generation=generation, device=device, observed=size))
        return tuple(found)

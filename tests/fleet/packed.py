"""For comparison: the tightest fit over devices. It says what of a stream can be placed at all by who sees devices.

It knows what each device has left, takes no device that is wholly free while another will do, and of those the tightest.
Everything else is the baseline's. It is no goal for Magnetar, whose first wish is to spread the load; it is a measure of
the stream.
"""

from tests.fleet.stream import Wish
from tests.fleet.totals import Job, Totals
from tests.fleet.world import Machine, World


class Packed(Totals):
    """The tightest fit first."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._left: dict[int, list[int]] = {}
        self._on: dict[tuple[str, int, int], tuple[int, ...]] = {}

    def joined(self, machine: Machine) -> None:
        self._left[machine.number] = [machine.kind.memory] * machine.kind.devices
        super().joined(machine)

    def lost(self, machine: Machine) -> None:
        for key in [key for key in self._on if key[2] == machine.number]:
            del self._on[key]
        super().lost(machine)

    def _choose(self, job: Job, generation: int) -> int | None:
        found = (
            (*fit, number)
            for number in self._free
            if (generation, number) not in job.places
            and number not in job.tried.get(generation, ())
            and (fit := self._fit(job.wish, number)) is not None
        )
        best = min(found, default=None)
        if best is None:
            return None
        number, wish = best[-1], job.wish
        devices = self._on[wish.name, generation, number] = self._devices(wish, number)
        for n in devices:
            self._left[number][n] -= wish.memory
        return number

    def _fit(self, wish: Wish, number: int) -> tuple[int, int] | None:
        """Return (wholly free devices that it would open, what would be left on the chosen ones)."""
        kind, left = self._world.machines[number].kind, self._left[number]
        if wish.gpu_types and kind.gpu_type not in wish.gpu_types:
            return None
        rooms = sorted(room for room in left if room >= wish.memory)[: wish.devices]
        if len(rooms) < wish.devices:
            return None
        return sum(room == kind.memory for room in rooms), sum(rooms)

    def _devices(self, wish: Wish, number: int) -> tuple[int, ...]:
        left = self._left[number]
        fitting = sorted((room, n) for n, room in enumerate(left) if room >= wish.memory)
        return tuple(n for _, n in fitting[: wish.devices])

    def _load(self, job: Job, machine: Machine, generation: int) -> None:
        self._load_on(job, machine, generation, self._on[job.wish.name, generation, machine.number])

    def _forget(self, job: Job, place: tuple[int, int]) -> None:
        super()._forget(job, place)
        for n in self._on.pop((job.wish.name, *place)):
            self._left[place[1]][n] += job.wish.memory

"""The baseline: a placement that knows of a server one number, its free memory in total.

It is what Seldon Core 2's scheduler does: a server replica passes if its available memory, less what is reserved, is at
least what the model requires (``filters/replicamemory.go``), and the one with the most available memory comes first
(``sorters/replicamemory.go``). What a server has is the sum over its devices, what a model requires the sum over its.

It is given what helps it:

- It sends no model where it could not run even alone: too few devices, devices too small, the wrong type.
- It reserves at the moment of the decision, and counts what it reserved exactly: it never over-books a sum.
- The server chooses the devices with the most room: if any choice of devices holds the model, this one does.
- A load that fails is retried like Magnetar's: on other servers, ``SERVERS`` at most, then the version is failed; and
  again from the start whenever a server joins. What found no server waits, and is tried again whenever memory is freed.
- Rollouts, replicas and losses are handled as Magnetar handles them: the new version is ready before the old one leaves.
"""

from dataclasses import dataclass, field

from magnetar_events.policy import Policy as Rules
from tests.fleet.stream import Wish
from tests.fleet.world import Machine, World

SERVERS = Rules().load_servers
ATTEMPTS = Rules().load_attempts


@dataclass(slots=True)
class Job:
    """What it knows of a model.

    Attributes:
        wish: what is wanted.
        generation: the wanted version.
        serving: the version that was whole last; 0 = none yet.
        places: (generation, server) → whether it is ready there.
        leaving: those that are on their way out.
        tried: generation → servers on which its load failed.
        attempts: (generation, server) → loads begun there.
        failed: generations given up.
    """

    wish: Wish
    generation: int = 1
    serving: int = 0
    places: dict[tuple[int, int], bool] = field(default_factory=dict[tuple[int, int], bool])
    leaving: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    tried: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    attempts: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    failed: set[int] = field(default_factory=set[int])
    gone: bool = False


class Totals:
    """The most free memory in total first."""

    def __init__(self, world: World, *, servers: int = SERVERS) -> None:
        self._world = world
        self._servers = servers
        self._free: dict[int, int] = {}
        """Server that is there → its memory, less what is reserved."""
        self._jobs: dict[str, Job] = {}
        self._waiting: dict[str, None] = {}
        self.decisions = 0

    def want(self, wish: Wish, generation: int) -> None:
        job = self._jobs.setdefault(wish.name, Job(wish))
        job.generation = generation
        self._settle(job)

    def withdraw(self, wish: Wish) -> None:
        job = self._jobs[wish.name]
        job.gone = True
        self._waiting.pop(wish.name, None)
        self._settle(job)

    def joined(self, machine: Machine) -> None:
        self.lost(machine)  # whatever it held before: it is another life
        self._free[machine.number] = machine.kind.devices * machine.kind.memory
        for job in list(self._jobs.values()):
            if job.failed:
                job.failed.clear()
                job.tried.clear()
                self._settle(job)
        self._room()

    def lost(self, machine: Machine) -> None:
        self._free.pop(machine.number, None)
        hit: list[Job] = []
        for job in self._jobs.values():
            here = [place for place in job.places if place[1] == machine.number]
            for place in here:
                del job.places[place]
                job.leaving.discard(place)
            if here:
                hit.append(job)
        for job in hit:
            self._settle(job)

    def heard(self, machine: Machine) -> None:
        """Readings tell it nothing: what is reserved is never less than what is used."""

    def loaded(self, machine: Machine, wish: Wish, generation: int) -> None:
        job = self._jobs[wish.name]
        job.places[generation, machine.number] = True
        self._settle(job)

    def load_failed(self, machine: Machine, wish: Wish, generation: int, *, memory: bool) -> None:
        job, place = self._jobs[wish.name], (generation, machine.number)
        if not memory and job.attempts[place] < ATTEMPTS:
            self._load(job, machine, generation)
            return
        self._forget(job, place)
        tried = job.tried.setdefault(generation, set())
        tried.add(machine.number)
        if len(tried) >= self._servers:
            job.failed.add(generation)
        self._settle(job)
        self._room()

    def unloaded(self, machine: Machine, wish: Wish, generation: int) -> None:
        job = self._jobs[wish.name]
        self._forget(job, (generation, machine.number))
        self._settle(job)
        self._room()

    def next_due(self) -> int:
        return 0

    def due(self) -> None:
        raise AssertionError

    # --- one model ----------------------------------------------------------------------------------------------------

    def _settle(self, job: Job) -> None:
        """Bring a model towards what is wanted of it."""
        self.decisions += 1
        kept = () if job.gone else (job.generation, job.serving)
        for generation in dict.fromkeys(kept):
            if generation:
                self._fill(job, generation)
        if not job.gone and sum(job.places[p] for p in self._live(job, job.generation)) >= job.wish.replicas:
            job.serving = job.generation
            kept = (job.generation,)
        for place in list(job.places):
            if place[0] not in kept and place not in job.leaving:
                job.leaving.add(place)
                self._world.unload(self._world.machines[place[1]], job.wish, place[0])
        if job.gone and not job.places:
            del self._jobs[job.wish.name]

    def _fill(self, job: Job, generation: int) -> None:
        wish = job.wish
        while len(self._live(job, generation)) < wish.replicas and generation not in job.failed:
            number = self._choose(job, generation)
            if number is None:
                if job.tried.get(generation):
                    job.failed.add(generation)  # as Magnetar: no place is left that was not tried
                else:
                    self._waiting[wish.name] = None
                return
            self._free[number] -= wish.devices * wish.memory
            self._load(job, self._world.machines[number], generation)

    def _live(self, job: Job, generation: int) -> list[tuple[int, int]]:
        return [place for place in job.places if place[0] == generation and place not in job.leaving]

    def _load(self, job: Job, machine: Machine, generation: int) -> None:
        self._load_on(job, machine, generation, None)

    def _load_on(self, job: Job, machine: Machine, generation: int, devices: tuple[int, ...] | None) -> None:
        place = (generation, machine.number)
        job.places[place] = False
        job.attempts[place] = job.attempts.get(place, 0) + 1
        self._world.load(machine, job.wish, generation, devices)

    def _forget(self, job: Job, place: tuple[int, int]) -> None:
        del job.places[place]
        job.leaving.discard(place)
        job.attempts.pop(place, None)
        self._free[place[1]] += job.wish.devices * job.wish.memory

    # --- servers ------------------------------------------------------------------------------------------------------

    def _choose(self, job: Job, generation: int) -> int | None:
        wish, machines = job.wish, self._world.machines
        need, tried = wish.devices * wish.memory, job.tried.get(generation, ())
        best: int | None = None
        for number, free in self._free.items():
            if free < need or (best is not None and (-free, number) >= (-self._free[best], best)):
                continue
            kind = machines[number].kind
            if kind.devices < wish.devices or kind.memory < wish.memory:
                continue
            if wish.gpu_types and kind.gpu_type not in wish.gpu_types:
                continue
            if (generation, number) not in job.places and number not in tried:
                best = number
        return best

    def _room(self) -> None:
        """Try again what waits, the longest waiting first."""
        most = max(self._free.values(), default=0)
        for name in list(self._waiting):
            job = self._jobs[name]
            if job.wish.devices * job.wish.memory <= most:
                del self._waiting[name]
                self._settle(job)

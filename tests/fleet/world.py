"""The world: servers that hold models on their devices, and answer. It runs a stream under a policy, event by event.

The physics are the same whoever places: a load takes time and memory on one device or several, all or nothing, and fails
where a device does not have it; an unload gives the memory back; a server that dies loses all, and comes back empty. What
is measured is taken from here, never from what a policy believes.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from tests.fleet.stream import LOAD_BYTES, LOAD_FAILS, LOAD_MS, MINUTE, SECOND, WARM_UP, Kind, Stream, Wish

HEARTBEAT_MS = 3 * SECOND

NEWS = 3
"""After a change so many heartbeats tell of it: the first may be too early to be believed. The others say nothing new."""

LEASE_MS = 9 * SECOND
UNLOAD_MS = 2 * SECOND
SAMPLE_MS = 30 * MINUTE

Version = tuple[str, int]
"""(model, generation)."""


@dataclass(slots=True)
class Machine:
    """A server, as it really is.

    Attributes:
        number: its index.
        kind: its accelerators.
        alive: whether it is.
        life: how often it came up.
        free: bytes by device.
        held: what takes memory, loaded or loading: version → devices.
        ready: what answers.
        mourned: what answered when it died, as long as nobody can know that it did.
        doing: version → number of the load or unload in progress.
        beats: heartbeats with news that are still to come.
        before: bytes by device that were free before the last unload ended.
    """

    number: int
    kind: Kind
    free: list[int]
    alive: bool = True
    life: int = 1
    held: dict[Version, tuple[int, ...]] = field(default_factory=dict[Version, tuple[int, ...]])
    ready: dict[Version, None] = field(default_factory=dict[Version, None])
    mourned: tuple[Version, ...] = ()
    doing: dict[Version, int] = field(default_factory=dict[Version, int])
    beats: int = 0
    before: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Unique, and in order."""
        return f"s{self.number:04d}"


@dataclass(slots=True)
class Hit:
    """A model of which a replica died with its server.

    Attributes:
        model: name.
        at: when.
        whole_at: when all its replicas were ready again; 0 = not yet.
    """

    model: str
    at: int
    whole_at: int = 0


class Policy(Protocol):
    """Who places. It commands by :meth:`World.load` and :meth:`World.unload`; each is answered once, unless the server dies."""

    decisions: int

    def want(self, wish: Wish, generation: int) -> None:
        """A model is wanted (generation 1), or a new version of it."""

    def withdraw(self, wish: Wish) -> None:
        """A model is no longer wanted."""

    def joined(self, machine: Machine) -> None:
        """A server is there, empty."""

    def lost(self, machine: Machine) -> None:
        """A server has been silent for the length of a lease."""

    def heard(self, machine: Machine) -> None:
        """A heartbeat with other readings than the last."""

    def loaded(self, machine: Machine, wish: Wish, generation: int) -> None:
        """A load succeeded."""

    def load_failed(self, machine: Machine, wish: Wish, generation: int, *, memory: bool) -> None:
        """A load failed; ``memory``: because a device did not have it."""

    def unloaded(self, machine: Machine, wish: Wish, generation: int) -> None:
        """An unload is done."""

    def next_due(self) -> int:
        """When it next wants to be asked; 0 = never."""
        ...

    def due(self) -> None:
        """That time has come."""


@dataclass(slots=True)
class Seen:
    """What happened, for the measures.

    Attributes:
        whole_at: version → when all its replicas were ready for the first time.
        served_at_rollout: version → whether another version of the model was ready when it was wanted.
        loads: version → loads commanded.
        memory_failures: version → loads that failed for memory.
        hit: models of which a replica died with its server.
        gaps: replicas taken away while wanted, though no other one of the model was ready, as far as anybody could know.
        samples: (at, share of the living servers' memory in use, free bytes by device of each living server).
    """

    whole_at: dict[Version, int] = field(default_factory=dict[Version, int])
    served_at_rollout: dict[Version, bool] = field(default_factory=dict[Version, bool])
    loads: dict[Version, int] = field(default_factory=dict[Version, int])
    memory_failures: dict[Version, int] = field(default_factory=dict[Version, int])
    hit: list[Hit] = field(default_factory=list[Hit])
    gaps: int = 0
    samples: list[tuple[float, list[list[int]]]] = field(default_factory=list[tuple[float, list[list[int]]]])


class World:
    """A fleet under a stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at = 0
        self.machines = [Machine(n, kind, [kind.memory] * kind.devices) for n, kind in enumerate(stream.servers)]
        self.wishes = {wish.name: wish for wish in stream.wishes}
        self.wanted: dict[str, int] = {}
        """Model → the generation that is wanted of it now."""
        self.seen = Seen()
        self._ready: dict[str, dict[int, int]] = {}
        self._hit: dict[str, Hit] = {}
        self._events: list[tuple[int, int, str, tuple[object, ...]]] = []
        self._number = 0
        self._random = Random(stream.seed + 1)
        self.policy: Policy

    # --- for the policy -----------------------------------------------------------------------------------------------

    def load(self, machine: Machine, wish: Wish, generation: int, devices: tuple[int, ...] | None) -> None:
        """Command a load on these devices; None: the server takes those with the most room, as inference servers do."""
        version = (wish.name, generation)
        if not machine.alive:
            return
        attempt = self.seen.loads[version] = self.seen.loads.get(version, 0) + 1
        random = Random(f"{self.stream.seed}/{version}/{attempt}")
        takes = max(5 * SECOND, int(LOAD_MS * wish.memory / LOAD_BYTES * random.uniform(0.8, 1.2)))
        if devices is None:
            roomiest = sorted(range(len(machine.free)), key=lambda n: (-machine.free[n], n))
            devices = tuple(roomiest[: wish.devices])
        fits = len(devices) == wish.devices and all(machine.free[n] >= wish.used for n in devices)
        if not fits:
            self._do(machine, version, takes // 2, "_memory_is_short")
            return
        machine.held[version] = devices
        for n in devices:
            machine.free[n] -= wish.used
        fails = random.random() < LOAD_FAILS
        self._do(machine, version, takes // 2 if fails else takes, "_load_fails" if fails else "_load_ends")

    def unload(self, machine: Machine, wish: Wish, generation: int) -> None:
        """Command an unload; a load in progress is given up for it."""
        version = (wish.name, generation)
        if not machine.alive:
            return
        if version in machine.ready:
            self._no_longer_ready(machine, version)
            if wish.name in self.wanted and not self._ready.get(wish.name) and not self._mourned(wish.name):
                self.seen.gaps += 1
        self._do(machine, version, UNLOAD_MS, "_unload_ends")

    def _mourned(self, name: str) -> bool:
        """Whether a server has just died that had a replica of a model ready, and is still taken for alive."""
        return any(model == name for machine in self.machines for model, _ in machine.mourned)

    # --- events -------------------------------------------------------------------------------------------------------

    def run(self, policy: Policy) -> Seen:
        """Let it all happen, and return what was seen."""
        self.policy = policy
        for machine in self.machines:
            policy.joined(machine)
        for wish in self.stream.wishes:
            self._later(wish.at, "_arrive", wish)
        for outage in self.stream.outages:
            self._later(outage.at, "_die", self.machines[outage.server])
            self._later(outage.until, "_come_back", self.machines[outage.server])
        for at in range(WARM_UP, self.stream.end + 1, SAMPLE_MS):
            self._later(at, "_sample")
        while self._events and self._events[0][0] <= self.stream.end:
            due = policy.next_due()
            if 0 < due <= self._events[0][0]:
                self.at = max(self.at, due)
                policy.due()
                continue
            self.at, _, what, about = heappop(self._events)
            getattr(self, what)(*about)
        return self.seen

    def _later(self, at: int, what: str, *about: object) -> None:
        self._number += 1
        heappush(self._events, (at, self._number, what, about))

    def _arrive(self, wish: Wish) -> None:
        self.wanted[wish.name] = 1
        self._later(wish.until, "_leave", wish)
        for n, at in enumerate(wish.rollouts):
            self._later(at, "_roll", wish, n + 2)
        self.policy.want(wish, 1)

    def _leave(self, wish: Wish) -> None:
        del self.wanted[wish.name]
        self._hit.pop(wish.name, None)
        self.policy.withdraw(wish)

    def _roll(self, wish: Wish, generation: int) -> None:
        self.wanted[wish.name] = generation
        self.seen.served_at_rollout[wish.name, generation] = bool(self._ready.get(wish.name))
        self.policy.want(wish, generation)

    def _die(self, machine: Machine) -> None:
        machine.alive = False
        machine.mourned = tuple(machine.ready)
        hit = {name: None for name, _ in machine.ready}
        for version in list(machine.ready):
            self._no_longer_ready(machine, version)
        for name in hit:
            if name in self.wanted and name not in self._hit:
                self._hit[name] = Hit(name, self.at)
                self.seen.hit.append(self._hit[name])
        machine.held.clear()
        machine.doing.clear()
        machine.free = [machine.kind.memory] * machine.kind.devices
        self._later(self.at + LEASE_MS, "_lapse", machine, machine.life)

    def _lapse(self, machine: Machine, life: int) -> None:
        if not machine.alive and machine.life == life:
            machine.mourned = ()
            self.policy.lost(machine)

    def _come_back(self, machine: Machine) -> None:
        machine.alive, machine.beats, machine.mourned = True, 0, ()
        machine.life += 1
        self.policy.joined(machine)

    def _beat(self, machine: Machine, life: int) -> None:
        if machine.alive and machine.life == life:
            machine.beats -= 1
            self.policy.heard(machine)
            if machine.beats:
                self._later(self.at + HEARTBEAT_MS, "_beat", machine, life)

    def _sample(self) -> None:
        alive = [machine for machine in self.machines if machine.alive]
        memory = sum(machine.kind.devices * machine.kind.memory for machine in alive)
        free = [list(machine.free) for machine in alive]
        self.seen.samples.append((1 - sum(map(sum, free)) / memory, free))

    # --- loads and unloads --------------------------------------------------------------------------------------------

    def _do(self, machine: Machine, version: Version, takes: int, ends: str) -> None:
        self._number += 1
        machine.doing[version] = self._number
        self._later(self.at + takes, "_done", machine, version, self._number, ends)

    def _done(self, machine: Machine, version: Version, number: int, ends: str) -> None:
        if machine.doing.get(version) != number:
            return  # given up, or the server died
        del machine.doing[version]
        self._changed(machine)
        getattr(self, ends)(machine, version)

    def _load_ends(self, machine: Machine, version: Version) -> None:
        name, generation = version
        machine.ready[version] = None
        ready = self._ready.setdefault(name, {})
        ready[generation] = ready.get(generation, 0) + 1
        wish = self.wishes[name]
        if ready[generation] >= wish.replicas:
            self.seen.whole_at.setdefault(version, self.at)
            if name in self._hit:
                self._hit.pop(name).whole_at = self.at
        self.policy.loaded(machine, wish, generation)

    def _load_fails(self, machine: Machine, version: Version) -> None:
        self._give_back(machine, version)
        self.policy.load_failed(machine, self.wishes[version[0]], version[1], memory=False)

    def _memory_is_short(self, machine: Machine, version: Version) -> None:
        self.seen.memory_failures[version] = self.seen.memory_failures.get(version, 0) + 1
        self.policy.load_failed(machine, self.wishes[version[0]], version[1], memory=True)

    def _unload_ends(self, machine: Machine, version: Version) -> None:
        machine.before = tuple(machine.free)
        self._give_back(machine, version)
        self.policy.unloaded(machine, self.wishes[version[0]], version[1])

    def _give_back(self, machine: Machine, version: Version) -> None:
        for n in machine.held.pop(version, ()):
            machine.free[n] += self.wishes[version[0]].used

    def _no_longer_ready(self, machine: Machine, version: Version) -> None:
        del machine.ready[version]
        name, generation = version
        ready = self._ready[name]
        ready[generation] -= 1
        if not ready[generation]:
            del ready[generation]
        if not ready:
            del self._ready[name]

    def _changed(self, machine: Machine) -> None:
        if not machine.beats:
            phase = machine.number * HEARTBEAT_MS // len(self.machines)
            ahead = (phase - self.at) % HEARTBEAT_MS or HEARTBEAT_MS
            self._later(self.at + ahead, "_beat", machine, machine.life)
        machine.beats = NEWS

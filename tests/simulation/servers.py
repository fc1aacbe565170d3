"""What the agents stand beside: simulated inference servers on hosts with devices, and a store of artifacts."""

from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from random import Random

from magnetar_agent.adapters.base import (
    Code,
    IndexEntry,
    IndexState,
    LoadFailed,
    LoadResult,
    ModelSpec,
    ServerUnreachable,
    UnloadFailed,
)
from magnetar_agent.artifacts import ArtifactError, FetchedArtifact
from magnetar_agent.devices import DeviceReading
from tests.simulation.runtime import Hub

MIB = 2**20


class Host:
    """A machine: its devices are shared by every server on it.

    Attributes:
        totals: device → bytes.
        used: device → bytes that are really taken.
    """

    def __init__(self, name: str, totals: dict[str, int]) -> None:
        self.name = name
        self.totals = totals
        self.used = dict.fromkeys(totals, 0)

    def read(self) -> list[DeviceReading]:
        """Return what the devices say now."""
        return [
            DeviceReading(
                uuid,
                "cpu" if uuid == "cpu" else "gpu",
                name="cpu" if uuid == "cpu" else "SIM-GPU",
                total_bytes=total,
                free_bytes=max(0, total - self.used[uuid]),
                largest_free_bytes=max(0, total - self.used[uuid]),
                utilisation=0.1,
            )
            for uuid, total in sorted(self.totals.items(), key=lambda item: (item[0] == "cpu", item[0]))
        ]


class HostDevices:
    """``Devices`` of an agent."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, ours: Collection[int] = ()) -> list[DeviceReading]:
        return self._host.read()

    def close(self) -> None:
        return


GREED = 1.5
"""What a greedy model takes of an accelerator, as a multiple of what is declared."""


class Habits:
    """What servers do with the memory of accelerators that nobody told them to do; the same all through a run.

    Attributes:
        greedy: chance that a model takes more than is declared; each always does, or never.
        late: chance that what is unloaded is given back a while later.
        never: chance that it is not, before the server ends.
    """

    def __init__(self, greedy: float = 0.0, late: float = 0.0, never: float = 0.0) -> None:
        self.greedy = greedy
        self.late = late
        self.never = never

    def takes(self, spec: ModelSpec) -> dict[str, int]:
        """Return what a model really takes of each device."""
        greedy = int(sha256(spec.name.encode()).hexdigest()[:4], 16) < self.greedy * 0x10000
        size = spec.memory_bytes
        return {device: int(size * GREED) if greedy and device != "cpu" else size for device in spec.devices}


class _Held:
    """A model in a server."""

    def __init__(self, spec: ModelSpec, takes: dict[str, int]) -> None:
        self.spec = spec
        self.state = IndexState.LOADING
        self.takes = takes
        self.error: LoadFailed | None = None


class SimServer:
    """An inference server. What it was told goes on when the agent that told it dies.

    Attributes:
        models: its index.
        up: it answers.
        busy: it takes questions and is silent.
        trouble: chance that a load fails for a reason that may pass.
        ever: served name → when it was last loaded (virtual seconds).
        gone: served name → when it was last lost or unloaded.
        habits: what it does with memory.
        kept: device → bytes of what was unloaded that it did not give back.
    """

    def __init__(self, hub: Hub, name: str, host: Host, seed: str, habits: Habits | None = None) -> None:
        self.hub = hub
        self.name = name
        self.host = host
        self.models: dict[str, _Held] = {}
        self.up = True
        self.lives = 0
        self.busy = False
        self.trouble = 0.0
        self.slowness = 1.0
        self.ever: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self.habits = habits or Habits()
        self.kept = dict.fromkeys(host.totals, 0)
        self._random = Random(f"{seed}/server/{name}")
        self._memory = Random(f"{seed}/memory/{name}")

    def begin_load(self, spec: ModelSpec) -> _Held:
        """Take up a load, or find the one that is under way."""
        held = self.models.get(spec.name)
        if held is None:
            held = self.models[spec.name] = _Held(spec, self.habits.takes(spec))
            seconds = self._random.uniform(0.05, 1.5) * self.slowness
            self.hub.note(self.name, "loads", model=spec.name, seconds=round(seconds, 2))
            self.hub.after(seconds, self._end_load, held)
        return held

    def _end_load(self, held: _Held) -> None:
        name = held.spec.name
        if self.models.get(name) is not held:
            return
        full = [d for d, n in held.takes.items() if self.host.used[d] + n > self.host.totals[d]]
        if full:
            self._fail(held, Code.LOAD_FAIL_MEMORY, f"device {full[0]} is full")
        elif self._random.random() < self.trouble:
            self._fail(held, Code.LOAD_FAILED, "a licence server did not answer")
        else:
            for device, amount in held.takes.items():
                self.host.used[device] += amount
            held.state = IndexState.READY
            self.ever[name] = self.hub.now
            self.hub.note(self.name, "holds", model=name)

    def _fail(self, held: _Held, code: Code, message: str) -> None:
        held.error = LoadFailed(code, message)
        held.state = IndexState.UNAVAILABLE
        del self.models[held.spec.name]
        self.hub.note(self.name, "load failed", model=held.spec.name, code=code.value)

    def drop(self, name: str) -> None:
        """Let go of a model: told to, or by itself."""
        held = self.models.pop(name, None)
        if held is None:
            return
        held.error = held.error or LoadFailed(Code.LOAD_FAILED, "it was unloaded meanwhile")
        if held.state is IndexState.READY:
            for device, amount in held.takes.items():
                self._give_back(device, amount)
        self.gone[name] = self.hub.now
        self.hub.note(self.name, "let go of", model=name)

    def _give_back(self, device: str, amount: int) -> None:
        chance = self._memory.random() if device != "cpu" and self.up else 1.0
        if chance < self.habits.never + self.habits.late:
            self.kept[device] += amount
            self.hub.note(self.name, "keeps", device=device, bytes=amount)
            if chance >= self.habits.never:
                self.hub.after(self._memory.uniform(0.5, 20.0), self._late, self.lives, device, amount)
        else:
            self.host.used[device] -= amount

    def _late(self, life: int, device: str, amount: int) -> None:
        if life == self.lives:
            self.kept[device] -= amount
            self.host.used[device] -= amount

    def die(self) -> None:
        """End with all that it holds."""
        self.hub.note(self.name, "server died")
        self.up = False
        self.lives += 1
        for name in list(self.models):
            self.drop(name)
        for device, amount in self.kept.items():
            self.host.used[device] -= amount
            self.kept[device] = 0

    def boot(self) -> None:
        """Be there again, empty."""
        self.up = True

    def ready(self) -> list[str]:
        """Return what it holds and answers for."""
        return sorted(name for name, held in self.models.items() if held.state is IndexState.READY)


class SimAdapter:
    """The agent's adapter to a simulated server."""

    kind = "mlserver"

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def _pause(self, seconds: float) -> None:
        self._server.hub.park(seconds * (0.5 + self._server._random.random()))

    def load(self, spec: ModelSpec) -> LoadResult:
        server = self._server
        self._pause(0.002)
        if not server.up:
            raise LoadFailed(Code.SERVER_UNREACHABLE, "the server is down")
        found = server.models.get(spec.name)
        if found is not None and found.state is IndexState.READY:
            return LoadResult(spec.name, already=True, load_ms=0.0, verify_ms=0.0)
        held, began = server.begin_load(spec), server.hub.now
        while held.state is IndexState.LOADING:
            if not server.up or server.models.get(spec.name) is not held:
                raise LoadFailed(Code.SERVER_UNREACHABLE, "the server went away")
            self._pause(0.05)
        if held.error is not None:
            raise held.error
        return LoadResult(spec.name, already=False, load_ms=1000 * (server.hub.now - began), verify_ms=1.0)

    def unload(self, name: str) -> None:
        self._pause(0.05)
        if not self._server.up:
            raise UnloadFailed(Code.SERVER_UNREACHABLE, "the server is down")
        self._server.drop(name)

    def index(self) -> dict[str, IndexEntry]:
        self._pause(0.002)
        if self._server.busy:
            self._pause(2.0)
            raise ServerUnreachable("read time-out", busy=True)
        if not self._server.up:
            raise ServerUnreachable("the server is down")
        return {name: IndexEntry(held.state) for name, held in sorted(self._server.models.items())}

    def ready(self, name: str) -> bool:
        return name in self._server.ready()

    def alive(self) -> bool:
        return self._server.up

    def endpoint(self, name: str) -> str:
        return "http://127.0.0.1:8080"

    def server_info(self) -> tuple[str, str]:
        return self.kind, "1"

    def capabilities(self) -> tuple[str, ...]:
        return ("sklearn",)

    def close(self) -> None:
        return


class Store:
    """Artifacts by URI.

    Attributes:
        versions: URI → what is there now, as a number; a URI that says ``missing`` has nothing.
        away: the store cannot be reached.
    """

    def __init__(self, hub: Hub, seed: str) -> None:
        self.versions: dict[str, int] = {}
        self.away = False
        self._hub = hub
        self._random = Random(f"{seed}/store")
        self._cached: set[tuple[str, str]] = set()

    def fetch(
        self, uri: str, options: object, into: Path, *, expected: str = "", roots: object = ()
    ) -> FetchedArtifact:
        """Fetch an artifact, as :func:`magnetar_agent.artifacts.fetch` does."""
        if expected and (str(into), expected) in self._cached:
            return FetchedArtifact(into / expected, expected, 1, cached=True)
        self._hub.park(self._random.uniform(0.01, 0.2))
        if "missing" in uri:
            raise ArtifactError(Code.ARTIFACT_MISSING, f"there is nothing at {uri}")
        if self.away:
            raise ArtifactError(Code.ARTIFACT_UNREACHABLE, "the store does not answer")
        digest = sha256(f"{uri}#{self.versions.get(uri, 0)}".encode()).hexdigest()
        self._cached.add((str(into), digest))
        return FetchedArtifact(into / digest, digest, 1, cached=False)

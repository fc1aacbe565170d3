"""The simulated Magnetar: every service as a process that runs its production composition root, supervised, and users."""

import atexit
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import magnetar_agent.main
import magnetar_projector.main
import magnetar_registry.main
import magnetar_scheduler.main
from magnetar_agent.servers import Beside
from magnetar_agent.settings import AgentSettings
from magnetar_common.errors import BusError
from magnetar_common.settings import BusSettings, SnapshotSettings
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events import MODEL_EVENT, ModelEvent
from magnetar_projector.main import ProjectorSettings
from magnetar_registry.main import RegistrySettings
from magnetar_scheduler.main import SchedulerSettings
from tests.simulation.broker import Broker
from tests.simulation.bus import SimBus
from tests.simulation.runtime import Hub, Process
from tests.simulation.servers import MIB, Habits, Host, HostDevices, SimAdapter, SimServer, Store

_FOLDER = Path(tempfile.mkdtemp(prefix="magnetar-simulation-"))
"""The agents' homes; nothing is ever written there."""
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)

_STORES = count()
"""Names of stores for snapshots: the same seed may run twice in one process."""


class Service:
    """What runs one program, and starts it again when it ends.

    Attributes:
        process: its current life.
        lives: how often it was started.
        wanted: it is to run; else it stays away once it has ended.
    """

    def __init__(self, cluster: "Cluster", name: str, main: Callable[["Service"], object]) -> None:
        self.cluster = cluster
        self.name = name
        self.lives = 0
        self.wanted = True
        self.skew = 0.0
        self.process: Process
        self.life: Any = None
        self._main = main
        self.start()

    def start(self) -> None:
        """Start another life."""
        self.lives += 1
        self.life = None
        self.process = Process(self.cluster.hub, f"{self.name}.{self.lives}", lambda: self._main(self), skew=self.skew)
        self.process.on_end.append(self._ended)

    def _ended(self, process: Process) -> None:
        self.cluster.ended(self)
        self.cluster.hub.after(self.cluster.random.uniform(0.2, 4.0), self._again, process)

    def _again(self, process: Process) -> None:
        if self.wanted and self.process is process:
            self.start()

    def stop(self) -> None:
        """Tell it to end in order at once, as SIGINT does."""
        life = self.life
        if life is not None and self.process.alive:
            self.cluster.hub.note(self.process.name, "told to stop")
            self.process.spawn("signal", lambda: life.stop("SIGINT"))

    def terminate(self) -> None:
        """Tell it to end, as SIGTERM does: an agent drains first."""
        life = self.life
        if life is not None and self.process.alive:
            self.cluster.hub.note(self.process.name, "told to terminate")
            self.process.spawn("signal", life.terminate)

    @property
    def running(self) -> bool:
        """Whether it lives and does not stand still."""
        return self.process.alive and not self.process.frozen


class User:
    """A client that asks until it is heard: at least once, in order, always with the same id.

    Attributes:
        acknowledged: (source, id) of what the broker stored.
    """

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.name = name
        self.acknowledged: dict[tuple[str, str], float] = {}
        self._cluster = cluster
        self._wishes: deque[ModelEvent] = deque()
        self._process = Process(cluster.hub, name, self._run)

    def ask(self, event: ModelEvent, *, repeat: bool = False) -> None:
        """Want something; and again, as a client does that did not hear the answer."""
        self._wishes.append(event)
        if repeat:
            self._wishes.append(event)

    @property
    def idle(self) -> bool:
        """Whether all that it asked for was heard."""
        return not self._wishes

    def _run(self) -> None:
        hub = self._cluster.hub
        bus: Any = SimBus(self._cluster.broker, self._process)
        producer: Any = None
        while True:
            if not self._wishes:
                hub.park(0.25)
                continue
            event = self._wishes[0]
            try:
                producer = producer or bus.producer(MODEL_EVENTS.name)
                payload = MODEL_EVENT.encode(event)
                place = producer.send(payload, key=event.event.subject, properties=MODEL_EVENT.properties)
            except BusError:
                hub.park(0.5)
                continue
            self._wishes.popleft()
            self.acknowledged.setdefault((event.source, event.id), hub.now)
            hub.note(self.name, "asked", id=event.id, kind=type(event.event).__name__, of=event.event.subject, at=place)


class Cluster:
    """Everything that runs: broker, schedulers, agents with their servers, registry service, projector, users."""

    def __init__(
        self,
        hub: Hub,
        seed: str,
        *,
        schedulers: int = 2,
        servers: int = 4,
        projector: bool = True,
        registry: bool = True,
        habits: Habits | None = None,
        over_commit: int | None = None,
    ) -> None:
        self.hub = hub
        self.random = Random(f"{seed}/cluster")
        self.broker = Broker(hub, seed)
        self.store = Store(hub, seed)
        self.servers: dict[str, SimServer] = {}
        self.hosts: list[Host] = []
        self.services: dict[str, Service] = {}
        self.supervised: dict[str, bool] = {}
        self._bus_settings = BusSettings()
        # In every other seed schedulers start from snapshots, once there are some.
        store = f"memory://snapshots/{next(_STORES)}" if Random(f"{seed}/snapshots").random() < 0.5 else ""
        self._snapshots = SnapshotSettings(url=store, every_entries=20, pause_s=2)
        # In every other seed models and servers are not honest about memory, and in some more is promised than there is.
        traits = Random(f"{seed}/traits")
        dishonest = traits.choice((Habits(), Habits(greedy=0.3, late=0.3, never=0.1)))
        habits = habits if habits is not None else dishonest
        self._over_commit = over_commit if over_commit is not None else traits.choice((0, 0, 30))
        self._settings: dict[str, AgentSettings] = {}
        # Two servers share a host, so that devices are booked by more than one.
        for number in range(servers):
            if number != 1:
                gpus = {f"gpu-{number}": 1000 * MIB} if number % 2 == 0 else {}
                self.hosts.append(Host(f"host-{number}", {**gpus, "cpu": 1000 * MIB}))
            name = "abcdefghijklmnopqrstuvwxyz"[number]
            self.servers[name] = SimServer(hub, name, self.hosts[-1], seed, habits)
            self.supervised[name] = self.random.random() < 0.5
        self.users = [User(self, f"user-{number}") for number in range(2)]
        for number in range(schedulers):
            self._service(f"scheduler-{number}", self._scheduler)
        for name in self.servers:
            self._service(f"agent-{name}", self._agent)
        if registry:
            self._service("registry", self._registry)
        if projector:
            self._service("projector", self._projector)

    def _service(self, name: str, main: Callable[[Service], object]) -> None:
        self.services[name] = Service(self, name, main)

    @property
    def schedulers(self) -> list[Service]:
        return [service for name, service in self.services.items() if name.startswith("scheduler")]

    @property
    def agents(self) -> list[Service]:
        return [service for name, service in self.services.items() if name.startswith("agent")]

    def service_of(self, process: Process) -> Service | None:
        """Return whose life a process is."""
        return self.services.get(process.name.rpartition(".")[0])

    def server_of(self, service: Service) -> SimServer:
        """Return the server beside an agent."""
        return self.servers[service.name.removeprefix("agent-")]

    def ended(self, service: Service) -> None:
        """A life is over: a server that its agent had started dies with it."""
        name = service.name.removeprefix("agent-")
        if name in self.servers and self.supervised[name] and self.servers[name].up:
            self.servers[name].die()
            self.servers[name].boot()

    # --- the programs ---------------------------------------------------------------------------------------------------

    def _scheduler(self, service: Service) -> int:
        settings = SchedulerSettings(identity=service.process.name)
        return magnetar_scheduler.main.run(settings, self._bus_settings, self._snapshots)

    def _agent(self, service: Service) -> int:
        name = service.name.removeprefix("agent-")
        settings = self._settings.get(name)
        if settings is None:
            settings = self._settings[name] = AgentSettings(
                server=name,
                host=self.servers[name].host.name,
                folder=str(_FOLDER / name),
                heartbeat_s=2.0,
                canary_s=0,
                server_wait_s=3.0,
                load_concurrency=3,
                drain_timeout_s=12.0,
                over_commit_percent=self._over_commit,
            )
        return magnetar_agent.main.run(settings, self._bus_settings)

    def _registry(self, service: Service) -> int:
        settings = RegistrySettings(
            instance_id=f"magnetar-registry/{service.process.name}",
            hold_s=10.0,
            linger_s=10.0,
            evictions_per_minute=10,
        )
        return magnetar_registry.main.run(settings)

    def _projector(self, service: Service) -> int:
        return magnetar_projector.main.run(ProjectorSettings(data=":memory:"), self._snapshots)

    # --- what they find around them -------------------------------------------------------------------------------------

    def _here(self) -> Process:
        assert self.hub.task is not None
        return self.hub.task.process

    def connect(self, settings: object = None) -> SimBus:
        return SimBus(self.broker, self._here())

    def _server_here(self) -> SimServer:
        service = self.service_of(self._here())
        assert service is not None
        return self.server_of(service)

    def beside(self, settings: AgentSettings, gpus: object, changed: Callable[[], None]) -> Beside:
        server = self._server_here()
        self.hub.park(0.3)
        return Beside(SimAdapter(server), 8080, 0, ("sklearn",), tuple, lambda: None)

    def fetch(self, uri: str, options: object, into: Path, **how: Any) -> Any:
        return self.store.fetch(uri, options, into, **how)

    def devices(self) -> HostDevices:
        return HostDevices(self._server_here().host)

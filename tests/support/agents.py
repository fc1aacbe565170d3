"""A simulated agent on a real bus: registers, heartbeats, obeys commands at once, with no server beside it."""

import threading
import time

from magnetar_common.bus import LATEST, Bus
from magnetar_common.topics import AGENT_EVENTS, SERVICE_REGISTRY, commands_topic
from magnetar_events import AGENT_EVENT, COMMAND, SERVICE_RECORD, AgentEvent, Command, ServiceRecord, versions
from magnetar_events import reports as r
from magnetar_events.codec import FINGERPRINT
from magnetar_events.commands import LoadModel, ReportInventory, UnloadModel
from magnetar_events.models import index_digest, served_name
from magnetar_events.schemas import schema_json
from tests.support.world import record


class SimulatedAgent:
    """What it was told is in ``commands``; ``obey`` decides whether it answers."""

    def __init__(
        self,
        bus: Bus,
        server: str,
        *,
        obey: bool = True,
        holds: dict[tuple[str, int], str] | None = None,
        clock_ms: int = 0,
        **fields: object,
    ) -> None:
        self.beats = 0
        self._clock_ms = clock_ms
        self.record: ServiceRecord = record(server, **fields)  # type: ignore[arg-type]
        self.obey = obey
        self.commands: list[Command] = []
        self.loaded: dict[tuple[str, int], str] = dict(holds or {})
        self._number = 0
        self._schema = versions.reports_schema(1)
        self._lock = threading.Lock()
        self._reader = bus.reader(commands_topic(server, 0), LATEST)
        self._reports = bus.producer(AGENT_EVENTS.name, schema=schema_json(AGENT_EVENTS.schema))
        self._registry = bus.producer(SERVICE_REGISTRY.name, schema=schema_json(SERVICE_REGISTRY.schema))
        self._stop = threading.Event()
        self._next_beat = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _now(self) -> int:
        return time.time_ns() // 10**6 + self._clock_ms

    def digest(self) -> str:
        return index_digest(served_name(m, g) for m, g in self.loaded)

    def beat(self, status: str = "UP") -> None:
        info = self.record.server.model_copy(update={"digest": self.digest()})  # type: ignore[union-attr]
        rec = self.record.model_copy(update={"server": info, "status": status, "timestamp": self._now()})
        self.beats += 1
        self._registry.send(SERVICE_RECORD.encode(rec), key=rec.instance_id, properties=SERVICE_RECORD.properties)

    def report(self, report: r.ReportKind) -> None:
        info = self.record.server
        assert info is not None
        with self._lock:
            self._number += 1
            event = AgentEvent(
                cluster=info.cluster, server=info.server, replica=info.replica, incarnation=info.incarnation,
                number=self._number, time=0, report=report,
            )  # fmt: skip
            self._reports.send_async(
                AGENT_EVENT.encode(event, self._schema),
                lambda _: None,
                key=event.server_key,
                properties={FINGERPRINT: self._schema},
            )

    def answer(self, command: Command) -> None:
        wanted, at = command.command, command.position
        if isinstance(wanted, LoadModel):
            digest = wanted.artifact_digest or "a" * 64
            self.loaded[wanted.model, wanted.generation] = digest
            self.report(r.ModelLoaded(model=wanted.model, generation=wanted.generation, position=at, digest=digest))
        elif isinstance(wanted, UnloadModel):
            self.loaded.pop((wanted.model, wanted.generation), None)
            self.report(r.ModelUnloaded(model=wanted.model, generation=wanted.generation, position=at))
        elif isinstance(wanted, ReportInventory):
            models = tuple(
                r.InventoryModel(model=m, generation=g, ready=True, digest=d) for (m, g), d in self.loaded.items()
            )
            self.report(r.InventoryReported(position=at, models=models, digest=self.digest()))

    def _run(self) -> None:
        while not self._stop.is_set():
            if time.monotonic() >= self._next_beat:
                self.beat()
                self._next_beat = time.monotonic() + 1.0
            message = self._reader.read(0.1)
            if message is not None:
                command = COMMAND.decode(message.payload, message.properties.get(FINGERPRINT, ""))
                if command.incarnation != self.record.server.incarnation:  # type: ignore[union-attr]
                    continue
                self.commands.append(command)
                self._schema = versions.reports_schema_for(message.properties.get(versions.REPORTS_PROPERTY, ""))
                if self.obey or isinstance(command.command, ReportInventory):
                    self.answer(command)

    def die(self) -> None:
        """Fall silent, as a killed process does."""
        self._stop.set()
        self._thread.join(10)
        self._reader.close()

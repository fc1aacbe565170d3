"""The agent: obeys commands in order, believes its server's own index, and reports.

The only one who talks to the inference server. It has no opinion of what should be loaded: it does what it is told,
says what it finds, and says so unasked when its server's index changes without a command.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from magnetar_common.bus import LATEST, Bus, Message, Reader
from magnetar_common.errors import BusError
from magnetar_common.metrics import DEVICE_MEMORY
from magnetar_common.topics import commands_topic
from magnetar_events import COMMAND, AgentEvent, ServiceRecord
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.commands import Command, LoadModel, ReportInventory, UnloadModel
from magnetar_events.models import index_digest, parse_served_name, served_name
from magnetar_events.records import Device, ServerInfo
from magnetar_events.reports import (
    CommandSuperseded,
    InventoryModel,
    InventoryReported,
    ModelLoaded,
    ModelLoading,
    ModelUnloadFailed,
    ModelUnloading,
    ReportKind,
)

from magnetar_agent.adapters.base import Adapter, IndexEntry, IndexState, ServerUnreachable
from magnetar_agent.canary import Canary
from magnetar_agent.devices import DeviceReading, Devices
from magnetar_agent.ledger import Ledger, Verdict, VersionKey
from magnetar_agent.operations import Operations
from magnetar_agent.reporter import Reporter
from magnetar_agent.serialised import Serialised

_log = structlog.get_logger(__name__)

POLL_S = 0.25
"""How long one read of the commands waits (seconds)."""

CHECK_S = 1.0
"""The server's index is compared with what was commanded this often (seconds)."""


SILENCES = 2
"""Canaries in a row without an answer after which a model counts as not ready."""

PidSource = Callable[[], tuple[int, ...]]
"""Returns the process ids of the server, as far as they are known."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent works.

    Attributes:
        folder: for artifacts and the server's repository.
        secrets: folder of this host's secrets, or None.
        load_concurrency: operations that run at once.
        server_wait_s: an operation waits for a server that is down for this long (seconds) before it is tried.
        canary_s: a loaded model is asked for an inference this often (seconds); 0 = never.
        canary_patience_s: an answer that takes longer (seconds) is none.
    """

    folder: Path
    secrets: Path | None = None
    load_concurrency: int = 4
    server_wait_s: float = 60.0
    canary_s: float = 30.0
    canary_patience_s: float = 10.0


class Agent:
    """One life of the agent of one server.

    Its command reader is open, at the end of the topic, once this returns: only then may it be registered.

    Args:
        bus: where commands come from and reports go.
        info: the server's part of the record; incarnation and identity are taken from it.
        adapter: the inference server.
        devices: of this host.
        options: see :class:`AgentOptions`.
        pids: process ids of the server, if known.
    """

    def __init__(
        self,
        bus: Bus,
        info: ServerInfo,
        adapter: Adapter,
        devices: Devices,
        options: AgentOptions,
        pids: PidSource = tuple,
    ) -> None:
        self._bus = bus
        self._info = info
        self._adapter = adapter
        self._devices = devices
        self._pids = pids
        self._ledger = Ledger(info.incarnation)
        self._work: Serialised[VersionKey] = Serialised(options.load_concurrency)
        self._reporter = Reporter(bus, self._envelope, lambda: self.report_inventory("reports were dropped"))
        self._operations = Operations(
            adapter,
            options.folder / "artifacts",
            options.secrets,
            self.readings,
            lambda: len(self._work.busy()) <= 1,
        )
        self._canary = Canary(adapter, options.canary_patience_s)
        self._canary_s = options.canary_s
        self._server_wait_s = options.server_wait_s
        self._silent: dict[VersionKey, int] = {}
        self._reading = threading.Lock()
        self._checking = threading.Lock()
        self._stopping = threading.Event()
        self._check_now = threading.Event()
        self.serving = True
        """Whether the server answers."""
        self._topic = commands_topic(info.server, info.replica)
        self._after = LATEST
        self._reader: Reader = bus.reader(self._topic, LATEST, name="magnetar-agent")
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("commands", self._listen), ("index", self._watch), ("canary", self._sing))
        ]

    def start(self) -> None:
        """Report what the server holds, and begin to obey."""
        self.report_inventory("the agent started")
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop obeying, let running operations end, and send their reports."""
        self._stopping.set()
        self._check_now.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(15)
        self._work.close()
        self._reporter.close()
        self._reader.close()
        self._canary.close()

    # --- commands ---------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                message = self._reader.read(POLL_S)
            except BusError as error:
                _log.warning("commands are out of reach", error=str(error))
                self._reopen()
                continue
            if message is not None:
                self._after = message.id
                self._receive(message)

    def _reopen(self) -> None:
        self._stopping.wait(POLL_S)
        try:
            self._reader.close()
            self._reader = self._bus.reader(self._topic, self._after, name="magnetar-agent")
        except BusError as error:
            _log.warning("commands are still out of reach", error=str(error))

    def _receive(self, message: Message) -> None:
        try:
            command = COMMAND.decode(message.payload, message.properties.get(FINGERPRINT, ""))
        except Undecodable as error:
            _log.error(
                "not a command", message_id=str(message.id), code=error.code, field=error.field, error=error.message
            )
            return
        self.obey(command)

    def obey(self, command: Command) -> Verdict:
        """Do what a command says, unless it is old, somebody else's, or done already."""
        verdict, line = self._ledger.judge(command)
        wanted = command.command
        if verdict in (Verdict.FOREIGN, Verdict.OLD_TERM):
            _log.warning("a command was refused", why=verdict.name, term=command.term, position=command.position)
        elif isinstance(wanted, ReportInventory):
            self.report_inventory("asked", command.position)
        elif verdict is Verdict.SUPERSEDED and line is not None:
            self._reporter.report(
                CommandSuperseded(
                    model=wanted.model,
                    generation=wanted.generation,
                    position=command.position,
                    newest=max(0, line.newest[1]),
                )
            )
        elif verdict is Verdict.ANSWER_AGAIN and line is not None and line.answer is not None:
            self._reporter.report(line.answer)
        elif verdict is Verdict.OBEY:
            key = (wanted.model, wanted.generation)
            self._work.submit(key, lambda: self._operate(key, wanted, command.position))
        return verdict

    def _operate(self, key: VersionKey, wanted: LoadModel | UnloadModel, position: int) -> None:
        if self._ledger.newest(key) != position:
            return  # a newer command for this version waits behind this one: that one is answered
        who = {"model": key[0], "generation": key[1], "position": position}
        if isinstance(wanted, LoadModel):
            self._reporter.report(ModelLoading(**who))
            self._await_server()
            hung = self._silent.pop(key, 0) >= SILENCES
            answer = self._operations.load(wanted, position, afresh=hung)
            loaded = isinstance(answer, ModelLoaded)
            digest = answer.digest if isinstance(answer, ModelLoaded) else ""
        else:
            self._reporter.report(ModelUnloading(**who))
            self._await_server()
            answer, digest = self._operations.unload(wanted, position), ""
            loaded = isinstance(answer, ModelUnloadFailed)
        self._ledger.settle(key, position, answer, loaded=loaded, digest=digest)
        self._reporter.report(answer)

    def _await_server(self) -> None:
        """Wait a while for a server that is down: it may be on its way back, and a failed attempt helps nobody."""
        deadline = time.monotonic() + self._server_wait_s
        while not self._adapter.alive() and time.monotonic() < deadline and not self._stopping.wait(0.1):
            pass

    # --- what the server holds ----------------------------------------------------------------------------------------------

    def report_inventory(self, cause: str, position: int = 0) -> None:
        """Report the server's whole index; an unreachable server is reported as holding nothing that answers."""
        with self._checking:
            held, strangers = self._index()
            self._report_inventory(held, strangers, cause, position)

    def _report_inventory(
        self, held: dict[VersionKey, bool], strangers: tuple[str, ...], cause: str, position: int = 0
    ) -> None:
        busy = self._work.busy()
        models = tuple(
            InventoryModel(
                model=model,
                generation=generation,
                ready=held.get((model, generation), False),
                busy=(model, generation) in busy,
                digest=self._ledger.digest((model, generation)),
            )
            for model, generation in sorted({*held, *busy})
        )
        self._ledger.found({key: ready for key, ready in held.items() if key not in busy})
        self._reporter.report(
            InventoryReported(
                position=position, models=models, strangers=strangers, digest=self._digest(held, busy), cause=cause
            )
        )

    def _index(self) -> tuple[dict[VersionKey, bool], tuple[str, ...]]:
        """Return (version → ready) of Magnetar's models in the server, and the names of others'."""
        try:
            index = self._adapter.index()
        except ServerUnreachable as error:
            if self.serving:
                _log.warning("the server does not answer", error=error.message)
            self.serving = False
            return {}, ()
        self.serving = True
        return _sorted_out(index, self._silent)

    @staticmethod
    def _digest(held: dict[VersionKey, bool], busy: set[VersionKey]) -> str:
        return index_digest(served_name(*key) for key, ready in held.items() if ready and key not in busy)

    def _watch(self) -> None:
        """Notice what changes in the server without a command: models that it drops, its own end and return."""
        while not self._stopping.is_set():
            self._check_now.wait(CHECK_S)
            self._check_now.clear()
            if not self._stopping.is_set():
                self.check()

    def check(self) -> None:
        """Compare the server's index with what was commanded, and report it if they differ."""
        with self._checking:
            before = self._work.busy()
            held, strangers = self._index()
            busy = self._work.busy() | before
            ready = {key for key, is_ready in held.items() if is_ready and key not in busy}
            believed = {key for key in self._ledger.believed() if key not in busy}
            if ready == believed:
                return
            names = ", ".join(served_name(*key) for key in sorted(ready ^ believed))[:500]
            _log.warning("the server's index changed without a command", models=names)
            self._report_inventory(held, strangers, f"changed without a command: {names}")

    def server_changed(self) -> None:
        """Look at the server at once: it ended, or it is back."""
        self._check_now.set()

    def _sing(self) -> None:
        """Ask loaded models for an inference, one after the other; two silences in a row make one not ready."""
        if not self._canary_s:
            return
        while not self._stopping.wait(min(self._canary_s, 1.0)):
            for key in sorted(self._ledger.believed()):
                if self._stopping.wait(self._canary_s / max(1, len(self._ledger.believed()))):
                    return
                if key in self._work.busy() or not self.serving:
                    continue
                if self._canary.sings(served_name(*key)):
                    self._silent.pop(key, None)
                    continue
                self._silent[key] = self._silent.get(key, 0) + 1
                if self._silent[key] == SILENCES:
                    _log.error("a loaded model answers no inference", model=key[0], generation=key[1])
                    self._check_now.set()

    # --- what the record says -------------------------------------------------------------------------------------------------

    def readings(self) -> list[DeviceReading]:
        """Read the devices of this host now."""
        with self._reading:
            return self._devices.read(tuple(self._pids()))

    def refresh(self, record: ServiceRecord) -> ServiceRecord:
        """Return the record with current readings; called for each heartbeat."""
        devices = tuple(_device(reading) for reading in self.readings())
        for device in devices:
            DEVICE_MEMORY.labels(device.uuid, "total").set(device.total)
            DEVICE_MEMORY.labels(device.uuid, "free").set(device.free)
        busy = self._work.busy()
        believed = {key: True for key in self._ledger.believed()}
        info = (record.server or self._info).model_copy(
            update={
                "devices": devices,
                "loads": len(busy),
                "digest": self._digest(believed, busy),
                "report": self._reporter.number,
            }
        )
        return record.model_copy(update={"server": info})

    def holds(self) -> int:
        """Return how many of Magnetar's models are in the server or on their way."""
        return len(self._ledger.believed() | self._work.busy())

    def check_server(self) -> tuple[bool, str]:
        """Return whether the server answers, for ``/readyz``."""
        return self.serving, "the server answers" if self.serving else "the server does not answer"

    def check_reports(self) -> tuple[bool, str]:
        """Return whether reports reach the broker, for ``/readyz``."""
        return not self._reporter.error, self._reporter.error or f"{self._reporter.number} reports sent"

    def _envelope(self, number: int, report: ReportKind) -> AgentEvent:
        info = self._info
        return AgentEvent(
            cluster=info.cluster,
            server=info.server,
            replica=info.replica,
            incarnation=info.incarnation,
            number=number,
            time=time.time_ns() // 1_000_000,
            term=self._ledger.term,
            report=report,
        )


def _sorted_out(
    index: dict[str, IndexEntry], silent: dict[VersionKey, int]
) -> tuple[dict[VersionKey, bool], tuple[str, ...]]:
    held: dict[VersionKey, bool] = {}
    strangers: list[str] = []
    for name, entry in index.items():
        if entry.state is IndexState.UNAVAILABLE:
            continue
        key = parse_served_name(name)
        if key is None:
            strangers.append(name)
        else:
            held[key] = entry.state is IndexState.READY and silent.get(key, 0) < SILENCES
    return held, tuple(sorted(strangers))


def _device(reading: DeviceReading) -> Device:
    return Device(
        uuid=reading.uuid,
        kind=reading.kind,
        gpu_type="" if reading.kind == "cpu" else reading.name,
        parent=reading.parent,
        total=reading.total_bytes,
        free=reading.free_bytes,
        largest_free=reading.largest_free_bytes,
        utilisation=-1.0 if reading.utilisation is None else max(0.0, min(1.0, reading.utilisation)),
        error=reading.error[:500],
    )

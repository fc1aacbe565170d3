"""The agent: obeys commands in order, believes its server's own index, and reports.

The only one who talks to the inference server. It has no opinion of what should be loaded: it does what it is told,
says what it finds, and says so unasked when its server's index changes without a command.
"""

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from magnetar_agent.adapters.base import Adapter
from magnetar_agent.canary import Canary
from magnetar_agent.devices import DeviceReading, Devices
from magnetar_agent.inventory import Inventory, digest_of
from magnetar_agent.ledger import Ledger, Verdict, VersionKey
from magnetar_agent.observer import Observer
from magnetar_agent.operations import Operations
from magnetar_agent.reporter import Reporter
from magnetar_agent.serialised import Serialised
from magnetar_agent.text import line
from magnetar_agent.threads import Failed, guarded
from magnetar_common.bus import LATEST, Bus, Message
from magnetar_common.bus.follower import Follower
from magnetar_common.errors import MagnetarError
from magnetar_common.metrics import DEVICE_MEMORY
from magnetar_common.topics import commands_topic
from magnetar_events import COMMAND, AgentEvent, ServiceRecord, versions
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.commands import Command, LoadModel, ReportInventory, UnloadModel
from magnetar_events.records import Device, ServerInfo
from magnetar_events.reports import LoadObserved, ModelLoaded, ModelLoading, ModelUnloaded, ModelUnloading, ReportKind

POLL_S = 0.25
"""How long one read of the commands waits (seconds)."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent works.

    Attributes:
        folder: for artifacts.
        secrets: folder of this host's secrets, or None.
        artifact_roots: folders that a `file:` URI may lead into; none = whatever this process may read.
        load_concurrency: operations that run at once.
        server_wait_s: an operation waits for a server that is down for this long (seconds) before it is tried.
        canary_s: a loaded model is asked for an inference this often (seconds); 0 = never.
        canary_patience_s: an answer that takes longer (seconds) is none.
        close_s: at the end, running operations are waited for this long (seconds).
    """

    folder: Path
    secrets: Path | None = None
    artifact_roots: tuple[Path, ...] = ()
    load_concurrency: int = 4
    server_wait_s: float = 20.0
    canary_s: float = 30.0
    canary_patience_s: float = 30.0
    close_s: float = 5.0


class Replaced(MagnetarError):
    """A newer life of this server took this one's place. To go on would be to serve what nobody knows of."""


class Agent:
    """One life of the agent of one server.

    Its command reader is open, at the end of the topic, once this returns: only then may it be registered.

    Args:
        bus: where commands come from and reports go.
        info: the server's part of the record; incarnation and identity are taken from it.
        adapter: the inference server.
        devices: of this host.
        options: see :class:`AgentOptions`.
        failed: told of what ended one of its threads: the agent is of no use any more.
        pids: returns the process ids of the server, as far as they are known.
        pids_of: returns those that serve one model alone.

    Raises:
        BusError: the commands cannot be read.
    """

    def __init__(
        self,
        bus: Bus,
        info: ServerInfo,
        adapter: Adapter,
        devices: Devices,
        options: AgentOptions,
        failed: Failed,
        pids: Callable[[], tuple[int, ...]] = tuple,
        pids_of: Callable[[str], tuple[int, ...]] = lambda _: (),
    ) -> None:
        self._failed = failed
        self._info = info
        self._adapter = adapter
        self._devices = devices
        self._options = options
        self._pids = pids
        self._pids_of = pids_of
        self._observer = Observer(self._held)
        self._reading = threading.Lock()
        self._stopping = threading.Event()
        self._commands = Follower(bus, commands_topic(info.server, info.replica), LATEST, name="magnetar-agent")
        self._ledger = Ledger(info.incarnation)
        self._work: Serialised[VersionKey] = Serialised(options.load_concurrency, failed)
        self._operations = Operations(
            adapter,
            options.folder / "artifacts",
            options.secrets,
            self.readings,
            lambda: (self._work.begun, self._work.running),
            options.artifact_roots,
        )
        self._canary = Canary(
            adapter,
            lambda: self._ledger.loaded() if self.serving else set(),
            self.server_changed,
            every_s=options.canary_s,
            patience_s=options.canary_patience_s,
            failed=failed,
        )
        self._reporter = Reporter(bus, self._envelope, lambda: self._inventory.ask("reports were dropped"), failed)
        self._inventory = Inventory(adapter, self._ledger, self._canary.hung, self._reporter.report, failed)
        self._listener = guarded("commands", self._listen, failed)

    def start(self) -> None:
        """Report what the server holds, and begin to obey."""
        self._inventory.ask("the agent started")
        self._inventory.start()
        self._listener.start()
        self._canary.start()

    def close(self) -> None:
        """Stop obeying, let running operations end for a while, and send what there is to report.

        An operation that does not end in time ends with its server, or its own limit; nobody hears of it.
        """
        self._stopping.set()
        if self._listener.is_alive():
            self._listener.join()
        self._canary.close()
        if not self._work.close(self._options.close_s):
            _log.warning("operations were abandoned", running=self._work.running)
        self._inventory.close()
        self._reporter.close()
        self._commands.close()

    # --- commands ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopping.is_set():
            message = self._commands.read(POLL_S)
            if message is not None:
                self._receive(message)

    def _receive(self, message: Message) -> None:
        try:
            command = COMMAND.decode(message.payload, message.properties.get(FINGERPRINT, ""))
        except Undecodable as error:
            _log.error(
                "not a command", message_id=str(message.id), code=error.code, field=error.field, error=error.message
            )
            return
        if self.obey(command) is not Verdict.OLD_TERM:
            self._reporter.schema = versions.reports_schema_for(message.properties.get(versions.REPORTS_PROPERTY, ""))

    def obey(self, command: Command) -> Verdict:
        """Do what a command says, unless it is old, somebody else's, or done already."""
        disbelieved = self._ledger.disbelieved
        verdict, answer = self._ledger.judge(command)
        if self._ledger.disbelieved > disbelieved:
            _log.error(
                "an earlier command was not the leader's and is forgotten: look who may write to the topic",
                topic=self._commands.topic, term=command.term, position=command.position,
            )  # fmt: skip
        wanted, position = command.command, command.position
        if answer is not None:
            self._reporter.report(answer)
        if verdict is Verdict.REPLACED:
            self._failed(
                Replaced(
                    f"another agent serves {self._info.server}/{self._info.replica} as life {command.incarnation}, and "
                    "this one is commanded no more: give each agent a server name and replica of its own"
                )
            )
        elif verdict is not Verdict.OBEY:
            _log.info("a command is not acted on", why=verdict.name, term=command.term, position=position)
        elif isinstance(wanted, ReportInventory):
            self._inventory.ask("asked", position)
        else:
            self._work.submit((wanted.model, wanted.generation), lambda: self._operate(wanted, position))
        return verdict

    def _operate(self, wanted: LoadModel | UnloadModel, position: int) -> None:
        key = (wanted.model, wanted.generation)
        if not self._ledger.is_newest(key, position):
            return  # the newer command for this version waits behind this one, and will be answered
        loading = isinstance(wanted, LoadModel)
        begun = ModelLoading if loading else ModelUnloading
        self._reporter.begun(begun(model=wanted.model, generation=wanted.generation, position=position))
        self._await_server()
        if self._stopping.is_set():
            return
        if loading:
            answer = self._operations.load(wanted, position, afresh=self._canary.hung(key))
        else:
            answer = self._operations.unload(wanted, position)
        if isinstance(answer, (ModelLoaded, ModelUnloaded)):
            self._canary.forgive(key)
        # Reported first: an inventory that says something else of this version must not come before its own report.
        self._reporter.report(answer)
        self._ledger.settle(answer)

    def _await_server(self) -> None:
        """Wait a while for a server that is down: it may be on its way back, and a failed attempt helps nobody."""
        deadline = time.monotonic() + self._options.server_wait_s
        while not self._adapter.alive() and time.monotonic() < deadline and not self._stopping.wait(0.1):
            pass

    # --- what others ask ---------------------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """Whether the server answers."""
        return self._inventory.serving

    def server_changed(self) -> None:
        """Look at the server at once: it ended, it is back, or a model in it hangs."""
        self._inventory.look()

    def holds(self) -> int:
        """Return how many of Magnetar's models are in the server or on their way."""
        return len(self._ledger.loaded() | self._ledger.busy())

    def check_server(self) -> tuple[bool, str]:
        """Return whether the server answers, for ``/readyz``."""
        return self.serving, "the server answers" if self.serving else "the server does not answer"

    def check_commands(self) -> tuple[bool, str]:
        """Return whether commands reach this agent and are obeyed, for ``/readyz``."""
        refusing = self._ledger.refusing
        return (False, refusing) if refusing else self._commands.check()

    def check_reports(self) -> tuple[bool, str]:
        """Return whether reports reach the broker, for ``/readyz``."""
        return self._reporter.check()

    def readings(self) -> list[DeviceReading]:
        """Read the devices of this host now."""
        with self._reading:
            return self._devices.read(self._pids())

    def _held(self, name: str) -> dict[str, int]:
        pids = self._pids_of(name)
        with self._reading:
            return self._devices.held(pids) if pids else {}

    def refresh(self, record: ServiceRecord) -> ServiceRecord:
        """Return the record with current readings; called for each heartbeat."""
        devices = tuple(_device(reading) for reading in self.readings())
        for device in devices:
            DEVICE_MEMORY.labels(device.uuid, "total").set(device.total)
            DEVICE_MEMORY.labels(device.uuid, "free").set(device.free)
        grown = self._observer.look(self._ledger.loaded(), {device.uuid: device.total for device in devices})
        if grown:
            self._reporter.report(LoadObserved(memory=grown))
        info = (record.server or self._info).model_copy(
            update={
                "devices": devices,
                "disk_bytes": shutil.disk_usage(self._options.folder).free,
                "loads": len(self._ledger.busy()),
                "digest": digest_of(self._ledger.loaded()),
                "report": self._reporter.number,
            }
        )
        return record.model_copy(update={"server": info})

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


def _device(reading: DeviceReading) -> Device:
    return Device(
        uuid=reading.uuid,
        kind=reading.kind,
        gpu_type="" if reading.kind == "cpu" else line(reading.name),
        parent=reading.parent,
        total=reading.total_bytes,
        free=reading.free_bytes,
        largest_free=reading.largest_free_bytes,
        utilisation=-1.0 if reading.utilisation is None else max(0.0, min(1.0, reading.utilisation)),
        error=line(reading.error),
    )

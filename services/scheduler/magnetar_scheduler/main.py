"""The scheduler's composition root: stand by, lead, and exit when the leadership is over."""

import gc
import os
import socket
import threading
import time
import uuid

import structlog
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from magnetar_common import __version__
from magnetar_common import bus as buses
from magnetar_common.errors import BusUnavailable, Deposed
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.metrics import LEADER, LOG_POSITION, TERM
from magnetar_common.ops import Health, OpsServer, configure_logging
from magnetar_common.registrar import Registrar
from magnetar_common.schema_registry import SchemaRegistry
from magnetar_common.settings import BusSettings, SnapshotSettings
from magnetar_common.snapshot import Snapshots
from magnetar_common.state import State
from magnetar_common.topic_policies import check_at_start
from magnetar_events import ServiceRecord
from magnetar_events.entry import FOLD_VERSION, FOLD_VERSION_PROPERTY
from magnetar_events.records import Address
from magnetar_scheduler.leader import Leader
from magnetar_scheduler.leadership import Challenger

SERVICE_NAME = "magnetar-scheduler"

EXIT_TEMPORARY = 75
"""Exit code (EX_TEMPFAIL) of a scheduler that led and no longer does, or lost the broker: start it again."""

STALLED_S = 15.0
"""A loop that has not turned for this long (seconds) is not alive."""

_log = structlog.get_logger(__name__)


class SchedulerSettings(BaseSettings):
    """How the scheduler runs; each field is also an environment variable ``MAGNETAR_SCHEDULER_…``.

    What it decides by is not here: that is policy, in the log.

    Attributes:
        cluster: the Magnetar cluster that it leads.
        identity: unique for each life; empty = made up.
        host: where health and metrics are served.
        port: of these; 0 = any free one.
        advertised_host: how others reach it; empty = ``host``.
        log_json: log lines as JSON.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_SCHEDULER_", extra="ignore")

    cluster: str = "local"
    identity: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8600, ge=0, le=65_535)
    advertised_host: str = ""
    log_json: bool = True
    log_level: str = "INFO"


class _Loop:
    """What health knows of the loop, whichever thread asks."""

    def __init__(self) -> None:
        self.turned = time.monotonic()
        self.position = -1

    def alive(self) -> tuple[bool, str]:
        silence = time.monotonic() - self.turned
        return silence < STALLED_S, f"the loop turned {silence:.1f} s ago"

    def leads(self) -> tuple[bool, str]:
        return True, f"leading at position {self.position}"


def run(
    settings: SchedulerSettings | None = None,
    bus_settings: BusSettings | None = None,
    snapshot_settings: SnapshotSettings | None = None,
) -> int:
    """Run until told to stop or deposed; return the process's exit code."""
    gc.set_threshold(50_000, 20, 100)  # nearly all that a leader makes lives on: to look for cycles so often is a tenth
    settings = settings or SchedulerSettings()
    configure_logging(SERVICE_NAME, json=settings.log_json, level=settings.log_level)
    with Lifecycle() as life:
        _serve(settings, bus_settings or BusSettings(), life, snapshot_settings or SnapshotSettings())
    return EXIT_TEMPORARY if isinstance(life.error, (Deposed, BusUnavailable)) else life.exit_code


def _serve(
    settings: SchedulerSettings, bus_settings: BusSettings, life: Lifecycle, snapshot_settings: SnapshotSettings
) -> None:
    identity = settings.identity or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    loop = _Loop()
    health = Health()
    health.add("loop", loop.alive, live=True)
    health.add("role", lambda: (True, f"standing by at position {loop.position}"))
    ops = OpsServer(health, host=settings.host, port=settings.port).start()
    life.on_stop("http", ops.stop)

    def folded(state: State) -> None:
        loop.position = state.position
        LOG_POSITION.set(state.position)
        TERM.set(state.term)

    def stopping() -> bool:
        loop.turned = time.monotonic()
        return life.stopping.is_set()

    check_at_start(bus_settings)
    snapshots = Snapshots.from_settings(snapshot_settings)
    bus = buses.connect(bus_settings)
    life.on_stop("bus", bus.close)
    about = {"version": __version__, FOLD_VERSION_PROPERTY: str(FOLD_VERSION)}
    record = ServiceRecord(
        service_name=SERVICE_NAME,
        instance_id=f"{SERVICE_NAME}/{identity}",
        address=Address(host=settings.advertised_host or settings.host, port=ops.port),
        status="STARTING",
        timestamp=time.time_ns() // 1_000_000,
        metadata={"role": "standby", **about},
    )
    registrar = Registrar(bus, record).start()
    life.on_stop("registrar", registrar.leave)
    registrar.up()
    LEADER.set(0)
    # The client complains of every try while another leads, twice a second; what matters comes to us as an error.
    quiet = bus_settings.model_copy(update={"client_log": os.devnull})
    challenger = Challenger(lambda: buses.connect(quiet), stopping, folded, snapshots)
    health.add("start", lambda: (True, challenger.start))
    health.add("role", lambda: (True, challenger.role()))
    health.add("followed", challenger.check)
    mandate = challenger.run()
    if mandate is None:
        return
    registry = SchemaRegistry(bus_settings)
    life.on_stop("schema registry", registry.close)
    leader = Leader(mandate, settings.cluster, identity, registry.resolve)
    life.on_stop("leader", leader.close)
    leader.start()
    health.add("followed", leader.check)
    health.add("role", loop.leads)
    registrar.update(metadata={"role": "leader", "term": str(leader.term), **about})
    while not life.stopping.is_set():
        leader.turn()
        loop.turned = time.monotonic()
        loop.position = leader.state.position


def start(
    settings: SchedulerSettings,
    bus_settings: BusSettings,
    life: Lifecycle,
    snapshot_settings: SnapshotSettings | None = None,
) -> threading.Thread:
    """Run a scheduler on a thread of this process, for tests and notebooks; it ends with ``life``."""

    def serve() -> None:
        try:
            _serve(settings, bus_settings, life, snapshot_settings or SnapshotSettings(url=""))
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the lifecycle
            life.fail(error)

    thread = threading.Thread(target=serve, name="scheduler", daemon=True)
    thread.start()
    return thread

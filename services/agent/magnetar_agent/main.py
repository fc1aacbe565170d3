"""The agent's composition root."""

import secrets
import shutil
import threading
import time
from pathlib import Path

import structlog
from magnetar_common import __version__
from magnetar_common import bus as buses
from magnetar_common.bus import Bus
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.ops import Health, OpsServer, configure_logging
from magnetar_common.registrar import Registrar
from magnetar_common.settings import BusSettings
from magnetar_events import ServiceRecord
from magnetar_events.commands import COMMAND_KINDS
from magnetar_events.records import Address, RuntimeInfo, ServerInfo
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from magnetar_agent.adapters.base import ServerUnreachable
from magnetar_agent.agent import Agent, AgentOptions
from magnetar_agent.devices import Devices
from magnetar_agent.servers import Beside, beside
from magnetar_agent.settings import AgentSettings

SERVICE_NAME = "magnetar-agent"

_log = structlog.get_logger(__name__)


def run(settings: AgentSettings | None = None, bus_settings: BusSettings | None = None) -> int:
    """Run an agent until told to stop; return the process's exit code."""
    settings = settings or AgentSettings()
    configure_logging(SERVICE_NAME, json=settings.log_json, level=settings.log_level)
    with Lifecycle() as life:
        bus = buses.connect(bus_settings)
        life.on_stop("bus", bus.close)
        serve(bus, settings, life)
        life.wait()
    return life.exit_code


def serve(bus: Bus, settings: AgentSettings, life: Lifecycle, devices: Devices | None = None) -> Agent:
    """Start an agent on a bus; it stops with the lifecycle.

    Order matters: the server answers, then the command reader is open, then the instance registers.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    changed = threading.Event()
    server = beside(settings, changed.set)
    life.on_stop("inference server", server.stop)
    readers = devices or Devices()
    life.on_stop("devices", readers.close)
    info = _info(settings, server)
    options = AgentOptions(
        settings.home,
        secrets=Path(settings.secrets_dir) if settings.secrets_dir else None,
        load_concurrency=settings.load_concurrency,
        canary_s=settings.canary_s,
    )
    agent = Agent(bus, info, server.adapter, readers, options, server.pids)
    life.on_stop("agent", agent.close)

    health = Health()
    health.add("server", agent.check_server)
    health.add("reports", agent.check_reports)
    draining = _Draining(agent, settings.drain_timeout_s, life)
    health.add("draining", draining.check)
    ops = OpsServer(health, host=settings.bind, port=settings.port, routes=[draining.route]).start()
    life.on_stop("http", ops.stop)

    record = ServiceRecord(
        service_name=SERVICE_NAME,
        instance_id=f"{settings.server}/{settings.replica}/{info.incarnation}",
        address=Address(host=settings.advertised_host, port=ops.port),
        status="STARTING",
        timestamp=time.time_ns() // 1_000_000,
        metadata={"runtime": info.runtime.kind},
        labels=settings.label_map(),
        server=info,
    )
    registrar = Registrar(bus, record, settings.heartbeat_s, refresh=agent.refresh)
    draining.registrar = registrar
    registrar.start()
    life.on_stop("registrar", registrar.leave)
    health.add("registrar", registrar.check)
    agent.start()
    registrar.up()
    threading.Thread(target=_keep_status, args=(agent, registrar, changed, life, draining), daemon=True).start()
    _log.info("serving", server=info.key, incarnation=info.incarnation, http_port=info.http_port)
    return agent


def _keep_status(
    agent: Agent, registrar: Registrar, changed: threading.Event, life: Lifecycle, draining: "_Draining"
) -> None:
    """Say STARTING while the server does not answer, and UP when it does: nothing is placed on a dead server."""
    while not life.stopping.is_set():
        if changed.wait(0.5):
            changed.clear()
            agent.check()
        wanted = "UP" if agent.serving else "STARTING"
        if not draining.begun and not life.stopping.is_set() and registrar.record.status != wanted:
            registrar.update(status=wanted)


class _Draining:
    """``POST /terminate``: take nothing new, wait until every model is Available elsewhere, then end."""

    def __init__(self, agent: Agent, timeout_s: float, life: Lifecycle) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self._life = life
        self.begun = False
        self.registrar: Registrar | None = None
        self.route = Route("/terminate", self._terminate, methods=["POST"])

    def check(self) -> tuple[bool, str]:
        """An agent that drains is not ready."""
        return not self.begun, f"{self._agent.holds()} models left" if self.begun else "not draining"

    def _terminate(self, _: Request) -> Response:
        self.begun = True
        if self.registrar is not None:
            self.registrar.drain()
        deadline = time.monotonic() + self._timeout_s
        while self._agent.holds() and time.monotonic() < deadline and not self._life.stopping.wait(0.1):
            pass
        left = self._agent.holds()
        self._life.stop("terminated")
        return JSONResponse({"drained": left == 0, "modelsLeft": left}, status_code=200 if left == 0 else 504)


def _info(settings: AgentSettings, server: Beside) -> ServerInfo:
    try:
        _, version = server.adapter.server_info()
    except ServerUnreachable:
        version = ""  # a server that runs already may come later
    kind = settings.kind if settings.kind != "process" else server.adapter.kind
    return ServerInfo(
        cluster=settings.cluster,
        region=settings.region,
        zone=settings.zone,
        host=settings.host_name,
        server=settings.server,
        replica=settings.replica,
        incarnation=secrets.token_hex(6),
        http_port=server.http_port,
        grpc_port=server.grpc_port,
        runtime=RuntimeInfo(kind=kind, version=version),
        agent_version=__version__,
        commands=COMMAND_KINDS,
        capabilities=server.capabilities,
        max_models=settings.max_models,
        memory_bytes=settings.memory_bytes,
        over_commit_percent=settings.over_commit_percent,
        disk_bytes=shutil.disk_usage(settings.home).free,
    )

"""The agent's composition root."""

import secrets
import shutil
import threading
import time
from pathlib import Path

import structlog

from magnetar_agent.adapters.base import ServerUnreachable
from magnetar_agent.agent import Agent, AgentOptions
from magnetar_agent.devices import Devices
from magnetar_agent.presence import Presence
from magnetar_agent.servers import Beside, beside
from magnetar_agent.settings import AgentSettings
from magnetar_common import __version__
from magnetar_common import bus as buses
from magnetar_common.bus import Bus
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.ops import Health, OpsServer, configure_logging
from magnetar_common.registrar import Registrar
from magnetar_common.settings import BusSettings
from magnetar_common.topic_policies import check_at_start
from magnetar_common.topics import AGENT_EVENTS, COMMANDS, SERVICE_REGISTRY
from magnetar_events import ServiceRecord
from magnetar_events.commands import COMMAND_KINDS
from magnetar_events.records import Address, RuntimeInfo, ServerInfo

SERVICE_NAME = "magnetar-agent"

_log = structlog.get_logger(__name__)


def run(settings: AgentSettings | None = None, bus_settings: BusSettings | None = None) -> int:
    """Run an agent until told to stop; return the process's exit code."""
    settings = settings or AgentSettings()
    configure_logging(SERVICE_NAME, json=settings.log_json, level=settings.log_level)
    with Lifecycle() as life:
        # Only warned of: a server that serves is worth more than a policy that an administrator can mend meanwhile.
        check_at_start(bus_settings or BusSettings(), (AGENT_EVENTS, SERVICE_REGISTRY, COMMANDS), refuse=False)
        bus = buses.connect(bus_settings)
        life.on_stop("bus", bus.close)
        serve(bus, settings, life)
        life.wait()
    return life.exit_code


def serve(bus: Bus, settings: AgentSettings, life: Lifecycle, devices: Devices | None = None) -> Agent:
    """Start an agent on a bus; it stops with the lifecycle.

    Order matters: the server answers, then the command reader is open, then the instance registers. At the end the
    goodbye comes first and the server last, so that an operation that hangs ends with it.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    readers = devices or Devices()
    life.on_stop("devices", readers.close)
    gpus = tuple(reading.uuid for reading in readers.read() if reading.kind == "gpu")
    changed = threading.Event()
    server = beside(settings, gpus, changed.set)
    life.on_stop("inference server", server.stop)
    info = _info(settings, server)
    agent = Agent(bus, info, server.adapter, readers, _options(settings), life.fail, server.pids, server.pids_of)
    life.on_stop("agent", agent.close)
    presence = Presence(agent, changed, life, settings.drain_timeout_s)
    health, ops = _ops(settings, agent, presence)
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
    registrar = Registrar(bus, record, settings.heartbeat_s, refresh=agent.refresh).start()
    life.on_stop("registrar", registrar.leave)
    health.add("registrar", registrar.check)
    agent.start()
    presence.start(registrar)
    life.on_stop("presence", presence.close)
    if settings.drain_timeout_s > 0:
        life.on_terminate(presence.drain)
    _log.info("serving", server=info.key, incarnation=info.incarnation, http_port=info.http_port, agent_port=ops.port)
    return agent


def _options(settings: AgentSettings) -> AgentOptions:
    return AgentOptions(
        settings.home,
        secrets=Path(settings.secrets_dir) if settings.secrets_dir else None,
        artifact_roots=settings.artifact_folders(),
        load_concurrency=settings.load_concurrency,
        server_wait_s=settings.server_wait_s,
        canary_s=settings.canary_s,
        canary_patience_s=settings.canary_patience_s,
    )


def _info(settings: AgentSettings, server: Beside) -> ServerInfo:
    try:
        _, version = server.adapter.server_info()
    except ServerUnreachable:
        version = ""  # a server that runs already may come later
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
        runtime=RuntimeInfo(kind=server.adapter.kind, version=version),
        agent_version=__version__,
        commands=COMMAND_KINDS,
        capabilities=server.capabilities,
        max_models=settings.max_models,
        memory_bytes=settings.memory_bytes,
        over_commit_percent=settings.over_commit_percent,
        disk_bytes=shutil.disk_usage(settings.home).free,
    )


def _ops(settings: AgentSettings, agent: Agent, presence: Presence) -> tuple[Health, OpsServer]:
    health = Health()
    health.add("server", agent.check_server)
    health.add("commands", agent.check_commands)
    health.add("reports", agent.check_reports)
    health.add("draining", presence.check)
    ops = OpsServer(health, host=settings.bind, port=settings.port, routes=[presence.route])
    return health, ops.start()

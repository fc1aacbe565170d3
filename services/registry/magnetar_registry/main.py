"""The registry service's composition root."""

import os
import socket
import time
import uuid

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from magnetar_common import bus as buses
from magnetar_common.bus import Bus
from magnetar_common.discovery import Discovery
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.ops import Health, OpsServer, configure_logging
from magnetar_common.registrar import DEFAULT_INTERVAL_S, Registrar
from magnetar_common.settings import BusSettings
from magnetar_common.topic_policies import check_at_start
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import ServiceRecord
from magnetar_events.policy import Policy
from magnetar_events.records import Address
from magnetar_registry.api import routes
from magnetar_registry.service import RegistryService

SERVICE_NAME = "magnetar-registry"


class RegistrySettings(BaseSettings):
    """How the service runs; each field is also an environment variable ``MAGNETAR_REGISTRY_…``.

    Attributes:
        host: where it listens.
        port: look-ups, health and metrics; 0 = any free one.
        advertised_host: how others reach it; empty = ``host``, or the machine's name if that is a wildcard.
        instance_id: unique for each life; empty = made up.
        heartbeat_s: seconds between its own heartbeats.
        linger_s: seconds between a record's DOWN and its tombstone.
        hold_s: seconds by which leases are longer after the registry was out of reach.
        evictions_per_minute: instances declared DOWN per minute, at least.
        eviction_share: … and at most this share of them all, when it is more.
        log_json: log lines as JSON.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_REGISTRY_", extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8500, ge=0, le=65_535)
    advertised_host: str = ""
    instance_id: str = ""
    heartbeat_s: float = Field(default=DEFAULT_INTERVAL_S, gt=0)
    linger_s: float = Field(default=60.0, ge=0)
    hold_s: float = Field(default=60.0, ge=0)
    evictions_per_minute: int = Field(default=1, ge=1)
    eviction_share: float = Field(default=0.1, ge=0, le=1)
    log_json: bool = True
    log_level: str = "INFO"

    def policy(self) -> Policy:
        """Return the rules for leases that these settings make."""
        return Policy(
            hold_ms=round(self.hold_s * 1000),
            evictions_per_minute=self.evictions_per_minute,
            eviction_share=self.eviction_share,
        )


def run(settings: RegistrySettings | None = None) -> int:
    """Run the service until it is told to stop; return the process's exit code."""
    settings = settings or RegistrySettings()
    configure_logging(SERVICE_NAME, json=settings.log_json, level=settings.log_level)
    with Lifecycle() as life:
        check_at_start(BusSettings(), (SERVICE_REGISTRY,))
        bus = buses.connect()
        life.on_stop("bus", bus.close)
        serve(bus, settings, life)
    return life.exit_code


def serve(bus: Bus, settings: RegistrySettings, life: Lifecycle) -> None:
    """Serve on a bus until the lifecycle ends, which also stops what was started here."""
    owner = settings.instance_id or f"{SERVICE_NAME}/{socket.gethostname()}/{uuid.uuid4().hex[:8]}"
    discovery = Discovery(bus, policy=settings.policy())
    life.on_stop("discovery", discovery.close)
    service = RegistryService(bus, owner, settings.policy(), linger_s=settings.linger_s)
    life.on_stop("registry", service.close)

    health = Health()
    health.add("registry", service.check)
    health.add("loop", service.check_loop, live=True)
    ops = OpsServer(health, host=settings.host, port=settings.port, routes=routes(discovery)).start()
    life.on_stop("http", ops.stop)

    wildcard = settings.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    host = settings.advertised_host or (socket.gethostname() if wildcard else settings.host)
    record = ServiceRecord(
        service_name=SERVICE_NAME,
        instance_id=owner,
        address=Address(host=host, port=ops.port),
        status="STARTING",
        timestamp=time.time_ns() // 1_000_000,
        metadata={"pid": str(os.getpid())},
    )
    registrar = Registrar(bus, record, settings.heartbeat_s).start()
    life.on_stop("registrar", registrar.leave)
    health.add("registrar", registrar.check)
    registrar.up()
    service.run(life.stopping)

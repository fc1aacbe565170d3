"""The registrar: keeps one instance's record on the registry topic, from STARTING to DOWN.

For agents and for any other service. Each heartbeat is the whole record, because compaction keeps only the last message
of a key. It leaves with a *value*, DOWN: a tombstone alone deregisters nobody (a follower that was paused across a
compaction never hears it); the registry service writes it later.
"""

import re
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import structlog

from magnetar_common.beacon import Beacon
from magnetar_common.bus.base import Bus
from magnetar_common.metrics import CALLBACK_FAILURES
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord, schemas
from magnetar_events.records import Device

DEFAULT_INTERVAL_S = 15.0
"""Seconds between heartbeats of a plain service; agents take theirs from the policy (3 s)."""

LEASE_INTERVALS = 3
"""A lease is this many heartbeats."""

_HEARTBEAT = "heartbeatMs"
_LONGEST_MS = 86_400_000

_log = structlog.get_logger(__name__)


def lease_seconds(record: ServiceRecord) -> float:
    """Return the lease that a record claims: three of the intervals it announces (metadata ``heartbeatMs``).

    What is no number of milliseconds, or more than a day, is taken for the default: nobody lives for ever by saying so.
    """
    announced = record.metadata.get(_HEARTBEAT, "")
    if not re.fullmatch(r"[0-9]{1,8}", announced) or int(announced) > _LONGEST_MS:
        return LEASE_INTERVALS * DEFAULT_INTERVAL_S
    return LEASE_INTERVALS * max(int(announced) / 1000, 0.01)


class Registrar:
    """Registers an instance and keeps it registered. Its methods may be called from any thread.

    Usually::

        with Registrar(bus, record) as registrar:  # STARTING
            ...
            registrar.up()
            life.wait()
        # DOWN

    An outage of the broker is ridden out: nothing is buffered, the newest record is published when it is back, each
    instance at a moment of its own. Status changes that follow faster than the broker answers are seen as the last one.

    Args:
        bus: where the registry is.
        record: what to say; its status and timestamp are the registrar's.
        interval_s: seconds between heartbeats.
        refresh: puts current readings into the record, on the heartbeat's thread, before each publish. If it raises,
            the heartbeat goes on, and the record's devices say that they could not be read.
        topic: the registry topic.
    """

    def __init__(
        self,
        bus: Bus,
        record: ServiceRecord,
        interval_s: float = DEFAULT_INTERVAL_S,
        *,
        refresh: Callable[[ServiceRecord], ServiceRecord] | None = None,
        topic: str = SERVICE_REGISTRY.name,
    ) -> None:
        self._record = record.model_copy(update={"status": "STARTING"})
        self._interval = interval_s
        self._refresh = refresh
        self._lock = threading.Lock()
        self._left = False
        self._devices: tuple[Device, ...] = record.server.devices if record.server else ()
        self._beacon = Beacon(
            bus,
            topic,
            record.instance_id,
            self._value,
            schema=schemas.schema_json(SERVICE_REGISTRY.schema),
            interval_s=interval_s,
        )

    @property
    def record(self) -> ServiceRecord:
        """The record as it will be published next, before the readings."""
        return self._record

    @property
    def last_published(self) -> float | None:
        """Monotonic time of the last acknowledged heartbeat, in seconds."""
        return self._beacon.last_published

    @property
    def failures(self) -> int:
        """Publishes that failed since the last good one."""
        return self._beacon.failures

    @property
    def healthy(self) -> bool:
        """Whether the heartbeat runs, and its last publish is younger than a lease."""
        return self.check()[0]

    def check(self) -> tuple[bool, str]:
        """Return (healthy, why), for ``/readyz``."""
        if not self._beacon.alive:
            return False, "the heartbeat does not run in this process"
        if self.last_published is None:
            return False, f"not registered yet; {self._beacon.error}".rstrip("; ")
        age = time.monotonic() - self.last_published
        detail = f"last heartbeat {age:.1f} s ago" + (f"; {self._beacon.error}" if self._beacon.error else "")
        return age <= LEASE_INTERVALS * self._interval, detail

    def start(self) -> Self:
        """Register as STARTING and begin the heartbeat. Does not wait for the broker."""
        self._beacon.start()
        return self

    def up(self) -> int:
        """Say that this instance serves."""
        return self.update(status="UP")

    def drain(self) -> int:
        """Say that this instance takes nothing new."""
        return self.update(status="DRAINING")

    def update(self, record: ServiceRecord | None = None, **fields: Any) -> int:
        """Change the record, or fields of it, and publish it at once.

        Returns:
            A ticket for :meth:`published`.

        Raises:
            pydantic.ValidationError: a field is wrong; nothing changes.
            MagnetarError: we are in a fork.
        """
        with self._lock:
            self._record = ServiceRecord.model_validate({**dict(record or self._record), **fields})
        return self._beacon.wake()

    def published(self, ticket: int, timeout: float) -> bool:
        """Whether what :meth:`update` changed is acknowledged within ``timeout`` seconds."""
        return self._beacon.wait(ticket, timeout)

    def leave(self, timeout: float = 5.0) -> bool:
        """Say DOWN, wait for the acknowledgement, and end the heartbeat. In a fork it does nothing. Idempotent.

        Returns:
            Whether DOWN was acknowledged in time. If not, the lease will say it.
        """
        if not self._beacon.alive:
            return False
        with self._lock:
            self._record = self._record.model_copy(update={"status": "DOWN"})
            self._left = True
        told = self._beacon.wait(self._beacon.wake(hurry=True), timeout)
        self._beacon.close()
        if not told:
            _log.warning("left without a goodbye", instance=self._record.instance_id, error=self._beacon.error)
        return told

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    def _value(self) -> tuple[bytes, dict[str, str]]:
        record = self._record
        if self._refresh is not None and not self._left:
            try:
                record = self._refresh(record)
            except Exception as error:  # noqa: BLE001 - whatever it is, the heartbeat goes on
                CALLBACK_FAILURES.labels("registrar-refresh").inc()
                _log.error("readings failed", instance=record.instance_id, exc_info=error)
                record = _with_devices(record, _unread(self._devices, f"{type(error).__name__}: {error}"))
            else:
                self._devices = record.server.devices if record.server else ()
        record = record.model_copy(
            update={
                "instance_id": self._beacon.key,
                "status": self._record.status,  # the newest, in case it changed during the refresh
                "metadata": {**record.metadata, _HEARTBEAT: str(round(self._interval * 1000))},
                "timestamp": time.time_ns() // 1_000_000,
            }
        )
        return SERVICE_RECORD.encode(record), SERVICE_RECORD.properties


def _unread(devices: tuple[Device, ...], why: str) -> tuple[Device, ...]:
    """Return devices that admit to be unread: stale numbers must not pass for fresh ones."""
    reason = "".join(c for c in why if c.isprintable())[:1024]
    return tuple(device.model_copy(update={"error": reason}) for device in devices)


def _with_devices(record: ServiceRecord, devices: tuple[Device, ...]) -> ServiceRecord:
    if record.server is None:
        return record
    return record.model_copy(update={"server": record.server.model_copy(update={"devices": devices})})

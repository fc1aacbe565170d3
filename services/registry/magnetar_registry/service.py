"""The loop that keeps the registry topic healthy.

A silent instance gets a *value* first (DOWN, with ``declaredBy``) and, after a linger, the tombstone; so does a record
that its own instance left as DOWN. Whoever it concerns may object by beating: its next heartbeat is newer, and wins.
The leading scheduler judges for itself, with the same leases; what is written here is for clients.

What is to be written follows from what the topic says, again and again, until the topic says it: a lost send is sent
again, and a restart changes nothing.
"""

import queue
import threading
import time
from typing import NamedTuple

import structlog

from magnetar_common.bus.base import Bus, Message, MessageId, Producer
from magnetar_common.discovery import decode
from magnetar_common.errors import BusError
from magnetar_common.leases import Leases
from magnetar_common.metrics import HOLDING, LEASE_AGE, RETIRED, SUSPECTED
from magnetar_common.probe import Probe
from magnetar_common.registrar import lease_seconds
from magnetar_common.table_view import TableView
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord, schemas
from magnetar_events.policy import Policy

_RESEND_S = 5.0
_STUCK_S = 60.0

_log = structlog.get_logger(__name__)


class _Said(NamedTuple):
    instance: str
    record: ServiceRecord | None
    message: Message | None
    at: float


class RegistryService:
    """Judges every instance of the registry, and retires the silent ones.

    Args:
        bus: where the registry is; it outlives the service.
        owner: id of this instance, for ``declaredBy``.
        policy: ``heartbeat_ms``, ``hold_ms`` and the eviction limits; each lease is what the record announces.
        linger_s: seconds between a record's DOWN and its tombstone, so that whoever follows hears the value.
        topic: the registry topic.
    """

    def __init__(
        self, bus: Bus, owner: str, policy: Policy, *, linger_s: float = 60.0, topic: str = SERVICE_REGISTRY.name
    ) -> None:
        self.leases = Leases(policy, time.monotonic())
        self._bus = bus
        self._owner = owner
        self._linger = linger_s
        self._topic = topic
        self._said: queue.SimpleQueue[_Said] = queue.SimpleQueue()
        self._interruptions = 0
        self._producer: Producer | None = None
        self._lost: set[str] = set()
        """Whose DOWN is not on the topic yet."""
        self._down: dict[str, float] = {}
        """Whose DOWN is, and since when we know."""
        self._sent: dict[str, float] = {}
        """What was sent for an instance and has not been read back, and when."""
        self._turned = time.monotonic()
        self._view = TableView(bus, topic, decode)
        self._view.for_each_and_listen(self._listen)
        self._probe = Probe(bus, owner, self.leases, topic=topic)

    def check(self) -> tuple[bool, str]:
        """Return (ready, why), for ``/readyz``."""
        if not self._view.passes:
            return False, "the registry is being read"
        if not self._view.caught_up:
            return False, f"the registry has been out of reach for {self._view.lag:.1f} s"
        return True, f"{len(self._view)} records; {self.leases.holding(time.monotonic())}".rstrip("; ")

    def check_loop(self) -> tuple[bool, str]:
        """Return (alive, why), for ``/livez``: a loop that stands still is mended by a restart."""
        age = time.monotonic() - self._turned
        return age < _STUCK_S, f"last turn {age:.1f} s ago"

    def run(self, stopping: threading.Event) -> None:
        """Keep the topic healthy until told to stop."""
        while not stopping.is_set():
            self.turn()

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._probe.close()
        self._view.close()
        self._drop_producer()

    def turn(self) -> None:
        """Hear what was said, for at most a quarter of a probe interval, and act on it."""
        pause = self.leases.patience / 12
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            try:
                self._hear(self._said.get(timeout=left))
            except queue.Empty:
                break
        now = self._turned = time.monotonic()
        if self._view.interruptions != self._interruptions:
            self._interruptions = self._view.interruptions
            self.leases.restart_all(now)
        self.leases.tick(now)
        self._probe.tick(now)
        self._lost.update(self.leases.lapsed(now))
        self._retire(now)
        self._measure(now)

    def _listen(self, instance: str, record: ServiceRecord | None) -> None:
        self._said.put(_Said(instance, record, self._view.get_message(instance), time.monotonic()))

    def _hear(self, said: _Said) -> None:
        instance, record = said.instance, said.record
        self._sent.pop(instance, None)
        if record is None or said.message is None:
            self.leases.forget(instance)
            self._lost.discard(instance)
            self._down.pop(instance, None)
        elif record.status == "DOWN":
            self._lost.discard(instance)
            self._down.setdefault(instance, said.at)
            if not record.declared_by:
                self.leases.forget(instance)
        elif instance == self._probe.key:
            self._probe.seen(record, said.at)
        elif self.leases.observe(instance, said.message.id, said.at, lease_seconds(record)):
            self._lost.discard(instance)
            self._down.pop(instance, None)

    def _retire(self, now: float) -> None:
        for instance in sorted(self._lost):
            record = self._view.get(instance)
            if record is not None and record.status != "DOWN":
                gone = {"status": "DOWN", "declared_by": self._owner, "timestamp": time.time_ns() // 1_000_000}
                self._send(instance, SERVICE_RECORD.encode(record.model_copy(update=gone)), "declared", now)
        for instance, since in self._down.items():
            record = self._view.get(instance)
            if now - since >= self._linger and record is not None and record.status == "DOWN":
                self._send(instance, b"", "tombstone", now)

    def _send(self, instance: str, payload: bytes, how: str, now: float) -> None:
        if now - self._sent.get(instance, float("-inf")) < _RESEND_S:
            return
        self._sent[instance] = now

        def acknowledged(answer: MessageId | BusError) -> None:
            if isinstance(answer, BusError):
                _log.warning("not retired yet", instance=instance, how=how, error=str(answer))
            else:
                RETIRED.labels(how).inc()
                _log.info("retired", instance=instance, how=how)

        try:
            if self._producer is None:
                schema = schemas.schema_json(SERVICE_REGISTRY.schema)
                self._producer = self._bus.producer(self._topic, schema=schema, name=self._owner)
            properties = SERVICE_RECORD.properties if payload else {}
            self._producer.send_async(payload, acknowledged, key=instance, properties=properties)
        except BusError as error:
            _log.warning("not retired yet", instance=instance, how=how, error=str(error))
            self._drop_producer()

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _measure(self, now: float) -> None:
        LEASE_AGE.set(max(self.leases.ages(now).values(), default=0.0))
        SUSPECTED.set(len(self.leases.suspected(now)))
        HOLDING.set(bool(self.leases.holding(now)))

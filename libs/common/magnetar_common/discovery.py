"""Discovery: who offers a service right now, for any client that speaks Pulsar."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Self

import structlog

from magnetar_common.bus.base import Bus, Message, MessageId
from magnetar_common.leases import Leases
from magnetar_common.metrics import CALLBACK_FAILURES
from magnetar_common.probe import is_probe
from magnetar_common.registrar import lease_seconds
from magnetar_common.table_view import TableView
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.policy import Policy
from magnetar_events.records import Status

Watcher = Callable[[str, ServiceRecord | None], None]
"""Called with (instance id, record), or (instance id, None) when it is gone; quick, on a thread of ours."""

_log = structlog.get_logger(__name__)


def reported_load(record: ServiceRecord) -> float:
    """Return an instance's load as it says itself: metadata ``load``, else its loads in progress, else 0."""
    try:
        return float(record.metadata["load"])
    except (KeyError, ValueError):
        return float(record.server.loads) if record.server else 0.0


class Watch:
    """A watch in force; close it to end it."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def close(self) -> None:
        """Hear no more. Idempotent."""
        self._end()


class Discovery:
    """A live view of the registry. Safe to use from several threads.

    An instance is *there* while its record is, and its heartbeats arrive. Its lease is judged here, by our clock, and
    only while the path is proven (see :mod:`magnetar_common.leases`): during an outage the last good view stays. The
    proof is that messages arrive, the probes of the leader and of the registry service among them; where nobody probes,
    the connection must do. Nobody who is gone, DOWN or DRAINING is ever picked.

    Args:
        bus: where the registry is.
        policy: ``heartbeat_ms`` (how often to look) and ``hold_ms`` (indulgence after an outage).
        topic: the registry topic.
    """

    def __init__(self, bus: Bus, *, policy: Policy | None = None, topic: str = SERVICE_REGISTRY.name) -> None:
        # Not picking somebody costs nothing, so whoever is silent is left out, however many they are.
        unlimited = {"evictions_per_minute": 100_000, "eviction_share": 1.0}
        self._leases = Leases((policy or Policy()).model_copy(update=unlimited), time.monotonic())
        self._changed = threading.Condition(threading.RLock())
        self._there: dict[str, dict[str, ServiceRecord]] = {}
        """Service name → instance id → record, as the watchers were told."""
        self._names: dict[str, str] = {}
        """Instance id → service name, of those."""
        self._watchers: dict[str, list[Watcher]] = {}
        self._turns: dict[str, int] = {}
        self._probes: set[str] = set()
        self._interruptions = 0
        self._closing = threading.Event()
        self._view = TableView(bus, topic, decode)
        self._view.for_each_and_listen(self._heard)
        threading.Thread(target=self._look, name="discovery", daemon=True).start()

    def wait_ready(self, timeout: float) -> bool:
        """Whether everything that was stored at the start has been read within ``timeout`` seconds."""
        return self._view.wait_ready(timeout)

    def services(self) -> dict[str, list[ServiceRecord]]:
        """Return every instance that is there, by service name."""
        with self._changed:
            return {name: list(there.values()) for name, there in sorted(self._there.items())}

    def instances(self, name: str, status: Status | None = "UP") -> list[ServiceRecord]:
        """Return a service's instances, in the order of their ids; ``status`` None = any."""
        with self._changed:
            there = self._there.get(name, {})
            return [there[i] for i in sorted(there) if status is None or there[i].status == status]

    def wait_for(self, name: str, n: int, timeout: float) -> list[ServiceRecord]:
        """Return a service's instances as soon as ``n`` of them are UP.

        Raises:
            TimeoutError: there were fewer for ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.instances(name)) >= n, timeout):
                raise TimeoutError(f"{name}: {len(self.instances(name))} of {n} instances are UP after {timeout:g} s")
            return self.instances(name)

    def watch(self, name: str, fn: Watcher) -> Watch:
        """Tell ``fn`` of every instance that is there now, and then of each change; a mere heartbeat is none.

        An exception in ``fn`` is counted and logged, and ends nothing.
        """
        with self._changed:
            self._watchers.setdefault(name, []).append(fn)
            for instance, record in self._there.get(name, {}).items():
                _tell(fn, instance, record)

        def end() -> None:
            with self._changed:
                if fn in self._watchers.get(name, []):
                    self._watchers[name].remove(fn)

        return Watch(end)

    def round_robin(self, name: str) -> ServiceRecord | None:
        """Return the next instance that is UP in turn, or None when there is none."""
        return self._next(name, self.instances(name))

    def random(self, name: str) -> ServiceRecord | None:
        """Return any instance that is UP, or None when there is none."""
        up = self.instances(name)
        return random.choice(up) if up else None  # noqa: S311 - spreads load

    def least_loaded(self, name: str, load: Callable[[ServiceRecord], float] = reported_load) -> ServiceRecord | None:
        """Return the instance that is UP with the lowest load (ties: in turn), or None when there is none."""
        up = [(load(record), record) for record in self.instances(name)]
        least = min((value for value, _ in up), default=0.0)
        return self._next(name, [record for value, record in up if value == least])

    def by_metadata(self, name: str, wanted: Mapping[str, str]) -> ServiceRecord | None:
        """Return, in turn, an instance that is UP and has all of this metadata, or None when there is none."""
        return self._next(name, [r for r in self.instances(name) if wanted.items() <= r.metadata.items()])

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._closing.set()
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _next(self, name: str, among: list[ServiceRecord]) -> ServiceRecord | None:
        with self._changed:
            self._turns[name] = turn = self._turns.get(name, -1) + 1
        return among[turn % len(among)] if among else None

    def _heard(self, instance: str, record: ServiceRecord | None) -> None:
        message, now = self._view.get_message(instance), time.monotonic()
        with self._changed:
            if record is not None:
                self._leases.probe_seen(now, now)
            if is_probe(instance):
                change = self._probes.discard if record is None or record.status == "DOWN" else self._probes.add
                change(instance)
                return
            if record is None or message is None:
                self._leases.forget(instance)
            elif not record.declared_by:
                self._leases.observe(instance, message.id, now, lease_seconds(record))
            self._settle(instance, record)

    def _look(self) -> None:
        while not self._closing.wait(self._leases.patience / 4):
            with self._changed:
                now = time.monotonic()
                if self._view.interruptions != self._interruptions:
                    self._interruptions = self._view.interruptions
                    self._leases.restart_all(now)
                self._leases.tick(now)
                if not self._probes and self._view.caught_up:
                    self._leases.probe_seen(now, now)
                for instance in self._leases.lapsed(now):
                    self._settle(instance, None)

    def _settle(self, instance: str, record: ServiceRecord | None) -> None:
        """Make what the watchers were told true."""
        name = self._names.get(instance)
        told = self._there[name].get(instance) if name is not None else None
        if record is None or self._leases.silent(instance):
            record = None
            if name is None:
                return
            del self._names[instance], self._there[name][instance]
            if not self._there[name]:
                del self._there[name]
        else:
            if name not in (None, record.service_name):
                self._settle(instance, None)
            name = record.service_name
            self._names[instance] = name
            self._there.setdefault(name, {})[instance] = record
            if told is not None and told.model_copy(update={"timestamp": record.timestamp}) == record:
                return
        self._changed.notify_all()
        for fn in list(self._watchers.get(name, [])):
            _tell(fn, instance, record)


class Change(NamedTuple):
    """One message of an instance on the registry topic.

    Attributes:
        id: its place.
        at_ms: the writer's clock, for people.
        instance: whose record.
        record: what it said; None = tombstone, or unreadable.
        problem: why it is unreadable; empty if it is not.
    """

    id: MessageId
    at_ms: int
    instance: str
    record: ServiceRecord | None
    problem: str = ""


def history(bus: Bus, name: str, *, topic: str = SERVICE_REGISTRY.name) -> Iterator[Change]:
    """Yield what the registry's originals (kept for 7 days) say of a service's instances, oldest first, up to now.

    Args:
        bus: where the registry is.
        name: of a service, or the id of an instance.
        topic: the registry topic.

    Raises:
        BusUnavailable: the broker went away in between.
    """
    reader = bus.reader(topic, name="service-history")
    known: set[str] = set()
    try:
        while True:
            # Nothing at hand first, then the end: on a busy topic a read that waits always gets something.
            if (message := reader.read(0)) is None and reader.at_end():
                return
            if (message := message or reader.read(0.1)) is None:
                continue
            change = Change(message.id, message.publish_ms, message.key, None)
            if message.payload:
                try:
                    change = change._replace(record=decode(message))
                except Undecodable as error:
                    change = change._replace(problem=str(error))
            if name == message.key or (change.record is not None and change.record.service_name == name):
                known.add(message.key)
            if message.key in known:
                yield change
    finally:
        reader.close()


def decode(message: Message) -> ServiceRecord:
    """Return the record in a message of the registry topic.

    Raises:
        Undecodable: it holds none.
    """
    return SERVICE_RECORD.decode(message.payload, message.properties.get(FINGERPRINT, ""))


def _tell(fn: Watcher, instance: str, record: ServiceRecord | None) -> None:
    try:
        fn(instance, record)
    except Exception as error:  # noqa: BLE001 - one watcher must not end the others
        CALLBACK_FAILURES.labels("discovery-watch").inc()
        _log.error("watcher failed", instance=instance, exc_info=error)

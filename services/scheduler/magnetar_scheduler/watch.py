"""The leader's eye on the registry: who is there, how fresh their readings are, whose lease has lapsed.

The registry is a level and has no input position. Messages come from the view's thread; everything else happens on the
leader's.
"""

import time
from collections.abc import Callable

import structlog

from magnetar_common.bus import Bus, Message, MessageId
from magnetar_common.leases import Leases
from magnetar_common.metrics import HOLDING, LEASE_AGE, SUSPECTED
from magnetar_common.probe import Probe, is_probe
from magnetar_common.state import State
from magnetar_common.table_view import TableView
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import Input
from magnetar_events.records import ServerInfo
from magnetar_scheduler.inventory import expected_digest
from magnetar_scheduler.journal import from_record
from magnetar_scheduler.servers import news

SKEW_S = 30.0
"""An instance whose clock differs from ours by more than this (seconds) is warned of, once; nothing depends on it."""

_log = structlog.get_logger(__name__)

HeardOf = Callable[[str, ServiceRecord | None, MessageId | None], None]
"""Told of an instance's record (None = gone) and the message it came in."""


class Watch:
    """Turns the registry into inputs.

    Args:
        bus: where the registry is.
        owner: id of this leader, for its probe.
        state: the leader's; only read, on the leader's thread.
        now: monotonic seconds.
        heard_of: called on the view's thread; it must bring its arguments to :meth:`hear` on the leader's.
        unreadable: called on the view's thread with a message that is not a record.
    """

    def __init__(
        self,
        bus: Bus,
        owner: str,
        state: State,
        now: float,
        heard_of: HeardOf,
        unreadable: Callable[[Message], None],
    ) -> None:
        self._state = state
        self._skewed: set[str] = set()
        self._looked_at: dict[str, tuple[str, int, int]] = {}
        """Instance → the digest of its index that was last compared with the state, and how that was: how many replicas, and
        when the last of them changed."""
        self.leases = Leases(state.policy, now)
        self._probe = Probe(bus, owner, self.leases)
        self.view: TableView[ServiceRecord] = TableView(
            bus,
            SERVICE_REGISTRY.name,
            lambda message: SERVICE_RECORD.decode(message.payload, message.properties.get(FINGERPRINT, "")),
            on_rejected=lambda message, _: unreadable(message),
        )

        def tell(key: str, record: ServiceRecord | None) -> None:
            message = self.view.get_message(key)
            heard_of(key, record, message.id if message is not None and record is not None else None)

        self._tell = tell
        self._listening = False
        self._interruptions = 0
        for server in state.servers.values():  # of before our time: their leases start afresh
            (self.leases.bury if server.lost else self.leases.observe)(
                server.record.instance_id, MessageId(-1, -1), now
            )

    def hear(self, key: str, record: ServiceRecord | None, message_id: MessageId | None, now: float) -> Input | None:
        """Take note of a record or its absence; return the input that it is to the decider, if any."""
        if is_probe(key):
            if record is not None:
                self._probe.seen(record, now)
            return None
        if record is None:
            return None  # an absence is silence like any other: anybody can write a tombstone, and the lease decides
        if key != record.instance_id:
            _log.warning("a record under another instance's key is ignored", key=key, instance=record.instance_id)
            return None
        if record.server is None or record.server.cluster != self._state.cluster:
            return None
        if message_id is not None and record.status != "DOWN" and not record.declared_by:
            if not self.leases.observe(record.instance_id, message_id, now):
                return None  # read again: it revives nobody
            self._check_clock(record)
        kind = news(self._state, record)
        if kind != "registry" and self._unexplained(record.instance_id, record.server):
            kind = "reading"
        return from_record(kind, record.instance_id, record) if kind else None

    def _unexplained(self, instance: str, info: ServerInfo) -> bool:
        """Whether a server's index is not what the state says it holds, if either is another than when last looked at.

        While a load or an unload is in flight there nobody can tell, and it is looked at again with the next heartbeat.
        """
        server = self._state.servers.get(info.key)
        if server is None or server.record.instance_id != instance:
            return False
        replicas = server.replicas.values()
        now = (info.digest, len(replicas), max((replica.since for replica in replicas), default=0))
        if self._looked_at.get(instance) == now or (expected := expected_digest(server)) is None:
            return False
        self._looked_at[instance] = now
        return info.digest != expected

    def _check_clock(self, record: ServiceRecord) -> None:
        skew = record.timestamp / 1000 - time.time()
        fresh = self.view.passes > 0  # what was there before us is old, and says nothing of a clock
        if fresh and abs(skew) > SKEW_S and record.instance_id not in self._skewed:
            self._skewed.add(record.instance_id)
            _log.warning("clock skew", instance=record.instance_id, seconds=round(skew, 1))

    def tick(self, now: float) -> list[Input]:
        """Return who lapsed and whose readings are stale; call at least twice a second."""
        state, leases = self._state, self.leases
        leases.policy = state.policy
        if not self._listening and self.view.passes:
            self._listening = True  # not before: without compaction a first pass goes through every old heartbeat
            self._take_stock(now)
            self.view.for_each_and_listen(self._tell)
        if self._interruptions != self.view.interruptions:
            self._interruptions = self.view.interruptions
            leases.restart_all(now)
        leases.tick(now)
        self._probe.tick(now)
        HOLDING.set(bool(leases.holding(now)))
        silence = leases.silence(now)
        LEASE_AGE.set(silence)
        if silence <= min(state.policy.reading_stale_ms, state.policy.lease_ms) / 1000:
            SUSPECTED.set(0)  # nor is anything else to be found
            return []
        by_instance = {server.record.instance_id: server for server in state.servers.values()}
        found: list[Input] = []
        for instance in leases.lapsed(now):
            server = by_instance.get(instance)
            if server is not None and not server.lost:
                found.append(Input("lease", subject=f"{server.key}@{server.incarnation}"))
        SUSPECTED.set(len(leases.suspected(now)))
        limit = state.policy.reading_stale_ms / 1000
        for instance, age in leases.ages(now).items():  # also during a hold: whoever's fault it is, the reading is old
            server = by_instance.get(instance)
            if server is None:
                leases.forget(instance)
                self._looked_at.pop(instance, None)
            elif age > limit and not server.stale and not server.lost:
                found.append(Input("stale", subject=server.key))
        return found

    def _take_stock(self, now: float) -> None:
        """Let nobody return, or join, or be placed on, by what was said before our time: the dead said it, too.

        Who lives says it again.
        """
        here = {server.record.instance_id for server in self._state.servers.values() if not server.lost}
        for instance in self.view:
            message = self.view.get_message(instance)
            if message is not None and not is_probe(instance):
                (self.leases.observe if instance in here else self.leases.bury)(instance, message.id, now)

    def close(self) -> None:
        """Stop watching."""
        self.view.close()
        self._probe.close()

"""Leases: who is silent, when silence may be believed, and how many may be declared lost for it.

Pure and clock-injected: the leading scheduler and the registry service run the same code. One thread at a time.

Age is *proven time*. A probe that was published at T and is read back proves that everything published before T was
read too, so silence up to T is the instance's own. Time that no probe vouches for makes nobody older:

* probe missing: the path (our own, or the broker's) is at fault; nobody expires;
* probe back: every lease restarts, plus ``hold_ms``;
* probe healthy: silence is theirs; at most max(``evictions_per_minute``, ``eviction_share`` of the fleet) are evicted
  in any minute. The rest wait their turn in :meth:`Leases.suspected`, and :meth:`Leases.holding` says why.

No suspicion lasts for ever: restarts (a flapping path, pauses of ours) excuse silence for twice a lease and a hold of
proven time, and no longer.
"""

from collections import deque
from dataclasses import dataclass

from magnetar_common.bus.base import MessageId
from magnetar_events.policy import Policy

PAUSE_S = 1.0
"""Our own loop standing still for longer than this restarts every lease (seconds)."""

_MINUTE_S = 60.0


@dataclass(slots=True)
class _Lease:
    last: MessageId
    heard: float
    """Our clock when the last heartbeat arrived."""
    renewed: float
    """Proven time at that moment."""
    own: float | None
    """Its own length in seconds; None = the policy's, whatever that is by then."""
    evicted: bool = False


class Leases:
    """The leases of a fleet. ``now`` is a monotonic clock in seconds, the same one in every call.

    Args:
        policy: ``lease_ms``, ``heartbeat_ms``, ``hold_ms`` and the eviction limits; may be replaced at any time.
        now: when this process began to watch.
    """

    def __init__(self, policy: Policy, now: float) -> None:
        self.policy = policy
        self._leases: dict[str, _Lease] = {}
        self._evictions: deque[tuple[float, str]] = deque()
        self._proven = 0.0
        """Seconds of proven time so far."""
        self._vouched = now
        """Our clock up to which time is proven, or excused by a restart."""
        self._fresh = 0.0
        """Proven time at which every lease began afresh; in the future during a hold."""
        self._missing_since: float | None = None
        self._ticked = now

    @property
    def patience(self) -> float:
        """Seconds without a fresh probe after which the path counts as broken: one heartbeat, a third of a lease."""
        return self.policy.heartbeat_ms / 1000

    @property
    def missing(self) -> bool:
        """Whether our own probe is missing: the path to the registry, ours or the broker's, is broken."""
        return self._missing_since is not None

    def __len__(self) -> int:
        """Return how many instances have a lease and were not evicted: the fleet."""
        return sum(not lease.evicted for lease in self._leases.values())

    def observe(self, instance: str, message_id: MessageId, now: float, lease_s: float | None = None) -> bool:
        """Renew a lease, if this heartbeat is newer than the last one known; a re-read revives nobody.

        Only what the instance itself wrote is a heartbeat: never pass a record with ``declared_by``.

        Args:
            instance: whose heartbeat it is.
            message_id: its place in the registry topic.
            now: when it was read.
            lease_s: this instance's lease in seconds; None = the policy's.

        Returns:
            Whether it was news.
        """
        known = self._leases.get(instance)
        if known is not None and message_id <= known.last:
            return False
        # It was published after the last proof, at most one patience ago as far as anybody can prove.
        renewed = self._proven + min(max(now - self._vouched, 0.0), self.patience)
        self._leases.pop(instance, None)  # so that they stay in the order in which they were heard
        self._leases[instance] = _Lease(message_id, now, renewed, lease_s)
        return True

    def bury(self, instance: str, message_id: MessageId, now: float) -> None:
        """Take over a verdict from before our time: lost, and only a heartbeat newer than this one says otherwise."""
        self._leases[instance] = _Lease(message_id, now, self._proven, None, evicted=True)

    def forget(self, instance: str) -> None:
        """Drop an instance: it left, was superseded, or its record is gone. Unknown ones are ignored."""
        self._leases.pop(instance, None)

    def restart_all(self, now: float) -> None:
        """Begin every lease afresh: after a take-over, a reopened reader, or a pause of our own."""
        self._fresh = max(self._fresh, self._proven)
        self._vouched = max(self._vouched, now)

    def tick(self, now: float) -> None:
        """Notice our own pauses and a missing probe. Call it in every turn of the loop, at least twice a second."""
        if now - self._ticked > PAUSE_S:
            self.restart_all(now)
        self._ticked = now
        if self._missing_since is None and now - self._vouched > self.patience:
            self._missing_since = self._vouched

    def probe_seen(self, sent: float, now: float) -> None:
        """Take note that our probe of time ``sent`` was read back. One that took too long proves nothing."""
        if now - sent > self.patience:
            return
        if self._missing_since is not None or sent - self._vouched > self.patience:
            self._missing_since = None
            self._fresh = self._proven + self.policy.hold_ms / 1000
        else:
            self._proven += max(sent - self._vouched, 0.0)
        self._vouched = max(self._vouched, sent)

    def silent(self, instance: str) -> bool:
        """Whether an instance was evicted, or its lease has run out and only the eviction limit keeps it."""
        lease = self._leases.get(instance)
        return lease is not None and (lease.evicted or self._overdue(lease) > 0)

    def lapsed(self, now: float) -> list[str]:
        """Return who is lost now, longest silent first, within the limit. Each is returned once per silence."""
        if self._missing_since is not None:
            return []
        due = [i for i, lease in self._leases.items() if not lease.evicted and self._overdue(lease) > 0]
        if not due:
            return []
        due.sort(key=lambda i: self._leases[i].renewed)
        lost = due[: self._room(now)]
        for instance in lost:
            self._leases[instance].evicted = True
            self._evictions.append((now, instance))
        return lost

    def suspected(self, now: float) -> dict[str, float]:
        """Return who was not heard for longer than a lease and is not evicted (yet), with the seconds of silence."""
        return {i: age for i, age in self.ages(now).items() if age > self._length(self._leases[i])}

    def silence(self, now: float) -> float:
        """Return the greatest of the :meth:`ages`, or 0; without looking at all of them."""
        heard = next((lease.heard for lease in self._leases.values() if not lease.evicted), now)
        return max(now - heard, 0.0)

    def ages(self, now: float) -> dict[str, float]:
        """Return the seconds since each living instance was last heard, by our clock."""
        return {i: max(now - lease.heard, 0.0) for i, lease in self._leases.items() if not lease.evicted}

    def holding(self, now: float) -> str:
        """Return why suspicions are not acted on right now, for people; empty = nothing holds them."""
        if self._missing_since is not None:
            return f"our own probe has been missing for {now - self._missing_since:.1f} s: nobody expires"
        if (left := self._fresh - self._proven) > 0:
            return f"the registry was out of reach and is back: leases restart in {left:.1f} s"
        if self._evictions and self._room(now) == 0 and (suspects := len(self.suspected(now))):
            return f"{len(self._evictions)} evicted in the last minute, which is the limit: {suspects} wait their turn"
        return ""

    def _overdue(self, lease: _Lease) -> float:
        length = self._length(lease)
        excused = self._proven - max(lease.renewed, self._fresh) - length
        at_last = self._proven - lease.renewed - 2 * (length + self.policy.hold_ms / 1000)
        return max(excused, at_last)

    def _length(self, lease: _Lease) -> float:
        return lease.own if lease.own is not None else self.policy.lease_ms / 1000

    def _room(self, now: float) -> int:
        while self._evictions and now - self._evictions[0][0] >= _MINUTE_S:
            self._evictions.popleft()
        # The fleet as it was a minute ago, so that a mass loss does not slow its own clearing.
        fleet = {i for i, lease in self._leases.items() if not lease.evicted} | {i for _, i in self._evictions}
        limit = max(self.policy.evictions_per_minute, int(self.policy.eviction_share * len(fleet)))
        return max(limit - len(self._evictions), 0)

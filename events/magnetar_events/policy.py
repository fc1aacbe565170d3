"""What ``decide`` depends on besides the state and its input: limits, leases and intervals.

Policy is state. It is set by a request (``SetPolicy``) and held as a fact (``PolicySet``), so that replay, what-if and
a second scheduler agree. Every duration is in milliseconds.
"""

import base64
import binascii
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from magnetar_events.base import Later, Name, Wire

_Interval = Annotated[int, Field(ge=10, le=86_400_000)]
_Duration = Annotated[int, Field(ge=0, le=7 * 86_400_000)]
_Share = Annotated[float, Field(ge=0, le=1)]


KEY_BYTES = 32
"""Length of an Ed25519 public key (RFC 8032)."""

SHORTEST_MEMORY_MS = 3_600_000
"""With less memory of requests than this (ms) a signed one could not be told from its replay by clocks that differ."""


SHORTEST_RESERVATION_MS = 10_000
"""More often than this (ms) the log would be full of reservations."""


def _not_too_soon(value: int) -> int:
    if 0 < value < SHORTEST_RESERVATION_MS:
        raise ValueError(f"{value} is neither 0, for never, nor at least {SHORTEST_RESERVATION_MS}")
    return value


def _public_key(value: str) -> str:
    try:
        key = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"not an Ed25519 public key: base64 of {KEY_BYTES} bytes, as `magnetar keys new` prints it")
    return value


class Publisher(Wire):
    """Somebody who signs requests, and what a signature of theirs is good for.

    Attributes:
        key: Ed25519 public key: base64 of its 32 bytes.
        gateway: it has checked who asked, and may name another actor than itself.
        policy: while signatures are required, it may set the policy, and cordon, drain and resume servers.
    """

    key: Annotated[str, Field(max_length=64), AfterValidator(_public_key)]
    gateway: bool = False
    policy: bool = False


class Policy(Wire):
    """The rules in force.

    Attributes:
        heartbeat_ms: how often an agent publishes its record.
        lease_ms: a server silent for this long is lost; three heartbeats.
        reading_stale_ms: a device reading older than this is distrusted: nothing new is placed there.
        reading_delta: a change of free memory, as a share of the total, that is worth a fact; a tenth of it after a load or
            unload.
        utilisation_limit: devices busier than this share take nothing new.
        hold_ms: how much longer leases are after a fault of our own or of the broker.
        evictions_per_minute: servers declared lost per minute, at least.
        eviction_share: … and at most this share of the fleet, when it is more.
        load_attempts: loads tried on one server before another is tried.
        load_servers: servers tried before a version is failed.
        load_retry_ms: wait before the second attempt; doubled for each further one.
        load_timeout_ms: a load unanswered for this long has failed.
        unload_grace_ms: between leaving the route table and the unload.
        unload_timeout_ms: an unload unanswered for this long has failed, and is retried.
        delete_deadline_ms: an undeployed model is forgotten after this long, whatever its servers say.
        resend_ms: an unanswered command is sent again after this long.
        request_memory_ms: a request's id is remembered for this long of log time.
        piece: models re-placed in one entry.
        forget_server_ms: a lost server's name and bookings are dropped after this long.
        max_models: more models than this are refused.
        max_servers: more servers than this are not taken in; lost ones are forgotten first.
        max_requests: requests remembered; with more, the oldest are forgotten before their time.
        rollout_unavailable: where room is short, a new version replaces the old one in steps, with so many of the wanted
            replicas missing at most; 0 = never fewer than are wanted, and then it waits for room.
        memory_return_ms: an unloaded replica whose accelerators do not show its memory after this long has leaked it.
        preemption: whether a replica may have to leave for a model of higher priority that has no room: ``never``, or
            ``lower-priority``.
        publishers: who signs requests, by name.
        require_signature: requests that are not signed by one of these are refused.
        loads_per_server: loads in progress on one server, at most; 0 = no limit.
        loads_in_cluster: loads in progress on all servers together, at most; 0 = no limit.
        anti_affinity: what replicas of a version do not share: ``server`` = a server, which they never do; ``host`` = nor a
            host; ``soft`` = nor a host, unless only hosts that have one are left.
        reserve_after_ms: a version that is as old as this, and waits where others came after it, has what becomes free on
            a server reserved for it; 0 = never, or at least 10 s.
    """

    heartbeat_ms: _Interval = 3_000
    lease_ms: _Interval = 9_000
    reading_stale_ms: _Interval = 5_000
    reading_delta: _Share = 0.05
    utilisation_limit: _Share = 0.8
    hold_ms: _Duration = 60_000
    evictions_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 1
    eviction_share: _Share = 0.1
    load_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    load_servers: Annotated[int, Field(ge=1, le=100)] = 3
    load_retry_ms: _Interval = 1_000
    load_timeout_ms: _Interval = 1_800_000
    unload_grace_ms: _Duration = 1_000
    unload_timeout_ms: _Interval = 60_000
    delete_deadline_ms: _Interval = 120_000
    resend_ms: _Interval = 5_000
    request_memory_ms: _Duration = 86_400_000
    piece: Annotated[int, Field(ge=1, le=1_000)] = 100
    forget_server_ms: _Interval = 86_400_000
    max_models: Annotated[int, Field(ge=1, le=1_000_000), Later] = 100_000
    max_servers: Annotated[int, Field(ge=1, le=100_000), Later] = 10_000
    max_requests: Annotated[int, Field(ge=1_000, le=10_000_000), Later] = 200_000
    rollout_unavailable: Annotated[int, Field(ge=0, le=1_000), Later] = 0
    memory_return_ms: Annotated[_Interval, Later] = 30_000
    preemption: Annotated[Literal["never", "lower-priority"], Later] = "never"
    publishers: Annotated[dict[Name, Publisher], Field(max_length=256), Later] = Field(
        default_factory=dict[str, Publisher]
    )
    require_signature: Annotated[bool, Later] = False
    loads_per_server: Annotated[int, Field(ge=0, le=10_000), Later] = 0
    loads_in_cluster: Annotated[int, Field(ge=0, le=1_000_000), Later] = 0
    anti_affinity: Annotated[Literal["server", "soft", "host"], Later] = "soft"
    reserve_after_ms: Annotated[_Duration, AfterValidator(_not_too_soon), Later] = 600_000

    @model_validator(mode="after")
    def _heartbeats_fit(self) -> "Policy":
        if self.lease_ms < 2 * self.heartbeat_ms:
            raise ValueError(
                f"leaseMs {self.lease_ms} is less than two heartbeats of {self.heartbeat_ms} ms: everybody would be lost"
            )
        if self.reading_stale_ms < self.heartbeat_ms:
            raise ValueError(
                f"readingStaleMs {self.reading_stale_ms} is less than a heartbeat of {self.heartbeat_ms} ms"
            )
        return self

    @model_validator(mode="after")
    def _somebody_may_set_it(self) -> "Policy":
        if self.require_signature and not any(publisher.policy for publisher in self.publishers.values()):
            raise ValueError("requireSignature without a publisher whose policy is true: nobody could set it again")
        if self.publishers and self.request_memory_ms < SHORTEST_MEMORY_MS:
            raise ValueError(
                f"requestMemoryMs {self.request_memory_ms} is less than {SHORTEST_MEMORY_MS}: with publishers, requests "
                "are remembered for that long, or a signed one could be replayed"
            )
        return self

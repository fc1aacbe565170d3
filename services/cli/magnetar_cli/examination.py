"""What ``magnetar doctor`` looks at: each check says what it found, and what to do about it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from magnetar_cli.connection import Following
from magnetar_common import tokens, topic_policies
from magnetar_common.admin import Admin
from magnetar_common.bus import EARLIEST, LATEST, Bus, MessageId
from magnetar_common.discovery import Discovery
from magnetar_common.errors import LogError, NotPermitted
from magnetar_common.probe import is_probe
from magnetar_common.settings import BusSettings
from magnetar_common.topics import INPUTS, SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.schemas import SchemaDrift
from magnetar_events.schemas import check as check_schemas

GOOD, DOUBTFUL, BAD = "good", "warning", "bad"

_CLOCK_MS = 1_000
"""A clock that is further off than this (milliseconds) is worth a warning: it changes nothing but what people read."""

_SCHEDULER = "magnetar-scheduler"
_PATIENCE_S = 5.0
_LONG = 100_000
"""A log of more entries than this takes seconds to fold: to start from a snapshot is worth it."""

_DAY_S = 86_400
_LAG = 1_000
"""Messages that wait; more are not counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        check: what was looked at.
        result: good, warning or bad.
        detail: what was found.
        todo: what to do; empty when all is well.
    """

    check: str
    result: str
    detail: str
    todo: str = ""


def broker(settings: BusSettings, admin: Admin | None) -> Iterator[Finding]:
    """The broker: its version, and its policies with the schemas that it has registered."""
    if admin is None:
        yield Finding("broker", GOOD, f"embedded, at {settings.url}: one scheduler, no policies, no schema registry")
        return
    yield Finding("broker", GOOD, f"Pulsar {admin.broker_version()}, at {settings.url}")
    yield from _token(settings)
    try:
        violations = topic_policies.check(admin)
    except NotPermitted as error:
        yield Finding("policies", DOUBTFUL, str(error), "ask with an administrator's token: magnetar topics check")
        return
    for each in violations:
        result = BAD if each.loses_data else DOUBTFUL
        detail = f"{each.what} is {each.found}, not {each.wanted}"
        yield Finding(f"policy of {each.topic}", result, detail, each.command)
    if not violations:
        yield Finding("policies", GOOD, "what must be kept is kept; every topic has its schema")


def _token(settings: BusSettings) -> Iterator[Finding]:
    claims = tokens.claims(settings.current_token())
    if claims.expires is None:
        return
    left = claims.expires - time.time()
    detail = f"of role {claims.role}, ends in {left / _DAY_S:.1f} days"
    yield Finding("token", GOOD if left > _DAY_S else DOUBTFUL, detail, "" if left > _DAY_S else "have it renewed")


def schemas() -> Iterator[Finding]:
    """The wire contract: the shipped schemas are what this software writes, and read what older versions wrote."""
    try:
        check_schemas()
    except SchemaDrift as drift:
        yield Finding("schemas", BAD, str(drift), "make schemas")
    else:
        yield Finding("schemas", GOOD, "as this software writes them; what older versions wrote can be read")


def log_health(log: Following) -> Iterator[Finding]:
    """The log: it can be read from its beginning to its end, and holds nothing illegal."""
    began = time.monotonic()
    try:
        state = log.catch_up()
    except LogError as error:
        yield Finding("log", BAD, str(error), "find out who else wrote to, or deleted from, state-changes")
        return
    if state.position < 0:
        yield Finding("log", DOUBTFUL, "is empty: no scheduler ever led here", "magnetar scheduler")
        return
    detail = f"{state.position + 1} entries replayed in {time.monotonic() - began:.1f} s"
    if state.illegal:
        yield Finding("log", BAD, f"{detail}; {state.illegal} facts are illegal", "report the defect, with the log")
    else:
        yield Finding("log", GOOD, detail)


def leadership(log: Following) -> Iterator[Finding]:
    """Who leads, and how it started: the log names it, it is registered, and it says so itself."""
    state = log.state
    if not state.term:
        yield Finding("leader", BAD, "nobody ever led", "magnetar scheduler")
        return
    detail = f"{state.leader} leads cluster {state.cluster}, term {state.term}"
    with Discovery(log.bus) as discovery:
        discovery.wait_ready(_PATIENCE_S)
        found = [r for r in discovery.instances(_SCHEDULER) if r.metadata.get("term") == str(state.term)]
    if not found:
        yield Finding("leader", BAD, f"{detail}, and is not registered as UP", "is the scheduler running?")
        return
    url = f"http://{found[0].address.host}:{found[0].address.port}/readyz"
    try:
        # Without a token: whoever may register could have it sent to an address of its own.
        answer = httpx.get(url, timeout=_PATIENCE_S, trust_env=False)
        checks = answer.json().get("checks")
    except (httpx.TransportError, ValueError) as error:
        yield Finding("leader", DOUBTFUL, f"{detail}; no answer at {url}: {error}", "is the scheduler running?")
        return
    if checks is None:  # it asks for a token, and says no more than that
        yield Finding("leader", GOOD if answer.is_success else BAD, f"{detail}; it is ready: {answer.is_success}")
        return
    said, start = str(checks["role"]["detail"]), str(checks["start"]["detail"])
    yield Finding("leader", GOOD if said.startswith("leading") else BAD, f"{detail}; it says: {said}")
    slow = state.position > _LONG and start.endswith("no snapshot")
    yield Finding("start", DOUBTFUL if slow else GOOD, start, "set MAGNETAR_SNAPSHOTS_URL" if slow else "")


def lags(log: Following) -> Iterator[Finding]:
    """How many messages of each input the leader has not handled yet."""
    state = log.catch_up()
    for topic in INPUTS:
        short = topic.name.rpartition("/")[2]
        handled = next((value for key, value in state.handled.items() if key.endswith(short)), "")
        count = _count(log.bus, topic.name, MessageId.parse(handled) if handled else EARLIEST)
        behind = f"{count} messages wait" if count < _LAG else f"at least {_LAG} messages wait"
        yield Finding(f"lag of {short}", GOOD if count < _LAG else DOUBTFUL, behind if count else "none")


def clocks(bus: Bus, seconds: float) -> Iterator[Finding]:
    """How far the clocks of those who send heartbeats are from ours, heard for ``seconds``."""
    offsets: dict[str, int] = {}
    reader = bus.reader(SERVICE_REGISTRY.name, LATEST, name="magnetar-doctor")
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            message = reader.read(left)
            if message is None or not message.payload or is_probe(message.key):
                continue
            try:
                record = SERVICE_RECORD.decode(message.payload, message.properties.get(FINGERPRINT, ""))
            except Undecodable as error:
                yield Finding(f"record of {message.key}", DOUBTFUL, str(error), "somebody else writes to the registry")
                continue
            if not record.declared_by:
                offsets[record.instance_id] = record.timestamp - time.time_ns() // 1_000_000
    finally:
        reader.close()
    for instance, offset in sorted(offsets.items()):
        if abs(offset) > _CLOCK_MS:
            yield Finding(f"clock of {instance}", DOUBTFUL, f"{offset / 1000:+.1f} s from ours", "set the time there")
    near = sum(abs(offset) <= _CLOCK_MS for offset in offsets.values())
    yield Finding("clocks", GOOD, f"{near} of {len(offsets)} heard in {seconds:g} s are within {_CLOCK_MS} ms of ours")


def _count(bus: Bus, topic: str, after: MessageId) -> int:
    reader = bus.reader(topic, after, name="magnetar-doctor")
    try:
        count = 0
        while count < _LAG and not reader.at_end() and reader.read(1.0) is not None:
            count += 1
        return count
    finally:
        reader.close()

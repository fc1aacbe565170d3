"""What the broker must keep, and for how long: applied to every topic, and checked at start.

A wrong policy loses data silently: retention 0 deletes a topic that nobody is connected to, a time-to-live drags
readers past events, and compacted keys vanish with retention.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from magnetar_common.admin import Admin, Json
from magnetar_common.errors import BusRefused, BusUnavailable, NotThere, TopicsUnsafe
from magnetar_common.settings import BusSettings
from magnetar_common.topics import TOPICS, VOIDED, Topic, topics_of, under
from magnetar_events.schemas import released, schema_json

_log = structlog.get_logger(__name__)

COMPATIBILITY = "BACKWARD_TRANSITIVE"
"""Allows a new kind of event (FULL_TRANSITIVE refuses a union branch): readers are upgraded before writers."""

KEEP_ALIVE_S = 5
"""With the broker's default of 30 a frozen leader is replaced after about 57 s; with this after 7 s."""

_ONE_CLUSTER = "one cluster: exclusive producers and geo-replication exclude each other"

_EVICTS = "consumer_backlog_eviction"

_NO_EVICTION = {"destination_storage": {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}}

_NOT_DELETED_WHILE_IDLE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """Something about the broker that is not as it must be.

    Attributes:
        topic: a topic, a namespace, or ``broker``.
        what: the policy.
        found: what holds.
        wanted: what should.
        command: what sets it right.
        loses_data: the log or the registry is in danger: do not start. Otherwise a warning.
    """

    topic: str
    what: str
    found: str
    wanted: str
    command: str
    loses_data: bool = True


@dataclass(frozen=True, slots=True)
class _Policy:
    name: str
    wanted: Json
    command: str
    loses_data: bool = True
    enough: Callable[[Json], bool] | None = None
    """Whether what is found will do, though it is not what is wanted; an operator's choice stays."""

    def holds(self, found: Json) -> bool:
        return found == self.wanted or (self.enough is not None and self.enough(found))


def apply(admin: Admin | None, topics: Sequence[Topic] = ()) -> None:
    """Create what is missing (tenants, namespaces, topics, schemas) and set what differs. Idempotent.

    Args:
        admin: None for the embedded broker, which has no policies: topics come into being on first use.
        topics: by default all of Magnetar's, under the tenant of the settings.

    Raises:
        BusUnavailable: the admin interface cannot be reached.
        BusRefused: the token may not do this, or a registered schema is incompatible.
    """
    if admin is None:
        return
    topics = topics or topics_of(admin.tenant)
    for tenant in sorted({topic.namespace.partition("/")[0] for topic in topics}):
        admin.create_tenant(tenant)
    for namespace, members in _namespaces(topics).items():
        admin.create_namespace(namespace)
        for policy in _of_namespace(namespace, members):
            if not policy.holds(admin.namespace_policy(namespace, policy.name)):
                admin.set_namespace_policy(namespace, policy.name, policy.wanted)
    for topic in topics:
        if not topic.family:
            _apply_topic(admin, topic)


def check(admin: Admin | None, topics: Sequence[Topic] = ()) -> list[Violation]:
    """Compare the broker with what is wanted; an empty list is a clean bill (always so on the embedded broker).

    Raises:
        BusUnavailable: the admin interface cannot be reached.
        BusRefused: the token may not look.
    """
    if admin is None:
        return []
    topics = topics or topics_of(admin.tenant)
    violations = list(_check_broker(admin))
    for namespace, members in _namespaces(topics).items():
        violations += _check_namespace(admin, namespace, members)
    for topic in topics:
        if not topic.family:
            violations += _check_topic(admin, topic)
    return violations


def check_at_start(settings: BusSettings, topics: Sequence[Topic] = TOPICS, *, refuse: bool = True) -> None:
    """Check what a service depends on before it starts; what only hurts, and what cannot be checked, is logged.

    Args:
        settings: of the broker; without an admin interface (embedded) there is nothing to check.
        topics: of ``TOPICS``, those that the service uses.
        refuse: not to start on a broker that would lose data; else that is logged, too.

    Raises:
        TopicsUnsafe: the broker would lose data.
    """
    if not settings.admin_url:
        return
    own = [replace(topic, name=under(settings.tenant, topic.name)) for topic in topics]
    try:
        with Admin(settings) as admin:
            violations = check(admin, own)
    except (BusUnavailable, BusRefused) as error:
        _log.warning("what the broker keeps could not be checked; have magnetar topics check run", error=str(error))
        return
    for each in violations:
        report = _log.error if each.loses_data else _log.warning
        report(
            "a policy is not as it must be" if each.loses_data else "a policy is not as it should be",
            where=each.topic,
            what=each.what,
            found=each.found,
            wanted=each.wanted,
            command=each.command,
        )
    dangerous = [each for each in violations if each.loses_data]
    if dangerous and refuse:
        raise TopicsUnsafe(
            f"the broker would lose data: {_told(dangerous[0])}"
            + (f"; and {len(dangerous) - 1} more" if len(dangerous) > 1 else "")
            + "; all at once: magnetar topics apply"
        )


def _told(each: Violation) -> str:
    return f"{each.what} of {each.topic} is {each.found}, not {each.wanted} ({each.command})"


def _apply_topic(admin: Admin, topic: Topic) -> None:
    admin.create_topic(topic.name)
    for policy in _of_topic(topic):
        if not policy.holds(admin.topic_policy(topic.name, policy.name)):
            admin.set_topic_policy(topic.name, policy.name, policy.wanted)
    if topic.schema:
        if admin.schema(topic.name) is None:
            # Software that was released may write here, too, and the broker takes an older schema only if it had it first.
            for older in released(topic.schema):
                admin.set_schema(topic.name, schema_json(topic.schema, older))
        admin.set_schema(topic.name, schema_json(topic.schema))


def _namespaces(topics: Sequence[Topic]) -> dict[str, list[Topic]]:
    namespaces: dict[str, list[Topic]] = {}
    for topic in topics:
        namespaces.setdefault(topic.namespace, []).append(topic)
    return namespaces


def _of_namespace(namespace: str, members: Sequence[Topic]) -> Iterator[_Policy]:
    yield _Policy(
        "inactiveTopicPolicies",
        _NOT_DELETED_WHILE_IDLE,
        loses_data=False,  # each topic has its own, but for commands: they may be lost, and cost time
        enough=_stays,
        command=f"pulsar-admin namespaces set-inactive-topic-policies --disable-delete-while-inactive -t 60s "
        f"-m delete_when_no_subscriptions {namespace}",
    )
    yield _Policy(
        "schemaCompatibilityStrategy",
        COMPATIBILITY,
        f"pulsar-admin namespaces set-schema-compatibility-strategy -c {COMPATIBILITY} {namespace}",
        loses_data=False,
    )
    yield _Policy(
        "schemaValidationEnforced",
        True,
        f"pulsar-admin namespaces set-schema-validation-enforce --enable {namespace}",
        loses_data=False,
    )
    # A family's topics appear when a server does: the namespace's retention is theirs; the others have their own.
    for family in (member for member in members if member.family):
        yield _Policy(
            "retention",
            _retention(family),
            f"pulsar-admin namespaces set-retention -t {_minutes(family)} -s {family.retention_mb} {namespace}",
            enough=lambda found, family=family: _keeps(found, family),
        )
        yield _Policy(
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
            f"pulsar-admin namespaces set-auto-topic-creation --enable --type non-partitioned {namespace}",
        )
        yield _Policy(
            "messageTTL", 0, f"pulsar-admin namespaces remove-message-ttl {namespace}", enough=lambda found: not found
        )


def _of_topic(topic: Topic) -> Iterator[_Policy]:
    yield _Policy(
        "retention",
        _retention(topic),
        f"pulsar-admin topicPolicies set-retention -t {_minutes(topic)} -s {topic.retention_mb} {topic.name}",
        enough=lambda found: _keeps(found, topic),
    )
    yield _Policy(
        "compactionThreshold",
        topic.compaction_threshold,
        f"pulsar-admin topicPolicies set-compaction-threshold -t {topic.compaction_threshold} {topic.name}",
        loses_data=False,
    )
    yield _Policy(
        "backlogQuotaMap",
        _NO_EVICTION,
        f"pulsar-admin topicPolicies set-backlog-quota -l -1 -lt -1 -p producer_request_hold {topic.name}",
        enough=_never_evicts,
    )
    yield _Policy(
        "deduplicationEnabled",
        False,
        f"pulsar-admin topicPolicies set-deduplication --disable {topic.name}",
        loses_data=False,
        enough=lambda found: not found,
    )
    yield _Policy(
        "messageTTL", 0, f"pulsar-admin topicPolicies set-message-ttl -t 0 {topic.name}", enough=lambda found: not found
    )
    yield _Policy(
        "inactiveTopicPolicies",
        _NOT_DELETED_WHILE_IDLE,
        enough=_stays,
        command=f"pulsar-admin topicPolicies set-inactive-topic-policies --disable-delete-while-inactive -t 60s "
        f"-m delete_when_no_subscriptions {topic.name}",
    )


def _check_broker(admin: Admin) -> Iterator[Violation]:
    version = admin.broker_version()
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not (numbers >= (4, 2, 2) or (4, 0, 11) <= numbers < (4, 1)):
        yield Violation(
            "broker",
            "version",
            version,
            "4.0.11, 4.2.2 or newer",
            "upgrade the broker: this one never compacts away a tombstone",
            loses_data=False,
        )
    try:
        seconds = admin.broker_settings().get("keepAliveIntervalSeconds", "")
    except BusRefused:
        return  # for superusers only
    if not seconds.isdigit() or int(seconds) > KEEP_ALIVE_S:
        yield Violation(
            "broker",
            "keepAliveIntervalSeconds",
            seconds,
            f"at most {KEEP_ALIVE_S}",
            f"keepAliveIntervalSeconds={KEEP_ALIVE_S} in broker.conf: a frozen leader is replaced sooner",
            loses_data=False,
        )


def _check_namespace(admin: Admin, namespace: str, members: Sequence[Topic]) -> Iterator[Violation]:
    try:
        for policy in _of_namespace(namespace, members):
            found = admin.namespace_policy(namespace, policy.name)
            if not policy.holds(found):
                yield _violation(namespace, policy, found)
        clusters = admin.namespace_policy(namespace, "replication")
    except NotThere:
        yield Violation(namespace, "namespace", "missing", "there", "magnetar topics apply")
        return
    if len(clusters) > 1 and any(member.writers == "one" for member in members):
        yield Violation(
            namespace,
            "replication",
            ", ".join(clusters),
            _ONE_CLUSTER,
            f"pulsar-admin namespaces set-clusters -c <the leading cluster> {namespace}",
        )


def _check_topic(admin: Admin, topic: Topic) -> Iterator[Violation]:
    try:
        partitions = admin.partitions(topic.name)
        if partitions:
            yield Violation(
                topic.name,
                "partitions",
                str(partitions),
                "none: a partitioned topic has no order",
                f"move its data; pulsar-admin topics delete-partitioned-topic {topic.name}; magnetar topics apply",
            )
            return
        for policy in _of_topic(topic):
            found = admin.topic_policy(topic.name, policy.name)
            if not policy.holds(found):
                yield _violation(topic.name, policy, found)
        clusters: list[str] = admin.topic_policy(topic.name, "replication") if topic.writers == "one" else []
        if len(clusters) > 1:
            command = f"pulsar-admin topicPolicies set-replication-clusters -c <the leading cluster> {topic.name}"
            yield Violation(topic.name, "replication", ", ".join(clusters), _ONE_CLUSTER, command)
        registered = admin.schema(topic.name) if topic.schema else None
    except NotThere:
        void_list = topic.name == under(admin.tenant, VOIDED.name)  # seen to by the command that writes to it
        yield Violation(topic.name, "topic", "missing", "there", "magnetar topics apply", loses_data=not void_list)
        return
    if topic.schema and registered != json.loads(schema_json(topic.schema)):
        yield Violation(
            topic.name,
            "schema",
            "another" if registered else "none",
            f"events/schemas/{topic.schema}.avsc",
            "magnetar topics apply",
            loses_data=False,
        )


def _violation(where: str, policy: _Policy, found: Json) -> Violation:
    return Violation(
        where, policy.name, json.dumps(found), json.dumps(policy.wanted), policy.command, policy.loses_data
    )


def _keeps(found: Json, topic: Topic) -> bool:
    """Whether originals are kept for as long as is wanted, or longer; -1 = without an end."""

    def as_long(here: int, wanted: int) -> bool:
        return here == -1 or (wanted != -1 and here >= wanted)

    return bool(found) and (
        as_long(found["retentionTimeInMinutes"], topic.retention_minutes)
        and as_long(found["retentionSizeInMB"], topic.retention_mb)
    )


def _stays(found: Json) -> bool:
    """Whether a topic that nobody is connected to is not deleted."""
    return bool(found) and not found["deleteWhileInactive"]


def _never_evicts(found: Json) -> bool:
    """Whether no quota throws away what the slowest reader has not read; one that holds or refuses producers may be there."""
    quotas: dict[str, Any] = found or {}
    return not any(
        quota.get("policy") == _EVICTS and max(quota.get("limitSize", -1), quota.get("limitTime", -1)) > 0
        for quota in quotas.values()
    )


def _retention(topic: Topic) -> Json:
    return {"retentionTimeInMinutes": topic.retention_minutes, "retentionSizeInMB": topic.retention_mb}


def _minutes(topic: Topic) -> str:
    return f"{topic.retention_minutes}m" if topic.retention_minutes > 0 else str(topic.retention_minutes)

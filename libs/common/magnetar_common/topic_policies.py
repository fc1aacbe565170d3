"""What the broker must keep, and for how long: applied to every topic, and checked at start.

A wrong policy loses data silently: retention 0 deletes a topic that nobody is connected to, a time-to-live drags
readers past events, and compacted keys vanish with retention.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magnetar_common.admin import Admin, Json
from magnetar_common.errors import BusRefused, NotThere
from magnetar_common.topics import Topic, topics_of
from magnetar_events.schemas import schema_json

COMPATIBILITY = "BACKWARD_TRANSITIVE"
"""Allows a new kind of event (FULL_TRANSITIVE refuses a union branch): readers are upgraded before writers."""

KEEP_ALIVE_S = 5
"""With the broker's default of 30 a frozen leader is replaced after about 57 s; with this after 7 s."""

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
            if admin.namespace_policy(namespace, policy.name) != policy.wanted:
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


def _apply_topic(admin: Admin, topic: Topic) -> None:
    admin.create_topic(topic.name)
    for policy in _of_topic(topic):
        if admin.topic_policy(topic.name, policy.name) != policy.wanted:
            admin.set_topic_policy(topic.name, policy.name, policy.wanted)
    if topic.schema:
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
        f"pulsar-admin namespaces set-inactive-topic-policies --disable-delete-while-inactive -t 60s "
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
        )
        yield _Policy(
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
            f"pulsar-admin namespaces set-auto-topic-creation --enable --type non-partitioned {namespace}",
        )


def _of_topic(topic: Topic) -> Iterator[_Policy]:
    yield _Policy(
        "retention",
        _retention(topic),
        f"pulsar-admin topicPolicies set-retention -t {_minutes(topic)} -s {topic.retention_mb} {topic.name}",
    )
    yield _Policy(
        "compactionThreshold",
        topic.compaction_threshold,
        f"pulsar-admin topicPolicies set-compaction-threshold -t {topic.compaction_threshold} {topic.name}",
        loses_data=False,
    )
    yield _Policy("messageTTL", 0, f"pulsar-admin topicPolicies set-message-ttl -t 0 {topic.name}")
    yield _Policy(
        "inactiveTopicPolicies",
        _NOT_DELETED_WHILE_IDLE,
        f"pulsar-admin topicPolicies set-inactive-topic-policies --disable-delete-while-inactive -t 60s "
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
            if found != policy.wanted:
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
            "one cluster: exclusive producers and geo-replication exclude each other",
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
            if found != policy.wanted:
                yield _violation(topic.name, policy, found)
        registered = admin.schema(topic.name) if topic.schema else None
    except NotThere:
        yield Violation(topic.name, "topic", "missing", "there", "magnetar topics apply")
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


def _retention(topic: Topic) -> Json:
    return {"retentionTimeInMinutes": topic.retention_minutes, "retentionSizeInMB": topic.retention_mb}


def _minutes(topic: Topic) -> str:
    return f"{topic.retention_minutes}m" if topic.retention_minutes > 0 else str(topic.retention_minutes)

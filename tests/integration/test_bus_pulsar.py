"""The bus on a real Pulsar passes the contract, holds and fences, and keeps what its policies say."""

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pulsar
import pytest
from structlog.testing import capture_logs

import magnetar_common.bus as bus_package
from magnetar_common.admin import Admin
from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import MessageId, connect
from magnetar_common.errors import BusRefused, Fenced, NotThere, TopicHeld, TopicsUnsafe
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.settings import BusSettings
from magnetar_common.topic_policies import apply, check, check_at_start
from magnetar_common.topics import CLUSTER_ID, MODEL_EVENTS, SERVICE_REGISTRY, STATE_CHANGES, TOPICS, Topic, under
from magnetar_events import versions
from magnetar_events.schemas import fingerprint, released, schema_json
from magnetar_scheduler import main as scheduler
from tests.contract.bus_contract import (
    Acks,
    BusContract,
    CompactionContract,
    Connect,
    FencingContract,
    read_all,
)
from tests.support.brokers import compact_topic, settings_for
from tests.support.forking import assert_refuses_a_fork
from tests.support.leading import eventually

pytestmark = pytest.mark.pulsar


@pytest.fixture
def settings(pulsar_broker: RunningBroker) -> BusSettings:
    return BusSettings(
        url=pulsar_broker.service_url, admin_url=pulsar_broker.admin_url or "", operation_timeout_s=10, data_dir=""
    )


@pytest.fixture
def admin(settings: BusSettings) -> Iterator[Admin]:
    with Admin(settings) as admin:
        yield admin


def backlog(admin: Admin, topic: str) -> int:
    return admin.stats(topic)["subscriptions"]["scheduler"]["msgBacklog"]


@pytest.fixture
def own(topic_suffix: str) -> list[Topic]:
    """All topics, in a tenant of this test's own."""
    return [
        dataclasses.replace(topic, name=topic.name.replace("//magnetar/", f"//magnetar-{topic_suffix}/"))
        for topic in TOPICS
    ]


@pytest.fixture
def topic_suffix() -> str:
    return uuid.uuid4().hex[:8]


class TestPulsarBus(BusContract, FencingContract, CompactionContract):
    @pytest.fixture
    def connects(self, settings: BusSettings, admin: Admin) -> Connect:
        apply(admin, [CLUSTER_ID])
        return lambda: connect(settings)

    @pytest.fixture
    def depose(self, settings: BusSettings) -> Iterator[Callable[[str], None]]:
        # What Magnetar itself never uses makes the deposing certain here.
        client = pulsar.Client(settings.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))

        def depose(topic: str) -> None:
            client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing).close()

        yield depose
        client.close()

    @pytest.fixture
    def compact(self, admin: Admin) -> Callable[[str], None]:
        return partial(compact_topic, admin)

    def test_the_holder_survives_an_unload(self, connect: Connect, topic: str, admin: Admin) -> None:
        """After an unload the leader writes on, nobody gets in, nothing is lost; what was unacknowledged may repeat."""
        leader, challenger, acks = connect(), connect(), Acks()
        producer = leader.producer(topic, exclusive=True, batching=True)
        for n in range(300):
            producer.send_async(f"{n}".encode(), acks)
            if n == 150:
                admin.unload(topic)
        producer.flush()
        answers = acks.wait(300)

        if not any(isinstance(answer, Fenced) for answer in answers):
            with pytest.raises(TopicHeld):
                challenger.producer(topic, exclusive=True)
        stored = [message.payload for message in read_all(challenger.reader(topic))]
        once = list(dict.fromkeys(stored))
        assert once == [f"{n}".encode() for n in range(len(once))]
        assert len(once) >= sum(isinstance(answer, MessageId) for answer in answers)

    def test_a_schema_is_registered_and_an_incompatible_one_refused(
        self, connect: Connect, topic: str, admin: Admin
    ) -> None:
        """The topic shows the Avro schema it was opened with; messages name its version; a breaking one is refused."""
        bus = connect()
        schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
        bus.producer(topic, schema=json.dumps(schema)).send(b"1")
        assert admin.schema(topic) == schema
        (message,) = read_all(bus.reader(topic))
        assert message.schema_version == bytes(8)

        breaking = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}
        with pytest.raises(BusRefused, match="IncompatibleSchema"):
            bus.producer(topic, schema=json.dumps(breaking))

    @pytest.mark.parametrize("batching", [False, True])
    def test_an_anchor_lets_go_of_what_it_was_advanced_past(
        self, connect: Connect, topic: str, admin: Admin, batching: bool
    ) -> None:
        """A durable subscription starts at the topic's first message, and moves when it is advanced."""
        bus, acks = connect(), Acks()
        producer = bus.producer(topic, batching=batching)
        for n in range(10):
            producer.send_async(f"{n}".encode(), acks)
            acks.wait(n + 1)  # one entry each
        place = acks.answers[4]
        assert isinstance(place, MessageId)

        anchor = bus.anchor(topic, "scheduler")
        assert backlog(admin, topic) == 10
        anchor.advance(place)

        left = 6 if batching else 5  # of a batch, which may hold more than what was handled, the whole entry stays
        eventually(lambda: backlog(admin, topic) == left)
        anchor.close()

    def test_a_missing_tenant_is_named(self, connect: Connect) -> None:
        """Opening a topic of a tenant that is not there says what to run."""
        with pytest.raises(NotThere, match="magnetar topics apply"):
            connect().producer("persistent://no-such-tenant/a/b")


def test_what_is_applied_checks_clean(admin: Admin, own: list[Topic]) -> None:
    """`apply` may run twice; after it `check` finds no topic or namespace wrong, and every schema registered."""
    missing = {violation.topic for violation in check(admin, own) if violation.topic != "broker"}
    assert {topic.name for topic in own if not topic.family} <= missing

    apply(admin, own)
    apply(admin, own)

    assert [violation for violation in check(admin, own) if violation.topic != "broker"] == []
    for topic in own:
        if topic.schema and not topic.family:
            assert admin.schema(topic.name) == json.loads(schema_json(topic.schema))


def test_a_producer_with_the_shipped_schema_makes_no_new_version(
    admin: Admin, own: list[Topic], settings: BusSettings
) -> None:
    """A producer registers the very schema that `apply` did; a producer without one is refused."""
    apply(admin, own)
    bus = connect(settings)
    topic = next(topic for topic in own if topic.schema == "model-events")

    bus.producer(topic.name, schema=schema_json("model-events")).send(b"1")

    newest = len({*released("model-events"), fingerprint("model-events")}) - 1  # after all that were released before
    assert read_all(bus.reader(topic.name))[0].schema_version == newest.to_bytes(8, "big")
    with pytest.raises(BusRefused):
        bus.producer(topic.name)
    bus.close()


def test_old_and_new_software_may_open_the_log_in_turn(admin: Admin, own: list[Topic], settings: BusSettings) -> None:
    """The broker takes the schema of version 1 after a newer one: `apply` registers all that were released, oldest first."""
    log = next(topic for topic in own if topic.schema == "state-changes")
    apply(admin, own)
    bus = connect(settings)
    for schema in ("", versions.SCHEMAS[1], "", versions.SCHEMAS[1]):
        producer = bus.producer(log.name, schema=schema_json("state-changes", schema), exclusive=True)
        producer.send(b"x")
        producer.close()
    bus.close()


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
        ("messageTTL", 60),
        (
            "inactiveTopicPolicies",
            {
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 60,
                "deleteWhileInactive": True,
            },
        ),
        (
            "backlogQuotaMap",
            {
                "destination_storage": {
                    "limitSize": 10 * 2**20,
                    "limitTime": -1,
                    "policy": "consumer_backlog_eviction",
                }
            },
        ),
    ],
)
def test_a_policy_that_loses_the_log_is_found_and_repaired(
    admin: Admin, own: list[Topic], policy: str, value: object
) -> None:
    """Each policy that would lose entries is reported with the command that repairs it, and `apply` repairs it."""
    apply(admin, own)
    log = next(topic for topic in own if topic.schema == "state-changes")
    admin.set_topic_policy(log.name, policy, value)

    (violation,) = [found for found in check(admin, own) if found.topic != "broker"]
    assert (violation.topic, violation.what, violation.loses_data) == (log.name, policy, True)
    assert violation.command.startswith("pulsar-admin topicPolicies set-")
    assert log.name in violation.command

    apply(admin, own)
    assert [found for found in check(admin, own) if found.topic != "broker"] == []


def test_l13_a_service_refuses_to_start_where_data_would_be_lost(
    pulsar_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it opens anything, with what mends it; what only hurts, or suits an operator better, is no reason.

    Nor is an admin port that cannot be asked: that is said, and the service starts.
    """
    settings = settings_for(pulsar_broker)
    control, log = f"{settings.tenant}/control", under(settings.tenant, STATE_CHANGES.name)
    with Admin(settings) as admin:
        inputs = under(settings.tenant, MODEL_EVENTS.name)
        admin.set_topic_policy(inputs, "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        admin.set_topic_policy(log, "deduplicationEnabled", True)
        eventually(lambda: {each.what for each in check(admin)} == {"deduplicationEnabled"})
        with capture_logs() as logs:
            check_at_start(settings)
        assert [(line["log_level"], line["what"]) for line in logs] == [("warning", "deduplicationEnabled")]

        admin.set_topic_policy(log, "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10})
        admin.set_namespace_policy(control, "messageTTL", 3600)
        monkeypatch.setattr(bus_package, "connect", lambda *_: pytest.fail("it went on"))
        with Lifecycle() as life:
            scheduler.start(scheduler.SchedulerSettings(port=0), settings, life).join(30)
        assert isinstance(life.error, TopicsUnsafe)
        assert "magnetar topics apply" in str(life.error)
        check_at_start(settings, (SERVICE_REGISTRY,))  # of no concern to whoever does not use the log
        with capture_logs() as logs:
            check_at_start(settings, refuse=False)
        assert {line["what"] for line in logs if line["log_level"] == "error"} >= {"retention", "messageTTL"}

        apply(admin)
        eventually(lambda: check(admin) == [])
        check_at_start(settings)
    away = settings.model_copy(update={"admin_url": "http://127.0.0.1:1"})
    with capture_logs() as logs:
        check_at_start(away)
    assert [(line["log_level"], "could not be checked" in line["event"]) for line in logs] == [("warning", True)]


def test_a_partitioned_log_is_refused(admin: Admin, settings: BusSettings, pulsar_broker: RunningBroker) -> None:
    """A partitioned topic has no order."""
    own = settings.model_copy(update={"tenant": f"test-{uuid.uuid4().hex[:12]}"})
    log = under(own.tenant, STATE_CHANGES.name)
    admin.create_tenant(own.tenant)
    admin.create_namespace(f"{own.tenant}/control")
    path = log.replace("://", "/")
    httpx.put(f"{settings.admin_url}/admin/v2/{path}/partitions", json=2).raise_for_status()
    with pytest.raises(TopicsUnsafe, match=r"partitions of .*state-changes is 2, not none: .* magnetar topics apply"):
        check_at_start(own, (STATE_CHANGES,))


def test_a_command_topic_inherits_its_retention(admin: Admin, own: list[Topic], settings: BusSettings) -> None:
    """A command topic that its first producer creates keeps messages for as long as the table says."""
    apply(admin, own)
    family = next(topic for topic in own if topic.family)
    bus = connect(settings)
    bus.producer(f"{family.name}gpu-0", schema=schema_json(family.schema)).send(b"1")

    assert admin.topic_policy(f"{family.name}gpu-0", "retention") == {
        "retentionTimeInMinutes": family.retention_minutes,
        "retentionSizeInMB": family.retention_mb,
    }
    bus.close()


def test_l7_a_forked_child_is_told_not_to_use_the_connection(settings: BusSettings, topic_suffix: str) -> None:
    """In a child process everything of the bus refuses at once with a clear error, instead of hanging; the parent goes on."""
    assert_refuses_a_fork(settings, f"persistent://public/default/fork-{topic_suffix}")

"""Every topic: its name, key, writers and policies, in one table."""

from dataclasses import dataclass, replace
from typing import Literal

DAY_MINUTES = 24 * 60

EVENTS = "magnetar/events"
"""Namespace of the inputs; it may be geo-replicated."""

CONTROL = "magnetar/control"
"""Namespace of the topics with one writer; never replicated."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, or a family of topics, as code.

    Attributes:
        name: full name, or its prefix for a family.
        schema: name of the wire contract, a file in ``events/schemas``; empty for none.
        retention_minutes: originals are kept for this long; -1 = for ever.
        retention_mb: … and up to this size; -1 = any. Retention needs both to be set.
        compaction_threshold: bytes after which the broker compacts; 0 = it does not.
        writers: ``one`` = an exclusive producer.
        family: the name is a prefix.
    """

    name: str
    schema: str
    retention_minutes: int
    retention_mb: int = -1
    compaction_threshold: int = 0
    writers: Literal["one", "many"] = "many"
    family: bool = False

    @property
    def namespace(self) -> str:
        """``tenant/namespace``."""
        return self.name.removeprefix("persistent://").rpartition("/")[0]


MODEL_EVENTS = Topic(f"persistent://{EVENTS}/model-events", "model-events", 30 * DAY_MINUTES)
AGENT_EVENTS = Topic(f"persistent://{EVENTS}/agent-events", "agent-events", 7 * DAY_MINUTES)
SERVICE_REGISTRY = Topic(
    f"persistent://{EVENTS}/service-registry", "service-registry", 7 * DAY_MINUTES, compaction_threshold=10 * 2**20
)
STATE_CHANGES = Topic(f"persistent://{CONTROL}/state-changes", "state-changes", -1, writers="one")
ROUTES = Topic(
    f"persistent://{CONTROL}/routes", "routes", 7 * DAY_MINUTES, compaction_threshold=10 * 2**20, writers="one"
)
COMMANDS = Topic(f"persistent://{CONTROL}/commands-", "commands", DAY_MINUTES, family=True)

VOIDED = Topic(f"persistent://{CONTROL}/voided", "voided", -1, compaction_threshold=10 * 2**20)
"""What operators signed off as junk on the log: every folder skips it. Kept for ever, like the log."""

CLUSTER_ID = Topic(f"persistent://{CONTROL}/cluster-id", "", -1)
"""Its first message is the identity of the cluster's data: it lives and dies with what message ids refer to."""

TOPICS = (MODEL_EVENTS, AGENT_EVENTS, SERVICE_REGISTRY, STATE_CHANGES, ROUTES, COMMANDS, VOIDED, CLUSTER_ID)
"""All of them."""

INPUTS = (MODEL_EVENTS, AGENT_EVENTS)
"""Topics whose messages are each handled once, in order. The registry is not one: it is a level."""

ANCHOR = "magnetar-scheduler"
"""Name of the durable subscription on each input topic; its only use is that the broker keeps what is not handled."""


def commands_topic(server: str, replica: int) -> str:
    """Return the full name of one server's command topic."""
    return f"{COMMANDS.name}{server}-{replica}"


def kind_of(name: str) -> str:
    """Return what a topic is called in metrics and checks: its name, or its family's."""
    short = name.rpartition("/")[2]
    return "commands" if short.startswith("commands-") else short


def under(tenant: str, name: str) -> str:
    """Return the name that one of Magnetar's topics has under another Pulsar tenant than ``magnetar``."""
    return name.replace("persistent://magnetar/", f"persistent://{tenant}/", 1)


def topics_of(tenant: str) -> tuple[Topic, ...]:
    """Return all topics as they are named under a Pulsar tenant."""
    return tuple(replace(topic, name=under(tenant, topic.name)) for topic in TOPICS)

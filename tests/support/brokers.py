"""Running brokers made ready for a Magnetar of a test's own: a Pulsar tenant each, with its topics and policies."""

import uuid
from collections.abc import Callable

from magnetar_common.admin import Admin
from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import Bus, connect
from magnetar_common.settings import BusSettings
from magnetar_common.topic_policies import apply
from tests.support.leading import eventually


def settings_for(broker: RunningBroker, data_dir: str = "") -> BusSettings:
    """Settings of a fresh tenant on a broker; on a real Pulsar its topics are applied."""
    settings = BusSettings(
        url=broker.service_url,
        admin_url=broker.admin_url or "",
        tenant=f"test-{uuid.uuid4().hex[:12]}",
        data_dir=data_dir,
    )
    if settings.admin_url:
        with Admin(settings) as admin:
            apply(admin)
    return settings


def prepared(broker: RunningBroker, data_dir: str = "") -> Callable[[], Bus]:
    """Return what connects to a fresh tenant."""
    settings = settings_for(broker, data_dir)
    return lambda: connect(settings)


def compact_topic(admin: Admin, topic: str) -> None:
    """Compact a topic, and wait until it is done."""
    admin.compact(topic)
    assert eventually(lambda: (status := admin.compaction(topic)) != "RUNNING" and status) == "SUCCESS"

"""Two brokers, one cluster: the one that owns the log's topic is killed, and the work goes on at the other."""

import os
from pathlib import Path

import httpx
import pytest

from magnetar_common.admin import Admin
from magnetar_common.brokers import RunningBroker
from magnetar_common.brokers.cluster import Cluster
from magnetar_common.bus import connect
from magnetar_common.settings import BusSettings
from magnetar_common.topic_policies import apply
from magnetar_common.topics import STATE_CHANGES
from tests.support.leading import eventually
from tests.support.real_agent import RealAgent
from tests.support.schedulers import proven_log, schedulers, serves

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(300)]


def owner_of(topic: str, cluster: Cluster) -> RunningBroker:
    lookup = f"{cluster.brokers[0].admin_url}/lookup/v2/topic/{topic.replace('://', '/')}"
    url = httpx.get(lookup, follow_redirects=True).raise_for_status().json()["brokerUrl"]
    return next(broker for broker in cluster.brokers if broker.service_url == url)


def test_the_owner_of_the_log_is_killed(tmp_path: Path) -> None:
    """Schedulers and agents go on with one URL of both brokers; the log is one, and new models become Available."""
    with Cluster(tmp_path / "cluster") as cluster:
        settings = BusSettings(
            url=cluster.service_url, admin_url=cluster.admin_url, client_log=os.devnull, operation_timeout_s=20,
        )  # fmt: skip
        with Admin(settings) as admin, schedulers(tmp_path, settings) as many:
            apply(admin)
            bus = connect(settings)
            agent = RealAgent(bus, tmp_path, "a")
            first = many.start("one")
            many.leader()
            second = many.start("two")
            serves(bus, "before", storage_uri=agent.artifact)
            eventually(lambda: second.stands_by, within=60)

            owner_of(STATE_CHANGES.name, cluster).kill()

            serves(bus, "after", storage_uri=agent.artifact)
            assert admin.broker_version()  # whichever answers
            assert any(each.leads for each in many.all)
            if first.process.poll() is not None:
                assert first.exit_code() == os.EX_TEMPFAIL
            proven_log(bus)
            assert agent.failures == []
            agent.die()
            bus.close()

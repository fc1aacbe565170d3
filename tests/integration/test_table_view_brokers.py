"""The table view on real brokers: compaction, tombstones, the sweep; and what the stock client's view does today."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from magnetar_common.admin import Admin
from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import Bus, connect
from magnetar_common.discovery import Discovery
from magnetar_common.settings import BusSettings
from magnetar_common.topics import SERVICE_REGISTRY, under
from magnetar_events import SERVICE_RECORD
from magnetar_events.records import Device
from magnetar_events.schemas import schema_json
from tests.contract.bus_contract import DEADLINE_S
from tests.contract.table_view_contract import CompactedViewContract, TableViewContract, put, view_of
from tests.support.brokers import compact_topic, settings_for
from tests.support.leading import eventually
from tests.support.world import record

STOCK = """
import sys
import pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
print(len(client.create_table_view(sys.argv[2])), flush=True)
"""

FROZEN = """
import sys
from magnetar_common.bus import connect
from magnetar_common.settings import BusSettings
from magnetar_common.table_view import TableView
bus = connect(BusSettings(url=sys.argv[1], admin_url=sys.argv[2]))
view = TableView(bus, sys.argv[3], lambda message: message.payload, sweep_s=float(sys.argv[4]))
view.wait_ready(10)
view.for_each_and_listen(lambda key, value: print(key, "gone" if value is None else value.decode(), flush=True))
sys.stdin.read()
"""


class TestEmbeddedTableView(TableViewContract):
    @pytest.fixture
    def settings(self, embedded_broker: RunningBroker) -> BusSettings:
        return BusSettings(url=embedded_broker.service_url, admin_url="", operation_timeout_s=5)


@pytest.mark.pulsar
class TestPulsarTableView(TableViewContract, CompactedViewContract):
    @pytest.fixture
    def settings(self, pulsar_broker: RunningBroker) -> BusSettings:
        return BusSettings(url=pulsar_broker.service_url, admin_url=pulsar_broker.admin_url or "")

    @pytest.fixture
    def compact(self, settings: BusSettings) -> Iterator[Callable[[str], None]]:
        with Admin(settings) as admin:
            yield partial(compact_topic, admin)

    def test_l1_a_view_frozen_across_tombstone_and_compaction_loses_the_key_within_a_sweep(
        self, bus: Bus, topic: str, settings: BusSettings, compact: Callable[[str], None]
    ) -> None:
        """apache/pulsar#26190: SIGSTOP a view, tombstone a key, compact, SIGCONT: the key is gone one sweep later."""
        producer = bus.producer(topic)
        put(producer, dead="1", alive="1")
        frozen = subprocess.Popen(
            [sys.executable, "-c", FROZEN, settings.url, settings.admin_url, topic, "2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert frozen.stdout is not None
            assert {frozen.stdout.readline(), frozen.stdout.readline()} == {"dead 1\n", "alive 1\n"}
            os.kill(frozen.pid, signal.SIGSTOP)
            put(producer, dead="")
            compact(topic)
            put(producer, alive="2")
            os.kill(frozen.pid, signal.SIGCONT)
            assert {frozen.stdout.readline(), frozen.stdout.readline()} == {"dead gone\n", "alive 2\n"}
        finally:
            frozen.kill()
            frozen.communicate()

    def test_a_client_started_after_compaction_sees_every_field_of_every_record(
        self, pulsar_broker: RunningBroker
    ) -> None:
        """A record with nothing at its default, on the real registry topic with its schema, heartbeats compacted away."""
        settings = settings_for(pulsar_broker)
        bus = connect(settings)
        full = record(
            "a",
            replica=2,
            region="eu",
            zone="z1",
            grpc_port=8081,
            agent_version="0.1.0",
            commands=("LoadModel",),
            max_models=7,
            memory_bytes=9,
            over_commit_percent=5,
            disk_bytes=11,
            loads=1,
            report=13,
            devices=(
                Device(
                    uuid="g", kind="mig", gpu_type="A100", parent="p", total=9, free=8, largest_free=7, utilisation=0.5
                ),
            ),
        ).model_copy(update={"metadata": {"modelName": "m", "batchSize": "8"}, "labels": {"team": "x"}})
        producer = bus.producer(SERVICE_REGISTRY.name, schema=schema_json(SERVICE_REGISTRY.schema))
        for beat in range(50):
            latest = full.model_copy(update={"timestamp": beat})
            producer.send(SERVICE_RECORD.encode(latest), key=full.instance_id, properties=SERVICE_RECORD.properties)
        with Admin(settings) as admin:
            compact_topic(admin, under(settings.tenant, SERVICE_REGISTRY.name))
        reader = bus.reader(SERVICE_REGISTRY.name, compacted=True)
        messages = []
        while not reader.at_end():
            messages.append(reader.read(DEADLINE_S))
        assert len(messages) == 1
        late = connect(settings)
        with Discovery(late) as discovery:
            assert discovery.wait_ready(DEADLINE_S)
            assert discovery.instances("agent") == [full.model_copy(update={"timestamp": 49})]
        late.close()
        bus.close()

    def test_the_stock_view_dies_of_ten_thousand_batched_keys_and_ours_does_not(
        self, bus: Bus, topic: str, settings: BusSettings
    ) -> None:
        """What pulsar-client 3.13.0 does today. If this fails because it survived, README's reason must change."""
        producer = bus.producer(topic, batching=True)
        for n in range(10_000):
            producer.send_async(b"value", lambda _: None, key=f"key-{n}")
        producer.send(b"value", key="last")

        with view_of(bus, topic) as view:
            assert len(view) == 10_001
        stock = subprocess.run(
            [sys.executable, "-c", STOCK, settings.url, topic], capture_output=True, timeout=60, check=False
        )

        assert stock.returncode == -signal.SIGSEGV, f"the stock table view survived: {stock}"


def test_a_view_survives_a_broker_restart(own_embedded_broker: RunningBroker) -> None:
    """A view whose broker is killed keeps its table, says that it is behind, and follows again once it is back."""
    bus = connect(BusSettings(url=own_embedded_broker.service_url, admin_url="", operation_timeout_s=2))
    topic = "persistent://public/default/view"
    put(bus.producer(topic), a="1", b="1")
    with view_of(bus, topic, sweep_s=0.5) as view:
        own_embedded_broker.kill()
        eventually(lambda: not view.caught_up)
        assert dict(view.items()) == {"a": "1", "b": "1"}

        own_embedded_broker.restart()
        put(bus.producer(topic), a="2")
        eventually(lambda: view.get("a") == "2" and view.caught_up)
        assert dict(view.items()) == {"a": "2", "b": "1"}
    bus.close()

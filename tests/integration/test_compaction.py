"""Compaction on a real Pulsar, on the very topics that live by it: what lives survives, what is dead is gone."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from magnetar_common.admin import Admin
from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import EARLIEST, Bus, Message, Producer, connect
from magnetar_common.errors import BusRefused, LogHole
from magnetar_common.log import LogReader
from magnetar_common.settings import BusSettings
from magnetar_common.state import State
from magnetar_common.table_view import TableView
from magnetar_common.topics import ROUTES, SERVICE_REGISTRY, STATE_CHANGES, Topic, under
from magnetar_events import ENTRY, ROUTE, SERVICE_RECORD, Codec, Route
from magnetar_events.codec import FINGERPRINT
from magnetar_events.schemas import schema_json
from tests.contract.bus_contract import DEADLINE_S
from tests.support.brokers import compact_topic, settings_for
from tests.support.leading import eventually
from tests.support.logs import entry
from tests.support.world import record

pytestmark = pytest.mark.pulsar


class Level:
    """One of the compacted topics, with its real schema, and what may stand in it."""

    def __init__(self, settings: BusSettings, topic: Topic, codec: Codec[Any], make: Callable[[int, int], Any]) -> None:
        self.topic, self.make = topic, make
        self.full_name = under(settings.tenant, topic.name)
        self._codec = codec

    def producer(self, bus: Bus) -> Producer:
        return bus.producer(self.topic.name, schema=schema_json(self.topic.schema))

    def put(self, producer: Producer, key: int, version: int) -> None:
        payload = self._codec.encode(self.make(key, version))
        producer.send(payload, key=f"k{key}", properties=self._codec.properties)

    def view(self, bus: Bus) -> TableView[Any]:
        return TableView(bus, self.topic.name, self._decode, sweep_s=3600)  # no pass but those that are asked for

    def _decode(self, message: Message) -> Any:
        return self._codec.decode(message.payload, message.properties.get(FINGERPRINT, ""))


def _record(key: int, version: int) -> Any:
    return record(f"s{key}", http_port=8000 + version)


def _route(key: int, version: int) -> Any:
    return Route(model=f"default/m{key}", tenant="default", term=1, position=version, targets=())


@pytest.mark.parametrize(
    ("topic", "codec", "make"),
    [(SERVICE_REGISTRY, SERVICE_RECORD, _record), (ROUTES, ROUTE, _route)],
    ids=["service-registry", "routes"],
)
def test_l2_keys_survive_compactions_and_the_end_of_the_originals_and_tombstones_do_not(
    pulsar_broker: RunningBroker, topic: Topic, codec: Codec[Any], make: Callable[[int, int], Any]
) -> None:
    """Two compactions between two reads, then the originals expire: old and new views agree, and no tombstone is left."""
    settings = settings_for(pulsar_broker)
    level, bus = Level(settings, topic, codec, make), connect(settings)
    with Admin(settings) as admin, level.view(bus) as watching:
        producer = level.producer(bus)
        for version in range(3):
            for key in range(10):
                level.put(producer, key, version)
        eventually(lambda: len(watching) == 10 and watching.get("k9") == make(9, 2))
        compact_topic(admin, level.full_name)
        producer.send(b"", key="k1")
        level.put(producer, 2, 3)
        compact_topic(admin, level.full_name)
        producer.send(b"", key="k3")
        level.put(producer, 1, 4)  # there again
        level.put(producer, 4, 5)
        producer.send(b"", key="k4")
        compact_topic(admin, level.full_name)
        newest = {1: 4, 2: 3, **dict.fromkeys((0, 5, 6, 7, 8, 9), 2)}
        expected = {f"k{key}": make(key, version) for key, version in newest.items()}

        before = admin.ledgers(level.full_name)
        admin.set_topic_policy(level.full_name, "retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        admin.unload(level.full_name)  # closes the ledger; the next message begins another
        level.put(level.producer(bus), 5, 6)
        expected["k5"] = make(5, 6)

        def expired() -> bool:
            admin.trim(level.full_name)
            return not set(before) & set(admin.ledgers(level.full_name))

        eventually(expired, within=60, what="the originals expire")
        originals = bus.reader(topic.name, EARLIEST)
        assert originals.read(DEADLINE_S).key == "k5"  # type: ignore[union-attr]
        assert originals.at_end()
        originals.close()

        with level.view(bus) as fresh:
            assert fresh.wait_ready(DEADLINE_S)
            assert dict(fresh.items()) == expected
        assert watching.resync(DEADLINE_S)
        assert dict(watching.items()) == expected
        compacted, found = bus.reader(topic.name, compacted=True), []
        while not compacted.at_end():
            message = compacted.read(DEADLINE_S)
            assert message is not None
            found.append((message.key, bool(message.payload)))
        assert sorted(found) == sorted([*((key, True) for key in expected), ("k5", True)])
    bus.close()


def test_l12_a_reader_that_is_dragged_past_entries_halts_with_both_positions(pulsar_broker: RunningBroker) -> None:
    """Expiry moves a slow reader's cursor (apache/pulsar#26504): it names what should come and what came, and stops."""
    settings = settings_for(pulsar_broker)
    bus, state, count = connect(settings), State(), 3_000  # more than a client fetches ahead
    producer = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema))
    reader = LogReader(bus, name="dragged")
    try:
        for position in range(count):
            producer.send_async(ENTRY.encode(entry(position)), lambda _: None, properties=ENTRY.properties)
        producer.send(ENTRY.encode(entry(count)), properties=ENTRY.properties)
        with Admin(settings) as admin:
            log = under(settings.tenant, STATE_CHANGES.name)
            (name,) = [name for name in admin.stats(log)["subscriptions"] if "dragged" in name or "reader" in name]

            def dragged() -> bool:
                with suppress(BusRefused):  # the one before is still at it
                    admin._call("POST", f"{_path_of(log)}/subscription/{name}/expireMessages/1")
                return admin.stats(log)["subscriptions"][name]["msgBacklog"] == 0

            eventually(dragged, within=30)
        producer.send(ENTRY.encode(entry(count + 1)), properties=ENTRY.properties)

        def follow() -> None:
            while (each := reader.read(DEADLINE_S)) is not None:
                reader.fold(state, each)

        with pytest.raises(LogHole) as hole:
            follow()
        assert (hole.value.expected, hole.value.found) == (state.position + 1, count + 1)
        assert state.position < count
    finally:
        reader.close()
        bus.close()


def _path_of(topic: str) -> str:
    return topic.replace("://", "/")

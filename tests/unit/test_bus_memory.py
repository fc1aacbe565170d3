"""The bus in memory passes the contract, and its faults are those of a broker."""

from collections.abc import Callable

import pytest

from magnetar_common.bus import MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import BusUnavailable, Fenced, SendTimedOut
from tests.contract.bus_contract import Acks, BusContract, CompactionContract, Connect, FencingContract, read_all

TOPIC = "persistent://public/default/t"


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


class TestMemoryBus(BusContract, FencingContract, CompactionContract):
    @pytest.fixture
    def connects(self, broker: MemoryBroker) -> Connect:
        return lambda: MemoryBus(broker)

    @pytest.fixture
    def compact(self, broker: MemoryBroker) -> Callable[[str], None]:
        return broker.compact

    @pytest.fixture
    def depose(self, broker: MemoryBroker) -> Callable[[str], None]:
        return broker.fence


def test_a_cut_off_bus_queues_and_stores_on_reconnecting(broker: MemoryBroker) -> None:
    """Pipelined sends wait for the connection, then are stored in order; a blocking one times out."""
    bus, acks = MemoryBus(broker), Acks()
    producer, reader = bus.producer(TOPIC), bus.reader(TOPIC)
    broker.disconnect(bus)

    producer.send_async(b"1", acks)
    producer.send_async(b"2", acks)
    with pytest.raises(SendTimedOut):
        producer.send(b"never")
    assert (producer.is_connected, reader.is_connected, reader.at_end()) == (False, False, False)
    assert acks.answers == []
    with pytest.raises(BusUnavailable):
        bus.reader(TOPIC)

    broker.reconnect(bus)
    assert [message.payload for message in read_all(reader)] == [b"1", b"2"]
    assert acks.answers == [MessageId(0, 0), MessageId(0, 1)]


def test_a_leader_fenced_while_cut_off_stores_nothing(broker: MemoryBroker) -> None:
    """What a deposed leader had queued is refused when it comes back, and its successor's topic stays clean."""
    old, new, acks = MemoryBus(broker), MemoryBus(broker), Acks()
    producer = old.producer(TOPIC, exclusive=True, batching=True)
    broker.disconnect(old)
    producer.send_async(b"stale", acks)
    broker.fence(TOPIC)
    new.producer(TOPIC, exclusive=True, batching=True).send(b"fresh")

    broker.reconnect(old)

    assert isinstance(acks.wait(1)[0], Fenced)
    assert [message.payload for message in read_all(new.reader(TOPIC))] == [b"fresh"]


def test_a_compacted_reader_paused_across_a_compaction_misses_the_tombstone(broker: MemoryBroker) -> None:
    """As on Pulsar (apache/pulsar#26190): the sweep of a table view exists because of this."""
    bus = MemoryBus(broker)
    producer, reader = bus.producer(TOPIC), bus.reader(TOPIC, compacted=True)
    producer.send(b"1", key="a")
    assert [message.key for message in read_all(reader)] == ["a"]

    producer.send(b"", key="a")
    broker.compact(TOPIC)

    assert read_all(reader) == []

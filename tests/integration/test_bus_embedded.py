"""The bus on the embedded broker passes the contract; a lock file stands in for fencing."""

import subprocess
import sys
from pathlib import Path

import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import MessageId, connect
from magnetar_common.errors import CannotFence, TopicHeld
from magnetar_common.settings import BusSettings
from tests.contract.bus_contract import Acks, BusContract, Connect, read_all
from tests.support.forking import assert_refuses_a_fork

TOPIC = "persistent://public/default/locked"

HOLD = """
import sys
from magnetar_common.bus import connect
from magnetar_common.settings import BusSettings
bus = connect(BusSettings(url=sys.argv[1], data_dir=sys.argv[2], admin_url=""))
held = bus.producer(sys.argv[3], exclusive=True)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def settings(embedded_broker: RunningBroker, tmp_path: Path) -> BusSettings:
    return BusSettings(url=embedded_broker.service_url, admin_url="", data_dir=str(tmp_path), operation_timeout_s=5)


class TestEmbeddedBus(BusContract):
    @pytest.fixture
    def connects(self, settings: BusSettings) -> Connect:
        return lambda: connect(settings)


def test_without_a_data_folder_nothing_is_held(settings: BusSettings) -> None:
    """An exclusive producer that nobody can enforce is refused, and the message names the setting."""
    bus = connect(settings.model_copy(update={"data_dir": ""}))
    with pytest.raises(CannotFence, match="MAGNETAR_PULSAR_DATA_DIR"):
        bus.producer(TOPIC, exclusive=True)
    bus.close()


def test_a_killed_holder_lets_go(settings: BusSettings) -> None:
    """A holder in another process keeps us out; `kill -9` of it lets us in at once."""
    bus = connect(settings)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, settings.url, settings.data_dir, TOPIC],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TopicHeld):
            bus.producer(TOPIC, exclusive=True)
    finally:
        holder.kill()
        holder.communicate()
    bus.producer(TOPIC, exclusive=True).close()
    bus.close()


def test_l7_a_forked_child_is_told_not_to_use_the_connection(settings: BusSettings) -> None:
    """In a child process everything of the bus refuses at once with a clear error, instead of hanging; the parent goes on."""
    assert_refuses_a_fork(settings, TOPIC + "-fork")


def test_what_was_acknowledged_survives_a_kill_of_the_broker(own_embedded_broker: RunningBroker) -> None:
    """Pipelined sends across `kill -9` of the broker: nothing is lost and order is kept; a repeat is only that."""
    bus = connect(BusSettings(url=own_embedded_broker.service_url, admin_url="", operation_timeout_s=2))
    producer, acks = bus.producer(TOPIC, batching=True), Acks()
    for n in range(200):
        producer.send_async(f"{n}".encode(), acks)
    acks.wait(200)
    own_embedded_broker.kill()
    for n in range(200, 400):
        producer.send_async(f"{n}".encode(), acks)
        producer.flush()
    assert len(acks.answers) == 200
    own_embedded_broker.restart()

    assert all(isinstance(answer, MessageId) for answer in acks.wait(400))
    payloads = [message.payload for message in read_all(bus.reader(TOPIC))]
    # The client sends again what was not acknowledged when the connection broke: the log's readers skip such repeats.
    assert list(dict.fromkeys(payloads)) == [f"{n}".encode() for n in range(400)]
    bus.close()

"""The bus on the embedded broker passes the contract; a lock file stands in for fencing."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import Bus, connect
from magnetar_common.errors import CannotFence, TopicHeld
from magnetar_common.settings import BusSettings
from tests.contract.bus_contract import BusContract, Connect

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


def never(topic: str) -> None:
    raise AssertionError(f"the embedded broker can do this to no topic: {topic}")


@pytest.fixture
def settings(embedded_broker: RunningBroker, tmp_path: Path) -> BusSettings:
    return BusSettings(url=embedded_broker.service_url, admin_url="", data_dir=str(tmp_path), operation_timeout_s=5)


class TestEmbeddedBus(BusContract):
    compacts = False

    @pytest.fixture
    def connect(self, settings: BusSettings) -> Iterator[Connect]:
        opened: list[Bus] = []

        def opening() -> Bus:
            opened.append(connect(settings))
            return opened[-1]

        yield opening
        for bus in opened:
            bus.close()

    @pytest.fixture
    def compact(self) -> Callable[[str], None]:
        return never

    @pytest.fixture
    def depose(self) -> Callable[[str], None]:
        return never


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

"""Ways to a broker: to one of each kind in turn, or to the one that a test's `settings` name."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from magnetar_common.bus import Bus, connect
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.settings import BusSettings
from tests.support.brokers import prepared


@pytest.fixture(name="connect", params=["memory", "embedded", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def on_each_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Bus]:
    """Connects to a Magnetar of the test's own, on each broker."""
    if request.param == "memory":
        broker = MemoryBroker()
        return lambda: MemoryBus(broker)
    return prepared(request.getfixturevalue(f"{request.param}_broker"), str(tmp_path))


@pytest.fixture
def bus(settings: BusSettings) -> Iterator[Bus]:
    """A connection of the test's own."""
    with closing(connect(settings)) as bus:
        yield bus

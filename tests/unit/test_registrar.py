"""The registrar: one instance's record is on the registry topic from STARTING to DOWN, whatever the broker does."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import MagnetarError
from magnetar_common.registrar import Registrar, lease_seconds
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord
from magnetar_events.codec import FINGERPRINT
from magnetar_events.records import Address, Device, ServerInfo
from tests.support.leading import eventually

INTERVAL = 0.02


def record(name: str = "ranker", instance: str = "ranker-1", **fields: object) -> ServiceRecord:
    given = {"service_name": name, "instance_id": instance, "status": "STARTING", "timestamp": 0, **fields}
    return ServiceRecord.model_validate({"address": Address(host="127.0.0.1", port=8000), **given})


def server_record() -> ServiceRecord:
    device = Device(uuid="cpu", total=100, free=60, largest_free=60)
    return record(instance="ml/0/a", server=ServerInfo(host="h", server="ml", incarnation="a", devices=(device,)))


class Topic:
    """The registry topic as it was written, with a deadline on every expectation."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self._reader = MemoryBus(self.broker).reader(SERVICE_REGISTRY.name)
        self.seen: list[ServiceRecord] = []

    def until(self, condition: Callable[[ServiceRecord], bool], timeout: float = 10.0) -> ServiceRecord:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self._reader.read(0.05)
            if message is None:
                continue
            self.seen.append(SERVICE_RECORD.decode(message.payload, message.properties[FINGERPRINT]))
            assert message.key == self.seen[-1].instance_id
            if condition(self.seen[-1]):
                return self.seen[-1]
        raise AssertionError(f"not within {timeout} s; seen: {[r.status for r in self.seen]}")

    def until_status(self, status: str) -> ServiceRecord:
        return self.until(lambda r: r.status == status)

    @property
    def stored(self) -> int:
        return len(self.broker.topic(SERVICE_REGISTRY.name).messages)


@pytest.fixture
def topic() -> Iterator[Topic]:
    made = Topic()
    yield made
    made.bus.close()


def test_it_registers_as_starting_then_up_and_leaves_as_down(topic: Topic) -> None:
    with Registrar(topic.bus, record(), INTERVAL) as registrar:
        topic.until_status("STARTING")
        registrar.up()
        topic.until_status("UP")
    assert topic.until_status("DOWN").declared_by == ""


def test_leaving_writes_a_value_and_no_tombstone(topic: Topic) -> None:
    with Registrar(topic.bus, record(), INTERVAL):
        topic.until_status("STARTING")
    last = topic.broker.topic(SERVICE_REGISTRY.name).messages[-1]
    assert SERVICE_RECORD.decode(last.payload, last.properties[FINGERPRINT]).status == "DOWN"


def test_nothing_is_published_after_down(topic: Topic) -> None:
    registrar = Registrar(topic.bus, record(), INTERVAL).start()
    registrar.up()
    assert registrar.leave()
    stored = topic.stored
    assert not registrar.healthy
    assert not registrar.leave()
    assert topic.stored == stored


def test_each_heartbeat_is_the_whole_record_and_announces_its_interval(topic: Topic) -> None:
    with Registrar(topic.bus, record(metadata={"modelName": "iris"}), INTERVAL) as registrar:
        registrar.up()
        for _ in range(3):
            beat = topic.until_status("UP")
            assert beat.metadata == {"modelName": "iris", "heartbeatMs": "20"}
            assert beat.address.port == 8000
    assert lease_seconds(beat) == pytest.approx(3 * INTERVAL)


def test_without_an_announced_interval_a_lease_is_three_times_the_default() -> None:
    assert lease_seconds(record()) == 45
    assert lease_seconds(record(metadata={"heartbeatMs": "soon"})) == 45


def test_a_change_is_published_at_once_not_at_the_next_heartbeat(topic: Topic) -> None:
    with Registrar(topic.bus, record(), 3_600) as registrar:
        topic.until_status("STARTING")
        ticket = registrar.update(status="UP", metadata={"gpuType": "A100"}, labels={"tier": "a"})
        assert registrar.published(ticket, 10)
        changed = topic.until_status("UP")
        assert changed.labels == {"tier": "a"}


def test_an_update_keeps_what_it_does_not_name(topic: Topic) -> None:
    with Registrar(topic.bus, record(), 3_600) as registrar:
        registrar.update(metadata={"gpuType": "A100"})
        registrar.up()
        assert topic.until_status("UP").metadata == {"gpuType": "A100", "heartbeatMs": "3600000"}


def test_a_wrong_field_is_refused_and_changes_nothing(topic: Topic) -> None:
    with Registrar(topic.bus, record(), 3_600) as registrar:
        with pytest.raises(ValueError, match="status"):
            registrar.update(status="SLEEPY")
        assert registrar.record.status == "STARTING"


def test_draining_is_published(topic: Topic) -> None:
    with Registrar(topic.bus, record(), 3_600) as registrar:
        registrar.drain()
        topic.until_status("DRAINING")


def test_a_refresh_puts_current_readings_into_each_heartbeat(topic: Topic) -> None:
    readings = iter(range(1, 1_000_000))

    def refresh(r: ServiceRecord) -> ServiceRecord:
        return r.model_copy(update={"metadata": {"load": str(next(readings))}})

    with Registrar(topic.bus, record(), INTERVAL, refresh=refresh):
        topic.until(lambda r: r.metadata["load"] == "3")
    assert topic.seen[-1].metadata["heartbeatMs"] == "20"


def test_a_failing_refresh_ends_no_heartbeat_and_its_old_readings_do_not_pass_for_new(topic: Topic) -> None:
    broken = threading.Event()

    def refresh(r: ServiceRecord) -> ServiceRecord:
        if broken.is_set():
            raise RuntimeError("NVML is gone")
        return r

    with Registrar(topic.bus, server_record(), INTERVAL, refresh=refresh):
        topic.until(lambda r: r.server is not None and not r.server.devices[0].error)
        broken.set()
        unread = topic.until(lambda r: r.server is not None and bool(r.server.devices[0].error))
        assert unread.server is not None
        assert unread.server.devices[0].error == "RuntimeError: NVML is gone"
        broken.clear()
        topic.until(lambda r: r.server is not None and not r.server.devices[0].error)


def test_an_outage_is_ridden_out_and_only_the_newest_record_follows(topic: Topic) -> None:
    with Registrar(topic.bus, record(), INTERVAL) as registrar:
        topic.until_status("STARTING")
        topic.broker.disconnect(topic.bus)
        eventually(lambda: registrar.failures >= 3)
        before = topic.stored
        for n in range(50):
            registrar.update(metadata={"n": str(n)})
        assert topic.stored == before
        topic.broker.reconnect(topic.bus)
        eventually(lambda: registrar.failures == 0)
        first = topic.broker.topic(SERVICE_REGISTRY.name).messages[before]
        assert SERVICE_RECORD.decode(first.payload, first.properties[FINGERPRINT]).metadata["n"] == "49"


def test_who_notices_at_the_same_moment_that_the_broker_is_back_does_not_come_back_at_once(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own attempts all succeed in the moment in which the broker can serve: only a wait spreads a fleet."""
    monkeypatch.setattr("magnetar_common.beacon._FIRST_RETRY_S", 1e-7)
    topic.broker.disconnect(topic.bus)
    with ExitStack() as fleet:
        registrars = [fleet.enter_context(Registrar(topic.bus, record(instance=f"{n}"), 1.0)) for n in range(12)]
        eventually(lambda: all(registrar.failures for registrar in registrars))
        topic.broker.reconnect(topic.bus)
        eventually(lambda: all(registrar.healthy for registrar in registrars))
        published = sorted(message.publish_ms for message in topic.broker.topic(SERVICE_REGISTRY.name).messages)
    assert published[11] - published[0] > 200


def test_it_starts_before_the_broker_does(topic: Topic) -> None:
    topic.broker.disconnect(topic.bus)
    with Registrar(topic.bus, record(), INTERVAL) as registrar:
        registrar.up()
        eventually(lambda: registrar.failures > 0)
        assert not registrar.healthy
        assert "not registered yet" in registrar.check()[1]
        topic.broker.reconnect(topic.bus)
        topic.until_status("UP")
        eventually(lambda: registrar.healthy)


def test_a_silent_broker_makes_it_unhealthy_after_a_lease_and_says_why(topic: Topic) -> None:
    with Registrar(topic.bus, record(), INTERVAL) as registrar:
        topic.until_status("STARTING")
        eventually(lambda: registrar.healthy)
        topic.broker.disconnect(topic.bus)
        eventually(lambda: not registrar.healthy)
        eventually(lambda: "not connected" in registrar.check()[1])
        topic.broker.reconnect(topic.bus)


def test_leaving_without_a_broker_gives_up_in_time(topic: Topic) -> None:
    registrar = Registrar(topic.bus, record(), INTERVAL).start()
    topic.until_status("STARTING")
    topic.broker.disconnect(topic.bus)
    assert not registrar.leave(timeout=0.1)


def test_leaving_in_the_middle_of_a_long_back_off_does_not_wait_for_it(topic: Topic) -> None:
    topic.broker.disconnect(topic.bus)
    registrar = Registrar(topic.bus, record(), 3_600).start()
    eventually(lambda: registrar.failures >= 2)
    topic.broker.reconnect(topic.bus)
    assert registrar.leave()
    topic.until_status("DOWN")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_beats_nor_says_goodbye_for_its_parent(topic: Topic) -> None:
    with Registrar(topic.bus, record(), 3_600) as registrar:
        topic.until_status("STARTING")
        child = os.fork()
        if child == 0:
            try:
                assert not registrar.healthy
                assert not registrar.leave()
                try:
                    registrar.up()
                except MagnetarError:
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert registrar.healthy

"""A follower goes on after whatever its reader does, and says what that was."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from magnetar_common.bus import LATEST, Message, follower
from magnetar_common.bus.follower import Backoff, Follower
from magnetar_common.errors import BusUnavailable
from magnetar_common.table_view import TableView
from magnetar_scheduler.pumps import Pump
from tests.support.leading import eventually
from tests.support.readers import Fault, WaywardBus

TOPIC = "persistent://public/default/followed"


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[WaywardBus]:
    monkeypatch.setattr(follower, "QUIET_S", 0.02)
    monkeypatch.setattr(follower, "STALLED_S", 0.1)
    monkeypatch.setattr("magnetar_common.table_view.STALLED_S", 0.1)
    monkeypatch.setattr(follower, "DISCONNECTED_S", 0.05)
    monkeypatch.setattr(follower, "BACKOFF_S", (0.01, 0.05))
    bus = WaywardBus()
    yield bus
    bus.close()


def reopened(reason: str) -> float:
    return REGISTRY.get_sample_value("magnetar_reader_reopened_total", {"topic": "followed", "reason": reason}) or 0


def read(following: Follower) -> bytes:
    return eventually(lambda: following.read(0.01)).payload


@pytest.mark.parametrize(("fault", "reason"), [("silent", "stalled"), ("gone", "disconnected"), ("fails", "failed")])
def test_l11_a_reader_that_is_of_no_use_is_replaced_and_nothing_is_lost_or_repeated(
    bus: WaywardBus, fault: Fault, reason: str
) -> None:
    """It goes on after the last message that was returned; the reason is counted."""
    producer, following, before = bus.producer(TOPIC), Follower(bus, TOPIC), reopened(reason)
    producer.send(b"1")
    assert read(following) == b"1"
    bus.readers[0].fault = fault
    producer.send(b"2")
    producer.send(b"3")

    assert [read(following), read(following)] == [b"2", b"3"]
    assert reopened(reason) == before + 1
    assert [reader.closed for reader in bus.readers] == [True, False]


def test_a_quiet_topic_is_no_fault(bus: WaywardBus) -> None:
    """A reader that has nothing because there is nothing stays, however long that lasts."""
    following = Follower(bus, TOPIC)
    for _ in range(20):
        assert following.read(0.01) is None
    assert len(bus.readers) == 1
    assert following.check()[0]


@pytest.mark.parametrize("there_before", [0, 2])
def test_what_comes_during_an_outage_reaches_a_follower_that_began_at_the_end(
    bus: WaywardBus, there_before: int
) -> None:
    """One that had read nothing knows all the same where it began."""
    producer = bus.producer(TOPIC)
    for _ in range(there_before):
        producer.send(b"before")
    following = Follower(bus, TOPIC, LATEST)
    eventually(lambda: following.read(0.01) is None and following.last != LATEST)
    bus.readers[-1].fault = "fails"
    producer.send(b"during")

    assert read(following) == b"during"


def test_an_outage_is_seen_and_so_is_its_end(bus: WaywardBus) -> None:
    """While no reader can be opened the check fails with the reason, and reading neither raises nor hurries."""
    following = Follower(bus, TOPIC)
    bus.readers[0].fault = "fails"
    bus.refuses = 3
    eventually(lambda: following.read(0.01) is None and bus.refuses == 0)
    ok, why = following.check()
    assert not ok
    assert "followed has been out of reach" in why
    assert "no broker" in why

    bus.producer(TOPIC).send(b"back")
    assert read(following) == b"back"
    assert following.check()[0]


def test_a_follower_that_cannot_be_opened_says_so_at_once(bus: WaywardBus) -> None:
    """Only an open one is kept open: a wrong address is to be heard of."""
    bus.refuses = 1
    with pytest.raises(BusUnavailable):
        Follower(bus, TOPIC)


def test_attempts_come_ever_later_up_to_a_bound_and_never_in_step() -> None:
    """Doubling from a tenth of a second to five, each spread by half; a good one begins afresh."""
    one, two = Backoff(), Backoff()
    waits, others = [one.seconds() for _ in range(12)], [two.seconds() for _ in range(12)]
    assert waits != others
    for n, wait in enumerate(waits):
        longest = min(0.1 * 2**n, 5.0)
        assert longest / 2 <= wait <= longest
    one.reset()
    assert one.seconds() <= 0.1


def test_a_view_whose_reader_stands_still_begins_a_new_pass(bus: WaywardBus) -> None:
    """And says so: as an interruption, and while it lasts in its check."""
    producer = bus.producer(TOPIC)
    with TableView(bus, TOPIC, lambda message: message.payload) as view:
        assert view.wait_ready(5)
        bus.refuses = 1_000
        bus.readers[0].fault = "silent"
        producer.send(b"1", key="a")
        eventually(lambda: not view.check()[0])
        bus.refuses = 0
        eventually(lambda: view.get("a") == b"1")
        assert view.interruptions >= 1
        eventually(lambda: view.check()[0])


def test_a_pump_hands_a_message_over_again_when_it_could_not_be_taken(
    bus: WaywardBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that cannot be asked for now costs time, and neither the message nor the order."""
    monkeypatch.setattr("magnetar_scheduler.pumps.POLL_S", 0.01)
    producer, taken, failures = bus.producer(TOPIC), list[bytes](), list[Exception]()
    refusals = iter([BusUnavailable("the schema registry is away")] * 2)

    def take(message: Message) -> None:
        if error := next(refusals, None):
            raise error
        taken.append(message.payload)

    pump = Pump(bus, TOPIC, follower.EARLIEST, take, failures.append)
    pump.start()
    producer.send(b"1")
    producer.send(b"2")
    eventually(lambda: len(taken) == 2)
    pump.close()
    assert taken == [b"1", b"2"]
    assert failures == []

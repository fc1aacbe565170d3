"""The table view, on the bus in memory, with the faults that a broker would have to be persuaded to."""

import threading
from collections.abc import Callable, Iterator

import pytest

from magnetar_common import table_view
from magnetar_common.bus import Bus, Message
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.table_view import TableView
from tests.contract.bus_contract import DEADLINE_S
from tests.contract.table_view_contract import CompactedViewContract, TableViewContract, put, text, view_of
from tests.support.leading import eventually

TOPIC = "persistent://public/default/view"


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def bus(broker: MemoryBroker) -> Iterator[MemoryBus]:
    bus = MemoryBus(broker)
    yield bus
    bus.close()


class TestTableView(TableViewContract, CompactedViewContract):
    @pytest.fixture
    def compact(self, broker: MemoryBroker) -> Callable[[str], None]:
        return broker.compact


def test_a_tombstone_compacted_away_while_frozen_is_found_by_the_sweep(broker: MemoryBroker) -> None:
    """A view cut off across tombstone and compaction keeps the dead key until its next pass, and then says None."""
    writer, cut_off, heard = MemoryBus(broker), MemoryBus(broker), list[tuple[str, str | None]]()
    producer = writer.producer(TOPIC)
    put(producer, dead="1", alive="1")
    with view_of(cut_off, TOPIC) as view:
        view.for_each_and_listen(lambda key, value: heard.append((key, value)))
        broker.disconnect(cut_off)
        eventually(lambda: not view.caught_up)
        put(producer, dead="")
        broker.compact(TOPIC)
        broker.reconnect(cut_off)
        put(producer, alive="2")
        eventually(lambda: view.get("alive") == "2")
        assert "dead" in view  # nothing that a reader can see tells it otherwise

        assert view.resync(DEADLINE_S)

        assert view.keys() == ["alive"]
        assert heard == [("dead", "1"), ("alive", "1"), ("alive", "2"), ("dead", None)]


def test_the_sweep_comes_by_itself(broker: MemoryBroker, bus: MemoryBus) -> None:
    """Passes repeat on their own timer."""
    with view_of(bus, TOPIC, sweep_s=0.01) as view:
        eventually(lambda: view.passes > 3)


def test_a_broken_pass_removes_nothing(broker: MemoryBroker) -> None:
    """While the broker cannot be reached a view keeps what it has, says that it is behind, and recovers by itself."""
    bus = MemoryBus(broker)
    put(bus.producer(TOPIC), a="1", b="1")
    with view_of(bus, TOPIC, sweep_s=0.01) as view:
        broker.disconnect(bus)
        eventually(lambda: not view.caught_up)
        eventually(lambda: view.interruptions > 1)
        assert dict(view.items()) == {"a": "1", "b": "1"}
        assert view.lag > 0.0
        assert not view.resync(0.01)

        broker.reconnect(bus)
        passes = view.passes
        eventually(lambda: view.caught_up and view.passes > passes)
        assert dict(view.items()) == {"a": "1", "b": "1"}


def test_a_broker_that_starts_over_is_believed(broker: MemoryBroker, bus: MemoryBus) -> None:
    """Ids that go back (a broker with new data) do not freeze the view: the next pass shows what is there now."""
    put(bus.producer(TOPIC), a="1", b="1")
    put(bus.producer(TOPIC), a="2", b="2")
    with view_of(bus, TOPIC) as view:
        with broker.changed:
            broker.topic(TOPIC).messages.clear()
        put(bus.producer(TOPIC), a="3")
        assert view.resync(DEADLINE_S)
        assert dict(view.items()) == {"a": "3"}
        put(bus.producer(TOPIC), a="4")
        eventually(lambda: view.get("a") == "4")


def test_a_listener_that_fails_is_counted_and_stops_nobody(bus: MemoryBus) -> None:
    """An exception in one listener is recorded; the other listener and the view go on."""
    heard: list[str] = []

    def fails(key: str, value: str | None) -> None:
        raise RuntimeError("this is recorded, not raised")

    producer = bus.producer(TOPIC)
    put(producer, a="1")
    with view_of(bus, TOPIC) as view:
        view.for_each_and_listen(fails)
        view.for_each_and_listen(lambda key, _: heard.append(key))
        put(producer, b="1")
        eventually(lambda: heard == ["a", "b"])
        assert view.listener_errors == 2


def test_a_slow_listener_delays_no_reader_of_the_table(bus: MemoryBus) -> None:
    """While a listener blocks, `get` and `items` answer."""
    release, entered = threading.Event(), threading.Event()

    def slow(key: str, value: str | None) -> None:
        entered.set()
        release.wait(DEADLINE_S)

    with view_of(bus, TOPIC) as view:
        view.for_each_and_listen(slow)
        put(bus.producer(TOPIC), a="1")
        assert entered.wait(DEADLINE_S)
        assert view.get("a") == "1"
        assert view.items() == [("a", "1")]
        release.set()


def test_keyless_messages_are_no_rows(bus: MemoryBus) -> None:
    """A message without a key belongs to no row."""
    producer = bus.producer(TOPIC)
    producer.send(b"stray")
    put(producer, a="1")
    with view_of(bus, TOPIC) as view:
        assert view.resync(DEADLINE_S)
        assert view.items() == [("a", "1")]


def test_a_view_that_cannot_keep_up_says_so(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that reads and reads without seeing the end is not caught up, and is again once it has."""
    monkeypatch.setattr(table_view, "BUSY_S", 0.0)
    behind: list[bool] = []
    producer = bus.producer(TOPIC)

    def decode(message: Message) -> str:
        behind.append(not view.caught_up)
        return text(message)

    with TableView[str](bus, TOPIC, decode) as view:
        assert view.wait_ready(DEADLINE_S)
        for n in range(200):
            producer.send(str(n).encode(), key="n")
        eventually(lambda: view.get("n") == "199" and view.caught_up)
        assert any(behind)


def test_a_closed_view_stays_readable(bus: MemoryBus) -> None:
    """After closing, the table is as it was; closing twice, or from a listener, is fine."""
    producer = bus.producer(TOPIC)
    put(producer, a="1")
    closed = threading.Event()
    with view_of(bus, TOPIC) as view:

        def close(key: str, value: str | None) -> None:
            if key == "b":
                view.close()
                closed.set()

        view.for_each_and_listen(close)
        put(producer, b="1")
        assert closed.wait(DEADLINE_S)
        view.close()
        assert dict(view.items()) == {"a": "1", "b": "1"}


def test_any_bus_will_do() -> None:
    """The bus in memory is a `Bus`, as far as the type checker can tell."""
    bus: Bus = MemoryBus()
    assert bus.kind == "memory"

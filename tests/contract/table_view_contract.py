"""What a table view must do on every broker."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from magnetar_common.bus import Bus, Message, Producer
from magnetar_common.table_view import TableView
from tests.contract.bus_contract import DEADLINE_S
from tests.support.leading import eventually

View = TableView[str]


def text(message: Message) -> str:
    return message.payload.decode()


@contextmanager
def view_of(bus: Bus, topic: str, **more: float) -> Iterator[View]:
    with TableView(bus, topic, text, **more) as view:
        assert view.wait_ready(DEADLINE_S)
        yield view


def put(producer: Producer, **values: str) -> None:
    for key, value in values.items():
        producer.send(value.encode(), key=key)


class TableViewContract:
    """One suite for all brokers. Subclasses provide the fixture `bus`."""

    @pytest.fixture
    def topic(self) -> str:
        return f"persistent://public/default/view-{uuid.uuid4().hex}"

    def test_it_holds_the_last_value_of_each_key(self, bus: Bus, topic: str) -> None:
        """Once ready, the verbs show the newest value of each living key, and nothing of the dead."""
        producer = bus.producer(topic)
        put(producer, a="1", b="1", c="1")
        put(producer, a="2", b="")

        with view_of(bus, topic) as view:
            assert dict(view.items()) == {"a": "2", "c": "1"}
            assert sorted(view.keys()) == sorted(view) == ["a", "c"]
            assert len(view) == 2
            assert view.get("a") == "2"
            assert view.get("b") is None
            assert "a" in view
            assert "b" not in view
            message = view.get_message("a")
            assert message is not None
            assert (message.key, message.payload) == ("a", b"2")
            assert view.get_message("b") is None

            each: dict[str, str] = {}
            view.for_each(each.__setitem__)
            assert each == {"a": "2", "c": "1"}

    def test_an_empty_topic_is_ready_and_empty(self, bus: Bus, topic: str) -> None:
        """A view of a topic without a message is ready and caught up, and hears of the first one."""
        with view_of(bus, topic) as view:
            assert len(view) == 0
            assert view.caught_up
            assert view.lag == 0.0
            put(bus.producer(topic), a="1")
            eventually(lambda: view.get("a") == "1")

    def test_it_follows_changes_and_tombstones(self, bus: Bus, topic: str) -> None:
        """Later values and tombstones arrive without being asked for."""
        producer = bus.producer(topic)
        put(producer, a="1")
        with view_of(bus, topic) as view:
            put(producer, a="2", b="1")
            eventually(lambda: dict(view.items()) == {"a": "2", "b": "1"})
            put(producer, a="")
            eventually(lambda: view.keys() == ["b"])

    def test_a_listener_misses_nothing_and_hears_in_order(self, bus: Bus, topic: str) -> None:
        """While messages stream in, a listener gets what is there and then each change, in order, with no gap."""
        producer = bus.producer(topic, batching=True)
        heard: list[int] = []
        stop = threading.Event()
        sent = [0]

        def stream() -> None:
            while not stop.is_set():
                sent[0] += 1
                producer.send(str(sent[0]).encode(), key="n")

        put(producer, n="0")
        with view_of(bus, topic) as view:
            sender = threading.Thread(target=stream)
            sender.start()
            eventually(lambda: sent[0] > 20)
            view.for_each_and_listen(lambda _, value: heard.append(int(value or "-1")))
            eventually(lambda: sent[0] > 60)
            assert view.resync(DEADLINE_S)  # a pass in the middle repeats nothing
            stop.set()
            sender.join()
            eventually(lambda: bool(heard) and heard[-1] == sent[0])
        assert heard == list(range(heard[0], sent[0] + 1))

    def test_a_listener_hears_none_when_a_key_is_gone(self, bus: Bus, topic: str) -> None:
        """None as the value means gone; a tombstone of a key that is not there is not told."""
        producer, heard = bus.producer(topic), list[tuple[str, str | None]]()
        put(producer, a="1")
        with view_of(bus, topic) as view:
            view.for_each_and_listen(lambda key, value: heard.append((key, value)))
            put(producer, x="", a="")
            put(producer, b="1")
            eventually(lambda: len(heard) == 3)
        assert heard == [("a", "1"), ("a", None), ("b", "1")]

    def test_what_does_not_decode_is_recorded_and_skipped(self, bus: Bus, topic: str) -> None:
        """An undecodable message is counted and told once, its key keeps its value, and the view goes on."""
        producer, refused = bus.producer(topic), list[tuple[str, str]]()
        put(producer, a="1")
        producer.send(b"\xff", key="a")
        producer.send(b"\xff", key="b")
        put(producer, c="1")

        def on_rejected(message: Message, error: Exception) -> None:
            refused.append((message.key, type(error).__name__))

        with TableView(bus, topic, text, on_rejected=on_rejected) as view:
            assert view.wait_ready(DEADLINE_S)
            assert dict(view.items()) == {"a": "1", "c": "1"}
            assert view.resync(DEADLINE_S)
            assert view.resync(DEADLINE_S)
            assert view.rejected == 2
            assert refused == [("a", "UnicodeDecodeError"), ("b", "UnicodeDecodeError")]
            assert dict(view.items()) == {"a": "1", "c": "1"}

    def test_ten_thousand_batched_keys_load(self, bus: Bus, topic: str) -> None:
        """The number of keys that kills the stock client's table view."""
        producer = bus.producer(topic, batching=True)
        for n in range(10_000):
            producer.send_async(b"value", lambda _: None, key=f"key-{n}")
        producer.send(b"", key="key-0")
        with view_of(bus, topic) as view:
            assert len(view) == 9_999
            assert view.resync(DEADLINE_S)
            assert len(view) == 9_999


class CompactedViewContract:
    """For brokers that compact. Subclasses provide `bus`, `compact`, and `freeze`: what stops a view from hearing."""

    def test_keys_survive_compaction_and_tombstones_do_not(
        self, bus: Bus, topic: str, compact: Callable[[str], None]
    ) -> None:
        """A view opened after compaction has every living key, whole, and no dead one."""
        producer = bus.producer(topic)
        put(producer, **{f"k{n}": f"old-{n}" for n in range(50)})
        put(producer, **{f"k{n}": f"new-{n}" for n in range(50)})
        put(producer, k7="", k8="")
        compact(topic)

        with view_of(bus, topic) as view:
            assert dict(view.items()) == {f"k{n}": f"new-{n}" for n in range(50) if n not in (7, 8)}
            put(producer, k9="")
            eventually(lambda: "k9" not in view)

    def test_a_pass_after_compaction_changes_nothing_that_lives(
        self, bus: Bus, topic: str, compact: Callable[[str], None]
    ) -> None:
        """Passes over a compacted topic tell listeners nothing: what is right stays as it is."""
        producer, heard = bus.producer(topic), list[tuple[str, str | None]]()
        put(producer, a="1", b="1", c="1")
        with view_of(bus, topic) as view:
            put(producer, a="2", c="")
            eventually(lambda: dict(view.items()) == {"a": "2", "b": "1"})
            view.for_each_and_listen(lambda key, value: heard.append((key, value)))
            compact(topic)
            assert view.resync(DEADLINE_S)
            assert view.resync(DEADLINE_S)
            assert sorted(heard) == [("a", "2"), ("b", "1")]

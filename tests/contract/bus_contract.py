"""What every bus must do. Each broker's test module subclasses `BusContract` and says how to connect and to compact."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from magnetar_common.bus import EARLIEST, LATEST, Bus, Message, MessageId, Reader, just_before
from magnetar_common.errors import BusError, BusRefused, Fenced, TopicHeld

DEADLINE_S = 10.0

Connect = Callable[[], Bus]


def read_all(reader: Reader) -> list[Message]:
    """Read until the broker says that nothing more is stored."""
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message = reader.read(0.05)
        if message is not None:
            messages.append(message)
        elif reader.at_end():
            return messages
    raise AssertionError(f"the end did not come in {DEADLINE_S} s; read so far: {messages}")


def read_one(reader: Reader) -> Message:
    message = reader.read(DEADLINE_S)
    assert message is not None
    return message


class Acks:
    """Collects what send callbacks say, and waits for a number of them."""

    def __init__(self) -> None:
        self.answers: list[MessageId | BusError] = []
        self._changed = threading.Condition()

    def __call__(self, answer: MessageId | BusError) -> None:
        with self._changed:
            self.answers.append(answer)
            self._changed.notify_all()

    def wait(self, count: int) -> list[MessageId | BusError]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.answers) >= count, DEADLINE_S), self.answers
        return self.answers


def ten_messages(bus: Bus, topic: str, batching: bool) -> list[Message]:
    """Send ten messages, and return them as a reader shows them."""
    producer, acks = bus.producer(topic, batching=batching), Acks()
    for n in range(10):
        producer.send_async(f"{n}".encode(), acks)
    acks.wait(10)
    return read_all(bus.reader(topic))


class BusContract:
    """One suite for all brokers. Subclasses provide the fixture `connects`: a way to connect."""

    @pytest.fixture
    def connect(self, connects: Connect) -> Iterator[Connect]:
        """Connects as often as it is called; at the end all that was opened is closed."""
        with ExitStack() as opened:
            yield lambda: opened.enter_context(closing(connects()))

    @pytest.fixture
    def bus(self, connect: Connect) -> Bus:
        return connect()

    @pytest.fixture
    def topic(self) -> str:
        return f"persistent://public/default/contract-{uuid.uuid4().hex}"

    def test_messages_come_in_the_order_of_sending(self, bus: Bus, topic: str) -> None:
        """What one producer sends is read in that order, with rising ids, which are the ids that `send` returned."""
        producer = bus.producer(topic)
        sent = [producer.send(f"{n}".encode()) for n in range(20)]

        messages = read_all(bus.reader(topic))

        assert [message.payload for message in messages] == [f"{n}".encode() for n in range(20)]
        assert [message.id for message in messages] == sent == sorted(sent)

    def test_a_message_carries_key_properties_and_topic(self, bus: Bus, topic: str) -> None:
        """Key, text properties and the full topic name arrive; an absent key arrives as an empty one."""
        producer = bus.producer(topic)
        producer.send(b"with", key="tenant/model", properties={"kind": "DeployModel", "name": "größe"})
        producer.send(b"without")

        first, second = read_all(bus.reader(topic))

        assert (first.topic, first.key) == (topic, "tenant/model")
        assert dict(first.properties) == {"kind": "DeployModel", "name": "größe"}
        assert (second.key, dict(second.properties)) == ("", {})

    def test_an_empty_payload_arrives_empty(self, bus: Bus, topic: str) -> None:
        """A tombstone is a message like any other: it has a key and an id, and no payload."""
        bus.producer(topic).send(b"", key="gone")

        (tombstone,) = read_all(bus.reader(topic))

        assert (tombstone.key, tombstone.payload) == ("gone", b"")

    @pytest.mark.parametrize("batching", [False, True])
    def test_callbacks_come_once_each_and_in_order(self, bus: Bus, topic: str, batching: bool) -> None:
        """Every pipelined message is called back once, in order, with the id that readers see."""
        producer, acks = bus.producer(topic, batching=batching), Acks()
        for n in range(500):
            producer.send_async(f"{n}".encode(), acks)
        producer.flush()

        ids = acks.wait(500)

        assert ids == [message.id for message in read_all(bus.reader(topic))]
        assert len(set(ids)) == 500

    def test_a_failing_callback_disturbs_nobody(self, bus: Bus, topic: str) -> None:
        """An exception in one callback neither ends the process nor keeps the next callback from coming."""
        producer, acks = bus.producer(topic), Acks()

        def fails(_: MessageId | BusError) -> None:
            raise RuntimeError("this is recorded, not raised")

        producer.send_async(b"1", fails)
        producer.send_async(b"2", acks)

        assert isinstance(acks.wait(1)[0], MessageId)

    def test_flush_returns_before_the_acknowledgement(self, bus: Bus, topic: str) -> None:
        """`flush` may be called from the leader's loop: sending goes on, and all arrives."""
        producer, acks = bus.producer(topic, exclusive=True, batching=True), Acks()
        for n in range(100):
            producer.send_async(f"{n}".encode(), acks)
            producer.flush()

        assert all(isinstance(answer, MessageId) for answer in acks.wait(100))

    def test_send_on_a_batching_producer_returns_the_place(self, bus: Bus, topic: str) -> None:
        """A blocking send works on the log's producer too, and keeps its place behind what is queued."""
        producer, acks = bus.producer(topic, batching=True), Acks()
        producer.send_async(b"first", acks)
        place = producer.send(b"second")

        assert [message.payload for message in read_all(bus.reader(topic))] == [b"first", b"second"]
        assert place > acks.wait(1)[0]

    @pytest.mark.parametrize("batching", [False, True])
    def test_a_reader_resumes_after_any_message(self, bus: Bus, topic: str, batching: bool) -> None:
        """A reader opened after an id starts with the next message, inside a batch as well."""
        everything = ten_messages(bus, topic, batching)

        for index, message in enumerate(everything):
            assert read_all(bus.reader(topic, message.id)) == everything[index + 1 :]

    @pytest.mark.parametrize("batching", [False, True])
    def test_a_reader_that_begins_just_before_a_message_shows_it(self, bus: Bus, topic: str, batching: bool) -> None:
        """Also the very first one. What comes earlier is the rest of its ledger, or of its batch."""
        everything = ten_messages(bus, topic, batching)

        for index, message in enumerate(everything):
            shown = read_all(bus.reader(topic, just_before(message.id)))
            assert shown[-len(everything[index:]) :] == everything[index:]

    def test_a_reader_opened_while_somebody_writes_sees_each_message_once(self, bus: Bus, topic: str) -> None:
        """Readers that open in the middle of a stream get every message, once, in order."""
        producer, stop = bus.producer(topic), threading.Event()

        def stream() -> None:
            for n in range(5_000):
                if stop.is_set():
                    return
                producer.send(f"{n}".encode())

        writer = threading.Thread(target=stream)
        writer.start()
        try:
            for _ in range(5):
                reader = bus.reader(topic)
                assert [read_one(reader).payload for _ in range(100)] == [f"{n}".encode() for n in range(100)]
                reader.close()
        finally:
            stop.set()
            writer.join()

    def test_ids_survive_text(self, bus: Bus, topic: str) -> None:
        """An id written into an entry and read back is a place to resume from."""
        producer = bus.producer(topic)
        place = producer.send(b"1")
        producer.send(b"2")

        (after,) = read_all(bus.reader(topic, MessageId.parse(str(place))))

        assert after.payload == b"2"

    def test_latest_is_after_what_is_there(self, bus: Bus, topic: str) -> None:
        """A reader opened at the end sees only what is sent afterwards."""
        producer = bus.producer(topic)
        producer.send(b"before")
        reader = bus.reader(topic, LATEST)
        assert reader.at_end()

        producer.send(b"after")

        assert read_one(reader).payload == b"after"

    def test_the_last_id_is_that_of_the_last_message_or_untold(self, bus: Bus, topic: str) -> None:
        """A reader opened after it sees what is sent next; of an empty topic it is the start."""
        producer = bus.producer(topic, batching=True)
        if bus.last_id(topic) is None:
            return  # as the embedded broker
        assert bus.last_id(topic) == EARLIEST
        acks = Acks()
        for n in range(3):
            producer.send_async(f"{n}".encode(), acks)

        last = acks.wait(3)[-1]

        assert bus.last_id(topic) == last
        assert isinstance(last, MessageId)
        reader = bus.reader(topic, last)
        producer.send(b"next")
        assert read_one(reader).payload == b"next"

    def test_a_read_without_a_message_returns_none(self, bus: Bus, topic: str) -> None:
        """Reading an empty topic gives None, at once or in time; a message that comes while it waits ends the wait."""
        producer, reader = bus.producer(topic), bus.reader(topic)
        assert reader.read(0) is None
        assert reader.read(0.02) is None

        sender = threading.Timer(0.05, producer.send, [b"now"])
        sender.start()
        assert read_one(reader).payload == b"now"
        sender.join()

    def test_at_end_is_false_while_there_is_more(self, bus: Bus, topic: str) -> None:
        """`at_end` says whether something is stored that was not read yet."""
        producer, reader = bus.producer(topic), bus.reader(topic)
        assert reader.at_end()
        producer.send(b"1")
        assert not reader.at_end()
        read_one(reader)
        assert reader.at_end()

    def test_the_end_is_not_in_the_middle_of_a_batch(self, bus: Bus, topic: str) -> None:
        """Whoever reads as long as there is more has all of it, however it was sent."""
        producer, acks = bus.producer(topic, batching=True), Acks()
        for n in range(200):
            producer.send_async(f"{n}".encode(), acks)
        acks.wait(200)
        reader, read = bus.reader(topic), 0
        while not reader.at_end():
            read_one(reader)
            read += 1
        assert read == 200

    def test_a_big_message_is_refused(self, bus: Bus, topic: str) -> None:
        """A message over the broker's limit is refused, by `send` and by the callback, and the next one is stored."""
        producer, acks = bus.producer(topic), Acks()
        with pytest.raises(BusRefused):
            producer.send(b"x" * (6 * 2**20))
        producer.send_async(b"x" * (6 * 2**20), acks)
        assert isinstance(acks.wait(1)[0], BusRefused)

        producer.send(b"small")

        assert [message.payload for message in read_all(bus.reader(topic))] == [b"small"]

    def test_a_topic_is_held_by_one(self, connect: Connect, topic: str) -> None:
        """A second exclusive producer is refused until the first is closed; then it gets in."""
        first, second = connect(), connect()
        held = first.producer(topic, exclusive=True, batching=True)
        with pytest.raises(TopicHeld):
            second.producer(topic, exclusive=True, batching=True)

        held.close()

        second.producer(topic, exclusive=True, batching=True).send(b"mine")

    def test_closing_the_bus_lets_go(self, connect: Connect, topic: str) -> None:
        """A challenger gets in once the holder's whole connection is closed."""
        first, second = connect(), connect()
        first.producer(topic, exclusive=True)
        first.close()

        second.producer(topic, exclusive=True).send(b"mine")

    def test_the_cluster_has_one_identity(self, connect: Connect) -> None:
        """Two connections, asked at once, name the same cluster, and go on doing so."""
        buses = [connect(), connect()]
        found: list[str] = []
        threads = [threading.Thread(target=lambda bus=bus: found.append(bus.cluster_id())) for bus in buses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)

        assert len(found) == 2
        assert len({*found, connect().cluster_id()}) == 1

    def test_an_anchor_may_be_advanced_and_reopened(self, bus: Bus, topic: str) -> None:
        """Advancing an anchor disturbs no reader, and an anchor may be opened again."""
        places = [bus.producer(topic).send(b"1"), bus.producer(topic).send(b"2")]
        for _ in range(2):
            anchor = bus.anchor(topic, "scheduler")
            anchor.advance(places[0])
            anchor.close()

        assert [message.id for message in read_all(bus.reader(topic, EARLIEST))] == places

    def test_closing_twice_is_fine(self, bus: Bus, topic: str) -> None:
        """Closing is idempotent for producers, readers and the bus, in any order."""
        producer, reader = bus.producer(topic), bus.reader(topic)
        for _ in range(2):
            producer.close()
            reader.close()
            bus.close()
        bus.close()

    def test_a_closed_bus_is_told_apart(self, bus: Bus, topic: str) -> None:
        """Using what is closed raises an error of ours."""
        producer, reader = bus.producer(topic), bus.reader(topic)
        bus.close()
        with pytest.raises(BusError):
            producer.send(b"1")
        with pytest.raises(BusError):
            reader.read(0)
        with pytest.raises(BusError):
            bus.producer(topic)


class FencingContract:
    """For brokers that keep a second writer out themselves. Subclasses provide `depose`, which ends a hold."""

    def test_a_held_topic_refuses_everybody_else(self, connect: Connect, topic: str) -> None:
        """Where the broker fences, an ordinary producer does not get in beside an exclusive one."""
        first, second = connect(), connect()
        first.producer(topic, exclusive=True)

        with pytest.raises(TopicHeld):
            second.producer(topic)

    def test_a_deposed_producer_never_writes_again(
        self, connect: Connect, topic: str, depose: Callable[[str], None]
    ) -> None:
        """Who lost the hold gets `Fenced` from every send, pipelined or not, and its messages are nowhere."""
        bus = connect()
        producer, acks = bus.producer(topic, exclusive=True, batching=True), Acks()
        producer.send(b"before")
        depose(topic)

        producer.send_async(b"pipelined", acks)
        assert isinstance(acks.wait(1)[0], Fenced)
        with pytest.raises(Fenced):
            producer.send(b"blocking")
        assert not producer.is_connected
        payloads = [message.payload for message in read_all(bus.reader(topic))]
        assert b"pipelined" not in payloads
        assert b"blocking" not in payloads


class CompactionContract:
    """For brokers that compact. Subclasses provide `compact`, which returns when it is done."""

    def test_a_compacted_read_has_the_last_of_each_key(
        self, bus: Bus, topic: str, compact: Callable[[str], None]
    ) -> None:
        """After compaction a compacted read has one message a key, no tombstones, and whatever came since."""
        producer = bus.producer(topic)
        for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"")):
            producer.send(value, key=key)
        compact(topic)
        producer.send(b"3", key="a")
        producer.send(b"", key="c")

        messages = read_all(bus.reader(topic, compacted=True))

        assert [(m.key, m.payload) for m in messages] == [("a", b"2"), ("c", b"1"), ("a", b"3"), ("c", b"")]
        assert len(read_all(bus.reader(topic))) == 7

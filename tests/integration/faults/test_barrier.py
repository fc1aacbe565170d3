"""The barrier: an old leader is cut off with a full pipeline, a hundred times, and the log has one history."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from functools import cached_property

import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import MessageId, Producer, connect
from magnetar_common.errors import BusError, Fenced
from magnetar_common.log import LogReader
from magnetar_common.settings import BusSettings
from magnetar_events import ENTRY, Entry
from magnetar_events.entry import FOLD_VERSION, Input
from magnetar_events.facts import LeaderAlive, LeaderElected
from magnetar_scheduler import leadership
from magnetar_scheduler.leadership import Challenger, Mandate
from tests.support.brokers import settings_for
from tests.support.leading import eventually
from tests.support.proxy import Proxy
from tests.support.schedulers import proven_log

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(420)]

PIPELINE = 100
"""Entries that a leadership sends at once; its connection breaks when the first are acknowledged."""

LOGS, TAKE_OVERS = 5, 20
"""A hundred take-overs; each challenger folds its log from the start, so that no log gets long."""


class Watched(Challenger):
    """Counts the entries that land after the broker said that nothing more is stored."""

    late = 0

    def _read_to_barrier(self, reader: LogReader, producer: Producer) -> bool:
        while not reader.at_end():
            record = reader.read(5)
            if record is not None:
                self._fold(reader, record)
        naive_end = self.state.position
        found = super()._read_to_barrier(reader, producer)
        self.late = self.state.position - naive_end
        return found


class Leadership:
    """Stands by, warm, connected through a proxy of its own; leads; and sends entries until its connection breaks."""

    def __init__(self, settings: BusSettings) -> None:
        self.way = Proxy(settings.url)
        through = settings.model_copy(update={"url": self.way.url, "operation_timeout_s": 5})
        self.challenger = Watched(lambda: connect(through), lambda: False, lambda _: None)
        self.stored: dict[int, MessageId] = {}
        self.error: BusError | None = None
        self._mandate: Future[Mandate | None] = Future()
        threading.Thread(target=self._stand_by, daemon=True).start()

    def _stand_by(self) -> None:
        try:
            self._mandate.set_result(self.challenger.run())
        except BaseException as error:
            self._mandate.set_exception(error)

    @cached_property
    def mandate(self) -> Mandate:
        """Wait until it leads."""
        mandate = self._mandate.result(120)
        assert mandate is not None
        return mandate

    def break_off(self) -> None:
        """Fill the pipeline, and cut the connection while it is full."""
        some = threading.Event()
        term = self.mandate.state.term + 1
        first = self.mandate.state.position + 1

        def send(position: int) -> None:
            fact = LeaderAlive(term) if position > first else LeaderElected(term, "test", "local", "", "0")
            entry = Entry(
                uuid.uuid4().hex, position, term, 0, 0, FOLD_VERSION, Input("leader"), facts=(fact,)
            )  # fmt: skip

            def answered(result: MessageId | BusError) -> None:
                if isinstance(result, BusError):
                    self.error = self.error or result
                else:
                    self.stored[position] = result
                    some.set()

            self.mandate.producer.send_async(ENTRY.encode(entry), answered, properties=ENTRY.properties)

        for position in range(first, first + PIPELINE):
            send(position)
        assert some.wait(20)
        self.way.kill()

    def end(self) -> None:
        """It has come back by now, and knows that it leads no more."""
        if len(self.stored) < PIPELINE:
            eventually(lambda: self.error, what="the old leader hears that it is deposed")
            assert isinstance(self.error, Fenced)
        self.mandate.bus.close()
        self.way.close()


def history_of(settings: BusSettings) -> list[Leadership]:
    """Let one leadership after the other be cut off in the middle of its work; return them all."""
    leaders = [Leadership(settings)]
    for _ in range(TAKE_OVERS):
        leader = leaders[-1]
        end = leader.mandate.state.position  # it leads before another stands by
        leaders.append(Leadership(settings))
        warm = leaders[-1].challenger.state
        eventually(lambda warm=warm, end=end: warm.position == end, within=60)
        leader.break_off()
        _ = leaders[-1].mandate
        leader.way.heal()
    last = leaders.pop()
    last.mandate.bus.close()
    last.way.close()
    for leader in leaders:
        leader.end()
    bus = connect(settings)
    history = {record.entry.position: record.message_id for record in proven_log(bus)}
    bus.close()
    for leader in leaders:
        assert leader.stored.items() <= history.items()
    return [*leaders, last]


@pytest.fixture
def logs(pulsar_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusSettings]:
    monkeypatch.setattr(leadership, "POLL_S", (0.02, 0.05))
    return (settings_for(pulsar_broker) for _ in range(LOGS))


def test_a_hundred_leaders_cut_off_with_a_full_pipeline_leave_one_history(logs: Iterator[BusSettings]) -> None:
    """No hole, no fork, and every entry that was acknowledged is where it was acknowledged to be."""
    late = [leader.challenger.late for settings in logs for leader in history_of(settings)[1:]]
    assert len(late) == LOGS * TAKE_OVERS
    print(f"entries landed after the end, as the broker had told it, in {sum(n > 0 for n in late)} of {len(late)}")

"""Reading the log: it is noticed when it is another one, reads are bounded, and what ends it is counted."""

import pytest

from magnetar_common import custody
from magnetar_common.bus import Message, MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import BusUnavailable, LogFork, LogHole, LogReplaced
from magnetar_common.log import LogReader
from magnetar_common.metrics import LOG_BROKEN
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY, Entry
from tests.support.logs import barrier, entry, write

pytestmark = pytest.mark.timeout(30)


class Log:
    """A log in memory that is made anew, in another ledger, as Pulsar does it; and who has read it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.ledger = 0
        write(MemoryBus(self.broker), *(entry(n) for n in range(4)))
        self.state = State()
        self.reader = LogReader(MemoryBus(self.broker))
        self.read()

    def read(self) -> list[int]:
        """Fold what is there; return the positions."""
        found: list[int] = []
        while (record := self.reader.read(0)) is not None:
            if self.reader.fold(self.state, record):
                found.append(record.entry.position)
        return found

    def turn(self, *entries: Entry, delete: bool = False) -> None:
        """Go on in another ledger; with ``delete`` in a topic that was made anew."""
        messages = self.broker.topic(STATE_CHANGES.name).messages
        if delete:
            messages.clear()
        self.ledger += 1
        for number, each in enumerate(entries):
            place = MessageId(self.ledger, number)
            messages.append(Message(STATE_CHANGES.name, place, "", ENTRY.encode(each), ENTRY.properties, 0))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custody, "LOOK_S", -1.0)


def broken(kind: str) -> float:
    return LOG_BROKEN.labels(kind)._value.get()


def test_the_next_ledger_of_the_same_log_is_read_on(log: Log) -> None:
    """The broker begins another one now and then, and that is all."""
    log.turn(barrier(), entry(4), entry(5))
    log.turn(entry(6))
    assert log.read() == [4, 5, 6]


def test_what_follows_in_a_log_that_was_made_anew_is_not_folded(log: Log) -> None:
    """Though it has the next position: its leader has gone on, and the history is gone. It stays so, and is counted once."""
    before = broken("replaced")
    log.turn(entry(4), delete=True)
    for _ in range(3):
        with pytest.raises(LogReplaced, match=r"no longer holds position 3 \(entry e3"):
            log.read()
    assert log.state.position == 3
    assert broken("replaced") == before + 1


def test_a_history_that_begins_again_is_no_repeat(log: Log) -> None:
    """It has the positions that were read, and other entries; the same ones in other places are another log, too."""
    log.turn(*(entry(n, name=f"other{n}") for n in range(4)), delete=True)
    with pytest.raises(LogReplaced):
        log.read()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("rest", [(), (barrier(),)])
def test_a_deleted_log_on_which_nobody_writes_is_noticed(log: Log, rest: tuple[Entry, ...]) -> None:
    """Nothing comes, or only the barrier of who tries to lead: it is looked at now and then."""
    assert log.read() == []
    log.turn(*rest, delete=True)
    with pytest.raises(LogReplaced):
        log.read()


@pytest.mark.usefixtures("hasty")
def test_who_begins_after_a_place_knows_what_should_be_there(log: Log) -> None:
    """A projector with a file, a scheduler with a snapshot: the log is deleted before they read anything of it."""
    reader = LogReader(MemoryBus(log.broker), MessageId(0, 3), state=log.state)
    assert reader.read(0) is None
    log.turn(delete=True)
    with pytest.raises(LogReplaced):
        reader.read(0)


def test_a_reader_that_was_opened_anew_looks_first(log: Log) -> None:
    """Before it returns anything."""
    log.reader._follower.opened += 1
    log.turn(delete=True)
    with pytest.raises(LogReplaced):
        log.read()


def test_nothing_is_returned_while_it_cannot_be_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker does not answer the question: what came waits until it does."""
    log.turn(entry(4))

    def away(*_: object) -> None:
        raise BusUnavailable("away")

    with monkeypatch.context() as changed:
        changed.setattr("magnetar_common.log.check_history", away)
        assert log.read() == []
    assert log.read() == [4]


def test_l10_a_broker_that_says_there_is_more_and_sends_nothing_ends_the_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stored` is bounded: it says what it waited for, and does not go round for ever."""

    def never(_: LogReader) -> bool:
        return False

    monkeypatch.setattr(LogReader, "at_end", never)
    reader = LogReader(MemoryBus(log.broker))
    stored = reader.stored(patience=0.01)
    assert [next(stored).entry.position for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(BusUnavailable, match=r"the log has more after 0:3.*, and the broker does not send it"):
        next(stored)


@pytest.mark.parametrize(
    ("kind", "error", "bad"), [("hole", LogHole, entry(7)), ("fork", LogFork, entry(2, name="usurper"))]
)
def test_l16_a_hole_or_a_fork_halts_and_is_counted_once(
    log: Log, kind: str, error: type[Exception], bad: Entry
) -> None:
    """However often it is met by who waits for it to be signed off."""
    before = broken(kind)
    write(MemoryBus(log.broker), bad)
    for _ in range(3):
        with pytest.raises(error):
            log.read()
    assert broken(kind) == before + 1
    assert log.state.position == 3

"""Junk on the log, written while no leader held it: every folder halts, until it is signed off, and then goes on."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar_common.bus import Bus, MessageId
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import LogError, LogFork, LogHole, LogUnreadable, NoSuchMessage, NotVoidable
from magnetar_common.log import replay
from magnetar_common.repair import void
from magnetar_common.topics import STATE_CHANGES, VOIDED
from magnetar_events import ENTRY
from magnetar_events import facts as f
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import FOLD_VERSION_PROPERTY
from magnetar_projector.projector import Projector
from magnetar_projector.read_model import MEMORY, ReadModel
from tests.support.brokers import prepared
from tests.support.leading import eventually, leading
from tests.support.logs import barrier, entry, write, write_junk
from tests.support.requests import deploy


@pytest.mark.parametrize("kind", ["memory", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def test_every_folder_halts_at_junk_and_goes_on_once_it_is_signed_off(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A scheduler ends and its next life leads, a projector resumes by itself, a replay skips it; what is true stays."""
    broker = MemoryBroker()
    connect: Callable[[], Bus] = (
        (lambda: MemoryBus(broker))
        if kind == "memory"
        else prepared(request.getfixturevalue("pulsar_broker"), str(tmp_path))
    )
    bus = connect()
    read_model = ReadModel(MEMORY)
    projector, stopping = Projector(connect(), read_model), threading.Event()
    projecting = threading.Thread(target=projector.run, args=(stopping,))
    projecting.start()
    try:
        with leading(connect) as led:
            deploy(bus)
            eventually(lambda: "default/iris" in led.state.models)
            last = led.state.position
        eventually(lambda: projector.state.position == last)
        text = write_junk(bus, b"hello, log")
        intruder = write(bus, entry(last + 7, f.LeaderAlive(1), name="intruder"))[0]

        eventually(lambda: f"magnetar log void {text}" in projector.halted)
        with pytest.raises(LogUnreadable, match=f"message {text} .* magnetar log void {text}"), leading(connect):
            pass
        assert _void(bus, text) == "hello, log"
        eventually(lambda: f"magnetar log void {intruder}" in projector.halted)
        with pytest.raises(LogHole, match=f"magnetar log void {intruder}"), leading(connect):
            pass
        _void(bus, intruder)
        assert void(bus, text, actor="ops", reason="again") is None  # signed off already

        with leading(connect, identity="next") as led:
            deploy(bus, "second")
            eventually(lambda: "default/second" in led.state.models)
            assert led.state.term == 2
            eventually(lambda: projector.state.position == led.state.position)
            assert projector.state == replay(connect()) == led.state
            assert projector.healthy()[0]
            places = [projector._read_model.place(position).message_id for position in range(last + 2)]
            assert places == sorted(places)
            with pytest.raises(NotVoidable, match=r"fits the log: what is true cannot be voided"):
                void(bus, places[-1], actor="ops", reason="I do not like it")
    finally:
        stopping.set()
        projecting.join(20)
        read_model.close()
        bus.close()


def _void(bus: Bus, place: MessageId) -> str:
    voided = void(bus, place, actor="uid-0", reason="somebody tested in production")
    assert voided is not None
    reader = bus.reader(STATE_CHANGES.name)
    try:
        while (message := reader.read(5)) is not None:
            if message.id == place:
                assert voided.size == len(message.payload)
                return message.payload.decode(errors="replace")
    finally:
        reader.close()
    raise AssertionError(place)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


def test_what_is_true_or_may_be_cannot_be_voided(bus: MemoryBus) -> None:
    """Not an entry, a marker, a repeat, nor what only newer software can read; and nothing that is not there."""
    first, second, mark, repeat = write(bus, entry(0), entry(1), barrier(), entry(1))
    newer = write_junk(bus, b"?", **{FINGERPRINT: "0123456789abcdef", FOLD_VERSION_PROPERTY: "9"})
    for place in (first, second, mark, repeat):
        with pytest.raises(NotVoidable, match="fits the log"):
            void(bus, place, actor="ops", reason="no")
    with pytest.raises(NotVoidable, match=r"may be part of the history: .* fold version 9"):
        void(bus, newer, actor="ops", reason="no")
    with pytest.raises(NoSuchMessage):
        void(MemoryBus(), MessageId(0, 77), actor="ops", reason="no")
    assert bus.broker.topic(VOIDED.name).messages == []


def test_a_hole_is_not_mended_by_voiding_what_came_after_it(bus: MemoryBus) -> None:
    """Entries are missing, and the history goes on behind them: to skip that would be to lose more."""
    _, _, after, _ = write(bus, entry(0), entry(1), entry(4), entry(5))
    with pytest.raises(NotVoidable, match=r"the history goes on after message 0:2:-1"):
        void(bus, after, actor="ops", reason="get on with it")


def test_junk_is_voided_in_order_of_the_log(bus: MemoryBus) -> None:
    """What comes behind other junk cannot be judged yet: the error names the first."""
    write(bus, entry(0))
    first, second = write_junk(bus, b"one"), write_junk(bus, b"two")
    with pytest.raises(LogUnreadable, match=f"message {first}"):
        void(bus, second, actor="ops", reason="junk")
    assert void(bus, first, actor="ops", reason="junk")
    assert void(bus, second, actor="ops", reason="junk")
    assert replay(bus).position == 0


def test_a_usurpers_entry_can_be_voided_and_the_first_stays(bus: MemoryBus) -> None:
    write(bus, entry(0), entry(1, name="true"))
    fork = write(bus, entry(1, name="usurper"))[0]
    write(bus, entry(2))
    with pytest.raises(LogFork, match=f"magnetar log void {fork}"):
        replay(bus)
    void(bus, fork, actor="ops", reason="an old scheduler of a test")
    assert (replay(bus).position, replay(bus).recent[1]) == (2, "true")


def test_only_the_very_bytes_that_were_signed_off_are_skipped(bus: MemoryBus) -> None:
    """Listed, and other bytes at that place (another log): halt. And a listed entry that fits is folded all the same."""
    write(bus, entry(0))
    junk = write_junk(bus, b"junk")
    void(bus, junk, actor="ops", reason="junk")
    other = MemoryBus(MemoryBroker())
    write(other, entry(0))
    write_junk(other, b"other")
    for message in bus.broker.topic(VOIDED.name).messages:
        other.producer(VOIDED.name).send(message.payload, key=message.key, properties=message.properties)
    with pytest.raises(LogUnreadable):
        replay(other)
    true = MemoryBus(MemoryBroker())
    places = write(true, entry(0), entry(1))
    assert places[1] == junk
    for message in bus.broker.topic(VOIDED.name).messages:
        true.producer(VOIDED.name).send(message.payload, key=message.key, properties=message.properties)
    assert replay(true).position == 1


def test_a_list_that_somebody_else_wrote_to_voids_nothing(bus: MemoryBus) -> None:
    write(bus, entry(0))
    junk = write_junk(bus, b"junk", **ENTRY.properties)
    bus.producer(VOIDED.name).send(b"\x00", key=str(junk))
    with pytest.raises(LogError):
        replay(bus)

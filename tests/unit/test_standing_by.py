"""A challenger says who leads, and when whoever holds the log does nothing with it."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from magnetar_common.bus import Producer
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import BusUnavailable
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY
from magnetar_events.facts import LeaderElected, PolicySet
from magnetar_events.policy import Policy
from magnetar_scheduler import leadership
from magnetar_scheduler.leadership import Challenger, Mandate
from tests.support.leading import eventually
from tests.support.logs import entry


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    monkeypatch.setattr(leadership, "POLL_S", (0.01, 0.02))
    return MemoryBroker()


@pytest.fixture
def log(broker: MemoryBroker) -> Producer:
    """Held by somebody who was elected, as the log says."""
    producer = MemoryBus(broker).producer(STATE_CHANGES.name, exclusive=True)
    append(producer, 0, LeaderElected(1, "host-a", "local", broker.id, "1"))
    return producer


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the module logs, however logging was configured before."""
    capture = LogCapture()
    logger = structlog.wrap_logger(None, [capture], wrapper_class=structlog.make_filtering_bound_logger(0))
    monkeypatch.setattr(leadership, "_log", logger)
    return capture.entries


def append(log: Producer, position: int, *facts: Any) -> None:
    log.send(ENTRY.encode(entry(position, *facts)), properties=ENTRY.properties)


@contextmanager
def standing_by(broker: MemoryBroker) -> Generator[Challenger]:
    stopping = threading.Event()
    challenger = Challenger(lambda: MemoryBus(broker), stopping.is_set, lambda _: None)
    thread = threading.Thread(target=challenger.run, daemon=True)
    thread.start()
    yield challenger
    stopping.set()
    thread.join(20)


def lines(said: list[Any], event: str) -> list[Any]:
    return [line for line in said if line["event"].startswith(event)]


def test_l6_a_challenger_says_once_who_leads(broker: MemoryBroker, log: Producer, said: list[Any]) -> None:
    """And again when it is somebody else; it goes on trying, and says nothing of each try."""
    with standing_by(broker) as challenger:
        eventually(lambda: lines(said, "another scheduler leads"))
        assert challenger.role() == "standing by at position 0; host-a leads"
        append(log, 1, LeaderElected(2, "host-b", "local", broker.id, "1"))
        eventually(lambda: len(lines(said, "another scheduler leads")) == 2)
    assert [line["leader"] for line in lines(said, "another scheduler leads")] == ["host-a", "host-b"]


def test_l6_a_hold_that_outlives_its_leader_is_said_with_its_name(
    broker: MemoryBroker, log: Producer, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each silence, with what may be the reason; an entry ends it."""
    monkeypatch.setattr(leadership, "SILENT_S", 0.05)
    with standing_by(broker) as challenger:
        eventually(lambda: lines(said, "the log is still held"))
        assert "host-a holds the log and has appended nothing for" in challenger.role()
        monkeypatch.setattr(leadership, "SILENT_S", 60.0)
        append(log, 1)
        eventually(lambda: challenger.role() == "standing by at position 1; host-a leads")
    (line,) = lines(said, "the log is still held")
    assert (line["log_level"], line["leader"], line["topic"]) == ("warning", "host-a", STATE_CHANGES.name)
    assert "keepAliveIntervalSeconds" in line["event"]


def test_l6_an_idle_leader_is_not_silent() -> None:
    """It appends something each minute, which is sooner than a challenger warns."""
    from magnetar_scheduler.leader import ALIVE_S

    assert ALIVE_S < leadership.SILENT_S


class _Path:
    """A way to the broker that can be cut: nothing is opened on it then."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.cut, self.tries = False, 0

    def connect(self) -> MemoryBus:
        bus, opened = MemoryBus(self.broker), MemoryBus.producer

        def producer(*args: Any, **kwargs: Any) -> Producer:
            self.tries += 1
            if self.cut:
                raise BusUnavailable("out of reach")
            return opened(bus, *args, **kwargs)

        bus.producer = producer  # type: ignore[method-assign]
        return bus


@pytest.mark.parametrize("cut", [False, True])
def test_who_could_not_ask_for_a_while_relieves_nobody(broker: MemoryBroker, log: Producer, cut: bool) -> None:
    """Somebody held the log before the broker was out of reach; how long none has by now, nobody knows."""
    stale_ms = 60_000 if not cut else 10
    policy = Policy(heartbeat_ms=10, lease_ms=120_000, reading_stale_ms=stale_ms)
    append(log, 1, PolicySet(policy))
    path, stopping, found = _Path(broker), threading.Event(), list[Mandate | None]()
    challenger = Challenger(path.connect, stopping.is_set, lambda _: None)
    thread = threading.Thread(target=lambda: found.append(challenger.run()), daemon=True)
    thread.start()
    eventually(lambda: challenger.role().endswith("host-a leads"))
    path.cut = cut
    tries = path.tries
    eventually(lambda: path.tries > tries + 10)  # at least 10 ms lie between two
    log.close()
    path.cut = False
    thread.join(20)
    (mandate,) = found
    assert mandate is not None
    assert mandate.relieves != cut
    mandate.producer.close()
    mandate.bus.close()

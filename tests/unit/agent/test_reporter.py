"""Reports and the broker's absences."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from magnetar_agent import reporter as reporters
from magnetar_agent.reporter import Reporter
from magnetar_common.bus import EARLIEST
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.metrics import REPORTS_DROPPED, REPORTS_WAITING
from magnetar_common.topics import AGENT_EVENTS
from magnetar_events import AGENT_EVENT, AgentEvent
from magnetar_events.reports import ModelLoaded, ModelLoading, ReportKind, ResyncRequested
from tests.support.leading import eventually


class Bench:
    """A reporter on a bus of its own, and what arrived."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.overflows = 0
        self.failures: list[BaseException] = []
        self.reporter = Reporter(self.bus, self._envelope, self._overflowed, self.failures.append)

    def _envelope(self, number: int, report: ReportKind) -> AgentEvent:
        return AgentEvent(server="a", incarnation="one", number=number, time=0, report=report)

    def _overflowed(self) -> None:
        self.overflows += 1

    def say(self, *causes: object) -> None:
        for cause in causes:
            self.reporter.report(ResyncRequested(cause=str(cause)))

    def heard(self) -> list[tuple[int, str]]:
        reader = MemoryBus(self.broker).reader(AGENT_EVENTS.name, EARLIEST)
        found: list[tuple[int, str]] = []
        while (message := reader.read(0)) is not None:
            event = AGENT_EVENT.decode(message.payload, "")
            found.append((event.number, getattr(event.report, "cause", type(event.report).__name__)))
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("magnetar_common.bus.follower.BACKOFF_S", (0.01, 0.01))
    made = Bench()
    yield made
    made.reporter.close()
    assert made.failures == []


def test_reports_are_numbered_and_in_order(bench: Bench) -> None:
    """From one on, without a gap."""
    bench.say(*range(50))
    eventually(lambda: len(bench.heard()) == 50)
    assert bench.heard() == [(n + 1, str(n)) for n in range(50)]
    assert bench.reporter.number == 50


def test_that_something_begun_is_said_of_what_lasts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is over sooner only the end is; the numbers have no gap, and other reports do not wait for it."""
    monkeypatch.setattr(reporters, "BEGUN_S", 600.0)
    bench.reporter.begun(ModelLoading(model="default/iris", generation=1, position=1))
    bench.say("other")
    bench.reporter.report(ModelLoaded(model="default/iris", generation=1, position=1))
    monkeypatch.setattr(reporters, "BEGUN_S", 0.01)
    bench.reporter.begun(ModelLoading(model="default/iris", generation=1, position=2))
    eventually(lambda: len(bench.heard()) == 3)
    assert bench.heard() == [(1, "other"), (2, "ModelLoaded"), (3, "ModelLoading")]


def test_commands_of_one_entry_have_each_their_own_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have its position: one that is over soon says nothing of the others."""
    monkeypatch.setattr(reporters, "BEGUN_S", 0.2)
    for name in ("long", "short", "long-too"):
        bench.reporter.begun(ModelLoading(model=f"default/{name}", generation=1, position=7))
    bench.reporter.report(ModelLoaded(model="default/short", generation=1, position=7))
    eventually(lambda: len(bench.heard()) == 3)
    assert bench.heard() == [(1, "ModelLoaded"), (2, "ModelLoading"), (3, "ModelLoading")]


def test_outage_loses_nothing_and_keeps_the_order(bench: Bench) -> None:
    """What is said meanwhile waits; the check says so, and says when it is over."""
    bench.say("before")
    eventually(lambda: len(bench.heard()) == 1)
    bench.broker.disconnect(bench.bus)
    bench.say("during", "this too")
    eventually(lambda: bench.reporter.error)
    bench.broker.reconnect(bench.bus)
    bench.say("after")
    eventually(lambda: len(bench.heard()) == 4)
    assert [cause for _, cause in bench.heard()] == ["before", "during", "this too", "after"]
    eventually(lambda: not bench.reporter.error)


def test_broker_that_is_away_at_the_start_is_waited_for(bench: Bench) -> None:
    """The producer is opened when it can be."""
    bench.broker.disconnect(bench.bus)
    bench.say("first")
    eventually(lambda: bench.reporter.error)
    bench.broker.reconnect(bench.bus)
    eventually(lambda: bench.heard() == [(1, "first")])


def test_too_long_an_outage_drops_the_oldest_and_asks_for_the_inventory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: and only when the rest is through, so that it comes last."""
    monkeypatch.setattr(reporters, "MAX_WAITING", 5)
    bench.broker.disconnect(bench.bus)
    bench.say(*range(20))
    assert bench.overflows == 0
    bench.broker.reconnect(bench.bus)
    eventually(lambda: bench.overflows == 1)
    eventually(lambda: bench.reporter.check() == (True, "20 reports"))
    assert [number for number, _ in bench.heard()] == [16, 17, 18, 19, 20]
    bench.say("later")
    eventually(lambda: len(bench.heard()) == 6)
    assert bench.overflows == 1


def test_16_at_the_bound_it_is_said_at_once_what_is_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in the log with the first that is dropped, health, and a metric: not only when the outage is over."""
    monkeypatch.setattr(reporters, "MAX_WAITING", 5)
    before = REPORTS_DROPPED._value.get()
    bench.broker.disconnect(bench.bus)
    with capture_logs() as said:
        bench.say(*range(5))
        assert bench.reporter.dropped == 0
        bench.say(*range(5, 8))
    (line,) = [line for line in said if line["log_level"] == "error"]
    assert (line["limit"], line["number"], line["kind"]) == (5, 1, "ResyncRequested")
    ready, why = bench.reporter.check()
    assert not ready
    assert "5 reports wait, which is the limit, and 3 older ones were dropped" in why
    assert (REPORTS_DROPPED._value.get() - before, REPORTS_WAITING._value.get()) == (3, 5)
    bench.broker.reconnect(bench.bus)
    eventually(lambda: bench.reporter.check()[0])
    assert REPORTS_WAITING._value.get() == 0


def test_report_that_is_refused_does_not_block_the_others(bench: Bench) -> None:
    """It never will be stored; what comes after it is."""
    huge = "x" * 1000
    bench.reporter._envelope = lambda number, report: AgentEvent(  # one larger than any broker takes
        server="a", incarnation="one", number=number, time=0,
        report=report if number != 1 else _large(huge),
    )  # fmt: skip
    bench.say("too large", "fine")
    eventually(lambda: bench.heard() == [(2, "fine")])


def _large(text: str) -> ReportKind:
    from magnetar_events.reports import InventoryReported

    return InventoryReported(strangers=(text,) * 6000)


def test_topic_that_cannot_be_opened_loses_nothing(bench: Bench) -> None:
    """A refusal to open is no refusal of a report: permission may be given later."""
    holder = MemoryBus(bench.broker).producer(AGENT_EVENTS.name, exclusive=True)
    bench.say("patient")
    eventually(lambda: bench.reporter.error)
    holder.close()
    eventually(lambda: bench.heard() == [(1, "patient")])


def test_close_ends_although_the_broker_is_away(bench: Bench) -> None:
    """What could not be sent is given up, loudly, and no thread is left."""
    bench.broker.disconnect(bench.bus)
    bench.say("lost")
    eventually(lambda: bench.reporter.error)
    bench.reporter.close()
    assert not bench.reporter._thread.is_alive()


def test_close_sends_what_waits(bench: Bench) -> None:
    """The last words arrive."""
    bench.say(*range(20))
    bench.reporter.close()
    assert len(bench.heard()) == 20

"""Topics that are deleted or full under a running service, and a broker that is slow: said, seen, and never a silent stall."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_common import custody
from magnetar_common.admin import Admin
from magnetar_common.bus import Bus, MessageId, connect
from magnetar_common.client import Magnetar
from magnetar_common.errors import BusUnavailable, Deposed, LogError, LogReplaced
from magnetar_common.log import check_history
from magnetar_common.settings import BusSettings
from magnetar_common.topics import INPUTS, MODEL_EVENTS, ROUTES, STATE_CHANGES, under
from magnetar_events import ENTRY
from magnetar_events.entry import BARRIER
from magnetar_events.schemas import schema_json
from magnetar_projector.projector import Projector
from magnetar_projector.read_model import ReadModel
from magnetar_scheduler import routes
from magnetar_scheduler.leadership import Challenger
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.logs import entry
from tests.support.proxy import Proxy
from tests.support.requests import deploy, servers_routed
from tests.support.schedulers import serves
from tests.support.world import spec

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(240)]


@pytest.fixture
def admin(settings: BusSettings) -> Iterator[Admin]:
    with Admin(settings) as admin:
        yield admin


def test_an_input_topic_that_is_deleted_is_made_anew_and_followed(
    settings: BusSettings, bus: Bus, admin: Admin
) -> None:
    """What is published after it is handled, by the same leader; the readers were opened anew or came back."""
    agent = SimulatedAgent(bus, "a")
    with leading(lambda: connect(settings)) as led:
        serves(bus, "before")
        for topic in INPUTS:
            admin.delete(under(settings.tenant, topic.name))
        serves(bus, "after")
        assert led.error is None
        assert led.state.term == 1
    agent.die()


@pytest.mark.parametrize(
    ("compare_s", "published"),
    [
        pytest.param(3.0, (), id="within a comparison, with nothing else published"),
        pytest.param(600.0, ("three",), id="long before a comparison, when one is published"),
    ],
)
def test_routes_that_are_deleted_are_put_back(
    settings: BusSettings,
    bus: Bus,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    compare_s: float,
    published: tuple[str, ...],
) -> None:
    """A comparison finds them missing, and so does whatever comes on the topic that was made anew; nobody takes over."""
    monkeypatch.setattr(routes, "COMPARE_S", compare_s)
    agent = SimulatedAgent(bus, "a")
    with leading(lambda: connect(settings)) as led:
        serves(bus, "one")
        serves(bus, "two")
        admin.delete(under(settings.tenant, ROUTES.name))
        for name in published:
            serves(bus, name)
        names = ("one", "two", *published)
        eventually(lambda: all(servers_routed(bus, f"default/{name}") for name in names), within=30, what=str(names))
        assert (led.error, led.state.term) == (None, 1)
    agent.die()


def test_nobody_who_knew_the_log_leads_from_an_empty_one(settings: BusSettings, bus: Bus, admin: Admin) -> None:
    """The log is deleted under its leader: that one ends, and the standby refuses, with what to do."""
    refused: list[BaseException] = []
    standby = Challenger(lambda: connect(settings), lambda: False, lambda _: None)

    def stand_by() -> None:
        try:
            standby.run()
        except LogError as error:
            refused.append(error)

    thread = threading.Thread(target=stand_by, daemon=True)
    agent = SimulatedAgent(bus, "a")
    with leading(lambda: connect(settings)) as led:
        serves(bus, "before")
        thread.start()
        eventually(lambda: standby.state.position == led.state.position)
        admin.delete(under(settings.tenant, STATE_CHANGES.name))
        deploy(bus, "after")
        eventually(lambda: led.error, within=60)
        assert isinstance(led.error, Deposed)
        # It saw it for itself, or was fenced by the standby first, who tries for the topic that was made anew.
        assert any(why in str(led.error) for why in ("its topic was deleted", "ProducerFenced")), led.error
    eventually(lambda: refused, within=60)
    assert isinstance(refused[0], LogReplaced), refused
    assert "restore the topic" in str(refused[0])
    agent.die()


@pytest.fixture
def projector(bus: Bus, settings: BusSettings, tmp_path: Path) -> Iterator[Projector]:
    """One that runs, with a read model of its own."""
    stopping, own = threading.Event(), connect(settings)
    with ReadModel(tmp_path / "projector.sqlite") as read_model:
        projector = Projector(own, read_model)
        thread = threading.Thread(target=projector.run, args=(stopping,), daemon=True)
        thread.start()
        yield projector
        stopping.set()
        thread.join(30)
    own.close()


def test_a_projector_halts_when_the_log_is_deleted_under_a_leader(
    settings: BusSettings, bus: Bus, admin: Admin, projector: Projector
) -> None:
    """The leader's next entry has the next position, and stands on a topic with no history: it is not projected."""
    log = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema), exclusive=True)
    for position in range(8):
        log.send(ENTRY.encode(entry(position)), properties=ENTRY.properties)
    eventually(lambda: projector.state.position == 7 and projector.healthy()[0])
    admin.delete(under(settings.tenant, STATE_CHANGES.name))
    eventually(lambda: log.is_connected)
    log.send(ENTRY.encode(entry(8)), properties=ENTRY.properties)
    eventually(lambda: projector.halted)
    ready, why = projector.healthy()
    assert not ready
    assert "halted: the log no longer holds position 7" in why
    assert projector.state.position == 7


def test_a_projector_halts_when_the_log_is_deleted_and_nobody_leads(
    settings: BusSettings, bus: Bus, admin: Admin, projector: Projector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes that could tell: it looks now and then."""
    monkeypatch.setattr(custody, "LOOK_S", 1.0)
    log = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema), exclusive=True)
    for position in range(8):
        log.send(ENTRY.encode(entry(position)), properties=ENTRY.properties)
    eventually(lambda: projector.state.position == 7 and projector.healthy()[0])
    log.close()
    admin.delete(under(settings.tenant, STATE_CHANGES.name))
    eventually(lambda: projector.halted)
    assert not projector.healthy()[0]
    assert "the log no longer holds position 7" in projector.halted


def test_an_empty_log_is_not_the_one_that_was_read(bus: Bus) -> None:
    """Nothing but barriers is stored since it was made anew: whoever read entries from it knows that they are gone."""
    producer = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema), exclusive=True)
    barrier = producer.send(ENTRY.encode(entry(BARRIER)), properties=ENTRY.properties)
    with pytest.raises(LogReplaced):
        check_history(bus, 7, "e7", barrier)
    producer.send(ENTRY.encode(entry(0)), properties=ENTRY.properties)
    place = producer.send(ENTRY.encode(entry(1)), properties=ENTRY.properties)
    check_history(bus, 1, entry(1).id, place)
    with pytest.raises(LogReplaced):
        check_history(bus, 1, "another", place)
    with pytest.raises(LogReplaced):
        check_history(bus, 2, "e2", MessageId(place.ledger, place.entry + 1))


def test_a_full_backlog_names_the_topic_the_policy_and_the_way_out(
    settings: BusSettings, bus: Bus, admin: Admin
) -> None:
    """Who asks for a model while nobody takes requests off the topic is told so, and not just that it took too long."""
    topic = under(settings.tenant, MODEL_EVENTS.name)
    namespace = topic.removeprefix("persistent://").rpartition("/")[0]
    admin.set_namespace_policy(
        namespace, "backlogQuota", {"limitSize": 1_000, "limitTime": -1, "policy": "producer_exception"}
    )
    stuck = bus.anchor(MODEL_EVENTS.name, "stuck")
    short = settings.model_copy(update={"operation_timeout_s": 2})

    def refused() -> str:
        try:
            with Magnetar(short, source="test") as magnetar:
                magnetar.deploy(spec("iris", labels={"padding": "x" * 200})).close()
        except BusUnavailable as error:
            return str(error)
        return ""

    said = eventually(refused, within=60)
    assert "model-events" in said
    assert "ProducerBlockedQuotaExceeded" in said
    assert "backlog quota is full and its policy holds producers back" in said
    stuck.close()


def test_a_slow_broker_costs_time_and_a_silent_one_the_leadership(settings: BusSettings, bus: Bus) -> None:
    """Slow, models still become Available and health says that all moves; silent, the leader says what it missed."""
    agent = SimulatedAgent(bus, "a")
    with Proxy(settings.url) as way:
        slow = settings.model_copy(update={"url": way.url})
        with leading(lambda: connect(slow)) as led:
            way.slow(0.1)
            serves(bus, "slowly")
            assert led.leader.check()[0], led.leader.check()
            assert led.error is None
            way.hold()
            eventually(lambda: led.error, within=60)
            way.cut()
            assert isinstance(led.error, Deposed)
            assert "not acknowledged" in str(led.error) or "no connection" in str(led.error)
    agent.die()

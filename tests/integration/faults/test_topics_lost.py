"""Topics that are deleted or full under a running service, and a broker that is slow: said, seen, and never a silent stall."""

import threading
from collections.abc import Iterator

import pytest

from magnetar_common.admin import Admin
from magnetar_common.bus import Bus, MessageId, connect
from magnetar_common.client import Magnetar
from magnetar_common.errors import BusUnavailable, Deposed, LogError, LogReplaced
from magnetar_common.settings import BusSettings
from magnetar_common.topics import INPUTS, MODEL_EVENTS, STATE_CHANGES, under
from magnetar_events import ENTRY
from magnetar_events.entry import BARRIER
from magnetar_events.schemas import schema_json
from magnetar_scheduler.custody import check_history
from magnetar_scheduler.leadership import Challenger
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.logs import entry
from tests.support.proxy import Proxy
from tests.support.requests import deploy
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

"""The broker is killed under load and comes back: servers go on serving, nobody is lost by it, nothing is forgotten."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from magnetar_common.brokers import RunningBroker
from magnetar_common.bus import Bus, Message, connect
from magnetar_common.client import Magnetar
from magnetar_common.errors import BusError
from magnetar_common.settings import BusSettings
from magnetar_common.topics import AGENT_EVENTS, SERVICE_REGISTRY
from magnetar_events import AGENT_EVENT
from magnetar_events.codec import FINGERPRINT
from magnetar_events.facts import RequestAccepted, ServerLost
from tests.support.brokers import settings_for
from tests.support.leading import eventually
from tests.support.real_agent import RealAgent
from tests.support.requests import servers_routed, set_policy
from tests.support.schedulers import proven_log, schedulers, serves
from tests.support.world import MIB

pytestmark = pytest.mark.timeout(600)

RACK = 10


class Publisher:
    """A service that asks for one model after the other, and asks again with the same id while it gets no answer."""

    def __init__(self, settings: BusSettings, artifact: str) -> None:
        self.acknowledged: list[str] = []
        self.errors: list[str] = []
        self._settings = settings
        self._artifact = artifact
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Magnetar(self._settings, source="publisher") as magnetar:
            for number in itertools.count():
                while not self._stop.is_set():
                    try:
                        magnetar.deploy(
                            name=f"m{number}", storage_uri=self._artifact, requirements=("sklearn",), memory=MIB,
                            id=str(number),
                        ).close()  # fmt: skip
                    except BusError as error:
                        self.errors.append(str(error))
                    else:
                        self.acknowledged.append(str(number))
                        break
                if self._stop.wait(0.2):
                    return

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def pause(seconds: float) -> None:
    """An outage takes its time: that is what is tested."""
    threading.Event().wait(seconds)


def lost(bus: Bus) -> set[str]:
    """The servers that the log declares lost."""
    facts = (fact for record in proven_log(bus) for fact in record.entry.facts)
    return {fact.server for fact in facts if isinstance(fact, ServerLost)}


def accepted(bus: Bus) -> list[str]:
    """The publisher's requests that the log accepts, in its order."""
    facts = (fact for record in proven_log(bus) for fact in record.entry.facts)
    return [fact.request for fact in facts if isinstance(fact, RequestAccepted) and fact.source == "publisher"]


def stored(bus: Bus, topic: str) -> Iterator[Message]:
    reader = bus.reader(topic)
    while not reader.at_end():
        message = reader.read(5)
        assert message is not None
        yield message
    reader.close()


def rejoined(bus: Bus, since_ms: int) -> list[int]:
    """When each agent's first heartbeat after a time was published (milliseconds), earliest first."""
    first: dict[str, int] = {}
    for message in stored(bus, SERVICE_REGISTRY.name):
        if message.publish_ms > since_ms and message.key.endswith("/one"):
            first.setdefault(message.key, message.publish_ms)
    return sorted(first.values())


def report_numbers(bus: Bus) -> dict[str, list[int]]:
    """The numbers of each agent's reports in the order in which they are stored, repeats left out."""
    numbers: dict[str, list[int]] = {}
    for message in stored(bus, AGENT_EVENTS.name):
        event = AGENT_EVENT.decode(message.payload, message.properties.get(FINGERPRINT, ""))
        mine = numbers.setdefault(event.server_key, [])
        if event.number not in mine:
            mine.append(event.number)
    return numbers


@pytest.fixture
def settings(own_pulsar_broker: RunningBroker) -> BusSettings:
    return settings_for(own_pulsar_broker).model_copy(update={"client_log": os.devnull})


@pytest.fixture
def fleet(settings: BusSettings, tmp_path: Path) -> Iterator[list[RealAgent]]:
    buses = [connect(settings) for _ in range(RACK + 2)]
    agents = [RealAgent(bus, tmp_path, f"s{number}") for number, bus in enumerate(buses)]
    yield agents
    with ThreadPoolExecutor(len(agents)) as together:
        list(together.map(RealAgent.die, agents))
    for bus in buses:
        bus.close()


def test_the_fleet_outlives_its_broker(
    own_pulsar_broker: RunningBroker, settings: BusSettings, fleet: list[RealAgent], tmp_path: Path
) -> None:
    """Killed for 5 s and for 60 s, while one server really dies; afterwards a rack of ten is noticed, too."""
    broker, bus = own_pulsar_broker, connect(settings)
    dead, survivor, rack = fleet[0], fleet[1], fleet[2:]
    with schedulers(tmp_path, settings) as many:
        first = many.start("one")
        many.leader()
        standbys = [many.start("two"), many.start("three")]
        set_policy(bus, heartbeat_ms=1000, lease_ms=4000, hold_ms=2000, evictions_per_minute=RACK + 1)
        serves(bus, "first", storage_uri=survivor.artifact, replicas=len(fleet), memory=MIB)
        eventually(lambda: len(servers_routed(bus, "default/first")) == len(fleet), within=90)
        eventually(lambda: all(each.stands_by for each in standbys), within=90)
        publisher = Publisher(settings, survivor.artifact)
        eventually(lambda: len(publisher.acknowledged) > 5, within=120)

        broker.kill()
        pause(5)
        broker.restart()
        assert first.exit_code() == os.EX_TEMPFAIL
        second = many.leader(other_than=first, within=150)
        before = len(publisher.acknowledged)
        eventually(lambda: len(publisher.acknowledged) > before + 5, within=120)
        eventually(lambda: all(agent.registrar.healthy for agent in fleet), within=120)
        assert lost(bus) == set()

        served = [set(agent.adapter.models) for agent in fleet]
        broker.kill()
        dead.registrar._beacon.close()
        survivor.adapter.drop("default_first_1")
        survivor.agent.server_changed()
        pause(40)
        (waiting,) = (each for each in standbys if each is not second)
        assert "out of reach" in waiting.checks()["followed"]["detail"]
        assert second.exit_code() == os.EX_TEMPFAIL
        for agent in (survivor, *rack):
            assert not agent.agent.check_commands()[0]
            assert not agent.registrar.healthy
            assert agent.adapter.up
        assert not survivor.agent.check_reports()[0]
        pause(20)
        back = time.time_ns() // 10**6
        broker.restart()

        assert many.leader(other_than=second, within=150) is waiting
        before = len(publisher.acknowledged)
        eventually(lambda: len(publisher.acknowledged) > before + 5, within=120)
        alive = [survivor, *rack]
        eventually(
            lambda: all(agent.registrar.healthy and agent.agent.check_commands()[0] for agent in alive), within=60
        )
        eventually(lambda: "default_first_1" in survivor.adapter.models, within=120)
        eventually(lambda: lost(bus) == {dead.key}, within=120)
        for before_it, agent in zip(served[2:], rack, strict=True):
            assert before_it <= set(agent.adapter.models)
            assert "unload" not in dict(agent.adapter.calls)

        arrivals = rejoined(bus, back)
        assert len(arrivals) == len(alive)
        assert arrivals[-1] - arrivals[0] > 200, "all at once"
        assert max(sum(0 <= other - each < 50 for other in arrivals) for each in arrivals) <= len(arrivals) // 2

        publisher.close()
        assert publisher.errors
        eventually(lambda: len(accepted(bus)) >= len(publisher.acknowledged), within=120)
        assert accepted(bus)[: len(publisher.acknowledged)] == publisher.acknowledged
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in report_numbers(bus).values())

        for agent in rack:
            agent.registrar._beacon.close()
        eventually(lambda: lost(bus) == {agent.key for agent in (dead, *rack)}, within=120)
        eventually(lambda: servers_routed(bus, "default/first") == {survivor.key}, within=120)
        assert waiting.process.poll() is None
    assert [failure for agent in fleet for failure in agent.failures] == []
    bus.close()

"""Scenarios that need a leader, agents, clocks and a broker (in memory), by the numbers of the scenario list."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events.commands import LoadModel, UnloadModel
from magnetar_scheduler import appender, leader
from tests.support.agents import SimulatedAgent
from tests.support.leading import Led, eventually, leading
from tests.support.requests import IRIS, deploy, scale, servers_routed, set_policy

A, B = "local/a/0", "local/b/0"
HOUR_MS = 3_600_000


class Fleet:
    """A leader and its agents; whoever still lives at the end is ended."""

    def __init__(self, broker: MemoryBroker, led: Led) -> None:
        self.bus, self.led = MemoryBus(broker), led
        self.agents: list[SimulatedAgent] = []

    def join(self, server: str, **fields: object) -> SimulatedAgent:
        agent = SimulatedAgent(self.bus, server, **fields)  # type: ignore[arg-type]
        self.agents.append(agent)
        return agent

    def state(self, server: str) -> R | None:
        """Of iris, version 1, on a server."""
        model = self.led.state.models.get(IRIS)
        replica = model.replicas.get((1, server)) if model else None
        return replica.state if replica else None

    def status(self) -> ModelState | None:
        model = self.led.state.models.get(IRIS)
        return model_status(model).state if model else None


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    broker = MemoryBroker()
    with leading(lambda: MemoryBus(broker)) as led:
        made = Fleet(broker, led)
        set_policy(
            made.bus,
            lease_ms=2500,
            heartbeat_ms=1000,
            evictions_per_minute=100,
            hold_ms=0,
            unload_grace_ms=10,
            resend_ms=500,
        )
        yield made
        for agent in made.agents:
            agent.die()
        assert led.error is None
        assert led.state.illegal == 0


def commands(agent: SimulatedAgent, kind: type) -> int:
    return sum(isinstance(command.command, kind) for command in agent.commands)


def test_s09_agent_killed_during_a_load_is_replaced_within_a_lease(fleet: Fleet) -> None:
    """First it says why nothing can take over; then a server comes, and the model is Available there."""
    dying = fleet.join("a", obey=False)
    deploy(fleet.bus)
    eventually(lambda: commands(dying, LoadModel))
    dying.die()
    eventually(lambda: fleet.state(A) is R.LOST)
    eventually(lambda: fleet.status() is ModelState.SCHEDULE_FAILED)
    fleet.join("b")
    eventually(lambda: servers_routed(fleet.bus) == {B})
    assert fleet.status() is ModelState.AVAILABLE


def test_s17_agent_back_after_a_netsplit_keeps_its_replica(fleet: Fleet) -> None:
    """The same life with the same model: the original serves again, and the replacement's load is called off."""
    original = fleet.join("a")
    deploy(fleet.bus)
    eventually(lambda: servers_routed(fleet.bus) == {A})
    other = fleet.join("b", obey=False)
    original.die()
    eventually(lambda: fleet.state(B) is R.LOAD_REQUESTED)
    back = fleet.join("a", holds=original.loaded)
    eventually(lambda: servers_routed(fleet.bus) == {A})
    other.obey = True
    eventually(lambda: commands(other, UnloadModel) and fleet.state(B) is None)
    assert commands(back, LoadModel) == 0
    assert fleet.state(A) is R.AVAILABLE


def test_s17_agent_that_restarted_does_not_get_its_replica_back(fleet: Fleet) -> None:
    """Another life with an empty server: the replacement stays, and the old life's goodbye is nobody's."""
    original = fleet.join("a")
    deploy(fleet.bus)
    eventually(lambda: servers_routed(fleet.bus) == {A})
    fleet.join("b")
    original.die()
    reborn = fleet.join("a", incarnation="two")
    eventually(lambda: fleet.status() is ModelState.AVAILABLE and servers_routed(fleet.bus))
    routed = servers_routed(fleet.bus)
    original.beat("DOWN")
    scale(fleet.bus, 2)
    eventually(lambda: servers_routed(fleet.bus) == {A, B})
    assert len(routed) == 1
    assert commands(reborn, LoadModel) == 1


def test_s18_agent_whose_clock_is_an_hour_off_is_an_agent_like_any_other(fleet: Fleet) -> None:
    """It serves, keeps its lease by what arrives, and loses it by silence; all that differs is a warning."""
    with capture_logs() as logs:
        fast, slow = fleet.join("a", clock_ms=HOUR_MS), fleet.join("b", clock_ms=-HOUR_MS)
        deploy(fleet.bus, replicas=2)
        eventually(lambda: servers_routed(fleet.bus) == {A, B})
        beats = fast.beats
        eventually(lambda: fast.beats > beats + 3)  # longer than a lease
        assert servers_routed(fleet.bus) == {A, B}
        fast.die()
        slow.die()
        eventually(lambda: all(server.lost for server in fleet.led.state.servers.values()))
    warned = {line["instance"]: round(line["seconds"] / 3600) for line in logs if line["event"] == "clock skew"}
    assert warned == {"a/0/one": 1, "b/0/one": -1}


def test_s21_two_replicas_on_one_server_leave_the_first_serving(fleet: Fleet) -> None:
    """Its route is never emptied, and the second is added when there is a place."""
    fleet.join("a")
    deploy(fleet.bus)
    eventually(lambda: servers_routed(fleet.bus) == {A})
    scale(fleet.bus, 2)
    eventually(lambda: fleet.status() is ModelState.DEGRADED)
    assert servers_routed(fleet.bus) == {A}
    fleet.join("b")
    eventually(lambda: servers_routed(fleet.bus) == {A, B})


def test_what_is_not_answered_is_sent_again_where_nothing_else_happens(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resend may be further off than the log's last proof is good for: that is renewed, and then it is sent."""
    monkeypatch.setattr(appender, "FRESH_S", 0.1)
    monkeypatch.setattr(leader, "TICK_S", 0.02)
    set_policy(fleet.bus, resend_ms=1_500, lease_ms=HOUR_MS, reading_stale_ms=HOUR_MS)
    agent = fleet.join("a", obey=False)
    deploy(fleet.bus)
    eventually(lambda: commands(agent, LoadModel) >= 2)


def test_a_shorter_resend_holds_at_once(fleet: Fleet) -> None:
    """When it is looked next does not follow from the policy of before."""
    set_policy(fleet.bus, resend_ms=HOUR_MS)
    agent = fleet.join("a", obey=False)
    deploy(fleet.bus)
    eventually(lambda: commands(agent, LoadModel))
    beats = agent.beats
    eventually(lambda: agent.beats > beats + 2)  # longer than a look took to come by the policy of before
    set_policy(fleet.bus, resend_ms=500)
    eventually(lambda: commands(agent, LoadModel) >= 2)

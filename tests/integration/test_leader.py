"""The leader's loop on every broker: from a request to a route, and across a restart."""

from collections.abc import Callable

import pytest

from magnetar_common.bus import Bus
from magnetar_common.log import replay
from magnetar_common.state import State
from magnetar_common.topics import MODEL_EVENTS, ROUTES, SERVICE_REGISTRY
from magnetar_common.transitions import R
from magnetar_events import ROUTE
from magnetar_events.commands import LoadModel, UnloadModel
from magnetar_events.facts import RequestRejected
from magnetar_events.schemas import schema_json
from magnetar_scheduler import leader as leader_module
from magnetar_scheduler.inputs import Request
from tests.support.agents import SimulatedAgent
from tests.support.leading import eventually, leading
from tests.support.requests import IRIS, deploy, last_route, servers_routed, set_policy, undeploy

Connect = Callable[[], Bus]


def test_deploy_becomes_a_command_and_a_route(connect: Connect) -> None:
    """DeployModel published → LoadModel at an agent → ModelLoaded → route; undeploy goes the way back."""
    bus = connect()
    with leading(connect) as led:
        agent = SimulatedAgent(bus, "a")
        deploy(bus)
        eventually(lambda: servers_routed(bus) == {"local/a/0"})
        assert led.state.models[IRIS].replicas[1, "local/a/0"].state is R.AVAILABLE
        assert any(isinstance(c.command, LoadModel) for c in agent.commands)
        undeploy(bus)
        eventually(lambda: IRIS not in led.state.models)
        assert any(isinstance(c.command, UnloadModel) for c in agent.commands)
        assert last_route(bus) is None
        agent.die()
        position = led.state.position
        eventually(lambda: led.leader._appender.acknowledged >= position)
        replayed = replay(bus)
        assert replayed.models == led.state.models
        assert replayed.illegal == 0


def test_restart_resumes_without_repeating_or_losing(connect: Connect) -> None:
    """A second leadership goes on after the inputs that the first handled, and no route disappears in between."""
    bus = connect()
    with leading(connect) as led:
        agent = SimulatedAgent(bus, "a")
        deploy(bus)
        eventually(lambda: servers_routed(bus))
        first = led.state.position
    deploy(bus, "second")
    with leading(connect, identity="other") as led:
        eventually(lambda: servers_routed(bus, "default/second"))
        assert led.state.term == 2
        assert led.state.position > first
        assert servers_routed(bus) == {"local/a/0"}
        loads = [c.command.model for c in agent.commands if isinstance(c.command, LoadModel)]
        assert loads.count(IRIS) == 1
        assert len(led.state.requests) == 2
        reader, routed = bus.reader(ROUTES.name), []
        while (message := reader.read(0.2)) is not None:
            if message.key == IRIS:
                routed.append([e for t in ROUTE.decode(message.payload, "").targets for e in t.endpoints])
        assert all(routed[next(n for n, endpoints in enumerate(routed) if endpoints) :])
        agent.die()


def test_junk_on_the_inputs_is_recorded_and_disturbs_nothing(connect: Connect) -> None:
    """Bytes that do not decode leave a RequestRejected with code, topic and message id."""
    bus = connect()
    with leading(connect) as led:
        agent = SimulatedAgent(bus, "a")
        bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema)).send(b"\xff\xfe junk", key="x")
        registry = bus.producer(SERVICE_REGISTRY.name, schema=schema_json(SERVICE_REGISTRY.schema))
        registry.send(b"\x00 no record", key="y")
        deploy(bus)
        eventually(lambda: servers_routed(bus))
        agent.die()
        found = []
        replay(bus, on_record=lambda rec: found.extend((rec.entry.input, fact) for fact in rec.entry.facts))
        rejected = [(source, fact) for source, fact in found if type(fact).__name__ == "RequestRejected"]
        assert {(s.topic, bool(s.message_id), f.code) for s, f in rejected} == {
            ("model-events", True, "UNDECODABLE"),
            ("service-registry", True, "UNDECODABLE"),
        }
        assert led.error is None


def test_dead_server_is_replaced(connect: Connect) -> None:
    """Silence for a lease makes a server lost, and its replica appears elsewhere."""
    bus = connect()
    with leading(connect) as led:
        set_policy(bus, lease_ms=3000, heartbeat_ms=1000, evictions_per_minute=10, hold_ms=0)
        one, two = SimulatedAgent(bus, "a"), SimulatedAgent(bus, "b")
        deploy(bus)
        first = eventually(lambda: servers_routed(bus))
        dying, other = (one, two) if first == {"local/a/0"} else (two, one)
        dying.die()
        eventually(lambda: servers_routed(bus) and servers_routed(bus) != first, within=40)
        assert led.error is None
        other.die()


def test_input_that_decide_fails_on_is_recorded_and_ends_nobody(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in the rules costs one input, not one leader after the other."""
    honest = leader_module.decide

    def broken(state: State, source: object, at: int) -> list[object]:
        if isinstance(source, Request) and source.event.event.subject == "default/poison":
            raise ZeroDivisionError("a defect")
        return honest(state, source, at)  # type: ignore[arg-type]

    monkeypatch.setattr(leader_module, "decide", broken)
    bus = connect()
    with leading(connect) as led:
        agent = SimulatedAgent(bus, "a")
        deploy(bus, "poison")
        deploy(bus)
        eventually(lambda: servers_routed(bus))
        agent.die()
        found = []
        replay(bus, on_record=lambda rec: found.extend(rec.entry.facts))
        assert [fact.code for fact in found if isinstance(fact, RequestRejected)] == ["DEFECT"]
        assert led.error is None

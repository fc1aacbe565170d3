"""The client that services use: a request is followed through the log to its end."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from magnetar_common.bus import EARLIEST, Bus
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.client import Magnetar, OutcomeState
from magnetar_common.errors import NotAvailable, RequestRefused, Unanswered
from magnetar_common.log import replay
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events.codec import FINGERPRINT
from magnetar_events.policy import Policy
from magnetar_events.requests import Actor
from tests.support.agents import SimulatedAgent
from tests.support.leading import Led, eventually, leading
from tests.support.world import MIB, spec

SECONDS = 20.0


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def bus(broker: MemoryBroker) -> MemoryBus:
    return MemoryBus(broker)


@pytest.fixture
def led(broker: MemoryBroker) -> Iterator[Led]:
    with leading(lambda: MemoryBus(broker)) as led:
        yield led


@pytest.fixture
def magnetar(bus: MemoryBus) -> Iterator[Magnetar]:
    with Magnetar(bus, source="tests", actor=Actor(authtype="service", authid="ci")) as magnetar:
        yield magnetar


@pytest.fixture
def agent(bus: MemoryBus, led: Led) -> Iterator[SimulatedAgent]:
    agent = SimulatedAgent(bus, "a")
    yield agent
    agent.die()


def test_a_deploy_ends_available_and_tells_each_step(magnetar: Magnetar, agent: SimulatedAgent) -> None:
    """Sent, Progressing, Available: with the generation that answers it, and nothing after the end."""
    handle = magnetar.deploy(spec(), reason="try it")
    seen = list(handle.progress(SECONDS))
    # Between Sent and Available the model may also be refused for as long as its server is not there yet.
    assert seen[0].state is OutcomeState.SENT
    assert {outcome.state for outcome in seen[1:-1]} <= {OutcomeState.PROGRESSING, OutcomeState.SCHEDULE_FAILED}
    assert (seen[-1].state, seen[-1].generation, seen[-1].available) == (OutcomeState.AVAILABLE, 1, 1)
    assert list(handle.progress(SECONDS)) == [seen[-1]]


def test_a_model_may_be_given_as_fields(magnetar: Magnetar, agent: SimulatedAgent) -> None:
    """`deploy(name=…, storage_uri=…)` is enough; fields that make no specification are refused before it is sent."""
    done = magnetar.deploy(name="iris", storage_uri="file:///models/iris", requirements=["sklearn"], memory="100Mi")
    assert done.available(SECONDS).generation == 1
    with pytest.raises(ValidationError, match="storageUri"):
        magnetar.deploy(name="iris")


def test_a_rejection_names_code_and_field(magnetar: Magnetar, led: Led) -> None:
    """A conflicting expectedGeneration is refused, by its field, and the outcome keeps it."""
    handle = magnetar.deploy(spec(), expected_generation=7)
    with pytest.raises(RequestRefused) as refused:
        handle.accepted(SECONDS)
    assert (refused.value.code, refused.value.field) == ("GENERATION_CONFLICT", "expectedGeneration")
    assert handle.outcome.state is OutcomeState.REJECTED
    with pytest.raises(RequestRefused, match="there is no model default/ghost"):
        magnetar.undeploy("ghost").available(SECONDS)


def test_a_retry_with_the_same_id_changes_nothing_and_finds_the_answer(
    magnetar: Magnetar, agent: SimulatedAgent, led: Led
) -> None:
    """Two sends of one id make one generation; the second handle ends as the first did, whatever it was."""
    first = magnetar.deploy(spec(), id="once").available(SECONDS)
    wanted = led.state.models["default/iris"]
    again = magnetar.deploy(spec(memory=200 * MIB), id="once")
    assert again.available(SECONDS) == first
    assert list(wanted.versions) == [1]
    assert wanted.target.spec.memory == 100 * MIB

    with pytest.raises(RequestRefused):
        magnetar.scale("ghost", 2, id="twice").accepted(SECONDS)
    with pytest.raises(RequestRefused, match="NOT_FOUND"):
        magnetar.scale("ghost", 2, id="twice").accepted(SECONDS)


def test_an_equal_specification_is_available_at_once(magnetar: Magnetar, agent: SimulatedAgent) -> None:
    """No new generation, and the handle finds what there is from before its time."""
    magnetar.deploy(spec()).available(SECONDS)
    assert magnetar.deploy(spec()).available(SECONDS).generation == 1


def test_s21_two_replicas_wanted_one_server(magnetar: Magnetar, bus: MemoryBus, agent: SimulatedAgent) -> None:
    """The one that there is keeps serving: Degraded, 1 of 2, with the reason; a second server makes it Available."""
    magnetar.deploy(spec()).available(SECONDS)
    scaled = magnetar.scale("iris", 2)
    for outcome in scaled.progress(SECONDS):
        if outcome.state is OutcomeState.DEGRADED:
            break
    assert (scaled.outcome.available, scaled.outcome.wanted, scaled.outcome.code) == (1, 2, "NO_ROOM")
    other = SimulatedAgent(bus, "b")
    assert scaled.available(SECONDS).available == 2
    other.die()


def test_what_fits_nowhere_says_so_when_time_is_up(magnetar: Magnetar, agent: SimulatedAgent) -> None:
    """ScheduleFailed is waited out, as it may still come right, and is then reported with its reason."""
    handle = magnetar.deploy(spec(memory=10**12))
    for outcome in handle.progress(SECONDS):
        if outcome.state is OutcomeState.SCHEDULE_FAILED:
            break
    with pytest.raises(NotAvailable) as told:
        handle.available(0.01)
    assert (told.value.state, told.value.code) == ("ScheduleFailed", "NO_ROOM")
    assert told.value.model == "default/iris"


def test_a_version_that_cannot_be_loaded_ends_as_failed(magnetar: Magnetar, agent: SimulatedAgent) -> None:
    """A final load failure ends the wait, with the code that the agent gave."""
    from magnetar_events.commands import LoadModel
    from magnetar_events.reports import ModelLoadFailed

    agent.obey = False
    handle = magnetar.deploy(spec())
    command = eventually(lambda: next((c for c in agent.commands if isinstance(c.command, LoadModel)), None))
    wanted = command.command
    agent.report(
        ModelLoadFailed(
            model=wanted.model,
            generation=wanted.generation,
            position=command.position,
            code="ARTIFACT_NOT_FOUND",
            retriable=False,
            message="there is no such file",
        )
    )
    outcome = handle.wait(SECONDS)
    assert outcome.state is OutcomeState.FAILED
    assert "there is no such file" in outcome.message


def test_a_newer_version_supersedes_and_an_undeploy_removes(magnetar: Magnetar, agent: SimulatedAgent) -> None:
    """A handle whose wish is overtaken ends; one that asked for the end follows it to the end."""
    agent.obey = False
    first = magnetar.deploy(spec())
    first.accepted(SECONDS)
    second = magnetar.deploy(spec(memory=50 * MIB))
    assert first.wait(SECONDS).state is OutcomeState.SUPERSEDED
    assert second.accepted(SECONDS).generation == 2
    agent.obey = True
    for command in list(agent.commands):
        agent.answer(command)
    assert second.available(SECONDS).generation == 2
    assert magnetar.undeploy("iris").wait(SECONDS).state is OutcomeState.REMOVED
    assert magnetar.deploy(spec(), id="later").accepted(SECONDS).generation == 3


def test_a_policy_is_accepted_and_that_is_all(magnetar: Magnetar, led: Led) -> None:
    """There is nothing to wait for after the answer."""
    handle = magnetar.set_policy(Policy(load_attempts=1), reason="strict")
    assert handle.wait(SECONDS).state is OutcomeState.ACCEPTED
    assert led.state.policy.load_attempts == 1


def test_without_a_leader_a_request_is_unanswered_and_keeps(magnetar: Magnetar, broker: MemoryBroker, bus: Bus) -> None:
    """A time-out says only that; the same handle hears the answer when somebody leads."""
    handle = magnetar.deploy(spec())
    with pytest.raises(Unanswered, match=handle.id):
        handle.accepted(0.05)
    with leading(lambda: MemoryBus(broker)):
        assert handle.accepted(SECONDS).generation == 1


def test_the_answer_is_heard_across_an_outage_of_the_broker(
    magnetar: Magnetar, bus: MemoryBus, broker: MemoryBroker, agent: SimulatedAgent
) -> None:
    """A handle whose connection breaks goes on where it was."""
    handle = magnetar.deploy(spec())
    handle.accepted(SECONDS)
    broker.disconnect(bus)
    assert handle.wait(0.05).state is not OutcomeState.REJECTED
    broker.reconnect(bus)
    assert handle.available(SECONDS).available == 1


def test_a_request_carries_cloudevents_and_its_schema(magnetar: Magnetar, bus: Bus) -> None:
    """Whoever looks at the topic sees what a message is without Avro."""
    handle = magnetar.deploy(spec())
    message = bus.reader(MODEL_EVENTS.name, EARLIEST).read(SECONDS)
    assert message is not None
    properties = dict(message.properties)
    assert properties.pop("ce_time").endswith("Z")
    assert len(properties.pop(FINGERPRINT)) == 16
    assert properties == {
        "content-type": "application/avro",
        "ce_specversion": "1.0",
        "ce_id": handle.id,
        "ce_source": "tests",
        "ce_type": "magnetar.DeployModel",
        "ce_subject": "default/iris",
    }
    assert message.key == "default/iris"


def test_the_log_says_who_asked_and_why(magnetar: Magnetar, bus: Bus, led: Led) -> None:
    """Source, actor and reason are in the log; what the client claims of its own verification is not believed."""
    magnetar.deploy(spec(), reason="because").accepted(SECONDS)
    facts: list[object] = []
    replay(bus, on_record=lambda record: facts.extend(record.entry.facts))
    accepted = next(fact for fact in facts if type(fact).__name__ == "RequestAccepted")
    told = (accepted.source, accepted.actor, accepted.authtype, accepted.authverified, accepted.reason)
    assert told == ("tests", "ci", "service", "none", "because")

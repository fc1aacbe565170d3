"""The log moves to another broker cluster: nobody leads there until it is rebased, and then no request is lost or repeated."""

import pytest

from magnetar_common.bus import Bus
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import LogError, TopicHeld
from magnetar_common.log import replay
from magnetar_common.topics import MODEL_EVENTS, STATE_CHANGES
from magnetar_events import facts as f
from magnetar_events.entry import FOLD_VERSION
from magnetar_scheduler.rebase import NotRebased, rebase
from tests.support.leading import eventually, leading
from tests.support.logs import entry, write
from tests.support.requests import deploy, scale


def copy(source: Bus, target: Bus, topic: str) -> None:
    """What a mirror does: the same messages in the same order, under other ids."""
    producer = target.producer(topic)
    for message in source.broker.topic(topic).messages:  # type: ignore[attr-defined]
        producer.send(message.payload, key=message.key, properties=message.properties)
    producer.close()


def test_a_log_that_moved_is_led_again_without_losing_or_repeating_a_request() -> None:
    """Two wishes for one model, mirrored with the log; the second leader handles only what came after the move."""
    old, new = MemoryBroker(), MemoryBroker()
    here, there = MemoryBus(old), MemoryBus(new)
    with leading(lambda: MemoryBus(old)) as led:
        deploy(here)
        scale(here, 3)
        eventually(lambda: led.state.models and led.state.models["default/iris"].wanted == 3)
        before = replay(here)
    there.producer(MODEL_EVENTS.name).send(b"another id for everything")
    copy(here, there, MODEL_EVENTS.name)
    copy(here, there, STATE_CHANGES.name)
    scale(there, 2)  # asked for after the move, before anybody leads

    with pytest.raises(LogError, match="magnetar log rebase"), leading(lambda: MemoryBus(new)):
        pass
    new.fence(STATE_CHANGES.name)  # its process has ended
    done = rebase(lambda: MemoryBus(new))
    assert (done.broker, done.previous) == (new.id, old.id)
    assert done.handled == {"model-events": "0:2:-1"}
    with leading(lambda: MemoryBus(new)) as led:
        eventually(lambda: led.state.models["default/iris"].wanted == 2)
        assert led.state.broker == new.id
        assert led.state.term == before.term + 2
        facts = [fact for fact in _facts(there) if isinstance(fact, (f.ModelWanted, f.ModelScaled, f.RequestRepeated))]
        assert [type(fact) for fact in facts] == [f.ModelWanted, f.ModelScaled, f.ModelScaled]
        with pytest.raises(TopicHeld, match="stop all schedulers"):
            rebase(lambda: MemoryBus(new))
    with pytest.raises(NotRebased, match="nothing to rebase"):
        rebase(lambda: MemoryBus(new))


def test_a_log_of_version_1_is_rebased_only_with_the_upgrade() -> None:
    """Its software knows no such fact; and nobody can lead it here, so that nobody else could finalize it."""
    broker = MemoryBroker()
    write(MemoryBus(broker), entry(0, f.LeaderElected(1, "old", "local", "elsewhere", "0")))
    with pytest.raises(NotRebased, match="magnetar log rebase --finalize"):
        rebase(lambda: MemoryBus(broker))
    assert replay(MemoryBus(broker)).position == 0
    rebase(lambda: MemoryBus(broker), finalize=True)
    state = replay(MemoryBus(broker))
    assert (state.position, state.broker, state.fold_version) == (1, broker.id, FOLD_VERSION)


def _facts(bus: Bus) -> list[f.Fact]:
    found: list[f.Fact] = []
    replay(bus, on_record=lambda record: found.extend(record.entry.facts))
    return found

"""Logs to read: a world in which much has happened, and its entries written to a bus."""

from magnetar_common.bus import Bus, MessageId
from magnetar_common.log import LogRecord
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY, Entry
from magnetar_events.entry import BARRIER, Input
from magnetar_events.facts import Fact
from magnetar_events.schemas import schema_json
from tests.support.world import MIB, World, record, spec


def busy_world(world: World | None = None) -> World:
    """A day in short: a roll-out, a failed load, a scaling, a refusal, a server lost and forgotten, an undeployment."""
    world = world or World()
    world.join("a")
    world.join("b")
    world.deploy(spec(replicas=2), reason="first release")
    world.answer(digest="a" * 64)
    world.at += 1_000
    world.deploy(spec(replicas=2, storage_uri="file:///models/iris2", labels={"team": "x"}), reason="second release")
    world.fail_load(next(iter(world.state.outstanding)))
    world.pass_time(5_000)
    world.answer(digest="b" * 64)
    world.pass_time(5_000)
    world.answer()
    world.scale(1)
    world.scale(1, name="nobody")
    world.pass_time(5_000)
    world.answer()
    world.deploy(spec("huge", memory=10**12))
    world.registry(record("a", status="DRAINING", digest=world.of("a").server.digest))  # type: ignore[union-attr]
    world.lapse("b")
    world.answer(digest="b" * 64)
    world.pass_time(2 * 86_400_000)
    world.undeploy()
    world.pass_time(5_000)
    world.answer()
    return world


def upgraded_world() -> World:
    """A log that began with version 1, was led by newer software for a while, and then finalized."""
    world = World(fold_version=1)
    world.join("c")
    world.deploy(spec("before", replicas=1))
    world.answer(digest="c" * 64)
    world.finalize()
    return crowded_world(shared_world(drained_world(busy_world(world))))


def crowded_world(world: World | None = None) -> World:
    """A server is reserved for a model that has waited long, in vain at first; what lasts is there the whole time."""
    world = world or World()
    for server in ("w1", "w2"):
        world.join(server, memory=200 * MIB)
    for name, server in (("lasts", "w1"), ("goes", "w2"), ("goes-too", "w2")):
        world.deploy(spec(name, server=server))
        world.answer()
    world.deploy(spec("large", memory=190 * MIB, requirements=("sklearn",)))
    world.pass_time(700_000)
    for name in ("goes", "goes-too"):
        world.undeploy(name)
        world.pass_time(2_000)
        world.answer()
        world.deploy(spec(f"instead-of-{name}", server="w2"))
        world.pass_time(700_000)
        world.answer()
    world.undeploy("instead-of-goes")
    world.pass_time(2_000)
    world.answer()
    return world


def drained_world(world: World | None = None) -> World:
    """Servers that are cordoned, drained and resumed, by operators and by agents that end; something is stuck, too."""
    world = world or World()
    for server in ("d1", "d2"):
        world.join(server)
    world.deploy(spec("moved"))
    world.deploy(spec("held", memory=900 * MIB))
    world.answer(digest="d" * 64)
    home = next(key[1] for key in world.states("default/moved")).split("/")[1]
    world.drain(home, deadline_ms=10_000)
    world.answer(digest="d" * 64)
    world.pass_time(20_000)
    world.answer()
    other = {"d1": "d2", "d2": "d1"}[home]
    world.cordon(other)
    world.resume(home)
    digest = world.of(other).server.digest  # type: ignore[union-attr]
    world.registry(record(other, status="DRAINING", digest=digest))
    world.answer(digest="d" * 64)
    world.pass_time(5_000)
    world.answer()
    world.join(other, incarnation="two")
    world.drain(home)
    world.cordon(home)
    world.lapse(home)
    world.answer(digest="d" * 64)
    world.pass_time(5_000)
    world.answer()
    world.pass_time(2 * 86_400_000)
    for server in (home, other):
        world.resume(server)
    return world


def shared_world(world: World | None = None) -> World:
    """Tenants with floors and caps: one waits at its cap, one has others leave, limits change and go."""
    world = world or World()
    world.set_policy(preemption="lower-priority")
    world.join("t1", memory=300 * MIB)
    world.set_tenant("red", cap_replicas=1, cap_bytes=300 * MIB)
    world.set_tenant("green", floor_replicas=1, floor_bytes=100 * MIB, over_cap="refuse")
    world.deploy(spec("first", tenant="red", memory=250 * MIB, server="t1"))
    world.answer()
    world.deploy(spec("second", tenant="red", server="t1"))
    world.deploy(spec("late", tenant="green", memory=200 * MIB, server="t1", priority=5))
    world.pass_time(5_000)
    world.answer()
    world.set_tenant("red", cap_replicas=2)
    world.answer()
    world.delete_tenant("green")
    world.undeploy("first", "red")
    world.pass_time(5_000)
    world.answer()
    return world


def entry(position: int, *facts: Fact, name: str = "", **fields: int) -> Entry:
    """An entry by hand."""
    values = {"term": 1, "at": position, "wall": position, "fold_version": 1, **fields}
    return Entry(id=name or f"e{position}", position=position, input=Input("test"), facts=facts, **values)


def barrier(nonce: str = "barrier") -> Entry:
    """What a new leader writes to find the end of the log."""
    return entry(BARRIER, name=nonce)


def write(bus: Bus, *entries: Entry) -> list[MessageId]:
    """Append entries to the log of a bus, as a leader does; return their places."""
    producer = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema), exclusive=True)
    try:
        return [producer.send(ENTRY.encode(each), properties=ENTRY.properties) for each in entries]
    finally:
        producer.close()


def write_junk(bus: Bus, payload: bytes, **properties: str) -> MessageId:
    """Write something to the log that no leader wrote."""
    producer = bus.producer(STATE_CHANGES.name, schema=schema_json(STATE_CHANGES.schema))
    try:
        return producer.send(payload, properties=properties)
    finally:
        producer.close()


def logged(entry: Entry, place: MessageId) -> LogRecord:
    """An entry as it is read from the log."""
    return LogRecord(entry, place, ENTRY.encode(entry), ENTRY.fingerprint)

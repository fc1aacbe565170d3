"""A state as bytes and back: the same state, the same indexes in the same order, and the same decisions from there on."""

import copy
import dataclasses
import hashlib
import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar_common.evolve import evolve, fold
from magnetar_common.memory import Awaited, Level
from magnetar_common.render import state_digest
from magnetar_common.state import Model, Replica, Server, State, Version
from magnetar_common.state_image import FORMAT, image_of, state_of
from magnetar_events import ENTRY, ModelEvent
from magnetar_events import facts as f
from magnetar_events.base import Later
from magnetar_scheduler.decide import decide
from magnetar_scheduler.inputs import LeaseLapsed, understand
from tests import golden
from tests.support.logs import busy_world
from tests.support.world import MIB, World, spec
from tests.unit.test_core_properties import any_fact, apply, step


def ordered(state: State) -> dict[str, Any]:
    """Everything in a state that anything can depend on, with its order where it has one."""
    shown = {
        field.name: getattr(state, field.name)
        for field in dataclasses.fields(state)
        if field.name not in ("fleet", "_timers")
    }
    shown = {name: list(value.items()) if isinstance(value, dict) else value for name, value in shown.items()}
    for name in ("booked", "arriving", "loading", "levels", "handled"):  # only ever asked for a key
        shown[name] = sorted(shown[name])
    replicas = [list(server.replicas.items()) for server in state.servers.values()]
    held = [(list(server.awaited), list(server.leaked)) for server in state.servers.values()]
    infos = [(server.info, list(server.devices)) for server in state.servers.values()]
    models = [(list(model.versions), list(model.replicas)) for model in state.models.values()]
    fleet = sorted((repr(pool), list(ranks)) for pool, ranks in state.fleet.pools(state))
    shown["rooms"] = sorted(state.fleet.rooms(state).items())
    shown.update(replicas=replicas, held=held, infos=infos, orders=models, fleet=fleet)
    return {**shown, "due": state.next_due()}


def check(state: State) -> State:
    """An image is the state, down to the order of what is pending; return the state of the image."""
    found = state_of(image_of(state))
    assert found == state
    assert state_digest(found) == state_digest(state)
    assert ordered(found) == ordered(state)
    for server in found.servers.values():
        assert server.info is server.record.server
        for (model, generation), replica in server.replicas.items():
            assert found.models[model].replicas[generation, server.key] is replica
    for key, replica in found.outstanding.items():
        assert found.replica(key) is replica
    assert all_timers(found) == all_timers(state)
    assert image_of(found) == image_of(state)
    return found


def all_timers(state: State) -> list[tuple[int, str, int, str]]:
    """Every timer that is still so, in the order in which they are due."""
    due = {timer for timer in state._timers if state._due_of(*timer[1:]) == timer[0]}
    return sorted(due)


@pytest.mark.parametrize("path", sorted(golden.FOLDER.glob("*.jsonl")), ids=lambda path: path.name)
def test_a_golden_log_goes_on_from_an_image_of_any_position(path: Path) -> None:
    """Restored in the middle, every entry after it is decided and folded as without; at some twenty positions each."""
    entries, digest = golden.read(path)
    log = [ENTRY.decode_trusted(payload, schema) for payload, schema in entries]
    state = State()
    for entry in log:
        fold(state, entry)
        if entry.position % max(1, len(log) // 20) == 0 or entry is log[-1]:
            found = check(state)
            for later in log[entry.position + 1 :]:
                if later.input.kind != "leader" and (later.input.data is not None or not later.input.sha256):
                    assert tuple(decide(found, understand(later.input), later.at)) == later.facts
                assert fold(found, later)
            assert state_digest(found) == digest


def test_a_busy_day_survives_at_every_position() -> None:
    """After each entry of a world in which much happens."""
    world, state = busy_world(), State()
    for entry in world.log:
        fold(state, entry)
        check(state)


def test_orders_of_arrival_survive() -> None:
    """On a server the replicas stand as they were placed, whatever the order of their models."""
    world = World()
    world.join("a")
    world.deploy(spec("m1", replicas=0))
    world.deploy(spec("m2"))
    world.scale(1, "m1")
    assert list(check(world.state).servers["local/a/0"].replicas) == [("default/m2", 1), ("default/m1", 1)]


def test_what_is_lost_at_once_is_pending_in_an_order_that_every_process_has() -> None:
    """The pending sets follow the order of the facts, and no hash: so a decision is the same in whichever process."""
    world = World()
    world.join("a")
    for n in range(30):
        world.deploy(spec(f"m{n}", memory=MIB))
    world.feed(LeaseLapsed("local/a/0", "one"), settle=False)
    assert list(check(world.state).unsettled) == [f"default/m{n}" for n in range(30)]


class Numbered(World):
    """A world in which nothing is random: requests are numbered."""

    def __init__(self) -> None:
        self.requests = count(1)
        super().__init__()

    def request(self, event: ModelEvent) -> list[f.Fact]:
        return super().request(event.model_copy(update={"id": f"r{next(self.requests)}", "time": self.at}))

    def twin(self) -> "Numbered":
        """A world that goes on from an image of this one's state."""
        other = Numbered()
        other.state, other.at, other.log, other.payloads = state_of(image_of(self.state)), self.at, [], []
        other.requests, other._ids, other._numbers = map(copy.copy, (self.requests, self._ids, self._numbers))
        return other


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=25), st.lists(step, max_size=15))
def test_any_history_goes_on_the_same(before: list[tuple[str, Any, Any]], after: list[tuple[str, Any, Any]]) -> None:
    """Whatever happened, and whatever happens next: the entries after an image are the same bytes as without it."""
    world = Numbered()
    for action, one, two in before:
        apply(world, action, one, two)
    check(world.state)
    other, length = world.twin(), len(world.payloads)
    for action, one, two in after:
        for each in (world, other):
            apply(each, action, one, two)
        assert world.payloads[length:] == other.payloads
    assert ordered(other.state) == ordered(world.state)


@settings(max_examples=150, deadline=None)
@given(st.lists(any_fact(), max_size=30))
def test_even_what_no_decider_would_write_survives(facts: list[f.Fact]) -> None:
    """Facts in any order, legal or not, leave a state that an image holds."""
    state = State()
    for fact in facts:
        evolve(state, fact)
    check(state)


def test_the_format_is_raised_when_the_state_changes() -> None:
    """A field of the state's classes came, went or changed: raise FORMAT and write the new digest here.

    Otherwise a snapshot of before would be taken for one of now. Where a class is defined is no part of it, nor is a field
    that came later: in a log of before, which says so in the snapshot's header, it has its default.
    """
    shape = [
        (cls.__name__, field.name, re.sub(r"\w+\.", "", str(field.type)))
        for cls in (State, Server, Model, Version, Replica, Awaited, Level)
        for field in dataclasses.fields(cls)
        if Later not in field.metadata
    ]
    assert (FORMAT, hashlib.sha256(repr(shape).encode()).hexdigest()[:16]) == (1, "5284fff251a3a695")


def test_an_image_of_before_a_field_came_is_read() -> None:
    """What came later is missing there, and has its default."""
    state = busy_world().state
    read = json.loads(image_of(state))
    for model in read["models"]:
        for version in model["versions"]:
            assert version.pop("reservation", "missing") is None  # since fold version 3
    assert state_of(json.dumps(read).encode()) == state

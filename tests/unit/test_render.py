"""The state as JSON: complete, the same for equal states, and different for different ones."""

import dataclasses
import json
from collections.abc import Callable

import pytest
from pydantic.alias_generators import to_camel

from magnetar_common.render import plain, state_digest, state_to_dict
from magnetar_common.state import Model, Replica, Server, State, Version
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.base import Later
from magnetar_events.policy import Policy
from tests.support.logs import busy_world
from tests.support.world import World, spec


def served() -> World:
    world = World()
    world.join("a")
    world.deploy(spec(replicas=2, labels={"b": "1", "a": "2"}))
    world.answer(digest="a" * 64)
    return world


def model(state: State) -> Model:
    return state.models["default/iris"]


def replica(state: State) -> Replica:
    return model(state).replicas[1, "local/a/0"]


def server(state: State) -> Server:
    return state.servers["local/a/0"]


def test_equal_states_have_equal_digests() -> None:
    """The leader's own state and the one folded from the bytes of the log are the same text."""
    world = busy_world()
    assert world.replayed() == world.state
    assert state_to_dict(world.replayed()) == state_to_dict(world.state)
    assert state_digest(world.replayed()) == state_digest(world.state)


def test_digests_tell_every_position_apart() -> None:
    """No two positions of a log have the same digest."""
    world = busy_world()
    assert len({state_digest(world.replayed(n)) for n in range(len(world.log))}) == len(world.log)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: setattr(s, "term", 9),
        lambda s: setattr(s, "policy", Policy(piece=7)),
        lambda s: setattr(s, "illegal", 1),
        lambda s: s.handled.update(topic="1:1:1"),
        lambda s: s.booked.update({("host-a-0", "cpu"): 1}),
        lambda s: s.arriving.update({("host-a-0", "cpu"): 1}),
        lambda s: s.generations.update({"default/gone": 4}),
        lambda s: s.requests.update({("ci", "x"): (1, 1)}),
        lambda s: setattr(model(s), "owner", "autoscaler"),
        lambda s: setattr(model(s), "traffic", (f.TrafficTarget(1, 50), f.TrafficTarget(2, 50))),
        lambda s: setattr(model(s).target, "digest", "b" * 64),
        lambda s: model(s).target.places.update(a="b"),
        lambda s: setattr(replica(s), "state", R.LOADED),
        lambda s: setattr(replica(s), "draining", True),
        lambda s: setattr(replica(s), "bookings", ()),
        lambda s: setattr(server(s), "superseded", frozenset({"old"})),
        lambda s: setattr(server(s), "devices", {}),
        lambda s: server(s).replicas.clear(),
    ],
)
def test_different_states_have_different_digests(change: Callable[[State], object]) -> None:
    """A change anywhere in what states are compared by changes the digest."""
    world = served()
    changed = world.replayed()
    change(changed)
    assert changed != world.state
    assert state_digest(changed) != state_digest(world.state)


def test_indexes_are_no_part_of_it() -> None:
    """What states are not compared by does not show either."""
    world = served()
    changed = world.replayed()
    changed.room += 5
    changed.waiting["x"] = None
    assert changed == world.state
    assert state_digest(changed) == state_digest(world.state)


def test_order_of_arrival_does_not_show() -> None:
    """Dicts that are equal render equally, whatever was put in first."""
    one, other = State(generations={"a/a": 1, "b/b": 2}), State(generations={"b/b": 2, "a/a": 1})
    assert one == other
    assert json.dumps(state_to_dict(one)) == json.dumps(state_to_dict(other))


def test_every_field_is_there() -> None:
    """A field that is added to the state shows without anybody thinking of it."""
    shown = state_to_dict(served().state)
    iris = shown["models"]["default/iris"]
    for cls, value in (
        (State, shown),
        (Model, iris),
        (Version, iris["versions"][0]),
        (Replica, iris["replicas"][0]),
        (Server, shown["servers"]["local/a/0"]),
    ):
        fields = [field for field in dataclasses.fields(cls) if field.compare]
        assert set(value) == {to_camel(field.name) for field in fields if Later not in field.metadata}
    assert json.loads(json.dumps(shown)) == shown


def test_numbers_are_written_one_way() -> None:
    """A score of 3 and of 3.0 are equal, and so is their text."""
    assert plain(f.Candidate("a", 3.0, "")) == plain(f.Candidate("a", 3, "")) == {"server": "a", "score": 3, "rule": ""}
    assert json.dumps(plain((3.0, 0.5, True))) == "[3, 0.5, true]"


def test_a_later_field_shows_once_it_says_something() -> None:
    """While it holds its default, an old log keeps the digest that it was recorded with."""
    state = State()
    before = state_digest(state)
    assert "floor" not in state_to_dict(state)
    state.floor = 3
    assert state_to_dict(state)["floor"] == 3
    assert state_digest(state) != before
    assert "publishers" not in plain(Policy())
    assert plain(Policy(require_signature=False, max_models=5))["maxModels"] == 5

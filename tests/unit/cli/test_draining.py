"""Servers by the names that people use, and what is shown of one that drains."""

import pytest

from magnetar_cli import shown
from magnetar_cli.draining import key_of, server_of
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import Columns, Json
from tests.support.world import MIB, World, spec


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", memory=2000 * MIB)
    world.join("pool")
    world.join("pool", replica=1)
    return world


@pytest.mark.parametrize("name", ["a", "a/0", "local/a/0"])
def test_a_server_is_named_as_shortly_as_is_clear(world: World, name: str) -> None:
    assert key_of(world.state, name) == "local/a/0"


def test_a_name_that_two_bear_is_asked_about(world: World) -> None:
    with pytest.raises(Misused, match="there are 2 servers pool: local/pool/0, local/pool/1"):
        key_of(world.state, "pool")
    assert key_of(world.state, "pool/1") == "local/pool/1"


@pytest.mark.parametrize("name", ["b", "a/1", "elsewhere/a/0", "a/0/0/0", ""])
def test_what_is_not_there_is_not_found(world: World, name: str) -> None:
    with pytest.raises(NotFound, match="there is no server"):
        key_of(world.state, name)


def test_an_order_for_a_server_that_is_gone_is_found_to_be_taken_back(world: World) -> None:
    world.cordon("a")
    world.lapse("a")
    world.pass_time(world.state.policy.forget_server_ms + 1)
    assert key_of(world.state, "a") == "local/a/0"
    with pytest.raises(NotFound, match="what is left is the order"):
        server_of(world.state, "local/a/0")


def line(columns: Columns, row: Json, title: str) -> object:
    return columns[title](row)


def test_the_progress_of_a_drain_is_shown(world: World) -> None:
    """How many models are left, how many of them are stuck, and of each why it is still there."""
    world.deploy(spec("huge", memory=1500 * MIB))
    world.deploy(spec("small", server="a"))
    world.answer()
    world.drain("a", deadline_ms=5_000)
    row = shown.server_row(world.state, world.state.servers["local/a/0"])
    assert line(shown.SERVERS, row, "state") == "DRAINING, 2 left, 2 stuck"
    huge, small = row["replicas"]
    assert huge["whyHere"] == "NO_ROOM: fits on none of 3 servers: 2 without enough free memory; 1 draining"
    assert small["whyHere"] == "NO_ROOM: fits on none of 3 servers: 2 not the server that was asked for; 1 draining"
    assert line(shown.HELD, small, "why it is still here") == small["whyHere"]
    assert row["order"]["reason"] == "maintenance"
    world.pass_time(5_000)
    (first, *others) = shown.servers(world.state)
    assert line(shown.SERVERS, first, "state") == "STUCK, 2 left, 2 stuck"
    assert [line(shown.SERVERS, each, "state") for each in others] == ["UP", "UP"]
    world.resume("a")
    world.cordon("a")
    (first, *_) = shown.servers(world.state)
    assert (line(shown.SERVERS, first, "state"), first["modelsLeft"]) == ("CORDONED", 0)
    world.lapse("a")
    (first, *_) = shown.servers(world.state)
    assert line(shown.SERVERS, first, "state") == "LEASE_LAPSED, CORDONED"

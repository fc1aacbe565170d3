"""Cordon, drain, resume: nothing new on a server; what is there is Available elsewhere before it leaves; back again."""

import pytest

from magnetar_common.drains import DRAIN_METADATA, DRAINED, EXAMPLES, STUCK, left_on, phase, stuck_on
from magnetar_common.state import CORDONED, DRAINING, ReplicaKey, Server
from magnetar_common.status import ModelState, model_status
from magnetar_common.transitions import R
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.requests import DrainServer
from tests.support.world import MIB, World, record, spec

IRIS = "default/iris"
A, B, C = "local/a/0", "local/b/0", "local/c/0"


def kinds(facts: list[f.Fact]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


def server(world: World, name: str = "a") -> Server:
    return world.state.servers[f"local/{name}/0"]


def serving(*servers: str, **fields: object) -> World:
    """A world in which iris is Available on as many of these as it asks for."""
    world = World()
    for name in servers:
        world.join(name)
    world.deploy(spec(**fields))
    world.answer()
    return world


def move(world: World) -> None:
    """Let everything that is on its way arrive, and what leaves go."""
    for _ in range(4):
        world.answer()
        world.pass_time(world.state.policy.unload_grace_ms + 1)


def drained(world: World) -> list[f.ServerDrained]:
    """What was said of ends of drains."""
    return [fact for entry in world.log for fact in entry.facts if isinstance(fact, f.ServerDrained)]


def placed(world: World, since: int) -> list[str]:
    """The servers that something was placed on in entries from a position on."""
    return [x.server for e in world.log[since:] for x in e.facts if isinstance(x, f.ReplicaPlaced)]


# --- cordon ------------------------------------------------------------------------------------------------------------


def test_a_cordoned_server_keeps_what_it_has_and_takes_nothing_new() -> None:
    world = serving("a")
    assert kinds(world.cordon()) == ["RequestAccepted", "ServerCordoned"]
    assert (phase(server(world)), server(world).schedulable) == (CORDONED, False)
    world.deploy(spec("wine"))
    assert world.states("default/wine") == {}
    assert "1 cordoned" in model_status(world.state.models["default/wine"]).reason
    move(world)
    assert world.states() == {(1, A): R.AVAILABLE}
    assert kinds(world.cordon()) == ["RequestAccepted"], "so it is already"


def test_resume_places_what_waited_and_revives_what_had_failed() -> None:
    """A cordon that is taken back is like a new server: what waits for room finds it, what failed is tried again."""
    world = World()
    world.join("a")
    world.deploy(spec("broken"))
    world.cordon()
    world.fail_load(next(iter(world.state.outstanding)))
    world.answer()
    assert model_status(world.state.models["default/broken"]).state is ModelState.FAILED
    world.deploy(spec("wine"))
    assert kinds(world.resume()) == ["RequestAccepted", "ServerResumed"]
    assert world.states("default/wine") == {(1, A): R.LOAD_REQUESTED}
    assert world.states("default/broken") == {(1, A): R.LOAD_REQUESTED}
    assert kinds(world.resume()) == ["RequestAccepted"], "so it is already"


def test_a_failed_load_is_not_tried_again_on_a_cordoned_server() -> None:
    """Whether it fails after the cordon or waited for another attempt before: it is tried elsewhere."""
    world = World()
    world.join("a")
    world.deploy()
    world.fail_load(ReplicaKey(IRIS, 1, A))
    world.join("b")
    world.cordon("a")
    assert world.states() == {(1, A): R.LOAD_FAILED}
    world.pass_time(world.state.policy.load_retry_ms)
    assert world.states() == {(1, A): R.UNLOAD_REQUESTED, (1, B): R.LOAD_REQUESTED}
    world.cordon("b")
    world.join("c")
    world.fail_load(ReplicaKey(IRIS, 1, B))
    assert world.states()[1, C] is R.LOAD_REQUESTED


def test_a_model_that_a_cordoned_server_dropped_is_loaded_there_again() -> None:
    """It is no new one: what is there is kept up."""
    world = serving("a", "b")
    world.cordon("a")
    world.inventory(world.of("a"))
    assert world.states() == {(1, A): R.LOAD_REQUESTED}


def test_an_order_is_for_the_name_and_outlives_its_bearer() -> None:
    """Another life of the agent, and even a server of that name that was forgotten meanwhile, find it in force."""
    world = World()
    world.join("a")
    world.join("b")
    world.cordon("a")
    world.drain("b")
    for name in "ab":
        world.join(name, incarnation="two")
    assert [phase(server(world, name)) for name in "ab"] == [CORDONED, DRAINED]
    for name in "ab":
        world.lapse(name)
    world.pass_time(world.state.policy.forget_server_ms + 1)
    assert world.state.servers == {}
    assert set(world.state.cordons) == {A, B}
    for name in "ab":
        world.join(name, incarnation="three")
    world.deploy()
    assert world.states() == {}
    world.resume("b")
    assert world.states() == {(1, B): R.LOAD_REQUESTED}
    assert world.replayed() == world.state


def test_an_order_for_a_server_that_is_gone_can_be_taken_back() -> None:
    world = World()
    world.join("a")
    world.cordon("a")
    world.lapse("a")
    world.pass_time(world.state.policy.forget_server_ms + 1)
    (refused,) = world.drain("a")
    assert isinstance(refused, f.RequestRejected)
    assert "is gone, and only the order for it is left" in refused.message
    assert kinds(world.resume("a")) == ["RequestAccepted", "ServerResumed"]
    assert world.state.cordons == {}


def test_orders_are_limited_in_number() -> None:
    world = World()
    world.set_policy(max_servers=1)
    world.join("a")
    world.cordon("a")
    world.lapse("a")
    world.join("b")  # a is forgotten for it, and its cordon is not
    (refused,) = world.cordon("b")
    assert isinstance(refused, f.RequestRejected)
    assert refused.code == "TOO_MANY_CORDONS"


@pytest.mark.parametrize("ask", [World.drain, World.cordon, World.resume])
def test_a_server_that_never_was_is_refused(ask: object) -> None:
    (refused,) = ask(World(), "nobody")  # type: ignore[operator]
    assert isinstance(refused, f.RequestRejected)
    assert (refused.code, refused.field) == ("NOT_FOUND", "event.server")


# --- drain -------------------------------------------------------------------------------------------------------------


def test_a_drain_moves_everything_and_says_so() -> None:
    """Each model is Available elsewhere before it is unrouted here; at the end it is said that nothing is left."""
    world = serving("a", "b", replicas=1)
    home = next(iter(world.states()))[1].split("/")[1]
    other = {"a": B, "b": A}[home]
    facts = world.drain(home)
    assert kinds(facts) == ["RequestAccepted", "ServerDraining"], "the cool-down comes first, by itself"
    assert world.states() == {(1, f"local/{home}/0"): R.AVAILABLE, (1, other): R.LOAD_REQUESTED}
    assert [each.model for each in left_on(world.state, server(world, home))] == [IRIS]
    (placing,) = [fact for fact in world.log[-1].facts if isinstance(fact, f.ReplicaPlaced)]
    assert placing.reason == "its server is draining"
    assert drained(world) == []
    move(world)
    assert world.states() == {(1, other): R.AVAILABLE}
    assert drained(world) == [f.ServerDrained(f"local/{home}/0", 0, ())]
    assert phase(server(world, home)) == DRAINED
    world.pass_time(10**7)
    assert len(drained(world)) == 1, "and once only"


def test_an_empty_server_is_drained_at_once() -> None:
    world = World()
    world.join("a")
    assert kinds(world.drain()) == ["RequestAccepted", "ServerDraining", "ServerDrained"]


def test_two_servers_that_drain_at_once_never_choose_each_other() -> None:
    world = serving("a", "b", replicas=2)
    since = len(world.log)
    world.drain("a")
    world.drain("b")
    assert placed(world, since) == []
    world.join("c")
    assert placed(world, since) == [C]
    move(world)
    # With room for one, one has left, and as many serve as are wanted.
    states = world.states()
    assert sum(state is R.AVAILABLE for state in states.values()) == 2
    assert states[1, C] is R.AVAILABLE
    world.join("d")
    move(world)
    assert set(world.states()) == {(1, C), (1, "local/d/0")}


def test_s34_at_the_deadline_it_is_said_what_fits_nowhere_and_why_and_it_goes_on_serving() -> None:
    """A drain never destroys the last replica, and never waits for ever without a word."""
    world = World()
    world.join("a", memory=2000 * MIB)
    world.deploy(spec("huge", memory=1500 * MIB))
    world.deploy(spec("small"))
    world.answer()
    world.join("b", memory=500 * MIB)
    world.drain("a", deadline_ms=30_000)
    move(world)
    assert world.states("default/small") == {(1, B): R.AVAILABLE}
    assert [each.model for each in stuck_on(world.state, server(world))] == ["default/huge"]
    assert (phase(server(world)), drained(world)) == (DRAINING, [])
    world.pass_time(30_000)
    (said,) = drained(world)
    assert (said.server, said.models) == (A, 1)
    (left,) = said.left
    assert (left.model, left.generation) == ("default/huge", 1)
    assert left.reason == "NO_ROOM: fits on none of 2 servers: 1 draining; 1 without enough free memory"
    assert phase(server(world)) == STUCK
    assert world.states("default/huge") == {(1, A): R.AVAILABLE}
    world.join("c", memory=2000 * MIB)  # later there is room after all
    move(world)
    assert world.states("default/huge") == {(1, C): R.AVAILABLE}
    assert drained(world)[1:] == [f.ServerDrained(A, 0, ())]
    assert world.replayed() == world.state


def test_a_load_that_is_on_its_way_is_called_off_and_placed_elsewhere() -> None:
    """And when it finishes all the same, it is undone: nothing new is ever served there."""
    world = World()
    world.join("a")
    world.deploy()
    position = world.state.models[IRIS].replicas[1, A].position
    world.join("b")
    world.drain("a")
    assert world.states() == {(1, A): R.UNLOAD_REQUESTED, (1, B): R.LOAD_REQUESTED}
    late = world.report(world.of("a"), r.ModelLoaded(model=IRIS, generation=1, position=position))
    assert kinds(late) == ["ReportIgnored"]
    move(world)
    assert world.states() == {(1, B): R.AVAILABLE}


def test_what_was_loaded_and_waits_for_the_rest_of_its_version_is_undone_too() -> None:
    """A roll-out does not go by way of a server that is about to go."""
    world = serving("a", "b", "c", "d", replicas=2)
    world.deploy(spec(replicas=2, storage_uri="file:///v2"))
    first = next(iter(world.state.outstanding))
    world.answer_one(first)
    assert world.states()[2, first.server] is R.LOADED
    world.drain(first.server.split("/")[1])
    assert world.states()[2, first.server] is R.UNLOAD_REQUESTED
    move(world)
    assert {key for key, state in world.states().items() if state is R.AVAILABLE} == {
        key for key in world.states() if key[0] == 2 and key[1] != first.server
    }
    assert len(world.states()) == 2


def test_what_a_draining_server_dropped_is_not_loaded_there_again() -> None:
    world = serving("a")
    world.drain("a")
    world.inventory(world.of("a"))
    assert world.states() == {}
    assert model_status(world.state.models[IRIS]).state is ModelState.SCHEDULE_FAILED
    assert drained(world) == [f.ServerDrained(A, 0, ())]


def test_what_is_found_on_a_draining_server_leaves_it_again() -> None:
    """A server comes back within its drain, and holds what it had: it serves until others do."""
    world = serving("a")
    world.drain("a")
    world.lapse("a")
    world.registry(world.of("a"))
    world.inventory(world.of("a"), ((IRIS, 1),))
    assert world.states() == {(1, A): R.AVAILABLE}
    assert world.state.models[IRIS].replicas[1, A].draining
    world.join("a", incarnation="two", holds=((IRIS, 1),))
    assert world.state.models[IRIS].replicas[1, A].draining
    world.join("b")
    move(world)
    assert world.states() == {(1, B): R.AVAILABLE}


def test_a_stranger_found_on_a_draining_server_counts_for_nothing() -> None:
    """It is adopted to be let go; the one that serves elsewhere stays."""
    world = serving("b")
    world.join("a")
    world.drain("a")
    world.inventory(world.of("a"), ((IRIS, 1),))
    assert world.states()[1, B] is R.AVAILABLE
    move(world)
    assert world.states() == {(1, B): R.AVAILABLE}


def test_resume_during_a_drain_keeps_what_is_still_there() -> None:
    """What has moved has moved; what was on its way elsewhere is called off."""
    world = serving("a")
    world.join("b")
    world.drain("a")
    world.resume("a")
    assert not server(world).drains
    move(world)
    assert sum(state is R.AVAILABLE for state in world.states().values()) == 1
    assert len(world.states()) == 1
    world.pass_time(10**6)
    assert drained(world) == []


def test_cordon_during_a_drain_ends_it_and_keeps_the_server_closed() -> None:
    world = serving("a")
    world.drain("a")
    assert kinds(world.cordon("a")) == ["RequestAccepted", "ServerCordoned"]
    assert phase(server(world)) == CORDONED
    assert not world.state.models[IRIS].replicas[1, A].draining
    world.pass_time(10**6)
    assert drained(world) == []


def test_a_second_drain_has_a_deadline_of_its_own() -> None:
    world = serving("a")
    world.drain("a", deadline_ms=10_000)
    world.pass_time(10_000)
    world.drain("a", deadline_ms=20_000)
    world.pass_time(20_000)
    assert [(said.models, said.left[0].model) for said in drained(world)] == [(1, IRIS), (1, IRIS)]


def test_s33_a_drain_of_1000_models_loses_none() -> None:
    """In pieces, none over 1 MiB; at every position each model is Available somewhere, and in the end all elsewhere."""
    world = World()
    world.join("a", memory=1000 * MIB)
    for n in range(1000):
        world.deploy(spec(f"m{n}", memory=MIB))
    world.answer()
    world.join("b", memory=2000 * MIB)
    since = len(world.log)
    world.drain("a")

    def check() -> None:
        for model in world.state.models.values():
            assert any(r.state is R.AVAILABLE for r in model.replicas.values()), model.key

    check()
    pieces = [sum(isinstance(x, f.ReplicaPlaced) for x in entry.facts) for entry in world.log[since:]]
    assert (sum(pieces), max(pieces)) == (1000, world.state.policy.piece)
    left = [len(server(world).replicas)]
    while world.state.outstanding:
        world.answer(limit=100)
        check()
        world.pass_time(world.state.policy.unload_grace_ms + 1)
        left.append(len(server(world).replicas))
    assert (left[0], left[-1]) == (1000, 0)
    assert left == sorted(left, reverse=True), "the progress can be watched"
    assert all(set(model.replicas) == {(1, B)} for model in world.state.models.values())
    assert drained(world) == [f.ServerDrained(A, 0, ())]
    assert max(map(len, world.payloads)) < 2**20


def test_s33_1000_models_that_fit_nowhere_are_told_within_an_entry() -> None:
    """A hundred by name, the others by number; and all of them go on serving."""
    world = World()
    world.join("a", memory=1000 * MIB)
    for n in range(1000):
        world.deploy(spec(f"{'m' * 50}{n}", memory=MIB))
    world.answer()
    world.drain("a", deadline_ms=10_000)
    world.pass_time(10_000)
    (said,) = drained(world)
    assert (said.models, len(said.left)) == (1000, EXAMPLES)
    assert max(map(len, world.payloads)) < 2**20
    assert all(model_status(model).available == 1 for model in world.state.models.values())


def test_a_drain_of_a_lost_server_tells_what_is_not_replaced() -> None:
    world = serving("a")
    world.lapse("a")
    world.drain("a", deadline_ms=5_000)
    world.pass_time(5_000)
    (said,) = drained(world)
    assert said.models == 1
    world.join("b")
    move(world)
    assert drained(world)[1:] == [f.ServerDrained(A, 0, ())]


# --- an agent that is about to end --------------------------------------------------------------------------------------


def ending(name: str = "a", milliseconds: str = "20000", **fields: object) -> object:
    return record(name, status="DRAINING", digest="d", **fields).model_copy(  # type: ignore[arg-type]
        update={"metadata": {DRAIN_METADATA: milliseconds}}
    )


def test_an_agent_that_ends_drains_its_server_for_as_long_as_it_waits() -> None:
    """At its deadline, or when it leaves before, it is said what was left; with that life the drain is over."""
    world = serving("a")
    facts = world.registry(ending())  # type: ignore[arg-type]
    assert kinds(facts) == ["ServerUpdated", "ServerDraining"]
    assert isinstance(facts[1], f.ServerDraining)
    assert (facts[1].due - world.at, facts[1].incarnation) == (20_000, "one")
    gone = world.registry(ending().model_copy(update={"status": "DOWN"}))  # type: ignore[attr-defined]
    assert kinds(gone) == ["ServerDrained", "ServerLost"]
    assert isinstance(gone[0], f.ServerDrained)
    assert [left.model for left in gone[0].left] == [IRIS]
    world.join("a", incarnation="two")
    assert (phase(server(world)), server(world).schedulable) == ("", True)
    move(world)
    assert world.states() == {(1, A): R.AVAILABLE}


@pytest.mark.parametrize("said", ["", "soon", "-5", "9" * 30, "٣"])
def test_an_agent_that_says_no_time_is_given_one(said: str) -> None:
    world = serving("a")
    (_, draining) = world.registry(ending(milliseconds=said))  # type: ignore[arg-type]
    assert isinstance(draining, f.ServerDraining)
    assert draining.due - world.at == 60_000


def test_an_agent_that_ends_while_it_was_not_heard_drains_its_server_when_it_is_heard_again() -> None:
    """It was silent for longer than a lease, and says that it ends: what it leaves behind is told as ever."""
    world = serving("a")
    world.lapse("a")
    facts = world.registry(ending())  # type: ignore[arg-type]
    assert kinds(facts) == ["ServerReturned", "ServerDraining"]
    world.inventory(ending(), ((IRIS, 1),))  # type: ignore[arg-type]
    assert world.states() == {(1, A): R.AVAILABLE}
    assert server(world).drain_due - world.at == 20_000
    gone = world.registry(ending().model_copy(update={"status": "DOWN"}))  # type: ignore[attr-defined]
    assert kinds(gone) == ["ServerDrained", "ServerLost"]
    assert isinstance(gone[0], f.ServerDrained)
    assert [left.model for left in gone[0].left] == [IRIS]
    assert world.replayed() == world.state


def test_an_operators_order_outlives_an_agent_that_ends() -> None:
    """One drain at a time: the operator's goes on, and holds for the next life."""
    world = serving("a")
    world.drain("a")
    assert kinds(world.registry(ending())) == ["ServerUpdated"]  # type: ignore[arg-type]
    world.join("a", incarnation="two")
    assert (phase(server(world)), server(world).schedulable) == (DRAINED, False)


def test_nobody_resumes_an_agent_that_is_about_to_end() -> None:
    world = serving("a")
    world.registry(ending())  # type: ignore[arg-type]
    (refused,) = world.resume("a")
    assert isinstance(refused, f.RequestRejected)
    assert refused.code == "AGENT_DRAINS"


def test_a_cordoned_server_whose_agent_ends_stays_cordoned() -> None:
    world = serving("a", "b")
    home = next(iter(world.states()))[1].split("/")[1]
    world.cordon(home)
    world.registry(ending(home))  # type: ignore[arg-type]
    move(world)
    assert [key[1] for key in world.states()] == [{"a": B, "b": A}[home]]
    world.join(home, incarnation="two")
    assert phase(server(world, home)) == CORDONED


# --- before the upgrade -------------------------------------------------------------------------------------------------


def test_a_log_of_version_1_has_no_drains_but_agents_drain_as_ever() -> None:
    world = World(fold_version=1)
    world.join("a")
    world.deploy()
    world.answer()
    (refused,) = world.drain("a")
    assert isinstance(refused, f.RequestRejected)
    assert refused.code == "UPGRADE_NOT_FINALIZED"
    world.join("b")
    assert kinds(world.registry(ending())) == ["ServerUpdated"]  # type: ignore[arg-type]
    move(world)
    assert world.states() == {(1, B): R.AVAILABLE}


# --- the request --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/0", "local/a/0"])
def test_a_server_is_named_with_its_cluster_or_without(name: str) -> None:
    world = World()
    world.join("a")
    facts = world.request(ModelEvent(event=DrainServer(server=name)))
    assert [fact.server for fact in facts if isinstance(fact, f.ServerDraining)] == [A]


@pytest.mark.parametrize("name", ["a", "a/b", "a/0/1/2", "A/0", "a/01", "/0", ""])
def test_what_is_no_servers_name_is_no_request(name: str) -> None:
    with pytest.raises(ValueError, match="server"):
        DrainServer(server=name)


def test_a_frozen_model_stays_on_a_draining_server_until_it_is_unfrozen() -> None:
    """The drain's deadline says who holds it there; once it may change, it leaves like the others."""
    world = World()
    world.join("a")
    world.join("b")
    world.deploy()
    world.answer()
    ((_, home),) = world.states()
    world.freeze(reason="audit")
    world.drain(home.split("/")[1], deadline_ms=5_000)
    world.pass_time(10_000)
    (left,) = stuck_on(world.state, world.state.servers[home])
    assert left.reason == "FROZEN: by unverified unknown actor: audit"
    world.unfreeze()
    world.answer()
    world.pass_time(5_000)
    world.answer()
    assert phase(world.state.servers[home]) == DRAINED
    assert list(world.states().values()) == [R.AVAILABLE]

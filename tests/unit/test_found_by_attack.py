"""What an attack on the core found, each as the smallest example."""

from magnetar_common.drains import DRAINED, STUCK, phase
from magnetar_common.transitions import R
from magnetar_events import ENTRY
from magnetar_events import facts as f
from magnetar_events import reports as r
from magnetar_events.entry import MAX_ENTRY_BYTES
from magnetar_scheduler.budget import size_of
from tests.support.logs import busy_world, drained_world, entry
from tests.support.world import MIB, World, spec

WIDE = "\U0001f9f2"
"""A character of four bytes."""


def test_what_a_lost_server_says_revives_nothing() -> None:
    """A report may be handled after the goodbye: it is of before. When the server returns it is asked anew."""
    world = World()
    joined = world.join("a")
    world.join("b")
    world.deploy()
    world.answer()
    ((_, home),) = world.states()
    first = joined if home == "local/a/0" else world.of("b")
    world.lapse(home.split("/")[1])
    facts = world.inventory(first, holds=(("default/iris", 1),))  # type: ignore[arg-type]
    assert [(type(fact), fact.code) for fact in facts] == [(f.ReportIgnored, "SERVER_LOST")]  # type: ignore[attr-defined]
    world.answer()
    world.pass_time(5_000)
    assert world.states() == {(1, "local/b/0" if home == "local/a/0" else "local/a/0"): R.AVAILABLE}
    assert world.state.servers[home].due


def test_no_fact_is_larger_than_a_draft_takes_it_for() -> None:
    """What is counted too small makes an entry that nobody can append, and ends one leader after the other."""
    worlds = (busy_world(), drained_world())
    facts: list[f.Fact] = [fact for world in worlds for each in world.log for fact in each.facts]
    text, places = WIDE * 512, tuple(f"local/{n}/0: CODE: {WIDE * 512}" for n in range(20))
    facts += [
        f.VersionFailed("default/iris", 1, "CODE", text, retriable=True, places=places),
        f.InventoryRequested("local/a/0", text),
        f.ReplicaChanged("default/iris", 1, "local/a/0", "Loading", "LoadFailed", "CODE", text, False, 1, 1),
        f.PlacementRefused("default/iris", 1, 1, text, (), ()),
        f.ModelFrozen("default/iris", "me", text),
    ]
    empty = len(ENTRY.encode(entry(0)))
    for fact in facts:
        if isinstance(fact, (f.ServerJoined, f.ServerReturned, f.ServerUpdated, f.ModelWanted, f.PolicySet)):
            continue  # one of them to an entry, as large as its input
        assert len(ENTRY.encode(entry(0, fact))) - empty <= size_of(fact), fact


def test_failures_that_are_told_at_length_fit_into_entries() -> None:
    """The storage is down: every load of a hundred models fails with a long message. Then a server is lost."""
    world = World()
    for n in range(20):
        world.join(f"s{n}", memory=10**6 * MIB)
    for n in range(100):
        world.deploy(spec(f"m{n}", replicas=20, memory=MIB))
    message = "could not fetch s3://models: " + "x" * 483
    for key, replica in list(world.state.outstanding.items()):
        failed = r.ModelLoadFailed(
            model=key.model, generation=1, position=replica.position, code="FETCH", retriable=True, message=message
        )
        world.report(world.state.servers[key.server].record, failed)
    world.lapse("s3")
    assert max(map(len, world.payloads)) <= MAX_ENTRY_BYTES


def test_a_large_model_whose_deadline_comes_is_forgotten_in_pieces() -> None:
    """Two versions of it, of 500 replicas each, on servers with long names that do not answer."""
    world, name = World(), "n" * 58
    for n in range(500):
        world.join(f"{name}{n:04}", memory=10**6 * MIB)
    for version in range(2):
        world.deploy(spec("large", replicas=500, memory=MIB, storage_uri=f"file:///models/{version}"))
        if not version:
            world.answer(limit=10**6)
    world.undeploy("large")
    world.pass_time(world.state.policy.delete_deadline_ms + 1_000)
    assert world.state.models == {}
    assert max(map(len, world.payloads)) <= 200_000


def test_the_reason_for_waiting_is_the_one_that_holds() -> None:
    """It was a cordon; now it is memory."""
    world = World()
    world.join("a")
    world.deploy(spec("full", memory=900 * MIB))
    world.answer()
    world.cordon("a")
    world.deploy(spec("waits", memory=900 * MIB))
    world.resume("a")
    refused = world.state.models["default/waits"].target.refused
    assert refused is not None
    assert [count.rule for count in refused.refusals] == ["memory"]


def test_an_unload_that_fails_is_tried_less_and_less_often() -> None:
    """Each attempt is an entry or two: a broken server must not fill the log."""
    world = World()
    joined = world.join("a")
    world.deploy()
    world.answer()
    world.scale(0)
    before = len(world.log)
    for _ in range(720):  # an hour
        for key in list(world.state.outstanding):
            position = world.state.outstanding[key].position
            world.report(joined, r.ModelUnloadFailed(model=key.model, generation=1, position=position, code="BUSY"))
        world.pass_time(5_000)
    assert world.states() == {(1, "local/a/0"): R.UNLOAD_FAILED}
    assert len(world.log) - before < 200


def test_what_is_found_on_a_server_that_was_drained_is_stuck_there() -> None:
    """The drain was over, and its order is in force: what a frozen model has there is not on its way anywhere."""
    world = World()
    records = {f"local/{server}/0": world.join(server) for server in ("a", "b")}
    world.deploy()
    world.answer()
    ((_, home),) = world.states()
    (other,) = records.keys() - {home}
    world.drain(other.split("/")[1])
    assert phase(world.state.servers[other]) == DRAINED
    world.freeze(reason="audit")
    world.inventory(records[other], holds=(("default/iris", 1),))
    assert (1, other) in world.states()
    assert phase(world.state.servers[other]) == STUCK


def _available(world: World, model: str) -> set[str]:
    return {server for (_, server), state in world.states(model).items() if state is R.AVAILABLE}


def test_what_others_left_is_had_by_whom_they_left_it_for_though_one_of_its_kind_goes_first() -> None:
    """Who has nothing at all goes first, and fits nowhere: what is kept for the other one is no less its own."""
    world = World()
    world.set_policy(preemption="lower-priority")
    for server in "ab":
        world.join(server, memory=150 * MIB)
    world.deploy(spec("low", replicas=2))
    world.answer()
    world.deploy(spec("high", replicas=2, priority=1))
    world.pass_time(1_500)
    world.answer(limit=1)
    world.pass_time(1_500)
    high = world.state.models["default/high"]
    assert high.target.claim
    assert len(high.replicas) == 1
    world.deploy(spec("other", priority=1))
    world.answer()
    world.pass_time(1_500)
    world.answer()
    assert _available(world, "default/high") == {"local/a/0", "local/b/0"}


def test_what_has_all_its_replicas_back_waits_no_more_though_one_of_its_kind_does() -> None:
    """It missed one while a server drained."""
    world = World()
    for server in "ab":
        world.join(server, memory=150 * MIB)
    world.deploy(spec("one", replicas=2))
    world.answer()
    world.deploy(spec("another"))
    world.drain("b")
    world.resume("b")
    assert list(world.state.waiting) == ["default/another"]


def test_what_is_lost_is_replaced_where_a_floor_keeps_one_of_its_kind_from() -> None:
    """That one would be more than its tenant has, and goes first, for it has nothing at all."""
    world = World()
    for server, memory in (("a", 100), ("b", 100), ("c", 150)):
        world.join(server, memory=memory * MIB)
    for name in ("stays", "leaves"):
        world.deploy(spec(name, memory=50 * MIB, server="c"))
    world.deploy(spec("mine", replicas=2))
    world.answer()
    world.set_tenant("floored", floor_replicas=1)
    world.lapse("b")
    world.deploy(spec("large", tenant="floored", memory=140 * MIB))
    world.deploy(spec("other"))
    world.undeploy("leaves")
    world.pass_time(1_500)
    world.answer()
    assert _available(world, "default/mine") == {"local/a/0", "local/c/0"}
    assert not world.states("default/other")


def test_what_failed_is_tried_again_in_its_turn() -> None:
    """A server comes with room for one of two: the more important one has it, whichever failed first."""
    for first, second in (("high", "low"), ("low", "high")):
        world = World()
        world.set_policy(load_attempts=1, load_servers=1)
        world.join("a", memory=300 * MIB)
        for name in (first, second):
            world.deploy(spec(name, priority=int(name == "high")))
            (key,) = world.state.outstanding
            world.fail_load(key)
            world.answer()
        world.cordon("a")
        world.join("b", memory=150 * MIB)
        assert world.states("default/high") == {(1, "local/b/0"): R.LOAD_REQUESTED}
        assert not world.states("default/low")


def test_what_is_loaded_of_a_version_that_failed_elsewhere_is_not_loaded_again_and_again() -> None:
    """It failed on one of three servers, and there is no fourth: what the others loaded stays until there is."""
    world = World()
    world.set_policy(load_attempts=1)
    for server in "abc":
        world.join(server)
    world.deploy(spec(replicas=3))
    world.answer()
    world.deploy(spec(replicas=3, storage_uri="file:///models/2"))
    world.fail_load(next(key for key in world.state.outstanding if key.generation == 2))
    assert world.answer(limit=20) == 3
    world.join("d")
    world.answer()
    assert world.state.models["default/iris"].routed() == {2}

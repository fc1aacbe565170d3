"""What can be asked of the past."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from magnetar_common.bus import MessageId
from magnetar_common.log import LogRecord
from magnetar_common.state import State
from magnetar_events import ModelEvent
from magnetar_events.models import Runtime
from magnetar_events.requests import Actor, DeployModel
from magnetar_projector.history import Difference
from magnetar_projector.narrative import concerns, narrate
from magnetar_projector.places import BadPlace, NoSuchPlace, Place, parse_place, until
from magnetar_projector.queries import Queries
from magnetar_projector.read_model import MEMORY, ReadModel
from tests.support.logs import busy_world, entry, logged
from tests.support.world import World, spec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def place_of(position: int) -> MessageId:
    """Two ledgers, and batches of three."""
    return MessageId(position // 10 * 2, position % 10 // 3, position % 10 % 3)


def queries_of(log: list[LogRecord]) -> Queries:
    model, state = ReadModel(MEMORY), State()
    for record in log:
        model.project(state, record)
    model.commit(state)
    return Queries(model)


@pytest.fixture(scope="module")
def world() -> World:
    return busy_world()


@pytest.fixture(scope="module")
def log(world: World) -> list[LogRecord]:
    return [logged(each, place_of(each.position)) for each in world.log]


@pytest.fixture(scope="module")
def queries(log: list[LogRecord]) -> Queries:
    return queries_of(log)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0", 0),
        (" 42 ", 42),
        ("12:34:-1", MessageId(12, 34, -1)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.250+02:00", datetime(2026, 1, 31, 12, 0, 0, 250_000, timezone(timedelta(hours=2)))),
        ("2026-01-31T12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_places_are_read(text: str, place: Place) -> None:
    """A position, a message id or a time, which is UTC unless it says otherwise."""
    found = parse_place(text)
    assert (type(found), found) == (type(place), place)


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "1:2", "1:2:3:4", "٣", "12:00"])
def test_what_is_no_place_is_refused_by_name(text: str) -> None:
    """The message repeats the text, and shows what could be said."""
    with pytest.raises(BadPlace, match=r"position.*message id.*time"):
        parse_place(text)


@pytest.mark.parametrize("milliseconds", [-1, 0, 500, 1_000, 6_000, 10**10])
def test_time_leads_to_the_last_position_at_or_before_it(
    world: World, log: list[LogRecord], queries: Queries, milliseconds: int
) -> None:
    """The index answers as a scan of the log would, and as ``replay`` does."""
    expected = [record.entry.position for record in log if until(at(milliseconds))(record)]
    if not expected:
        with pytest.raises(NoSuchPlace):
            queries.position_at(at(milliseconds))
        return
    assert queries.position_at(at(milliseconds)) == expected[-1]
    assert queries.state_at(at(milliseconds)) == world.replayed(expected[-1])


def test_message_id_leads_to_its_position(world: World, log: list[LogRecord], queries: Queries) -> None:
    """Ids are compared as numbers, over batches and ledgers; one between two entries means the earlier."""
    for record in log:
        assert queries.position_at(record.message_id) == record.entry.position
        assert queries.state_at(record.message_id) == world.replayed(record.entry.position)
    assert queries.position_at(MessageId(1, 5, 0)) == 9
    assert queries.position_at(MessageId(10**9, 0)) == len(log) - 1
    with pytest.raises(NoSuchPlace):
        queries.position_at(MessageId(-1, 0))


def test_position_must_be_known(queries: Queries, log: list[LogRecord]) -> None:
    """A position that is not there yet is refused, not rounded."""
    assert queries.position_at(len(log) - 1) == queries.position == len(log) - 1
    for position in (len(log), 10**30, -1):
        with pytest.raises(NoSuchPlace, match=f"{position}.*{len(log) - 1}"):
            queries.entry_at(position)


def test_nothing_is_known_of_an_empty_log() -> None:
    """Before the first entry there is an empty state and no story."""
    queries = queries_of([])
    assert (queries.position, queries.state_at(), queries.story("default/iris"), queries.log()) == (-1, State(), [], [])
    with pytest.raises(NoSuchPlace):
        queries.state_at(0)


def test_entry_at_a_position(queries: Queries, log: list[LogRecord]) -> None:
    """An entry comes back whole, with its place."""
    assert [queries.entry_at(n) for n in range(len(log))] == log


# --- what happened ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["default/iris", "default/huge", "local/a/0", "local/b/0", "default/nobody"])
def test_story_is_every_fact_of_its_subject(world: World, queries: Queries, subject: str) -> None:
    """Line by line and in order: its own, those of its replicas, and those of the servers that hold it."""
    expected = [
        (each.position, narrate(fact))
        for each in world.log
        for fact in each.facts
        if subject in concerns(world.replayed(each.position - 1) if each.position else State(), fact)
    ]
    story = queries.story(subject)
    assert [(line.position, line.text) for line in story] == expected
    assert expected


def test_story_can_be_cut(queries: Queries) -> None:
    """From a place and up to a place, both included."""
    whole = queries.story("default/iris")
    assert queries.story("default/iris", 8, 13) == [line for line in whole if 8 <= line.position <= 13]
    assert queries.story("default/iris", None, at(0)) == [line for line in whole if line.wall == 0]
    assert queries.story("nobody/there") == []


def test_history_says_who_when_why_and_what_changed() -> None:
    """Each version, scaling and undeployment, with the difference to what was wanted before."""
    world = World()
    alice = Actor(authtype="user", authid="u-1")
    world.join("a")
    world.request(ModelEvent(id="1", source="ci", actor=alice, reason="first", event=DeployModel(model=spec())))
    world.at = 5_000
    world.deploy(spec("other"))
    changed = spec(memory=200, runtime=Runtime(kind="mlserver"), labels={"team": "x"})
    world.request(ModelEvent(id="2", source="cli", reason="needs more", event=DeployModel(model=changed)))
    world.scale(3)
    world.undeploy()
    world.deploy()
    history = queries_of([logged(each, place_of(each.position)) for each in world.log]).history("default/iris")

    assert [(c.kind, c.generation) for c in history] == [
        ("deployed", 1),
        ("deployed", 2),
        ("scaled", 2),
        ("undeployed", 2),
        ("deployed", 3),
    ]
    first, second, third, fourth, fifth = history
    assert (first.request, first.source, first.actor, first.authtype, first.reason) == (
        "1",
        "ci",
        "u-1",
        "user",
        "first",
    )
    assert (first.differences, fourth.differences, fifth.differences) == ((), (), ())
    assert (second.reason, second.wall) == ("needs more", 5_000)
    assert second.differences == (
        Difference("labels.team", None, "x"),
        Difference("memory", 100 * 2**20, 200),
        Difference("runtime.kind", "", "mlserver"),
    )
    assert third.differences == (Difference("replicas", 1, 3),)


def test_history_of_a_model_that_never_was(queries: Queries) -> None:
    """A refused request makes no history."""
    assert queries.history("default/nobody") == []


def test_log_is_filtered(world: World, queries: Queries) -> None:
    """By place, subject and kind, with only the facts that were asked for."""
    everything = queries.log(limit=1000)
    assert [e["position"] for e in everything] == [e.position for e in world.log]
    assert [[fact["kind"] for fact in e["facts"]] for e in everything] == [
        [type(fact).__name__ for fact in e.facts] for e in world.log
    ]
    assert queries.log(after=3, limit=2) == everything[4:6]
    pinned = queries.log(kind="ArtifactPinned")
    assert [[fact["kind"] for fact in e["facts"]] for e in pinned] == [["ArtifactPinned"]] * 2
    of_huge = queries.log(subject="default/huge", kind="PlacementRefused", after=pinned[-1]["position"])
    assert {fact["subject"] for e in of_huge for fact in e["facts"]} == {"default/huge"}
    assert of_huge
    assert queries.log(subject="default/iris", kind="Nothing") == []
    assert queries.log(kind="LeaderElected")[0]["facts"][0]["fact"] == {
        "term": 1,
        "leader": "test",
        "cluster": "local",
        "broker": "broker",
        "version": "0",
    }


def test_an_entry_without_facts_is_in_the_log() -> None:
    """It is shown where nothing is asked for, and nowhere else."""
    queries = queries_of([logged(entry(0), MessageId(0, 0))])
    assert [e["facts"] for e in queries.log()] == [[]]
    assert queries.log(kind="LeaderElected") == []

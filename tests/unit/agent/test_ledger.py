"""The ledger: which command counts."""

import pytest

from magnetar_agent import ledger as ledgers
from magnetar_agent.ledger import Ledger, Verdict
from magnetar_events.commands import Command, CommandKind, LoadModel, ReportInventory, UnloadModel
from magnetar_events.reports import CommandSuperseded, ModelLoaded, ModelLoadFailed, ModelUnloaded, ModelUnloadFailed

IRIS = "default/iris"
KEY = (IRIS, 1)
LOAD = LoadModel(model=IRIS, generation=1, storage_uri="file:///m")
UNLOAD = UnloadModel(model=IRIS, generation=1)


def command(wanted: CommandKind, position: int, term: int = 1, incarnation: str = "one") -> Command:
    return Command(
        cluster="local", server="a", incarnation=incarnation, replica=0, term=term, position=position, command=wanted
    )


def loaded(position: int, digest: str = "a" * 64) -> ModelLoaded:
    return ModelLoaded(model=IRIS, generation=1, position=position, digest=digest)


def unloaded(position: int) -> ModelUnloaded:
    return ModelUnloaded(model=IRIS, generation=1, position=position)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("one")


def test_newer_position_is_obeyed_and_older_superseded(ledger: Ledger) -> None:
    """S1: what is told is the order of decisions, not of arrival; the older one says which newer one it met."""
    assert ledger.judge(command(UNLOAD, 9)) == (Verdict.OBEY, None)
    superseded = CommandSuperseded(model=IRIS, generation=1, position=4, newest=9)
    assert ledger.judge(command(LOAD, 4)) == (Verdict.SUPERSEDED, superseded)
    assert ledger.judge(command(LOAD, 10)) == (Verdict.OBEY, None)


def test_positions_count_per_version(ledger: Ledger) -> None:
    """An older command for another version is not old."""
    ledger.judge(command(LOAD, 9))
    other = LoadModel(model=IRIS, generation=2, storage_uri="file:///m")
    assert ledger.judge(command(other, 4))[0] is Verdict.OBEY


def test_repeat_is_answered_again_and_not_obeyed(ledger: Ledger) -> None:
    """Silently while it is in progress, and with the same report once it has ended."""
    ledger.judge(command(LOAD, 3))
    assert ledger.judge(command(LOAD, 3)) == (Verdict.IN_PROGRESS, None)
    ledger.settle(loaded(3))
    assert ledger.judge(command(LOAD, 3)) == (Verdict.ANSWER_AGAIN, loaded(3))


def test_later_leader_repeats_with_a_higher_term(ledger: Ledger) -> None:
    """The same position is the same decision, whoever sends it; and from then on the old leader is refused."""
    ledger.judge(command(LOAD, 3, term=1))
    ledger.settle(loaded(3))
    assert ledger.judge(command(LOAD, 3, term=2)) == (Verdict.ANSWER_AGAIN, loaded(3))
    assert ledger.judge(command(UNLOAD, 7, term=1)) == (Verdict.OLD_TERM, None)
    assert ledger.term == 2


def test_higher_term_wins_over_a_higher_position(ledger: Ledger) -> None:
    """Commands are ordered by (term, position): a leader that lost its log's end must not bind its successor."""
    ledger.judge(command(LOAD, 9, term=1))
    assert ledger.judge(command(UNLOAD, 5, term=2))[0] is Verdict.OBEY


def test_commands_for_another_life_are_ignored(ledger: Ledger) -> None:
    """They do not even teach it a term."""
    assert ledger.judge(command(LOAD, 3, term=9, incarnation="two")) == (Verdict.FOREIGN, None)
    assert ledger.term == 0


def test_inventory_is_always_reported_when_asked(ledger: Ledger) -> None:
    """It is about no version, so that no position makes it old; its term does."""
    assert ledger.judge(command(ReportInventory(), 1, term=2))[0] is Verdict.OBEY
    assert ledger.judge(command(ReportInventory(), 1, term=2))[0] is Verdict.OBEY
    assert ledger.judge(command(ReportInventory(), 9, term=1))[0] is Verdict.OLD_TERM


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        (loaded(5), True),
        (ModelLoadFailed(model=IRIS, generation=1, position=5, code="LOAD_FAILED"), False),
        (unloaded(5), False),
        (ModelUnloadFailed(model=IRIS, generation=1, position=5, code="TIMEOUT"), True),
    ],
)
def test_answers_say_what_is_in_the_server(
    ledger: Ledger, answer: ModelLoaded | ModelLoadFailed | ModelUnloaded | ModelUnloadFailed, there: bool
) -> None:
    """After a failed unload the version is still there, and after a failed load nothing is left."""
    ledger.judge(command(LOAD, 1))
    ledger.settle(loaded(1))
    ledger.judge(command(LOAD, 5))
    assert (ledger.loaded(), ledger.busy()) == (set(), {KEY})
    ledger.settle(answer)
    assert (ledger.loaded(), ledger.busy()) == ({KEY} if there else set(), set())
    assert bool(ledger.digest(KEY)) == there


def test_answer_to_an_older_command_leaves_the_newer_one_in_progress(ledger: Ledger) -> None:
    """A load that ends after its unload was commanded did load, and the unload is still to come."""
    ledger.judge(command(LOAD, 1))
    ledger.judge(command(UNLOAD, 2))
    assert not ledger.is_newest(KEY, 1)
    ledger.settle(loaded(1))
    assert ledger.busy() == {KEY}
    assert ledger.judge(command(UNLOAD, 2))[0] is Verdict.IN_PROGRESS
    ledger.settle(unloaded(2))
    assert ledger.judge(command(UNLOAD, 2)) == (Verdict.ANSWER_AGAIN, unloaded(2))


def test_what_moved_during_a_look_is_left_alone(ledger: Ledger) -> None:
    """A load that begins and ends between the look at the index and its use is not taken for a drop."""
    marks = ledger.marks()
    ledger.judge(command(LOAD, 1))
    ledger.settle(loaded(1))
    moved = ledger.moved(marks)
    assert moved == {KEY}
    ledger.found(set(), moved)
    assert ledger.loaded() == {KEY}
    assert ledger.moved(ledger.marks()) == set()
    ledger.found(set(), set())
    assert (ledger.loaded(), ledger.digest(KEY)) == (set(), "")


def test_what_is_found_is_believed_and_can_be_commanded(ledger: Ledger) -> None:
    """A version of an earlier life is known as loaded, and the first command for it is obeyed, whatever its position."""
    ledger.found({KEY}, set())
    assert (ledger.loaded(), ledger.busy(), ledger.digest(KEY)) == ({KEY}, set(), "")
    assert ledger.judge(command(UNLOAD, 0))[0] is Verdict.OBEY


def test_ledger_does_not_grow_for_ever(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions long gone are forgotten, oldest first; what is in the server or being worked on never is."""
    monkeypatch.setattr(ledgers, "MAX_LINES", 3)
    for generation in range(10):
        wanted = LoadModel(model=IRIS, generation=generation, storage_uri="file:///m")
        ledger.judge(command(wanted, generation))
        if generation == 0:
            ledger.settle(ModelLoaded(model=IRIS, generation=0, position=0))
        elif generation != 1:
            ledger.settle(ModelLoadFailed(model=IRIS, generation=generation, position=generation, code="X"))
    assert ledger.loaded() == {(IRIS, 0)}
    assert ledger.busy() == {(IRIS, 1)}
    assert {generation for _, generation in ledger.marks()} == {0, 1, 9}


def test_life_that_another_took_the_place_of_knows(ledger: Ledger) -> None:
    """A command for somebody else that comes after one of ours is for the life that took our place."""
    assert ledger.judge(command(LOAD, 3, incarnation="zero"))[0] is Verdict.FOREIGN  # before we were told anything
    ledger.judge(command(ReportInventory(), 5))
    assert ledger.judge(command(LOAD, 4, incarnation="zero"))[0] is Verdict.FOREIGN
    assert ledger.judge(command(LOAD, 6, incarnation="two"))[0] is Verdict.REPLACED


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def insist(ledger: Ledger, clock: Clock, wanted: Command, seconds: float, every: float = 5.0) -> list[Verdict]:
    """What becomes of a command that its leader sends again and again."""
    verdicts = [ledger.judge(wanted)[0]]
    for _ in range(int(seconds / every)):
        clock.now += every
        verdicts.append(ledger.judge(wanted)[0])
    return verdicts


def test_a_forged_term_is_not_believed_for_ever() -> None:
    """The leader goes on commanding, as no deposed one does: after a minute it is obeyed, and the forger's word forgotten."""
    clock = Clock()
    ledger = Ledger("one", clock)
    ledger.judge(command(LOAD, 3, term=7))
    ledger.settle(loaded(3))
    ledger.judge(command(UNLOAD, 2**53 - 1, term=2**53 - 1))
    assert not ledger.refusing
    verdicts = insist(ledger, clock, command(LOAD, 9, term=7), ledgers.DOUBT_S)
    assert verdicts[:-1] == [Verdict.OLD_TERM] * (len(verdicts) - 1)
    assert verdicts[-1] is Verdict.OBEY
    assert (ledger.term, ledger.disbelieved, ledger.refusing) == (7, 1, "")


def test_what_is_refused_is_seen_meanwhile() -> None:
    """Readiness names both terms; once they stop, nothing is wrong."""
    clock = Clock()
    ledger = Ledger("one", clock)
    ledger.judge(command(LOAD, 3, term=9))
    ledger.judge(command(LOAD, 4, term=7))
    assert ledger.refusing == "commands of term 7 are refused, for one of term 9 came before"
    clock.now += ledgers.STEADY_S + 1
    assert not ledger.refusing


def test_a_forged_position_is_not_believed_for_ever() -> None:
    """The same for one version, in the term that leads."""
    clock = Clock()
    ledger = Ledger("one", clock)
    ledger.judge(command(UNLOAD, 2**53 - 1))
    verdicts = insist(ledger, clock, command(LOAD, 9), ledgers.DOUBT_S)
    assert set(verdicts[:-1]) == {Verdict.SUPERSEDED}
    assert verdicts[-1] is Verdict.OBEY
    assert insist(ledger, clock, command(LOAD, 9), 10.0)[-1] is Verdict.IN_PROGRESS


def test_deposed_leaders_are_never_obeyed_again() -> None:
    """However many wake up, one after the other, and send what they had: none lasts, and the newest is heard in between."""
    clock = Clock()
    ledger = Ledger("one", clock)
    ledger.judge(command(LOAD, 100, term=9))
    for term in (5, 6, 7, 5, 8):
        assert set(insist(ledger, clock, command(UNLOAD, 50, term=term), 50.0)) == {Verdict.OLD_TERM}
    for _ in range(20):  # one that is stopped and goes on, again and again
        clock.now += ledgers.STEADY_S + 1
        assert ledger.judge(command(UNLOAD, 50, term=5))[0] is Verdict.OLD_TERM
    insist(ledger, clock, command(UNLOAD, 50, term=5), 50.0)
    ledger.judge(command(LOAD, 100, term=9))
    assert set(insist(ledger, clock, command(UNLOAD, 50, term=5), 50.0)) == {Verdict.OLD_TERM}

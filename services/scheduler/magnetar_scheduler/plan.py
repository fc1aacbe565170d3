"""A dry run: what would become of a wish, on a copy of the state that its caller owns."""

from collections.abc import Iterator
from dataclasses import dataclass

from magnetar_common.evolve import evolve, fold
from magnetar_common.state import State
from magnetar_common.transitions import LIVE, STATES
from magnetar_events import ModelEvent
from magnetar_events import facts as f
from magnetar_events.entry import Entry, Input
from magnetar_events.requests import DeployModel
from magnetar_scheduler.decide import decide
from magnetar_scheduler.inputs import Continue, Decidable, Request
from magnetar_scheduler.placement.explain import Explanation, explain_entry


@dataclass(slots=True, frozen=True)
class Leaver:
    """A replica that would start to leave its server.

    Attributes:
        model: key.
        generation: of its version.
        server: key.
        reason: what for.
    """

    model: str
    generation: int
    server: str
    reason: str


@dataclass(slots=True, frozen=True)
class Planned:
    """What would become of one wish.

    Attributes:
        model: key.
        generation: the version that it would have; 0 if it is rejected.
        code: why it would be rejected; empty = it would be accepted.
        message: the same, for people.
        placements: each replica that would be placed, and why those that would not be are not.
        leavers: the replicas that would begin to leave: its own, and those of lower priority that make room for it. What
            they make room for waits until they have left, and is nowhere in the plan.
    """

    model: str
    generation: int
    code: str
    message: str
    placements: tuple[Explanation, ...]
    leavers: tuple[Leaver, ...] = ()


def plan(state: State, wish: DeployModel) -> Planned:
    """Decide a wish as the leader would, and explain it.

    Nothing is sent. Signatures are not asked for: whoever may read the log may plan.

    Args:
        state: a copy, as of now; afterwards it is as if the wish had been granted, so that the next can be planned.
        wish: what for.
    """
    evolve(state, f.PolicySet(state.policy.model_copy(update={"require_signature": False})))
    key, placements, leavers = wish.subject, list[Explanation](), list[Leaver]()
    for facts in _granted(state, wish):
        for fact in facts:
            if isinstance(fact, f.RequestRejected):
                return Planned(key, 0, fact.code, fact.message, ())
        placements += explain_entry(state, state.at, facts, key)
        leavers += _leavers(facts, key)
    return Planned(key, state.models[key].generation, "", "", tuple(placements), tuple(leavers))


def _leavers(facts: list[f.Fact], key: str) -> Iterator[Leaver]:
    """Yield the replicas of a model, and those that leave for it, that begin to leave in an entry."""
    theirs = {
        (victim.model, victim.generation, fact.server)
        for fact in facts
        if isinstance(fact, f.ReplicasPreempted) and fact.model == key
        for victim in fact.victims
    }
    for fact in facts:
        if isinstance(fact, f.ReplicaChanged) and STATES[fact.before] in LIVE and STATES[fact.after] not in LIVE:
            place = (fact.model, fact.generation, fact.server)
            if fact.model == key or place in theirs:
                yield Leaver(*place, fact.reason)


def _granted(state: State, wish: DeployModel) -> Iterator[list[f.Fact]]:
    """Yield what is decided, entry by entry; each is folded when the next is asked for."""
    source: Decidable = Request(ModelEvent(id=f"plan-{state.position}", source="plan", event=wish))
    while facts := decide(state, source, state.at):
        yield facts
        position, version = state.position + 1, state.version
        entry = Entry(f"plan-{position}", position, state.term, state.at, state.wall, version, Input("plan"), {})
        entry.facts = tuple(facts)
        fold(state, entry)
        if wish.subject not in state.unsettled:
            return
        source = Continue()

"""Why a placement is as it is: every server of the fleet, with the rule that turned it down or what it scored.

Nothing of it is in the log. It is found out anew by the code that decides, on the state of before the entry.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from magnetar_common.state import Model, State, Version
from magnetar_events import facts as f
from magnetar_scheduler.draft import Draft
from magnetar_scheduler.placement.ask import Ask
from magnetar_scheduler.placement.filters import RULES
from magnetar_scheduler.placement.search import Placed, Search, place
from magnetar_scheduler.placement.site import Site

WHOLE = 20
"""Placements of one model in one entry that are explained with every server; of more it is only told where they went."""


@dataclass(slots=True, frozen=True)
class Verdict:
    """One server.

    Attributes:
        server: key.
        rule: that turned it down; empty = it would take the replica.
        said: the rule's sentence; empty for none.
        scores: scorer → what it added, in replicas on a server; lower is better.
        total: the score; 0 if it was turned down.
        compared: whether the search looked at it. It does not where others that are as little loaded come first.
        chosen: it was.
    """

    server: str
    rule: str
    said: str
    scores: dict[str, float]
    total: float
    compared: bool
    chosen: bool


@dataclass(slots=True, frozen=True)
class Explanation:
    """One placement, or one refusal.

    Attributes:
        model: key.
        generation: of the version.
        server: where the replica goes; empty = nowhere.
        missing: replicas of which the same is so; 0 for a placement.
        message: why nowhere.
        agrees: whether the log says the same; it may not, where other software decided.
        servers: all, the best first, then by rule; none if only the outcome is told.
    """

    model: str
    generation: int
    server: str
    missing: int
    message: str
    agrees: bool
    servers: tuple[Verdict, ...]


def explain(draft: Draft, model: Model, version: Version) -> Explanation:
    """Explain what :func:`place` says, and change nothing."""
    answer = place(draft, model, version)
    ask = Ask(draft, model, version)
    search = Search(ask)
    compared = {key for _, key, _ in search.find()} if not search.sieve.against_all() else set[str]()
    chosen = answer.server if isinstance(answer, Placed) else ""
    verdicts: list[Verdict] = []
    for key, server in draft.state.servers.items():
        site = Site(ask, server)
        rule = search.sieve.against(site)
        scores = {} if rule else search.scale.each(site)
        total = 0.0 if rule else search.scale.total(site)
        verdicts.append(Verdict(key, rule, RULES.get(rule, ""), scores, total, key in compared, key == chosen))
    verdicts.sort(key=lambda each: (not each.chosen, each.rule, not each.compared, each.total, each.server))
    message = "" if isinstance(answer, Placed) else answer.message
    missing = 0 if chosen else model.missing(version.generation)
    return Explanation(model.key, version.generation, chosen, missing, message, True, tuple(verdicts))


def explain_entry(state: State, at: int, facts: Iterable[f.Fact], model: str) -> list[Explanation]:
    """Explain every placement and refusal of a model in an entry.

    Args:
        state: of before the entry; only read.
        at: log time of the entry (ms).
        facts: of the entry.
        model: key.
    """
    draft, found = Draft(state, at), list[Explanation]()
    for fact in facts:
        if isinstance(fact, (f.ReplicaPlaced, f.PlacementRefused)) and fact.model == model:
            found.append(_explained(draft, fact, whole=len(found) < WHOLE))
        draft.emit(fact)
    return found


def explain_now(state: State, model: str) -> list[Explanation]:
    """Explain what would become of each version of a model that waits for room, as things stand."""
    draft = Draft(state, state.at)
    copy = draft.model(model)
    if copy is None:
        return []
    waiting = (copy.versions[generation] for generation in copy.kept())
    return [explain(draft, copy, version) for version in waiting if version.refused is not None]


def _explained(draft: Draft, fact: f.ReplicaPlaced | f.PlacementRefused, *, whole: bool) -> Explanation:
    model = draft.model(fact.model)
    version = model.versions.get(fact.generation) if model else None
    server = fact.server if isinstance(fact, f.ReplicaPlaced) else ""
    if model is None or version is None or not (whole or not server):
        missing, message = (0, "") if isinstance(fact, f.ReplicaPlaced) else (fact.missing, fact.message)
        return Explanation(fact.model, fact.generation, server, missing, message, agrees=True, servers=())
    explained = explain(draft, model, version)
    return replace(explained, agrees=explained.server == server)

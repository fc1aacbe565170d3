"""Every version that a model has had: who wanted it, what it was, and what became of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from magnetar_common.log import LogRecord
from magnetar_common.render import plain
from magnetar_events import facts as f
from magnetar_projector.history import Difference, compare, told
from magnetar_projector.places import time_of

_MILESTONES = (
    f.ModelWanted,
    f.ModelScaled,
    f.ModelUndeployed,
    f.ArtifactPinned,
    f.TrafficChanged,
    f.VersionFailed,
    f.VersionRevived,
    f.VersionRetired,
    f.ModelRemoved,
)

MILESTONES = tuple(kind.__name__ for kind in _MILESTONES)
"""Kinds of fact that tell what became of a version."""


class NoSuchVersion(LookupError):
    """The log has no version of this number."""


@dataclass(slots=True)
class VersionPast:
    """One version of a model.

    Attributes:
        generation: its number.
        position: of the entry that first wanted it.
        wall: ms since the epoch of that.
        actor: who asked; a mere claim while ``authverified`` is ``none``.
        authtype: ``user``, ``service``, …
        authverified: how the leader knows: ``none``, ``signature`` or ``gateway``.
        publisher: who signed; empty = nobody.
        reason: why, in free text.
        rollback_of: the earlier version whose specification it has; 0 = none.
        spec: as it was wanted last.
        digest: of its artifact; empty = never loaded.
        outcome: ``Serving`` = it gets traffic; ``Coming`` = wanted, and gets none yet; ``Failed``; ``Served`` = it got
            traffic until another version took over or the model was undeployed; ``Skipped`` = it never got any.
        code: typed reason of ``Failed``.
        message: for people, of ``Failed``.
        first_served: ms since the epoch when it first got traffic; None = never.
        last_served: ms since the epoch when it last ceased to; None = never.
        wanted_again: positions at which it was rolled back to.
    """

    generation: int
    position: int
    wall: int
    actor: str
    authtype: str
    authverified: str
    publisher: str
    reason: str
    rollback_of: int
    spec: Mapping[str, Any]
    digest: str = ""
    outcome: str = "Coming"
    code: str = ""
    message: str = ""
    first_served: int | None = None
    last_served: int | None = None
    wanted_again: list[int] = field(default_factory=list[int])


def versions_of(model: str, records: Iterable[LogRecord]) -> list[VersionPast]:
    """Return the versions of a model, oldest first.

    Args:
        model: key.
        records: entries in order of the log, all of those at least that hold one of :data:`MILESTONES` of the model.
    """
    past = _Past()
    for record, request, fact in told(model, _MILESTONES, records):
        past.hear(record, fact, request)
    return [past.judged(version) for version in past.versions.values()]


class _Past:
    """What is known so far."""

    def __init__(self) -> None:
        self.versions: dict[int, VersionPast] = {}
        self._wanted = 0
        self._serving: set[int] = set()
        self._failed: set[int] = set()

    def hear(self, record: LogRecord, fact: Any, request: f.RequestAccepted | None) -> None:
        known = self.versions.get(getattr(fact, "generation", self._wanted))
        if isinstance(fact, f.ModelWanted):
            self._want(record, fact, request)
        elif isinstance(fact, (f.ModelUndeployed, f.ModelRemoved)):
            self._wanted = 0
        elif isinstance(fact, f.TrafficChanged):
            self._route({target.generation for target in fact.targets}, record.entry.wall)
        elif known is None:
            return
        elif isinstance(fact, f.ModelScaled):
            known.spec = {**known.spec, "replicas": fact.replicas}
        elif isinstance(fact, f.ArtifactPinned):
            known.digest = fact.digest
        elif isinstance(fact, f.VersionFailed):
            self._failed.add(fact.generation)
            known.code, known.message = fact.code, fact.message
        elif isinstance(fact, f.VersionRevived):
            self._failed.discard(fact.generation)

    def judged(self, version: VersionPast) -> VersionPast:
        """Return a version with its outcome."""
        generation = version.generation
        if generation in self._serving:
            outcome = "Serving"
        elif generation in self._failed and (version.first_served is None or generation == self._wanted):
            return replace(version, outcome="Failed")
        elif version.first_served is not None:
            outcome = "Served"
        else:
            outcome = "Coming" if generation == self._wanted else "Skipped"
        return replace(version, outcome=outcome, code="", message="")

    def _want(self, record: LogRecord, fact: f.ModelWanted, request: f.RequestAccepted | None) -> None:
        self._wanted, spec = fact.generation, plain(fact.spec)
        self._failed.discard(fact.generation)
        known = self.versions.get(fact.generation)
        if known is not None:
            known.spec = spec
            known.wanted_again.append(record.entry.position)
            return
        asked = ("", "", "", "", "")
        if request is not None:
            asked = (request.actor, request.authtype, request.authverified, request.publisher, request.reason)
        entry, digest = record.entry, fact.spec.artifact_digest
        self.versions[fact.generation] = VersionPast(
            fact.generation, entry.position, entry.wall, *asked, fact.rollback_of, spec, digest
        )

    def _route(self, served: set[int], wall: int) -> None:
        for generation, version in self.versions.items():
            if generation in served:
                version.first_served = wall if version.first_served is None else version.first_served
            elif generation in self._serving:
                version.last_served = wall
        self._serving = served


def between(versions: Iterable[VersionPast], one: int, other: int) -> tuple[Difference, ...]:
    """Return in what two versions differ: their specifications, and ``artifact`` if their artifacts do.

    How many replicas are wanted is no part of a version.

    Raises:
        NoSuchVersion: one of them never was.
    """
    known = {version.generation: version for version in versions}
    for number in (one, other):
        if number not in known:
            there = ", ".join(map(str, sorted(known)))
            raise NoSuchVersion(f"there was no version {number}; the log has {there or 'none'}")
    before, after = (_whole(known[number]) for number in (one, other))
    return compare(before, after)


_NO_PART = ("artifactDigest", "replicas")
"""Of a specification, what two versions are not compared in."""


def _whole(version: VersionPast) -> dict[str, Any]:
    spec = {name: value for name, value in version.spec.items() if name not in _NO_PART}
    return {**spec, "artifact": version.digest}


def shown(version: VersionPast) -> dict[str, Any]:
    """Return a version as JSON values."""
    return {**plain(version), "time": time_of(version.wall)}

"""What was asked of a model: by whom, when, why, and what each wish changed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar_common.log import LogRecord
from magnetar_common.render import plain
from magnetar_events import facts as f

_NOTHING: Mapping[str, Any] = {}
_WISHES = (f.ModelWanted, f.ModelScaled, f.ModelUndeployed, f.ModelFrozen, f.ModelUnfrozen)

WISHES = tuple(kind.__name__ for kind in _WISHES)
"""Kinds of fact that make a model's history."""


@dataclass(slots=True, frozen=True)
class Difference:
    """A field of the specification, e.g. ``runtime.kind``, before and after; None = it was not there."""

    field: str
    before: Any
    after: Any


@dataclass(slots=True, frozen=True)
class Change:
    """One wish for a model that changed it.

    Attributes:
        position: of its entry.
        wall: ms since the epoch.
        kind: ``deployed``, ``rolled back``, ``scaled``, ``undeployed``, ``frozen`` or ``unfrozen``.
        generation: the version that was made, or that it was about.
        request: id of the request; empty if no request asked for it.
        source: which client sent it.
        actor: who asked; a mere claim while ``authverified`` is ``none``.
        authtype: ``user``, ``service``, …
        authverified: how the leader knows: ``none``, ``signature`` or ``gateway``; empty if no request asked for it.
        publisher: who signed; empty = nobody.
        reason: why, in free text.
        differences: to the specification before; empty for the first version.
    """

    position: int
    wall: int
    kind: str
    generation: int
    request: str
    source: str
    actor: str
    authtype: str
    authverified: str
    publisher: str
    reason: str
    differences: tuple[Difference, ...]


def history_of(model: str, records: Iterable[LogRecord]) -> list[Change]:
    """Return the changes of a model, oldest first.

    Args:
        model: key.
        records: entries in order of the log, all of those at least that hold a wish for the model.
    """
    changes: list[Change] = []
    generation, spec = 0, _NOTHING
    for record, request, fact in told(model, _WISHES, records):
        before = spec
        if isinstance(fact, f.ModelWanted):
            kind = "rolled back" if fact.again or fact.rollback_of else "deployed"
            generation, spec = fact.generation, plain(fact.spec)
        elif isinstance(fact, f.ModelScaled):
            kind, spec = "scaled", {**spec, "replicas": fact.replicas}
        elif isinstance(fact, f.ModelUndeployed):
            kind, spec = "undeployed", _NOTHING
        else:
            kind = "frozen" if isinstance(fact, f.ModelFrozen) else "unfrozen"
        differences = compare(before, spec) if before and spec else ()
        changes.append(_change(record, kind, generation, request, differences))
    return changes


def told(
    model: str, kinds: tuple[type, ...], records: Iterable[LogRecord]
) -> Iterator[tuple[LogRecord, f.RequestAccepted | None, Any]]:
    """Yield each fact of some kinds about a model, with its record and the request in it that asked for it, if any."""
    for record in records:
        request: f.RequestAccepted | None = None
        for fact in record.entry.facts:
            if isinstance(fact, f.RequestAccepted):
                request = fact
            elif isinstance(fact, kinds) and getattr(fact, "model", "") == model:
                yield record, request, fact


def _change(
    record: LogRecord,
    kind: str,
    generation: int,
    request: f.RequestAccepted | None,
    differences: tuple[Difference, ...],
) -> Change:
    entry = record.entry
    asked = (
        (
            request.request,
            request.source,
            request.actor,
            request.authtype,
            request.authverified,
            request.publisher,
            request.reason,
        )
        if request is not None
        else ("", "", "", "", "", "", "")
    )
    return Change(entry.position, entry.wall, kind, generation, *asked, differences)


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return which fields differ, in order of name; nested ones are named with dots."""
    old, new = _flat(before), _flat(after)
    names = sorted(old.keys() | new.keys())
    return tuple(Difference(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            found.update(_flat(item, f"{prefix}{name}."))  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[prefix + name] = item
    return found

"""Questions to the read model: what is, what was, and what happened in between."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from magnetar_common.bus import MessageId
from magnetar_common.log import LogRecord
from magnetar_common.state import State
from magnetar_projector.history import WISHES, Change, history_of
from magnetar_projector.places import NoSuchPlace, Place, time_of, wall_of
from magnetar_projector.read_model import ReadModel
from magnetar_projector.versions import MILESTONES, VersionPast, versions_of


@dataclass(slots=True, frozen=True)
class Line:
    """A line of a story: one fact, in plain words.

    Attributes:
        position: of its entry.
        wall: ms since the epoch.
        kind: of the fact.
        text: what it says.
    """

    position: int
    wall: int
    kind: str
    text: str


class Queries:
    """Answers from what is committed, for any thread.

    Args:
        read_model: whom to ask.
    """

    def __init__(self, read_model: ReadModel) -> None:
        self._read_model = read_model
        self._query = read_model.query

    def still(self) -> AbstractContextManager[object]:
        """Return a context in which all answers are of the same position; for short."""
        return self._read_model.still()

    @property
    def position(self) -> int:
        """The position up to which the answers are true; -1 = nothing is known yet."""
        checkpoint = self._read_model.checkpoint()
        return checkpoint.position if checkpoint else -1

    # --- what is ------------------------------------------------------------------------------------------------------

    def models(self) -> list[dict[str, Any]]:
        """Return every model, with its status and replicas, in order of key."""
        return [json.loads(row[0]) for row in self._query("SELECT json FROM models ORDER BY key")]

    def model(self, key: str) -> dict[str, Any] | None:
        """Return a model, or None."""
        rows = self._query("SELECT json FROM models WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else None

    def servers(self) -> list[dict[str, Any]]:
        """Return every server in order of key."""
        return [json.loads(row[0]) for row in self._query("SELECT json FROM servers ORDER BY key")]

    # --- what was -----------------------------------------------------------------------------------------------------

    def position_at(self, place: Place) -> int:
        """Return the last position that belongs to a place: at or before it.

        Raises:
            NoSuchPlace: it is before the log begins, or (a position or message) after what is known.
        """
        if isinstance(place, datetime):
            sql = "SELECT position FROM entries WHERE wall <= ? ORDER BY wall DESC, position DESC LIMIT 1"
            rows = self._query(sql, (wall_of(place),))
        elif isinstance(place, MessageId):
            sql = (
                "SELECT position FROM entries WHERE (ledger, entry, batch) <= (?, ?, ?) "
                "ORDER BY ledger DESC, entry DESC, batch DESC LIMIT 1"
            )
            rows = self._query(sql, place[:3])
        else:
            rows = [(place,)] if 0 <= place <= self.position else []
        if not rows:
            raise NoSuchPlace(
                f"{_shown(place)} is not in the log, which is known here from position 0 to {self.position}"
            )
        return rows[0][0]

    def entry_at(self, position: int) -> LogRecord:
        """Return the entry at a position.

        Raises:
            NoSuchPlace: there is none.
        """
        record = next(self._read_model.records(position, after=self.position_at(position) - 1), None)
        assert record is not None, f"position {position} is within the checkpoint"
        return record

    def state_at(self, place: Place | None = None) -> State:
        """Return the whole state as it was at a place, or (None) as of now: folded anew from the entries.

        Raises:
            NoSuchPlace: the log does not hold it.
        """
        return self._read_model.refold(None if place is None else self.position_at(place))

    # --- what happened ------------------------------------------------------------------------------------------------

    def story(self, subject: str, start: Place | None = None, end: Place | None = None) -> list[Line]:
        """Return what happened to a model or a server, a line for each fact, oldest first.

        Args:
            subject: ``tenant/model`` or ``cluster/server/replica``.
            start: from here on (None = from the beginning).
            end: up to and including here (None = to the end).

        Raises:
            NoSuchPlace: the log does not hold a place that was given.
        """
        first = 0 if start is None else self.position_at(start)
        last = self.position if end is None else self.position_at(end)
        rows = self._query(
            "SELECT position, wall, facts.kind, text FROM mentions JOIN facts USING (position, idx) "
            "JOIN entries USING (position) "
            "WHERE mentions.subject = ? AND position BETWEEN ? AND ? ORDER BY position, idx",
            (subject, first, last),
        )
        return [Line(*row) for row in rows]

    def history(self, model: str) -> list[Change]:
        """Return what was asked of a model, by whom, when, why, and what it changed; empty for one that never was."""
        return history_of(model, self._entries_with(model, WISHES))

    def versions(self, model: str) -> list[VersionPast]:
        """Return every version that a model has had, and what became of each; empty for a model that never was."""
        return versions_of(model, self._entries_with(model, MILESTONES))

    def _entries_with(self, model: str, kinds: tuple[str, ...]) -> Iterator[LogRecord]:
        among = ", ".join("?" * len(kinds))
        source = f"mentions JOIN facts USING (position, idx) WHERE mentions.subject = ? AND kind IN ({among})"
        sql = f"SELECT DISTINCT position FROM {source} ORDER BY position"  # noqa: S608 - ours
        rows = self._query(sql, (model, *kinds))
        return (self.entry_at(position) for (position,) in rows)

    def log(self, *, after: int = -1, subject: str = "", kind: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Return entries in order, with the facts that were asked for.

        Args:
            after: begin behind this position.
            subject: only facts of this model's or server's story, and entries that have any.
            kind: only facts of this kind, and entries that have any.
            limit: at most so many entries.
        """
        source, chosen = _chosen(subject, kind)
        only = f"AND position IN (SELECT position FROM {source} AND position > ?)" if chosen else ""  # noqa: S608 - ours
        entries = self._query(
            f"SELECT {_COLUMNS} FROM entries WHERE position > ? {only} ORDER BY position LIMIT ?",  # noqa: S608 - ours
            (after, *chosen, *((after,) if chosen else ()), limit),
        )
        if not entries:
            return []
        rows = self._query(
            f"SELECT position, facts.kind, facts.subject, text, json FROM {source} "  # noqa: S608 - ours
            "AND position BETWEEN ? AND ? ORDER BY position, idx",
            (*chosen, entries[0][0], entries[-1][0]),
        )
        facts: dict[int, list[dict[str, Any]]] = {}
        for position, named, about, text, shown in rows:
            fact = {"kind": named, "subject": about, "text": text, "fact": json.loads(shown)}
            facts.setdefault(position, []).append(fact)
        return [_entry(row, facts.get(row[0], [])) for row in entries]


_COLUMNS = "position, ledger, entry, batch, id, term, at, wall, kind, topic, input_message_id, key"


def _chosen(subject: str, kind: str) -> tuple[str, tuple[str, ...]]:
    """Return what follows ``SELECT … FROM`` for the facts of a subject and a kind, and its parameters."""
    source, chosen = "facts WHERE TRUE", ()
    if subject:
        source, chosen = "mentions JOIN facts USING (position, idx) WHERE mentions.subject = ?", (subject,)
    return (f"{source} AND facts.kind = ?", (*chosen, kind)) if kind else (source, chosen)


def _entry(row: tuple[Any, ...], facts: list[dict[str, Any]]) -> dict[str, Any]:
    position, ledger, entry, batch, name, term, at, wall, kind, topic, message_id, key = row
    return {
        "position": position,
        "messageId": str(MessageId(ledger, entry, batch)),
        "id": name,
        "term": term,
        "at": at,
        "wall": wall,
        "time": time_of(wall),
        "input": {"kind": kind, "topic": topic, "messageId": message_id, "key": key},
        "facts": facts,
    }


def _shown(place: Place) -> str:
    if isinstance(place, datetime):
        return f"time {place.isoformat()}"
    return f"message {place}" if isinstance(place, MessageId) else f"position {place}"

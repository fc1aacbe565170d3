"""The read model: the log as tables in SQLite, with the place up to which they are true.

A batch of entries, what they changed, and the checkpoint are written in one transaction: after a crash at any moment
the file is as of some position, nothing lost and nothing twice. The writes of the last moments before a power cut may
be gone (``synchronous=NORMAL``); the log has them.
"""

import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import structlog

from magnetar_common.bus import MessageId
from magnetar_common.errors import LogError
from magnetar_common.evolve import fold
from magnetar_common.log import LogRecord
from magnetar_common.render import canonical, fact_to_dict, plain, server_to_dict
from magnetar_common.snapshot import Header, Snapshots, Unusable
from magnetar_common.state import State
from magnetar_common.status import model_status
from magnetar_events import ENTRY
from magnetar_events.codec import Undecodable
from magnetar_events.entry import FOLD_VERSION
from magnetar_events.facts import subject_of
from magnetar_projector.narrative import concerns, narrate
from magnetar_projector.schema import SCHEMA_VERSION, TABLES

MEMORY = ":memory:"
"""Path of a read model that is not kept."""

_PAGE = 1_000

_log = structlog.get_logger(__name__)


class ReadModelBroken(Exception):
    """The file cannot be continued: build it anew from the log."""


@dataclass(slots=True, frozen=True)
class Checkpoint:
    """The place up to which the tables are true.

    Attributes:
        position: of the last entry projected.
        message_id: where it is in the log.
        term: of its leader.
        at: its log time (ms).
        wall: its wall time (ms since the epoch).
        fold_version: of the software that projected it.
    """

    position: int
    message_id: MessageId
    term: int
    at: int
    wall: int
    fold_version: int


@dataclass(slots=True, frozen=True)
class Stored:
    """What names a stored entry: its id, and where it is in the log."""

    id: str
    message_id: MessageId


class ReadModel:
    """Tables that follow the log. One thread projects; any number may query, and see only what is committed.

    A file that cannot be used (another version of the tables or of the fold, not a database) is replaced by an empty
    one, and that is logged.

    Args:
        path: of the file, made if it is not there; ``:memory:`` = in memory.
        busy_timeout_s: seconds to wait for another process that has it locked.
        snapshots: shorten the way to a state.

    Raises:
        sqlite3.Error: the file cannot be reached (locked, not permitted); it is left alone.
    """

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 5.0, snapshots: Snapshots | None = None) -> None:
        self._snapshots = snapshots
        self._busy_timeout_s = busy_timeout_s
        self._path = str(path)
        self._lock = threading.RLock()
        self._batch = _Batch()
        if self._path != MEMORY:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._db = self._connect()
        try:
            self._prepare()
        except ReadModelBroken as error:
            self.recreate(str(error))

    # --- writing ------------------------------------------------------------------------------------------------------

    def project(self, state: State, record: LogRecord) -> bool:
        """Fold an entry into the state and note what to write; return False for a barrier or a repeat.

        Raises:
            LogError: the entry does not follow; nothing was changed or noted.
        """
        entry = record.entry
        mentions = [concerns(state, fact) for fact in entry.facts]
        if not fold(state, entry, str(record.message_id)):
            return False
        self._batch.add(record, mentions)
        return True

    @property
    def pending(self) -> int:
        """How many entries are folded and not yet written."""
        return len(self._batch.records)

    def commit(self, state: State) -> None:
        """Write everything that was folded since the last commit, and the new checkpoint, in one transaction.

        Raises:
            sqlite3.Error: nothing was written. Another process writing to the file is found so, too: a position is
                written once.
        """
        batch = self._batch
        if not batch.records:
            return
        entries, facts, mentions = batch.rows()
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            insert = self._db.executemany
            insert("INSERT INTO entries VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)", entries)
            insert("INSERT INTO facts VALUES (?,?,?,?,?,?)", facts)
            insert("INSERT INTO mentions VALUES (?,?,?)", mentions)
            for subject in batch.subjects:
                self._write_model(state, subject)
                self._write_server(state, subject)
            self._write_checkpoint(state, batch.records[-1].message_id)
        self._batch = _Batch()

    def _write_model(self, state: State, key: str) -> None:
        execute = self._db.execute
        execute("DELETE FROM replicas WHERE model = ?", (key,))
        model = state.models.get(key)
        if model is None:
            execute("DELETE FROM models WHERE key = ?", (key,))
            return
        status = model_status(model)
        shown = {**plain(model), "status": plain(replace(status, replicas=()))}
        execute(
            "INSERT OR REPLACE INTO models VALUES (?,?,?,?,?,?)",
            (key, status.state, status.generation, status.wanted, status.available, canonical(shown)),
        )
        self._db.executemany(
            "INSERT INTO replicas VALUES (?,?,?,?,?)",
            [(key, r.generation, r.server, r.state, canonical(plain(r))) for r in status.replicas],
        )

    def _write_server(self, state: State, key: str) -> None:
        server = state.servers.get(key)
        if server is None:
            self._db.execute("DELETE FROM servers WHERE key = ?", (key,))
            return
        shown = {**server_to_dict(server), "schedulable": server.schedulable}
        self._db.execute(
            "INSERT OR REPLACE INTO servers VALUES (?,?,?,?,?,?)",
            (key, server.info.host, server.record.status, server.lost, server.schedulable, canonical(shown)),
        )

    def _write_checkpoint(self, state: State, message_id: MessageId) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO checkpoint VALUES (1,?,?,?,?,?,?)",
            (state.position, str(message_id), state.term, state.at, state.wall, FOLD_VERSION),
        )

    # --- reading ------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint | None:
        """Return the place up to which the tables are true, or None while nothing is in them."""
        rows = self.query("SELECT position, message_id, term, at, wall, fold_version FROM checkpoint")
        if not rows:
            return None
        position, message_id, term, at, wall, fold_version = rows[0]
        return Checkpoint(position, MessageId.parse(message_id), term, at, wall, fold_version)

    def still(self) -> AbstractContextManager[object]:
        """Return a context in which nothing is committed, so that several queries see the same position."""
        return self._lock

    def place(self, position: int) -> Stored:
        """Return the name and the place of a stored entry.

        Raises:
            ReadModelBroken: it should be there and is not.
        """
        rows = self.query("SELECT id, ledger, entry, batch FROM entries WHERE position = ?", (position,))
        if not rows:
            raise ReadModelBroken(f"position {position} is not stored")
        name, *place = rows[0]
        return Stored(name, MessageId(*place))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query.

        Raises:
            ReadModelBroken: the file is damaged.
        """
        with self._lock, _broken_if_corrupt():
            return self._db.execute(sql, parameters).fetchall()

    def records(self, to: int | None = None, *, after: int = -1) -> Iterator[LogRecord]:
        """Yield the entries after a position, up to and including position ``to``. Others can query meanwhile.

        Raises:
            Undecodable: an entry's bytes cannot be read.
        """
        last = self._last(to)
        while True:
            rows = self.query(
                "SELECT position, ledger, entry, batch, schema, bytes FROM entries "
                "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
                (after, last, _PAGE),
            )
            for _, *place, schema, payload in rows:
                yield LogRecord(ENTRY.decode_trusted(payload, schema), MessageId(*place), payload, schema)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def refold(self, to: int | None = None) -> State:
        """Return the state up to and including a position (the last, if None), from the stored entries.

        What the newest snapshot of them has is not folded again.

        Raises:
            ReadModelBroken: the stored entries are not the log that they should be.
        """
        last = self._last(to)
        state = self._from_snapshot(last) or State()
        try:
            for record in self.records(last, after=state.position):
                fold(state, record.entry, str(record.message_id))
        except (LogError, Undecodable) as error:
            raise ReadModelBroken(f"stored entries cannot be folded: {error}") from error
        if state.position != last:
            raise ReadModelBroken(f"entries end at {state.position} and should reach {last}")
        return state

    def _from_snapshot(self, last: int) -> State | None:
        if self._snapshots is None or last < 0:
            return None

        def check(header: Header) -> None:
            stored = self.place(header.position)
            if (stored.id, str(stored.message_id)) != (header.entry, header.message_id):
                raise Unusable(f"it ends with entry {header.entry} in message {header.message_id}, here it is {stored}")

        return self._snapshots.newest(self.place(0).id, check, at_most=last)

    def _last(self, to: int | None) -> int:
        if to is not None:
            return to
        checkpoint = self.checkpoint()
        return checkpoint.position if checkpoint else -1

    # --- the file -----------------------------------------------------------------------------------------------------

    def recreate(self, reason: str) -> None:
        """Start over with empty tables; everything in them comes from the log.

        Args:
            reason: why, for the operator's log.
        """
        _log.warning("the read model is built anew from the log", path=self._path, reason=reason)
        with self._lock:
            self._batch = _Batch()
            self._db.close()
            if self._path != MEMORY:
                for suffix in ("", "-wal", "-shm"):
                    Path(self._path + suffix).unlink(missing_ok=True)
            self._db = self._connect()
            self._prepare()

    def close(self) -> None:
        """Close the file. What was folded and not committed is not in it, and is read from the log again."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=self._busy_timeout_s, check_same_thread=False, isolation_level=None)

    def _prepare(self) -> None:
        """Give a new file its tables; check an old one's."""
        with _broken_if_corrupt():
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                self._db.executescript(TABLES)
                return
        if version != SCHEMA_VERSION:
            raise ReadModelBroken(f"its tables have version {version}, this software has {SCHEMA_VERSION}")
        checkpoint = self.checkpoint()
        if checkpoint is not None and checkpoint.fold_version != FOLD_VERSION:
            raise ReadModelBroken(
                f"it was folded by version {checkpoint.fold_version}, this software has {FOLD_VERSION}"
            )


@contextmanager
def _broken_if_corrupt() -> Generator[None]:
    """Tell a file that must be replaced from one that cannot be reached now (locked, no permission, disk full)."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname in ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR"):
            raise ReadModelBroken(f"{error.sqlite_errorname}: {error}") from error
        raise


class _Batch:
    """Entries folded and not yet written, and whom they concern."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.subjects: dict[str, None] = {}
        self._mentions: list[list[tuple[str, ...]]] = []

    def add(self, record: LogRecord, mentions: list[tuple[str, ...]]) -> None:
        self.records.append(record)
        self._mentions.append(mentions)
        for subjects in mentions:
            self.subjects.update(dict.fromkeys(subjects))

    def rows(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the rows of entries, facts and mentions."""
        entries: list[Any] = []
        facts: list[Any] = []
        mentions: list[Any] = []
        for record, mentioned in zip(self.records, self._mentions, strict=True):
            entry, place, source = record.entry, record.message_id, record.entry.input
            entries.append(
                (
                    *(entry.position, place.ledger, place.entry, place.batch),
                    *(entry.id, entry.term, entry.at, entry.wall),
                    *(source.kind, source.topic, source.message_id, source.key),
                    *(record.fingerprint, record.payload),
                )
            )
            for index, fact in enumerate(entry.facts):
                kind, shown = type(fact).__name__, canonical(fact_to_dict(fact))
                facts.append((entry.position, index, kind, subject_of(fact), narrate(fact), shown))
                mentions.extend((subject, entry.position, index) for subject in mentioned[index])
        return entries, facts, mentions

"""The log as files: Avro containers, each of which names the sha256 of the one before, so that none can be exchanged.

A file holds entries in order, with the schema that they were written with. Its metadata say where it stands::

    magnetar.previous        sha256 (hex) of the file before it; empty for the first
    magnetar.broker          cluster whose message ids these are
    magnetar.first.position  magnetar.first.message    of its first entry
    magnetar.last.position   magnetar.last.message     of its last one

Barriers, repeats and voided junk are no history, and are not in it. The same log, cut the same way, gives the same bytes.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

import fastavro
import fsspec  # pyright: ignore[reportMissingTypeStubs]

from magnetar_common.bus import EARLIEST, Bus, MessageId
from magnetar_common.errors import ArchiveBroken, LogTooNew
from magnetar_common.evolve import RECENT, fold
from magnetar_common.log import LogReader, LogRecord
from magnetar_common.render import state_digest
from magnetar_common.state import State
from magnetar_events import ENTRY, schemas
from magnetar_events.codec import Undecodable
from magnetar_events.entry import Entry

ENTRIES = 20_000
"""Entries in one file, at most, unless told otherwise."""

MEBIBYTES = 16
"""Size of one file (MiB), before compression, at about which it is closed."""

PATIENCE_S = 5.0
"""An entry that the broker says is there comes within this time (seconds)."""

_avro: Any = fastavro  # which has no complete types
_PREFIX = "magnetar."


@dataclass(slots=True, frozen=True)
class Link:
    """One file of an archive.

    Attributes:
        path: where it is.
        sha256: of the whole file, hex; the next one names it.
        previous: what it names.
        broker: cluster whose message ids these are.
        first: position of its first entry.
        last: of its last one.
        first_message: id of the message that the first entry came in.
        last_message: … and the last.
        entries: how many.
    """

    path: str
    sha256: str
    previous: str
    broker: str
    first: int
    last: int
    first_message: str
    last_message: str
    entries: int


class Archive:
    """A folder of chained files, anywhere that fsspec reaches. For one process at a time.

    Args:
        url: a folder: a path, or ``s3://…``, ``memory://…``, …

    Raises:
        ValueError: nothing installed knows this kind of URL.
    """

    def __init__(self, url: str) -> None:
        self._fs: Any
        self._fs, self._root = cast("tuple[Any, str]", fsspec.url_to_fs(url))  # pyright: ignore[reportUnknownMemberType]

    def paths(self) -> list[str]:
        """Return the files, in order."""
        self._fs.invalidate_cache()
        if not self._fs.isdir(self._root):
            return []
        return sorted(path for path in self._fs.ls(self._root, detail=False) if path.endswith(".avro"))

    def read(self, path: str) -> tuple[Link, list[Entry]]:
        """Return one file and what is in it.

        Raises:
            ArchiveBroken: it is damaged, or is not what its metadata say.
        """
        payload: bytes = self._fs.cat_file(path)
        try:
            file = _avro.reader(io.BytesIO(payload), return_record_name=True, return_record_name_override=True)
            about = {key: value for key, value in file.metadata.items() if key.startswith(_PREFIX)}
            entries = [ENTRY.from_raw(raw) for raw in file]
            link = Link(
                path,
                sha256(payload).hexdigest(),
                about["magnetar.previous"],
                about["magnetar.broker"],
                int(about["magnetar.first.position"]),
                int(about["magnetar.last.position"]),
                about["magnetar.first.message"],
                about["magnetar.last.message"],
                len(entries),
            )
        except Undecodable as error:
            raise LogTooNew(f"{path} was written by newer software: {error}; upgrade this one") from error
        except Exception as error:
            raise ArchiveBroken(
                f"{path} cannot be read ({type(error).__name__}: {error}); if it is the last, delete it: the log has it"
            ) from error
        if [entry.position for entry in entries] != list(range(link.first, link.last + 1)):
            raise ArchiveBroken(f"{path} does not hold positions {link.first} to {link.last}, as it says")
        return link, entries

    def files(self) -> Iterator[tuple[Link, list[Entry]]]:
        """Yield every file in order, having seen that it follows the one before.

        Raises:
            ArchiveBroken: a file is damaged, missing, or not the one that is named by the next.
        """
        before: Link | None = None
        for path in self.paths():
            link, entries = self.read(path)
            if link.previous != (before.sha256 if before else ""):
                named = f"one with sha256 {link.previous}" if link.previous else "none"
                found = f"{before.path}, with sha256 {before.sha256}" if before else "nothing"
                raise ArchiveBroken(f"{path} follows {named}, and before it is {found}")
            if before is not None and link.first != before.last + 1:
                raise ArchiveBroken(f"{path} begins at position {link.first}, and {before.path} ends at {before.last}")
            yield link, entries
            before = link

    def append(self, records: list[LogRecord], previous: Link | None, broker: str) -> Link:
        """Write the next file: whole, or not at all where the file system can do that."""
        first, last = records[0], records[-1]
        about = {
            "magnetar.previous": previous.sha256 if previous else "",
            "magnetar.broker": broker,
            "magnetar.first.position": str(first.entry.position),
            "magnetar.last.position": str(last.entry.position),
            "magnetar.first.message": str(first.message_id),
            "magnetar.last.message": str(last.message_id),
        }
        schema = schemas.by_fingerprint("state-changes", first.fingerprint or ENTRY.fingerprint)
        assert schema is not None, "it was read with this schema"
        out = io.BytesIO()
        mark = sha256("\n".join(about.values()).encode()).digest()[:16]  # of blocks; random ones would change the hash
        raw = (ENTRY.raw(record.payload, record.fingerprint) for record in records)
        _avro.writer(out, schema, raw, codec="deflate", metadata=about, sync_marker=mark)
        payload = out.getvalue()
        path = f"{self._root}/{first.entry.position:012d}-{last.entry.position:012d}.avro"
        self._fs.makedirs(self._root, exist_ok=True)
        with self._fs.transaction, self._fs.open(path, "wb") as file:
            file.write(payload)
        return Link(
            path,
            sha256(payload).hexdigest(),
            about["magnetar.previous"],
            broker,
            first.entry.position,
            last.entry.position,
            str(first.message_id),
            str(last.message_id),
            len(records),
        )


def archive(
    bus: Bus, to: Archive, start: int | None = None, *, entries: int = ENTRIES, mebibytes: int = MEBIBYTES
) -> Iterator[Link]:
    """Write what the log has and the archive has not, up to the log's end; yield each file that is written.

    Args:
        bus: where the log is; nothing is written there.
        to: goes on after its last file, whose contents are checked.
        start: position of the first entry of a new archive (by default 0); of one that is there, where it goes on.
        entries: in one file, at most.
        mebibytes: a file is closed when it has so many, before compression.

    Raises:
        ArchiveBroken: its last file is damaged, or it is not of this log, or does not go on at ``start``.
        LogError: the log cannot be followed.
        BusUnavailable: the broker is away; what was written stays, and a later run goes on after it.
    """
    paths = to.paths()
    previous, known = to.read(paths[-1]) if paths else (None, [])
    following = previous.last + 1 if previous else start or 0
    if start is not None and start != following:
        raise ArchiveBroken(f"the archive goes on at position {following}, not {start}: choose another folder")
    cut = _Cut(entries, mebibytes * 2**20)
    broker = bus.cluster_id()
    here = previous is not None and previous.broker == broker  # else its message ids mean nothing
    reader = LogReader(bus, MessageId.parse(previous.last_message) if previous and here else EARLIEST, "log-archive")
    # Only the places are followed: the archive is folded by whoever checks it.
    state = State(position=following - 1, recent={entry.position: entry.id for entry in known})
    try:
        for record in _after(reader, state, following):
            if cut.full(record):
                previous = to.append(cut.take(), previous, broker)
                yield previous
            cut.add(record)
            state.position = record.entry.position
            state.recent[state.position] = record.entry.id
            state.recent.pop(state.position - RECENT, None)
        if cut.records:
            yield to.append(cut.take(), previous, broker)
    finally:
        reader.close()


def _after(reader: LogReader, state: State, following: int) -> Iterator[LogRecord]:
    """Yield the history from a position on; what is older, and not at hand to compare with, is passed over."""
    for record in reader.stored(PATIENCE_S):
        older = record.entry.position < following and record.entry.position not in state.recent
        if not older and reader.follows(state, record):
            yield record


def entries_of(from_: Archive) -> Iterator[Entry]:
    """Yield the whole history.

    Raises:
        ArchiveBroken: it is damaged, or does not begin at position 0: then no state can be made of it.
    """
    for link, entries in from_.files():
        if link.previous == "" and link.first:
            raise ArchiveBroken(f"the archive begins at position {link.first}: the state needs all that was before")
        yield from entries


@dataclass(slots=True, frozen=True)
class Verified:
    """An archive whose chain holds.

    Attributes:
        files: how many.
        first: position of its first entry; 0 for an empty one.
        last: of its last one; -1 for an empty one.
        sha256: of its last file: who keeps it elsewhere can tell that nothing was exchanged.
        digest: of the state that it folds to; empty if it does not begin at position 0.
    """

    files: int
    first: int
    last: int
    sha256: str
    digest: str


def verify(archived: Archive) -> Verified:
    """Check every file, the chain, and that the history can be folded.

    Raises:
        ArchiveBroken: a file is damaged, missing, or not the one that is named by the next.
        LogError: the entries do not follow each other, or are of newer software.
    """
    state, files, first, last, head = State(), 0, 0, -1, ""
    for link, entries in archived.files():
        first = first if files else link.first
        files, last, head = files + 1, link.last, link.sha256
        if not first:
            for entry in entries:
                fold(state, entry, link.path)
    return Verified(files, first, last, head, state_digest(state) if not first else "")


class _Cut:
    """Entries for one file."""

    def __init__(self, entries: int, size: int) -> None:
        self.records: list[LogRecord] = []
        self._entries = entries
        self._limit = size
        self._size = 0

    def full(self, record: LogRecord) -> bool:
        """Whether the next file begins with this record: one has one schema."""
        return bool(self.records) and (
            len(self.records) >= self._entries
            or self._size >= self._limit
            or record.fingerprint != self.records[-1].fingerprint
        )

    def add(self, record: LogRecord) -> None:
        self.records.append(record)
        self._size += len(record.payload)

    def take(self) -> list[LogRecord]:
        taken, self.records, self._size = self.records, [], 0
        return taken

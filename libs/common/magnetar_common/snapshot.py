"""Snapshots: the state at a place of the log, as an object in a store. They are a cache and nothing else.

Whoever starts takes the newest that is whole, understood and of this very log, and folds what came after it. What is
wrong with one is logged and counted, and it is passed over: without any the result is the same, and takes longer.

An object is a line of JSON that says what it is, and behind it the compressed image of the state. Those of one log are
in a folder of their own, named for its first entry; so a log that began anew, or another Magnetar's, is not in the way.
"""

import hashlib
import re
import uuid
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import pydantic_core
import structlog

from magnetar_common.bus import EARLIEST, Bus, MessageId
from magnetar_common.errors import LogError, LogReplaced, NoSnapshotStore
from magnetar_common.log import LogRecord, first
from magnetar_common.metrics import SNAPSHOTS_IGNORED
from magnetar_common.settings import SnapshotSettings
from magnetar_common.state import State
from magnetar_common.state_image import FORMAT, image_of, state_of
from magnetar_events.avro import from_wire, to_wire
from magnetar_events.entry import BARRIER, FOLD_VERSION

_NAME = re.compile(r"/snapshot-(\d{20})(?:\.part-\w+)?$")

_log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class Header:
    """What a snapshot says of itself.

    Attributes:
        format: of the image.
        log: id of the log's first entry.
        broker: cluster in which the message ids mean something.
        position: of the last entry in it.
        entry: id of that.
        message_id: where it is in the log.
        before: a place in the log right before it.
        handled: topic → id of the last message handled.
        term: of the leader that appended it.
        at: log time (ms) of it.
        wall: wall time (ms since the epoch) of it.
        fold_version: of the log, in force after its last entry.
        sha256: of all the rest, header and image, hex.
    """

    format: int
    log: str
    broker: str
    position: int
    entry: str
    message_id: str
    before: str
    handled: dict[str, str]
    term: int
    at: int
    wall: int
    fold_version: int
    sha256: str = ""


@dataclass(slots=True, frozen=True)
class Snapshot:
    """A snapshot, whole: its header and the image behind it."""

    header: Header
    image: bytes

    @classmethod
    def of(cls, state: State, *, log: str, broker: str, message_id: MessageId, before: MessageId) -> "Snapshot":
        """Take one of a state that nobody changes meanwhile (10,000 models: a few tenths of a second).

        Args:
            state: right after its last entry.
            log: id of the first entry of its log.
            broker: cluster of it.
            message_id: where the last entry is.
            before: a place right before that.
        """
        header = Header(
            FORMAT,
            log,
            broker,
            state.position,
            state.entry,
            str(message_id),
            str(before),
            state.handled,
            state.term,
            state.at,
            state.wall,
            state.version,
        )
        image = zlib.compress(image_of(state), 1)
        return cls(replace(header, sha256=_sha256(header, image)), image)

    def encode(self) -> bytes:
        """Return it as it is stored."""
        return _line(self.header) + self.image

    @classmethod
    def decode(cls, stored: bytes) -> "Snapshot":
        """Read what was stored.

        Raises:
            Unusable: it is damaged, or was written for other software than this.
        """
        line, _, image = stored.partition(b"\n")
        try:
            read = pydantic_core.from_json(line)
            if read["format"] != FORMAT:
                raise Unusable(f"it has format {read['format']}, this software reads {FORMAT}")
            header: Header = from_wire(Header)(read)
            _ = MessageId.parse(header.message_id), MessageId.parse(header.before)
        except (ValueError, LookupError, TypeError) as error:
            raise Unusable(f"it is damaged: its header cannot be read ({type(error).__name__})") from error
        if header.fold_version > FOLD_VERSION:
            raise Unusable(f"it needs fold version {header.fold_version}, this software has {FOLD_VERSION}")
        if _sha256(header, image) != header.sha256:
            raise Unusable("it is damaged: its sha256 is another")
        return cls(header, image)

    def state(self) -> State:
        """Return the state in it.

        Raises:
            Unusable: the image is not what its header says.
        """
        try:
            state = state_of(zlib.decompress(self.image))
        except (ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
            raise Unusable(f"its image cannot be read: {type(error).__name__}: {error}"[:300]) from error
        if (state.position, state.entry) != (self.header.position, self.header.entry):
            raise Unusable(f"its image is of position {state.position}, entry {state.entry}")
        return state


class Unusable(Exception):
    """A snapshot that is not to be used, and why."""


Check = Callable[[Header], None]
"""Raises :class:`Unusable` for a snapshot that is not of the log that is meant."""


class Snapshots:
    """The store: a folder anywhere that fsspec reaches. Safe to use from several threads.

    Args:
        url: of the folder; made when something is written.
        keep: how many of the newest of one log are kept.

    Raises:
        NoSnapshotStore: the URL is none that can be used here.
    """

    def __init__(self, url: str, keep: int = 3) -> None:
        try:
            import fsspec.core  # pyright: ignore[reportMissingTypeStubs]

            url_to_fs = cast("Callable[[str], tuple[Any, str]]", fsspec.core.url_to_fs)  # pyright: ignore[reportUnknownMemberType]
            self._fs, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise NoSnapshotStore(f"snapshots cannot be kept at {url.partition(':')[0]}:…: {error}") from error
        self._keep = keep

    @classmethod
    def from_settings(cls, settings: SnapshotSettings) -> "Snapshots | None":
        """Return the store that the settings name; None = there is none.

        Raises:
            NoSnapshotStore: the URL is none that can be used here.
        """
        return cls(settings.url, settings.keep) if settings.url else None

    def write(self, snapshot: Snapshot) -> None:
        """Store a snapshot in one step (whoever looks sees all of it or nothing), and drop those that are too many.

        Raises:
            Exception: whatever the file system raises; nothing that was there is lost.
        """
        header = snapshot.header
        path = f"{self._folder(header.log)}/snapshot-{header.position:020d}"
        scratch = f"{path}.part-{uuid.uuid4().hex}"
        self._fs.makedirs(self._folder(header.log), exist_ok=True)
        self._fs.pipe_file(scratch, snapshot.encode())
        self._fs.mv(scratch, path)
        oldest = self.positions(header.log)[: self._keep][-1]
        for position, found in self._listed(header.log):
            if position < oldest:  # also what a writer that died left behind
                with suppress(FileNotFoundError):  # another writer was faster
                    self._fs.rm_file(found)

    def positions(self, log: str) -> list[int]:
        """Return the positions of which there are snapshots of a log, newest first.

        Raises:
            Exception: whatever the file system raises.
        """
        return [position for position, path in self._listed(log) if _is_whole(path)]

    def newest(self, log: str, check: Check, at_most: int | None = None) -> State | None:
        """Return the state of the newest snapshot that can be used, or None. What cannot be is logged and counted.

        Args:
            log: id of the log's first entry.
            check: is asked before an image is unpacked. What it raises but ``Unusable`` ends the search.
            at_most: not beyond this position.
        """
        try:
            listed = self._listed(log)
        except Exception as error:  # noqa: BLE001 - drivers raise what they like, and the log has everything
            _ignore(self._root, f"the store cannot be read: {type(error).__name__}: {error}")
            return None
        for position, path in listed:
            if not _is_whole(path) or (at_most is not None and position > at_most):
                continue
            try:
                snapshot = self._read(path)
                if (snapshot.header.log, snapshot.header.position) != (log, position):
                    raise Unusable(f"it is of log {snapshot.header.log}, position {snapshot.header.position}")  # noqa: TRY301
                check(snapshot.header)
                return snapshot.state()
            except Unusable as error:
                _ignore(path, str(error))
        return None

    def any_of(self, broker: str) -> Header | None:
        """Return what a snapshot of any log says that was on this broker cluster; None = there is none that can be read."""
        try:
            self._fs.invalidate_cache()
            paths: list[str] = self._fs.find(self._root)
        except Exception as error:  # noqa: BLE001 - drivers raise what they like
            _ignore(self._root, f"the store cannot be read: {type(error).__name__}: {error}")
            return None
        for path in sorted((path for path in paths if _NAME.search(path) and _is_whole(path)), reverse=True):
            try:
                if (header := self._read(path).header).broker == broker:
                    return header
            except Unusable as error:
                _ignore(path, str(error))
        return None

    def _folder(self, log: str) -> str:
        return f"{self._root}/log-{hashlib.sha256(log.encode()).hexdigest()[:16]}"

    def _listed(self, log: str) -> list[tuple[int, str]]:
        """Return (position, path) of all that is there of a log, newest first."""
        self._fs.invalidate_cache()
        try:
            paths: list[str] = self._fs.ls(self._folder(log), detail=False)
        except FileNotFoundError:
            return []
        return sorted(((int(m[1]), path) for path in paths if (m := _NAME.search(path))), reverse=True)

    def _read(self, path: str) -> Snapshot:
        try:
            stored: bytes = self._fs.cat_file(path)
        except Exception as error:
            raise Unusable(f"it cannot be read: {type(error).__name__}: {error}") from error
        return Snapshot.decode(stored)


def beginning(snapshots: Snapshots | None, bus: Bus) -> tuple[State, MessageId]:
    """Return the state to start from and the place after which to read on: of a snapshot, else of nothing.

    A snapshot is used only if its last entry is in the log where it says that it is. One that is newer than the log's end
    is proof that the log lost what it had: it was deleted, or set back.

    Raises:
        LogReplaced: the log ends before a snapshot of it does; or it is empty, and there are snapshots of this broker.
        LogError: the log's first message is no entry.
        BusUnavailable: the broker is away.
    """
    if snapshots is None:
        return State(), EARLIEST

    def is_one(record: LogRecord) -> bool:
        return record.entry.position != BARRIER

    opening = first(bus, is_one)
    broker = bus.cluster_id()
    if opening is None:
        if (lost := snapshots.any_of(broker)) is not None:
            raise LogReplaced(lost.position, lost.entry, lost.message_id)
        return State(), EARLIEST
    places: dict[int, MessageId] = {}

    def check(header: Header) -> None:
        if header.broker != broker:
            raise Unusable(f"it is of broker cluster {header.broker}, this is {broker}")
        place = places[header.position] = MessageId.parse(header.message_id)
        try:
            found = first(bus, lambda r: is_one(r) and r.message_id >= place, MessageId.parse(header.before))
        except LogError as error:
            raise Unusable(f"the log cannot be read where it ends: {error}") from error
        if found is None:
            raise LogReplaced(header.position, header.entry, header.message_id)
        if (found.message_id, found.entry.id) != (place, header.entry):
            there = f"entry {found.entry.id} in message {found.message_id}"
            raise Unusable(f"it ends with entry {header.entry} in message {place}, and the log has {there}")

    state = snapshots.newest(opening.entry.id, check)
    return (state, places[state.position]) if state is not None else (State(), EARLIEST)


def _line(header: Header) -> bytes:
    return pydantic_core.to_json(to_wire(Header)(header)) + b"\n"


def _sha256(header: Header, image: bytes) -> str:
    return hashlib.sha256(_line(replace(header, sha256="")) + image).hexdigest()


def _is_whole(path: str) -> bool:
    return ".part-" not in path


def _ignore(path: str, reason: str) -> None:
    SNAPSHOTS_IGNORED.inc()
    _log.warning("a snapshot is ignored", path=path, reason=reason)

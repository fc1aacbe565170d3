"""Snapshots for tests: of a log that is written to a bus, and every way in which one can be wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from magnetar_common import snapshot as snapshots
from magnetar_common.bus import EARLIEST, MessageId
from magnetar_common.snapshot import Snapshot
from magnetar_common.state import State
from magnetar_common.state_image import FORMAT
from magnetar_events import Entry
from magnetar_events.entry import FOLD_VERSION


def taken(log: Sequence[Entry], ids: Sequence[MessageId], state: State, broker: str) -> Snapshot:
    """A snapshot of the state right after one of a log's entries."""
    n = state.position
    before = ids[n - 1] if n else EARLIEST
    return Snapshot.of(state, log=log[0].id, broker=broker, message_id=ids[n], before=before)


def files(folder: Path) -> list[Path]:
    """The snapshots in a folder, newest first."""
    return sorted(folder.rglob("snapshot-*"), reverse=True)


def resealed(stored: bytes, **fields: object) -> bytes:
    """Other values in the header, and a sha256 that is right again."""
    found = Snapshot.decode(stored)
    header = replace(found.header, **fields)  # type: ignore[arg-type]
    sealed = replace(header, sha256=snapshots._sha256(header, found.image))
    return Snapshot(sealed, found.image).encode()


def _flipped(at: float) -> Callable[[bytes], bytes]:
    def flip(stored: bytes) -> bytes:
        place = int(at * (len(stored) - 1))
        return stored[:place] + bytes([stored[place] ^ 0x10]) + stored[place + 1 :]

    return flip


def _in_image(stored: bytes) -> bytes:
    return stored[:-3] + bytes([stored[-3] ^ 1]) + stored[-2:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "junk": lambda _: b"\x00\xff junk " * 100,
    "json of something else": lambda _: b"[1, 2]\n",
    "cut in the header": lambda stored: stored[:40],
    "cut after the header": lambda stored: stored[: stored.index(b"\n") + 1],
    "cut in the image": lambda stored: stored[:-10],
    "longer than it was": lambda stored: stored + b"\0",
    "a bit flipped at the start": _flipped(0.0),
    "a bit flipped in the header": _flipped(0.05),
    "a bit flipped in the image": _in_image,
    "a wrong sha": lambda stored: stored.replace(b'"sha256":"', b'"sha256":"0', 1),
    "another format": lambda stored: resealed(stored, format=FORMAT + 1),
    "a newer fold version": lambda stored: resealed(stored, fold_version=FOLD_VERSION + 1),
    "another broker's": lambda stored: resealed(stored, broker="elsewhere"),
    "another log's": lambda stored: resealed(stored, log="other"),
    "of another entry": lambda stored: resealed(stored, entry="usurper"),
    "at another place": lambda stored: resealed(stored, message_id="0:0:-1"),
    "a place that is none": lambda stored: resealed(stored, before="here"),
    "at another position": lambda stored: resealed(stored, position=1),
}
"""What may have happened to a snapshot → its bytes then."""

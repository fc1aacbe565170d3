"""What this life of the agent was told, per version: which command is the newest, and what was answered to it.

Commands to one server are ordered by (term, position). An agent obeys nothing older than what it obeyed for that
version, nothing from a leadership older than the newest it has seen, and nothing meant for another life of it.
"""

import threading
from dataclasses import dataclass
from enum import Enum, auto

from magnetar_events.commands import Command, LoadModel, UnloadModel
from magnetar_events.reports import ReportKind

VersionKey = tuple[str, int]
"""(model, generation)."""


class Verdict(Enum):
    """What to do with a command."""

    OBEY = auto()
    IN_PROGRESS = auto()
    ANSWER_AGAIN = auto()
    SUPERSEDED = auto()
    FOREIGN = auto()
    OLD_TERM = auto()


@dataclass(slots=True)
class Line:
    """What is known of one version.

    Attributes:
        newest: (term, position) of the newest command obeyed.
        answer: the report that ended it; None while it is in progress.
        loaded: what it left behind: the version is in the server.
        digest: sha256 of the artifact that was loaded.
    """

    newest: tuple[int, int]
    answer: ReportKind | None = None
    loaded: bool = False
    digest: str = ""


class Ledger:
    """The lines of one life. Safe to use from any thread.

    Args:
        incarnation: of this life.
    """

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._lines: dict[VersionKey, Line] = {}
        self._lock = threading.Lock()
        self.term = 0
        """Newest term seen."""

    def judge(self, command: Command) -> tuple[Verdict, Line | None]:
        """Say what to do with a command, and take note of it if it is to be obeyed."""
        if command.incarnation != self._incarnation:
            return Verdict.FOREIGN, None
        with self._lock:
            if command.term < self.term:
                return Verdict.OLD_TERM, None
            self.term = command.term
            wanted = command.command
            if not isinstance(wanted, (LoadModel, UnloadModel)):
                return Verdict.OBEY, None
            key, at = (wanted.model, wanted.generation), (command.term, command.position)
            line = self._lines.get(key)
            if line is None or at[1] > line.newest[1]:
                known = line or Line(at)
                self._lines[key] = Line(at, loaded=known.loaded, digest=known.digest)
                return Verdict.OBEY, line
            if at[1] < line.newest[1]:
                return Verdict.SUPERSEDED, line
            # The same decision, sent again, maybe by a later leader.
            return (Verdict.IN_PROGRESS if line.answer is None else Verdict.ANSWER_AGAIN), line

    def newest(self, key: VersionKey) -> int:
        """Return the position of the newest command obeyed for a version; -1 for none."""
        with self._lock:
            line = self._lines.get(key)
            return line.newest[1] if line else -1

    def settle(self, key: VersionKey, position: int, answer: ReportKind, *, loaded: bool, digest: str = "") -> None:
        """Take note of how an operation ended."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return
            line.loaded, line.digest = loaded, digest if loaded else ""
            if line.newest[1] == position:
                line.answer = answer

    def digest(self, key: VersionKey) -> str:
        """Return the sha256 of the artifact that a version was loaded from; empty = not known to this life."""
        with self._lock:
            line = self._lines.get(key)
            return line.digest if line else ""

    def believed(self) -> set[VersionKey]:
        """Return the versions that are in the server as far as this life knows."""
        with self._lock:
            return {key for key, line in self._lines.items() if line.loaded}

    def found(self, held: dict[VersionKey, bool]) -> None:
        """Take over what the server's index says (version → ready), so that the next change is seen as one."""
        with self._lock:
            for key, line in self._lines.items():
                line.loaded = held.get(key, False)
                if not line.loaded:
                    line.digest = ""
            for key, ready in held.items():
                if ready and key not in self._lines:
                    self._lines[key] = Line((0, -1), loaded=True)

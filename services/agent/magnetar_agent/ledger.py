"""What this life of the agent was told, per version: which command is the newest, and what was answered to it.

Commands to one server are ordered by (term, position). An agent obeys nothing older than what it obeyed for that
version, nothing from a leadership older than the newest it has seen, and nothing meant for another life of it. The same
position again is the same decision, sent again, maybe by a later leader: it is answered again, and not acted on twice.

Whoever can write to the topic could forge a term or a position that no leader will ever reach. So what is newest is
believed only while nobody steadily says otherwise: a deposed leader falls silent within seconds (it sends nothing unless
an append was acknowledged in the last 5 s), and one that goes on for ``DOUBT_S`` is no deposed one.
"""

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from magnetar_events.commands import Command, LoadModel, UnloadModel
from magnetar_events.reports import (
    CommandSuperseded,
    ModelLoaded,
    ModelLoadFailed,
    ModelUnloaded,
    ModelUnloadFailed,
    ReportKind,
)

VersionKey = tuple[str, int]
"""(model, generation)."""

Answer = ModelLoaded | ModelLoadFailed | ModelUnloaded | ModelUnloadFailed
"""A report that ends an operation."""

Marks = Mapping[VersionKey, tuple[int, bool]]
"""Version → (position of its newest command, whether it is answered)."""

_FOUND = (-1, True)
"""The mark of a version that was never commanded."""

MAX_LINES = 20_000
"""Versions remembered. Beyond it the oldest that are neither in the server nor being worked on are forgotten."""


DOUBT_S = 60.0
"""Older commands that keep coming for this long (seconds), and nothing newer, are the leader's: the newest was forged."""

STEADY_S = 15.0
"""… with no longer pause between two of them (seconds): an unanswered command is sent again every 5 s."""


class Verdict(Enum):
    """What to do with a command."""

    OBEY = auto()
    IN_PROGRESS = auto()
    ANSWER_AGAIN = auto()
    SUPERSEDED = auto()
    FOREIGN = auto()
    REPLACED = auto()
    OLD_TERM = auto()


@dataclass(slots=True)
class _Doubt:
    """Commands of one term that are refused for something newer, and keep coming."""

    term: int = -1
    since: float = 0.0
    last: float = 0.0

    def grows(self, term: int, now: float) -> bool:
        """Take note of a refusal; return whether they have lasted too long for a deposed leader's."""
        if term != self.term or now - self.last > STEADY_S:
            self.term, self.since = term, now
        self.last = now
        return now - self.since >= DOUBT_S


@dataclass(slots=True)
class _Line:
    """What is known of one version.

    Attributes:
        newest: (term, position) of the newest command obeyed; (0, -1) = found in the server, never commanded.
        answer: the report that ended it; None while it is in progress.
        loaded: the version is in the server and answers.
        digest: sha256 of the artifact that was loaded.
        doubt: that the newest was a leader's.
    """

    newest: tuple[int, int] = (0, -1)
    answer: Answer | None = None
    loaded: bool = False
    digest: str = ""
    doubt: _Doubt = field(default_factory=_Doubt)

    @property
    def busy(self) -> bool:
        return self.answer is None and self.newest[1] >= 0


class Ledger:
    """The lines of one life. Safe to use from any thread.

    Args:
        incarnation: of this life.
        clock: monotonic seconds.
    """

    def __init__(self, incarnation: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._doubt = _Doubt()
        self._incarnation = incarnation
        self._lines: dict[VersionKey, _Line] = {}
        self._lock = threading.RLock()
        self._ours = (0, -1)
        self.term = 0
        """Newest term seen, and believed."""
        self.disbelieved = 0
        """How often something newer turned out to be nobody's."""

    def judge(self, command: Command) -> tuple[Verdict, ReportKind | None]:
        """Say what to do with a command and what to report at once; take note of it if it is to be obeyed."""
        place = (command.term, command.position)
        with self._lock:
            if command.incarnation != self._incarnation:
                # Whoever is commanded after us took our place; what was meant for a life before us came earlier.
                return (Verdict.REPLACED if (0, -1) < self._ours < place else Verdict.FOREIGN), None
            if command.term < self.term:
                if not self._doubt.grows(command.term, self._clock()):
                    return Verdict.OLD_TERM, None
                self._disbelieve(command.term)
            self._doubt = _Doubt()
            self.term, self._ours = command.term, max(self._ours, place)
            wanted = command.command
            if not isinstance(wanted, (LoadModel, UnloadModel)):
                return Verdict.OBEY, None
            key, at = (wanted.model, wanted.generation), place
            line = self._lines.get(key) or _Line()
            if command.position == line.newest[1]:
                line.doubt = _Doubt()
                return (Verdict.IN_PROGRESS if line.answer is None else Verdict.ANSWER_AGAIN), line.answer
            if at < line.newest and line.doubt.grows(command.term, self._clock()):
                self.disbelieved += 1
            elif at < line.newest:
                superseded = CommandSuperseded(
                    model=key[0], generation=key[1], position=command.position, newest=line.newest[1]
                )
                return Verdict.SUPERSEDED, superseded
            self._lines.pop(key, None)  # the newest last
            self._lines[key] = _Line(at, None, line.loaded, line.digest)
            self._forget()
            return Verdict.OBEY, None

    def _disbelieve(self, term: int) -> None:
        """Forget what terms later than this one said."""
        self.disbelieved += 1
        self._ours = (0, -1)
        for key, line in self._lines.items():
            if line.newest[0] > term:
                self._lines[key] = _Line(loaded=line.loaded, digest=line.digest)

    @property
    def refusing(self) -> str:
        """Whether the newest commands that come are refused for their term, and why, for people; empty = they are not."""
        with self._lock:
            doubt, age = self._doubt, self._clock() - self._doubt.last
            if doubt.term < 0 or age > STEADY_S:
                return ""
            return f"commands of term {doubt.term} are refused, for one of term {self.term} came before"

    def is_newest(self, key: VersionKey, position: int) -> bool:
        """Return whether no newer command than the one at this position was obeyed for a version."""
        with self._lock:
            return self._lines[key].newest[1] == position

    def settle(self, answer: Answer) -> None:
        """Take note of how an operation ended. To be called after the answer was reported."""
        with self._lock:
            line = self._lines[answer.model, answer.generation]
            if not isinstance(answer, ModelUnloadFailed):  # that one says nothing new of what is in the server
                line.loaded = isinstance(answer, ModelLoaded)
                line.digest = answer.digest if isinstance(answer, ModelLoaded) else ""
            if line.newest[1] == answer.position:
                line.answer = answer

    def digest(self, key: VersionKey) -> str:
        """Return the sha256 of the artifact that a version was loaded from; empty = not known to this life."""
        with self._lock:
            line = self._lines.get(key)
            return line.digest if line else ""

    def loaded(self) -> set[VersionKey]:
        """Return the versions that answer in the server, as far as is known, and with no command in progress."""
        with self._lock:
            return {key for key, line in self._lines.items() if line.loaded and not line.busy}

    def busy(self) -> set[VersionKey]:
        """Return the versions with a command in progress or waiting."""
        with self._lock:
            return {key for key, line in self._lines.items() if line.busy}

    # --- comparing it with the server's index ----------------------------------------------------------------------

    def marks(self) -> Marks:
        """Return where every version stands, to tell later which of them moved meanwhile."""
        with self._lock:
            return {key: (line.newest[1], not line.busy) for key, line in self._lines.items()}

    def moved(self, since: Marks) -> set[VersionKey]:
        """Return the versions with a command in progress, or that had one at any time since the marks."""
        with self._lock:
            return {key for key, mark in self.marks().items() if not mark[1] or mark != since.get(key, _FOUND)}

    @contextmanager
    def still(self) -> Generator[None, None, None]:
        """Keep everybody else out, so that what is compared, taken over and reported is of one moment."""
        with self._lock:
            yield

    def found(self, ready: set[VersionKey], moved: set[VersionKey]) -> None:
        """Take over which versions the index says are ready, but for those that moved."""
        with self._lock:
            for key, line in self._lines.items():
                if key not in moved:
                    line.loaded = key in ready
                    line.digest = line.digest if line.loaded else ""
            for key in ready - moved - self._lines.keys():
                self._lines[key] = _Line(loaded=True)

    def _forget(self) -> None:
        while len(self._lines) > MAX_LINES:
            absent = next((key for key, line in self._lines.items() if not (line.loaded or line.busy)), None)
            if absent is None:
                return
            del self._lines[absent]

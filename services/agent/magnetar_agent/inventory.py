"""What the server holds: its own index, compared with what was commanded, and reported whole.

One thread looks at the index: once a second, at once when the server ended or came back, and when somebody asks. What
an operation touched between the look and the report is said to be busy, and settled by that operation's own report.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import structlog

from magnetar_agent.adapters.base import Adapter, IndexState, ServerUnreachable
from magnetar_agent.ledger import Ledger, VersionKey
from magnetar_agent.text import line
from magnetar_agent.threads import Failed, guarded
from magnetar_events.models import index_digest, parse_served_name, served_name
from magnetar_events.reports import InventoryModel, InventoryReported

CHECK_S = 1.0
"""The index is looked at this often (seconds)."""

BUSY_S = 30.0
"""A server that takes questions and is silent counts as busy for this long (seconds), and then as dead."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    cause: str
    position: int


@dataclass(frozen=True, slots=True)
class _Index:
    """What the server says.

    Attributes:
        held: Magnetar's versions in it, and whether each answers.
        strangers: names of others'.
    """

    held: dict[VersionKey, bool]
    strangers: tuple[str, ...]


class Inventory:
    """Keeps an eye on the server's index.

    Args:
        adapter: the server.
        ledger: what was commanded; it learns what is found.
        hung: whether a version is known to answer no inference, whatever the index says.
        report: queues a report.
        failed: told of what ended the thread.
    """

    def __init__(
        self,
        adapter: Adapter,
        ledger: Ledger,
        hung: Callable[[VersionKey], bool],
        report: Callable[[InventoryReported], object],
        failed: Failed,
    ) -> None:
        self._adapter = adapter
        self._ledger = ledger
        self._hung = hung
        self._report = report
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = guarded("inventory", self._run, failed)
        self._answered = time.monotonic()
        self.serving = True
        """Whether the server answered its index last time."""

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waits for a look in progress."""
        self._stopping.set()
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, cause: str, position: int = 0) -> None:
        """Have the whole index reported, soon.

        Args:
            cause: for people.
            position: of the command that asks; 0 = nobody did.
        """
        self._asked.put(_Asked(cause, position))

    def look(self) -> None:
        """Have the index looked at now: the server ended or came back, or a model stopped answering."""
        self._asked.put(None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                asked = self._asked.get(timeout=CHECK_S)
            except Empty:
                asked = None
            if not self._stopping.is_set():
                self._take(asked)

    def _take(self, asked: _Asked | None) -> None:
        """Compare the index with the ledger; report it if somebody asked, or if they differ."""
        ledger, marks = self._ledger, self._ledger.marks()
        index = self._index()
        if index is None:  # busy: what it held, it holds
            if asked is not None:
                self._stopping.wait(CHECK_S)
                self._asked.put(asked)
            return
        ready = {key for key, answers in index.held.items() if answers}
        with ledger.still():
            moved = ledger.moved(marks)
            changed = (ready ^ ledger.loaded()) - moved
            if asked is None:
                if not changed:
                    return
                names = ", ".join(served_name(*key) for key in sorted(changed))
                asked = _Asked(f"changed without a command: {names}"[:1000], 0)
                _log.warning("the server's index changed without a command", models=names[:1000])
            ledger.found(ready, moved)
            self._report(
                InventoryReported(
                    position=asked.position,
                    models=tuple(
                        InventoryModel(
                            model=model,
                            generation=generation,
                            ready=(model, generation) in ready,
                            busy=(model, generation) in moved,
                            digest=ledger.digest((model, generation)),
                        )
                        for model, generation in sorted(index.held.keys() | moved)
                    ),
                    strangers=index.strangers,
                    digest=digest_of(ready - moved),
                    cause=line(asked.cause),
                )
            )

    def _index(self) -> _Index | None:
        """Read the index; None while the server is busy. One that is not there holds nothing that answers."""
        try:
            entries = self._adapter.index()
        except ServerUnreachable as error:
            if error.busy and self.serving and time.monotonic() - self._answered < BUSY_S:
                return None
            if self.serving:
                _log.warning("the server does not answer", error=error.message)
            self.serving = False
            return _Index({}, ())
        if not self.serving:
            _log.info("the server answers again")
        self.serving, self._answered = True, time.monotonic()
        held: dict[VersionKey, bool] = {}
        strangers: list[str] = []
        for name, entry in entries.items():
            key = parse_served_name(name)
            if key is None:
                strangers.append(line(name))
            elif entry.state is not IndexState.UNAVAILABLE:
                held[key] = entry.state is IndexState.READY and not self._hung(key)
        return _Index(held, tuple(sorted(strangers)))


def digest_of(versions: set[VersionKey]) -> str:
    """Return the digest of an index that holds just these versions."""
    return index_digest(served_name(*key) for key in versions)

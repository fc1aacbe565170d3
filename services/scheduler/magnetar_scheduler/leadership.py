"""Becoming the leader: hold the log exclusively, find its true end behind a barrier, and say so in the log.

Holding the exclusive producer on ``state-changes`` *is* leadership. Challengers poll for it, each try with a connection
of its own that is closed on failure, and fold the log meanwhile, so that they are warm.
"""

import math
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from magnetar_common.bus import EARLIEST, Bus, Producer
from magnetar_common.errors import BusError, BusUnavailable, CannotFence, LogError, TopicHeld
from magnetar_common.log import LogReader, LogRecord, check_history
from magnetar_common.metrics import START_ENTRIES
from magnetar_common.snapshot import Snapshots, beginning
from magnetar_common.state import State
from magnetar_common.topics import STATE_CHANGES
from magnetar_events import ENTRY, schemas, versions
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import BARRIER, FOLD_VERSION_PROPERTY, Entry, Input

_log = structlog.get_logger(__name__)

POLL_S = (0.3, 0.7)
"""A challenger tries again after a time between these (seconds)."""

SILENT_S = 75.0
"""Who holds the log and appends nothing for this long (seconds) is in trouble: an idle leader says each minute that it is
there."""

BARRIER_S = 30.0
"""The barrier is read back within this time (seconds), or the hold is given up."""


@dataclass(slots=True)
class Mandate:
    """What a new leader starts from: the held log, its true end, and the state there.

    Attributes:
        relieves: another held the log a moment ago; otherwise nobody knows for how long none has.
    """

    bus: Bus
    producer: Producer
    state: State
    relieves: bool = False


class Challenger:
    """Stands by, warm, and becomes the leader when nobody else is.

    Args:
        connect: opens a connection of its own for each try.
        folded: called for every entry folded while standing by.
        stopping: whether to give up.
        snapshots: shorten the way to the end of the log; None = all of it is folded.
    """

    def __init__(
        self,
        connect: Callable[[], Bus],
        stopping: Callable[[], bool],
        folded: Callable[[State], None],
        snapshots: Snapshots | None = None,
    ) -> None:
        self._connect = connect
        self._stopping = stopping
        self._folded = folded
        self._snapshots = snapshots
        self._reader: LogReader | None = None
        self._place = EARLIEST
        """Of the last entry in the state."""
        self._held_since: float | None = None
        self._refused = -math.inf
        """When it was seen last that somebody else holds the log; while the broker is out of reach, nobody can say."""
        self._warned = False
        self.state = State()
        self.start = "the log is being folded"
        """How it got to the end of the log, for people."""

    def run(self, *, once: bool = False) -> Mandate | None:
        """Wait until this process holds the log and has read it to its end; None when told to stop.

        Args:
            once: also return None if the first try to hold it fails.

        Raises:
            CannotFence: the broker does not keep a second leader out, and no lock stands in for it.
            LogError: the log cannot be followed.
        """
        following = self._connect()
        self.state, after = beginning(self._snapshots, following)
        self._place = after
        snapshot = self.state.position
        reader = self._reader = LogReader(following, after, "magnetar-standby", self.state)
        bus: Bus | None = None
        try:
            for record in reader.stored():  # before the first try: who cannot fold the log must not hold it
                self._fold(reader, record)
                if self._stopping():
                    return None
            self._started(snapshot)
            next_try, said = 0.0, ""
            while not self._stopping():
                if time.monotonic() >= next_try:
                    bus = self._connect()
                    tried, refused = time.monotonic(), self._refused
                    producer = self._hold(bus)
                    if producer is not None and self._read_to_barrier(reader, producer) and self._is_ours(bus):
                        recent = self.state.policy.reading_stale_ms / 1000
                        mandate = Mandate(bus, producer, self.state, relieves=tried - refused <= recent)
                        bus = None
                        return mandate
                    bus.close()
                    bus = None
                    if once:
                        return None
                    if self._held_since is not None and said != (leader := self.leader):
                        _log.info("another scheduler leads; standing by", leader=leader, term=self.state.term)
                        said = leader
                    self._warn_of_silence()
                    next_try = time.monotonic() + random.uniform(*POLL_S)  # noqa: S311 - spreads tries, hides nothing
                record = reader.read(0.1)
                if record is not None:
                    self._fold(reader, record)
        finally:
            reader.close()
            following.close()
            if bus is not None:
                bus.close()
        return None

    def _started(self, snapshot: int) -> None:
        entries = self.state.position - snapshot
        after = f"after the snapshot of position {snapshot}" if snapshot >= 0 else "with no snapshot"
        self.start = f"{entries} entries were folded {after}"
        START_ENTRIES.set(entries)
        _log.info("the log is folded", entries=entries, snapshot=snapshot)

    @property
    def leader(self) -> str:
        """Who leads, as the log has it: the identity of that process."""
        return self.state.leader or "nobody that the log knows"

    @property
    def silence(self) -> float:
        """Seconds for which somebody else has held the log and appended nothing; 0 = nobody holds it."""
        return 0.0 if self._held_since is None else time.monotonic() - self._held_since

    def role(self) -> str:
        """Return what this one does, for people."""
        where = f"standing by at position {self.state.position}"
        if self._held_since is None:
            return where
        if self._warned:
            return f"{where}; {self.leader} holds the log and has appended nothing for {self.silence:.0f} s"
        return f"{where}; {self.leader} leads"

    def _warn_of_silence(self) -> None:
        if self._warned or self.silence <= SILENT_S:
            return
        self._warned = True
        _log.warning(
            "the log is still held, and nothing is appended to it: its holder stands still (stopped, out of memory, a "
            "debugger), or was cut off and the broker does not notice (keepAliveIntervalSeconds), or another client "
            "produces to the topic (pulsar-admin topics stats)",
            topic=STATE_CHANGES.name,
            leader=self.leader,
            term=self.state.term,
            silent_s=round(self.silence),
        )

    def check(self) -> tuple[bool, str]:
        """Return (following, why), for ``/readyz``."""
        return self._reader.check() if self._reader is not None else (False, "the log is not open yet")

    def _hold(self, bus: Bus) -> Producer | None:
        try:
            producer = bus.producer(
                STATE_CHANGES.name,
                schema=schemas.schema_json(STATE_CHANGES.schema, versions.schema_of(self.state.version)),
                exclusive=True,
                batching=True,
                name="magnetar-leader",
            )
        except TopicHeld as held:
            if not bus.fences:
                raise CannotFence(
                    f"{held}: the embedded broker carries one scheduler only; use a real Pulsar for more"
                ) from held
            self._refused = time.monotonic()
            if self._held_since is None:
                self._held_since = self._refused
            return None
        except CannotFence:
            raise
        except BusError as error:
            _log.warning("cannot challenge for the leadership", error=str(error))
            return None
        self._held_since, self._warned = None, False
        return producer

    def _read_to_barrier(self, reader: LogReader, producer: Producer) -> bool:
        """Append a marker and fold until it comes back: only that is the end of the log, a time-out never is.

        Return whether it did; if not, the hold is of no use, and is to be let go of.
        """
        nonce = uuid.uuid4().hex
        marker = Entry(nonce, BARRIER, self.state.term, 0, 0, 1, Input("barrier"))
        schema = versions.schema_of(1)  # which every version reads; the one in force is known only behind the barrier
        properties = {FINGERPRINT: schema, FOLD_VERSION_PROPERTY: "1", "kinds": "Barrier"}
        try:
            producer.send(ENTRY.encode(marker, schema), properties=properties)
        except BusError as error:
            _log.warning("lost the leadership while taking it up", error=str(error))
            return False
        deadline = time.monotonic() + BARRIER_S
        while time.monotonic() < deadline and not self._stopping():
            record = reader.read(0.5)
            if record is None:
                continue
            deadline = time.monotonic() + BARRIER_S  # it is the silence that is limited, not the length of the log
            if record.entry.id == nonce:
                return True
            self._fold(reader, record)
        _log.warning("the barrier on the log did not come back", within_s=BARRIER_S)
        return False

    def _is_ours(self, bus: Bus) -> bool:
        """Whether the log is still the one that was folded; False if it cannot be told now.

        Raises:
            LogReplaced: it is another one.
        """
        if self.state.position < 0:
            return True
        try:
            check_history(bus, self.state.position, self.state.entry, self._place)
        except BusUnavailable as error:
            _log.warning("the log cannot be compared with what was read from it", error=str(error))
            return False
        return True

    def _fold(self, reader: LogReader, record: LogRecord) -> None:
        if reader.fold(self.state, record):
            self._place = record.message_id
            if self._held_since is not None:
                self._held_since, self._warned = time.monotonic(), False
            self._folded(self.state)


def check_broker(state: State, broker: str) -> None:
    """See that the message ids in the log mean something on this broker.

    Raises:
        LogError: the log was written on another broker cluster.
    """
    if state.broker not in ("", broker):
        raise LogError(
            f"the log was written on broker cluster {state.broker}, this is {broker}: the places of its inputs mean "
            "nothing here, and to lead would be to lose or repeat inputs. Connect to the cluster that wrote it; or, if it "
            "moved here for good: magnetar log rebase"
        )

"""The leader's loop: take the next input, decide, append one entry, fold it, and once it is stored act on it."""

import math
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import structlog

from magnetar_common import __version__
from magnetar_common.bus import EARLIEST, Anchor, Bus, Message, MessageId
from magnetar_common.errors import BusError, BusUnavailable, Deposed, LogReplaced
from magnetar_common.evolve import fold
from magnetar_common.log import check_history
from magnetar_common.memory import total
from magnetar_common.metrics import (
    DECIDE_SECONDS,
    DECISIONS,
    ILLEGAL_FACTS,
    INPUT_LAG,
    LEADER,
    LOG_POSITION,
    REPLICAS,
    TERM,
    UNRETURNED,
)
from magnetar_common.state import State
from magnetar_common.topics import ANCHOR, INPUTS, ROUTES, SERVICE_REGISTRY
from magnetar_common.transitions import STATES as REPLICA_STATES
from magnetar_events import ServiceRecord
from magnetar_events import facts as f
from magnetar_events.codec import Undecodable
from magnetar_events.credentials import redacted
from magnetar_events.entry import Entry, Input
from magnetar_scheduler.appender import FRESH_S, Appender
from magnetar_scheduler.authentic import examined
from magnetar_scheduler.decide import decide
from magnetar_scheduler.dispatch import Dispatch
from magnetar_scheduler.inputs import Alive, Decidable, Elected, ReadingStale, Rejected, Request, understand
from magnetar_scheduler.journal import EntryTooLarge, NotFinalized, from_message, make_entry, properties_of, short
from magnetar_scheduler.leadership import Mandate, check_broker
from magnetar_scheduler.outbox import Outbox
from magnetar_scheduler.pending import more_to_try, tries
from magnetar_scheduler.pumps import Pump
from magnetar_scheduler.routes import Routes
from magnetar_scheduler.watch import Watch

_log = structlog.get_logger(__name__)

TICK_S = 0.25
"""The loop turns at least this often (seconds)."""

DISCONNECTED_S = 2.0
"""The log's producer may be without a connection for this long (seconds) before the leadership is given up."""

ALIVE_S = 60.0
"""An idle leader appends ``LeaderAlive`` this often (seconds)."""

PUBLISH_S = 0.05
"""Changed routes wait at most this long (seconds) for the inbox to be empty: a model's newest is published, once."""

LOOKS_A_RESEND = 5
"""In the time after which a command is sent again it is looked so often which are: one look goes through all of them."""

MEASURE_S = 2.0
"""Metrics are brought up to date this often (seconds): some of them look at every replica."""

ANCHOR_S = 10.0
"""What the log has handled is let go of on the input topics this often (seconds)."""

BACKLOG = 2_000
"""Inputs taken from the broker and not decided yet, at most."""

_ACKNOWLEDGED = object()

_FROM_OUTSIDE = frozenset({"request", "report", "registry", "reading"})
"""Kinds of input that somebody else wrote: whatever they do to us must not end one leader after the other."""


@dataclass(slots=True)
class _Heard:
    key: str
    record: ServiceRecord | None
    message_id: MessageId | None


class Leader:
    """One leadership, from its election to its end.

    Args:
        mandate: the held log and the state at its end.
        cluster: Magnetar cluster that is led.
        identity: of this process.
        resolve: names an input's writer's schema where the message does not (on a pump's thread; it may block, and
            raise ``BusUnavailable``).
    """

    def __init__(
        self,
        mandate: Mandate,
        cluster: str,
        identity: str,
        resolve: Callable[[Message], Message] = lambda message: message,
    ) -> None:
        self._bus: Bus = mandate.bus
        self._producer = mandate.producer
        self.state: State = mandate.state
        self._relieves = mandate.relieves
        self.term = self.state.term + 1
        self._cluster = cluster
        self._identity = identity
        self._resolve = resolve
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._appender = Appender(mandate.producer, lambda: self._inbox.put(_ACKNOWLEDGED))
        self._handled = dict(self.state.handled)
        self._nonce = uuid.uuid4().hex[:16]
        self._lag: dict[str, float] = {}
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._began = time.monotonic()
        self._began_at = self.state.at
        self._tried_room = -1
        self._trying_room: int = -1
        self._skip = 0
        self._stuck_at = -1
        self._connected = self._began
        self._drained = self._began
        self._next_tick = 0.0
        self._next_publish = 0.0
        self._next_measure = 0.0
        self._next_anchor = self._began + ANCHOR_S
        self._looked = -math.inf
        lost_routes = threading.Event()
        outbox = Outbox(self._bus, ROUTES.name, lost_routes.set)
        self._routes = Routes(self.state, outbox, lost_routes)
        self._dispatch = Dispatch(self.state, self.term, outbox, self._routes)
        self._pumps: list[Pump] = []
        self._anchors: dict[str, Anchor] = {}
        self._watch: Watch | None = None
        self._closing: list[Callable[[], object]] = [outbox.close]
        self._closed = False

    # --- the life of a leadership ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Append ``LeaderElected`` and open the inputs.

        Raises:
            LogError: the log belongs to another broker.
            BusError: an input cannot be opened.
        """
        broker = self._bus.cluster_id()
        check_broker(self.state, broker)
        elected = f.LeaderElected(self.term, self._identity, self._cluster, broker, __version__)
        self._decide(Input("leader"), Elected(elected))
        self._appender.flush()
        LEADER.set(1)
        TERM.set(self.term)
        _log.info("leading", term=self.term, position=self.state.position)
        for topic in INPUTS:
            place = self.state.handled.get(short(topic.name))
            after = MessageId.parse(place) if place else EARLIEST
            self._anchors[topic.name] = self._bus.anchor(topic.name, ANCHOR)
            self._pumps.append(Pump(self._bus, topic.name, after, self._take, self._inbox.put))
        self._watch = Watch(
            self._bus,
            self._identity,
            self.state,
            time.monotonic(),
            lambda key, record, message_id: self._enqueue(_Heard(key, record, message_id)),
            self._enqueue,
        )
        while not self._relieves and self._decide(Input("stale"), ReadingStale()):
            pass  # nobody has watched how old they grew: each is taken up again from the first heartbeat in our time
        self._routes.start(self._bus)
        for pump in self._pumps:
            pump.start()
        self._closing += [self._watch.close, self._routes.close, *(pump.close for pump in self._pumps)]

    def turn(self) -> None:
        """Take one thing from the inbox, or let time pass; to be called for as long as it does not raise.

        Raises:
            Deposed: this leadership is over. The process must exit.
        """
        item = self._next()
        now = time.monotonic()
        if isinstance(item, Message):
            self._handle(item)
        elif isinstance(item, _Heard):
            self._hear(item, now)
        elif item is _ACKNOWLEDGED:
            self._appender.check()
            self._check_history()
        elif isinstance(item, Exception):
            raise Deposed(f"an input could not be followed: {type(item).__name__}: {item}") from item
        self._act()
        self._due_timers()
        self._pending()
        if now >= self._next_tick:
            self._tick(now)
        if self._inbox.empty():
            self._drained = now
            self._appender.flush()
        if (self._drained == now or now >= self._next_publish) and self._appender.fresh:
            self._next_publish = now + PUBLISH_S
            self._dispatch.publish()

    def _next(self) -> object:
        """Return the next thing in the inbox; wait for it until something else is to be done, and then return None."""
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            if self._has_work():
                return None
        wait = min(self._next_tick - time.monotonic(), self._until_due())
        try:
            return self._inbox.get(timeout=wait) if wait > 0 else None
        except queue.Empty:
            return None

    def check(self) -> tuple[bool, str]:
        """Return whether all that is followed moves and effects are sent, and what does not, for ``/readyz``."""
        views = (self._routes, self._watch.view if self._watch else None)
        checks = [followed.check() for followed in (*self._pumps, *views) if followed is not None]
        if self._dispatch.behind and not self._appender.fresh:
            checks.append((False, f"effects are held: the log last proved ours {self._appender.idle_s:.1f} s ago"))
        stalled = [why for ok, why in checks if not ok]
        return not stalled, "; ".join(stalled or (why for _, why in checks))

    def close(self) -> None:
        """Release everything, the log first: the sooner another may lead, the better."""
        LEADER.set(0)
        self._closed = True
        with ExitStack() as each:  # the last one first, and the connection whatever happens: it must not outlive us
            each.callback(self._bus.close)
            for anchor in self._anchors.values():
                each.callback(anchor.close)
            for close in self._closing:
                each.callback(close)
            each.callback(self._producer.close)

    # --- inputs -----------------------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        """Queue an input (on a pump's thread); waits while too many are queued."""
        self._enqueue(self._resolve(message))

    def _enqueue(self, item: object) -> None:
        """Queue what came from the broker (on the thread that read it); waits while too much is queued."""
        while self._inbox.qsize() > BACKLOG and not self._closed:
            time.sleep(0.002)
        self._inbox.put(item)

    def _handle(self, message: Message) -> None:
        source = from_message(message)
        if message.topic != SERVICE_REGISTRY.name:  # of which only what is unreadable comes this way
            self._handled = {**self._handled, source.topic: source.message_id}
        self._lag[source.topic] = time.time() - message.publish_ms / 1000
        self._decide(*self._understood(source, message))

    def _understood(self, source: Input, message: Message) -> tuple[Input, Decidable]:
        """Understand an input from outside: whatever its bytes do to us, they cost only this input."""
        try:
            understood = understand(source)
            if isinstance(understood, Request):
                source = examined(source, message, understood.event, self.state, time.time_ns() // 1_000_000)
                understood = Request(understood.event, source.verified, source.publisher)
            return source, understood
        except Exception as error:  # noqa: BLE001 - see above
            _log.error(
                "an input could not be understood", topic=source.topic, message_id=source.message_id, exc_info=error
            )
            defect = Undecodable("DEFECT", "", f"{type(error).__name__}: {error}")
            return source, Rejected(source.topic, source.message_id, defect)

    def _hear(self, heard: _Heard, now: float) -> None:
        assert self._watch is not None
        source = self._watch.hear(heard.key, heard.record, heard.message_id, now)
        if source is not None:
            self._decide(source, understand(source))

    def _due_timers(self) -> None:
        while 0 < self.state.next_due() <= self._now_at():
            source = Input("timer")
            if not self._decide(source, understand(source)):
                _log.error("a timer is due and nothing follows from it", due=self.state.next_due())
                break

    def _has_work(self) -> bool:
        """Whether the state has something pending that was not tried in vain already."""
        state = self.state
        if state.position == self._stuck_at:
            return False
        room = state.waiting and state.room != self._tried_room
        return bool(state.unsettled or room or state.revivable())

    def _pending(self) -> None:
        """Take the next piece of what needs no further input; one piece a turn, so that inputs are not kept waiting."""
        if not self._has_work():
            return
        room = self.state.room
        if room != self._trying_room:
            self._trying_room, self._skip = room, 0
        source = Input("continue", subject=str(self._skip) if self._skip else "")
        if self._decide(source, understand(source)):
            return
        self._skip += tries(self.state)
        if not more_to_try(self.state, self._skip):
            self._tried_room, self._skip = room, 0
            self._stuck_at = self.state.position

    # --- decide, append, fold -----------------------------------------------------------------------------------------------

    def _now_at(self) -> int:
        """Return the log's clock: the previous entry's, plus monotonic time in this leadership (ms)."""
        return self._began_at + int((time.monotonic() - self._began) * 1000)

    def _decide(self, source: Input, understood: Decidable) -> bool:
        """Decide an input, append its entry, fold it; return whether it had a consequence."""
        state = self.state
        at = self._now_at()
        with DECIDE_SECONDS.time():
            facts = self._decided(source, understood, at)
        if not facts:
            self._decisions[source.kind, "none"] += 1
            return False
        entry, payload = self._entry(source, facts, at)
        self._appender.append(entry.position, payload, properties_of(entry))
        fold(state, entry)
        self._dispatch.note(entry.position, facts)
        self._decisions[_outcome(source, facts)] += 1
        return True

    def _decided(self, source: Input, understood: Decidable, at: int) -> list[f.Fact]:
        """Decide; an input on which ``decide`` fails is recorded as rejected, so that it cannot end the next leader too."""
        try:
            return decide(self.state, understood, at)
        except Exception as error:
            if source.kind not in _FROM_OUTSIDE:
                raise
            return [_defect(source, error)]

    def _entry(self, source: Input, facts: list[f.Fact], at: int) -> tuple[Entry, bytes]:
        make = partial(
            make_entry,
            self.state,
            source,
            id=f"{self._nonce}{self.state.position + 1:016x}",
            term=self.term,
            at=at,
            wall=time.time_ns() // 1_000_000,
            handled=self._handled,
        )
        try:
            return make(facts)
        except (EntryTooLarge, NotFinalized) as error:
            if source.kind not in _FROM_OUTSIDE:
                raise
            return make([_defect(source, error)])

    # --- time -----------------------------------------------------------------------------------------------------------------

    def _until_due(self) -> float:
        due = self.state.next_due()
        return max(0.0, (due - self._now_at()) / 1000) if due else TICK_S

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_S
        self._appender.check()
        if self._producer.is_connected:
            self._connected = now
        elif now - self._connected > DISCONNECTED_S:
            raise Deposed(f"the log's producer has had no connection for {DISCONNECTED_S} s")
        assert self._watch is not None
        for source in self._watch.tick(now):
            self._decide(source, understand(source))
        if now - self._looked >= self.state.policy.resend_ms / 1000 / LOOKS_A_RESEND:
            self._send_again(now)
        self._compare_routes(now)
        if now >= self._next_anchor:
            self._next_anchor = now + ANCHOR_S
            self._advance_anchors()
        if self._appender.idle_s > (FRESH_S if self._watch.leases.missing else ALIVE_S):
            self._prove()  # if nothing comes back from the broker, we may be cut off, and another may lead
        if now >= self._next_measure:
            self._next_measure = now + MEASURE_S
            self._measure()

    def _check_history(self) -> None:
        """After the broker began another ledger: see that what was written before is still there."""
        if (turned := self._appender.turned()) is None:
            return
        position, place = turned
        try:
            check_history(self._bus, position, self.state.recent.get(position, ""), place)
        except (LogReplaced, BusUnavailable) as error:
            raise Deposed(f"the log may not be the one that was led: {error}") from error

    def _act(self) -> None:
        """Send what the stored entries ask for, if the log has proven to be ours a moment ago; else let it prove it."""
        if not self._dispatch.waiting:
            return
        if self._appender.fresh:
            self._dispatch.act(self._appender.acknowledged)
        else:
            self._prove()

    def _send_again(self, now: float) -> None:
        """Send what is still outstanding after a while; after an idle time, only once the log has proven to be ours.

        A while before the inbox was last empty, for the answer may be in it: who is late must not make more work.
        """
        overdue = self._dispatch.overdue(self._drained - self.state.policy.resend_ms / 1000)
        if overdue and not self._appender.fresh:
            self._prove()  # and look again with the next tick: the proof is good for a shorter time than a resend may be
            return
        self._looked = now
        if overdue:
            self._dispatch.send_again(overdue, self._appender.acknowledged)

    def _compare_routes(self, now: float) -> None:
        if not self._routes.due(now):
            return
        if self._appender.fresh:
            self._dispatch.compare_routes(now)
        else:
            self._prove()

    def _prove(self) -> None:
        """Append something, unless something is on its way: its acknowledgement is the proof that the log is ours."""
        if not self._appender.waiting:
            self._decide(Input("leader"), Alive(self.term))

    def _advance_anchors(self) -> None:
        if self._dispatch.behind:
            return
        for topic, anchor in self._anchors.items():
            place = self.state.handled.get(short(topic))
            if place:
                try:
                    anchor.advance(MessageId.parse(place))
                except BusError as error:
                    _log.warning(
                        "an anchor could not be moved; its topic is kept for longer", topic=topic, error=str(error)
                    )

    def _measure(self) -> None:
        ILLEGAL_FACTS.set(self.state.illegal)
        LOG_POSITION.set(self.state.position)
        for topic, lag in self._lag.items():
            INPUT_LAG.labels(topic).set(max(0.0, lag))
        for outcome, count in self._decisions.items():
            DECISIONS.labels(*outcome).inc(count)
        self._decisions.clear()
        counts = Counter(replica.state for model in self.state.models.values() for replica in model.replicas.values())
        for name, state in REPLICA_STATES.items():
            REPLICAS.labels(name).set(counts[state])
        UNRETURNED.labels("awaited").set(sum(total(server.awaited.values()) for server in self.state.servers.values()))
        UNRETURNED.labels("leaked").set(sum(total(server.leaked.values()) for server in self.state.servers.values()))


def _defect(source: Input, error: Exception) -> f.RequestRejected:
    """Return the fact that an input could not be decided, and say so loudly: it is a defect of this software."""
    _log.error("an input could not be decided", topic=source.topic, message_id=source.message_id, exc_info=error)
    message = redacted(f"{type(error).__name__}: {error}")[:512]
    return f.RequestRejected("", "", source.kind, source.key, "DEFECT", "", message)


def _outcome(source: Input, facts: list[f.Fact]) -> tuple[str, str]:
    """Return (outcome, reason) for the metric: few and fixed values."""
    for fact in facts:
        if isinstance(fact, (f.RequestRejected, f.ReportIgnored)):
            return "refused", fact.code
        if isinstance(fact, f.PlacementRefused):
            return "no-room", fact.refusals[0].rule if fact.refusals else "no-server"
    return "decided", source.kind

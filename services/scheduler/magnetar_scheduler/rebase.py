"""After the log moved to another broker cluster: say so in the log, for message ids mean something only within one."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from magnetar_common.bus import Bus
from magnetar_common.errors import BusUnavailable, LogError, TopicHeld
from magnetar_common.state import State
from magnetar_common.topics import MODEL_EVENTS
from magnetar_events import MODEL_EVENT
from magnetar_events import facts as f
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.entry import FOLD_VERSION, Input
from magnetar_scheduler.journal import make_entry, properties_of, short
from magnetar_scheduler.leadership import Challenger

PATIENCE_S = 5.0
"""A message that the broker says is there comes within this time (seconds)."""


class NotRebased(LogError):
    """There is nothing to rebase, or not so."""


@dataclass(slots=True, frozen=True)
class Rebased:
    """What became so.

    Attributes:
        position: of the entry that says it.
        broker: cluster that the log is on from here on.
        previous: … and was on before.
        handled: input topic → last message of it, here, that was handled before the log moved; none = from its start.
    """

    position: int
    broker: str
    previous: str
    handled: dict[str, str]


def rebase(connect: Callable[[], Bus], *, finalize: bool = False) -> Rebased:
    """Hold the log, read it to its end, and append the entry that binds it to the cluster it is on now.

    Requests that were handled are recognised by (source, id), as far back as the log remembers them; the inputs go on
    after the last of these. Reports are read from the start: those that answer older commands change nothing.

    Args:
        connect: opens a connection to the cluster that the log is on now.
        finalize: also finalize the upgrade to this software, if the log is of a fold version that knows no rebasing.

    Raises:
        TopicHeld: a scheduler leads.
        NotRebased: the log is on this cluster already, is empty, or would have to be finalized.
        LogError: the log cannot be followed.
        BusError: nothing, or not all, was appended; run it again.
    """
    mandate = Challenger(connect, lambda: False, lambda _: None).run(once=True)
    if mandate is None:
        raise TopicHeld("the log is held by a scheduler, or cannot be held: stop all schedulers first")
    try:
        state, broker = mandate.state, mandate.bus.cluster_id()
        if state.broker in ("", broker):
            raise NotRebased(f"the log is on broker cluster {broker}, where it was written: there is nothing to rebase")
        facts: list[f.Fact] = [f.LogRebased(broker, state.broker)]
        if state.version < FOLD_VERSION:
            if not finalize:
                raise NotRebased(
                    f"the log is of fold version {state.version}, which knows no rebasing: once no older software runs, "
                    "magnetar log rebase --finalize"
                )
            facts.insert(0, f.UpgradeFinalized(FOLD_VERSION))
        previous, handled = state.broker, _handled(mandate.bus, state)
        entry, payload = make_entry(
            state,
            Input("rebase"),
            facts,
            id=uuid.uuid4().hex,
            term=state.term + 1,
            at=state.at,
            wall=time.time_ns() // 1_000_000,
            handled=handled,
        )
        mandate.producer.send(payload, properties=properties_of(entry))
        return Rebased(entry.position, broker, previous, handled)
    finally:
        mandate.producer.close()
        mandate.bus.close()


def _handled(bus: Bus, state: State) -> dict[str, str]:
    """Find the last request on this cluster that was handled before the log moved."""
    reader, found = bus.reader(MODEL_EVENTS.name, name="log-rebase"), ""
    try:
        while not reader.at_end():
            message = reader.read(PATIENCE_S)
            if message is None:
                if reader.at_end():
                    break
                raise BusUnavailable(f"{MODEL_EVENTS.name} has more, and the broker does not send it")
            try:
                event = MODEL_EVENT.decode(message.payload, message.properties.get(FINGERPRINT, ""))
            except Undecodable:
                continue  # it has no name to be recognised by; if it comes after the last that has, it is rejected again
            if (event.source, event.id) in state.requests:
                found = str(message.id)
    finally:
        reader.close()
    return {short(MODEL_EVENTS.name): found} if found else {}

"""The only repair of a log: to sign off, for every folder to skip it, junk that somebody else wrote there."""

import time
from dataclasses import dataclass
from hashlib import sha256

from magnetar_common.bus import Bus, Message, MessageId
from magnetar_common.errors import (
    BusUnavailable,
    LogError,
    LogFork,
    LogHole,
    LogTooNew,
    LogUnreadable,
    NoSuchMessage,
    NotVoidable,
)
from magnetar_common.log import LogReader
from magnetar_common.state import State
from magnetar_common.topics import VOIDED
from magnetar_common.voids import PATIENCE_S, Voids
from magnetar_events import VOIDED_MESSAGE, schemas
from magnetar_events.voided import Voided


@dataclass(slots=True, frozen=True)
class Junk:
    """A message on the log that is no part of its history, and why it is none."""

    message: Message
    why: str


def examine(bus: Bus, place: MessageId) -> Junk | None:
    """Read the log up to a message and judge it by what came before; None if it was signed off already.

    Raises:
        NotVoidable: the message is part of the history, or only newer software can tell.
        NoSuchMessage: the log has no such message.
        LogError: the log cannot be followed as far as there: what is in the way comes first.
        BusUnavailable: the broker is away.
    """
    reader, state = LogReader(bus, name="log-void"), State()
    try:
        while not reader.at_end():
            try:
                record = reader.read(PATIENCE_S)
                if record is not None:
                    reader.fold(state, record)
            except (LogUnreadable, LogHole, LogFork) as error:
                if reader.held is None or reader.held.id != place:
                    raise
                if isinstance(error, LogHole):
                    _refuse_if_history_goes_on(bus, place, error)
                return Junk(reader.held, str(error))
            except LogTooNew as error:
                if reader.held is not None and reader.held.id == place:
                    raise NotVoidable(f"message {place} may be part of the history: {error}") from error
                raise
            if record is not None and record.message_id == place:
                what = f"entry {record.entry.id} at position {record.entry.position}"
                raise NotVoidable(f"message {place} is {what} and fits the log: what is true cannot be voided")
            if reader.last >= place:
                break
            if record is None and not reader.at_end():
                raise BusUnavailable(f"the log has more after {reader.last}, and the broker does not send it")
        if reader.last == place or place in reader.skipped:
            return None
        raise NoSuchMessage(f"the log has no message {place}")
    finally:
        reader.close()


def _refuse_if_history_goes_on(bus: Bus, place: MessageId, hole: LogHole) -> None:
    """See that it is the message that is too much, and not entries before it that are gone: then others follow it."""
    reader = LogReader(bus, place, name="log-void")
    try:
        following = None if reader.at_end() else reader.read(PATIENCE_S)
    except LogError:
        return  # junk again: to be judged in its turn
    finally:
        reader.close()
    if following is not None and following.entry.position == hole.found + 1:
        raise NotVoidable(f"the history goes on after message {place}: it is not junk, and {hole}") from hole


def void(bus: Bus, place: MessageId, *, actor: str, reason: str) -> Voided | None:
    """Sign off a message of the log as junk; None if it was signed off already.

    Raises:
        what :func:`examine` raises;
        pydantic.ValidationError: the actor or the reason is too long;
        BusError: the list could not be written; nothing was signed off.
    """
    junk = examine(bus, place)
    if junk is None:
        return None
    payload = junk.message.payload
    voided = Voided(
        message_id=str(place),
        size=len(payload),
        sha256=sha256(payload).hexdigest(),
        actor=actor,
        reason=reason,
        wall=time.time_ns() // 1_000_000,
    )
    producer = bus.producer(VOIDED.name, schema=schemas.schema_json(VOIDED.schema), name="log-void")
    try:
        producer.send(VOIDED_MESSAGE.encode(voided), key=voided.message_id, properties=VOIDED_MESSAGE.properties)
    finally:
        producer.close()
    if not Voids(bus).covers(place, payload):
        raise BusUnavailable(f"message {place} was signed off, and {VOIDED.name} does not show it; run it again")
    return voided

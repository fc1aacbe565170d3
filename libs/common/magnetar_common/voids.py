"""The list of what was signed off as junk on the log (``magnetar log void``). Every folder looks there before it halts."""

from hashlib import sha256

import structlog

from magnetar_common.bus import Bus, Message, MessageId
from magnetar_common.errors import BusUnavailable, NotThere
from magnetar_common.topics import VOIDED
from magnetar_events import VOIDED_MESSAGE
from magnetar_events.codec import FINGERPRINT, Undecodable
from magnetar_events.voided import Voided

PATIENCE_S = 5.0
"""A message of the list that the broker says is there comes within this time (seconds)."""

_log = structlog.get_logger(__name__)


class Voids:
    """Tells junk that was signed off from what must halt a folder. Nothing is read until somebody asks. For one thread.

    Args:
        bus: where the list is.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listed: dict[str, Voided] = {}

    def covers(self, place: MessageId, payload: bytes) -> bool:
        """Whether this message of the log, with these very bytes, is listed. What is not known yet is looked up anew.

        Raises:
            BusUnavailable: the list cannot be read now.
        """
        return self._same(place, payload) or (self._read(), self._same(place, payload))[1]

    def _same(self, place: MessageId, payload: bytes) -> bool:
        voided = self._listed.get(str(place))
        return voided is not None and voided.sha256 == sha256(payload).hexdigest()

    def _read(self) -> None:
        """Read the list to its end, as the broker tells it."""
        try:
            reader = self._bus.reader(VOIDED.name, compacted=True, name="voids")
        except NotThere:
            return  # a broker whose topics were applied before there was such a list
        try:
            while not reader.at_end():
                message = reader.read(PATIENCE_S)
                if message is not None:
                    self._hear(message)
                elif not reader.at_end():
                    raise BusUnavailable(f"{VOIDED.name} has more, and the broker does not send it")
        finally:
            reader.close()

    def _hear(self, message: Message) -> None:
        if not message.payload:
            self._listed.pop(message.key, None)
            return
        try:
            self._listed[message.key] = VOIDED_MESSAGE.decode(message.payload, message.properties.get(FINGERPRINT, ""))
        except Undecodable as error:  # it voids nothing: whoever meets the junk halts as before
            _log.warning(
                "not a record of the void list", topic=VOIDED.name, message_id=str(message.id), error=str(error)
            )

"""When whoever reads the log is to look whether it is still the one that was read: its topic may be deleted under us.

The broker makes a deleted topic anew for whoever connects, and the client connects by itself: a reader takes what comes
next for what follows on what it had, and may stand at the end of an empty topic for ever (both measured). Ledgers tell:
a topic that was made anew is in another one. But the broker also begins another one now and then, and so this only says
when to look; `magnetar_common.log.check_history` looks.
"""

import time

from magnetar_common.bus import EARLIEST, Message, MessageId

LOOK_S = 30.0
"""While nothing comes, the log is looked at this often (seconds)."""


class Custody:
    """What was read last, and when to look whether it is still there. For the reader's thread."""

    def __init__(self) -> None:
        self.position = -1
        """Of the last entry folded; -1 = nothing is known, so that there is nothing to look for."""
        self.entry = ""
        """Its id."""
        self.place = EARLIEST
        """Where it is."""
        self._opened = 0
        self._ledger = EARLIEST.ledger
        self._looked = time.monotonic()

    def note(self, position: int, entry: str, place: MessageId) -> None:
        """Take note of an entry that belongs to the history."""
        self.position, self.entry, self.place = position, entry, place
        self._looked = time.monotonic()

    def due(self, message: Message | None, opened: int) -> bool:
        """Whether it is time to look.

        Args:
            message: what comes next; None = nothing came.
            opened: how often the reader was opened anew.
        """
        if self.position < 0:
            return False
        if opened != self._opened:
            return True
        if message is None:
            return time.monotonic() - self._looked > LOOK_S
        return message.id.ledger not in (self.place.ledger, self._ledger)

    def looked(self, message: Message | None, opened: int) -> None:
        """It is still there."""
        self._opened, self._looked = opened, time.monotonic()
        if message is not None:
            self._ledger = message.id.ledger

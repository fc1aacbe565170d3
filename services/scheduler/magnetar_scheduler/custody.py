"""Whether the log is still the one that was read and written: its topic may be deleted under us, and comes back empty.

The broker makes a deleted topic anew for whoever connects, and the client connects by itself: an exclusive producer goes on
with the next position as if nothing had happened (measured), and the history is gone.
"""

from magnetar_common.bus import EARLIEST, Bus, MessageId, just_before
from magnetar_common.errors import BusUnavailable, LogReplaced
from magnetar_common.log import LogReader, LogRecord
from magnetar_events.entry import BARRIER

PATIENCE_S = 5.0
"""An entry that must be there comes within this time (seconds), or it cannot be told."""


def check_history(bus: Bus, position: int, entry: str, place: MessageId) -> None:
    """See that the log begins where it began, and still holds an entry.

    Args:
        bus: where the log is.
        position: of an entry that was read from the log or written to it.
        entry: its id; empty = not known any more, and then only the beginning is looked at.
        place: where it is.

    Raises:
        LogReplaced: it is another log.
        BusUnavailable: it cannot be told now.
    """
    if _first(bus, EARLIEST, EARLIEST).entry.position != 0:
        raise LogReplaced(position, entry, str(place))
    if entry and _first(bus, just_before(place), place).entry.id != entry:
        raise LogReplaced(position, entry, str(place))


def _first(bus: Bus, after: MessageId, place: MessageId) -> LogRecord:
    """Return the first entry at a place or behind it; what comes before it (the rest of a batch) is passed over."""
    reader = LogReader(bus, after, name="magnetar-custody")
    try:
        while (record := reader.read(PATIENCE_S)) is not None:
            if record.message_id >= place and record.entry.position != BARRIER:
                return record
    finally:
        reader.close()
    raise BusUnavailable(f"the log does not show what it holds at {place} within {PATIENCE_S} s")

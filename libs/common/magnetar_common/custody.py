"""Whether the log is still the one that was read and written: its topic may be deleted under us, and comes back empty.

The broker makes a deleted topic anew for whoever connects, and the client connects by itself: an exclusive producer goes on
with the next position as if nothing had happened (measured), and the history is gone.
"""

from magnetar_common.bus import Bus, MessageId, just_before
from magnetar_common.errors import LogReplaced
from magnetar_common.log import LogRecord, first
from magnetar_events.entry import BARRIER


def check_history(bus: Bus, position: int, entry: str, place: MessageId) -> None:
    """See that the log begins where it began, and still holds an entry.

    Args:
        bus: where the log is.
        position: of an entry that was read from the log or written to it.
        entry: its id; empty = not known any more, and then only the beginning is looked at.
        place: where it is.

    Raises:
        LogReplaced: it is another log, or there is nothing on it.
        BusUnavailable: it cannot be told now.
    """

    def is_one(record: LogRecord) -> bool:
        return record.entry.position != BARRIER

    def is_there(record: LogRecord) -> bool:
        return is_one(record) and record.message_id >= place  # what comes before it is the rest of a batch

    beginning = first(bus, is_one)
    if beginning is None or beginning.entry.position != 0:
        raise LogReplaced(position, entry, str(place))
    if entry:
        found = first(bus, is_there, just_before(place))
        if found is None or found.entry.id != entry:
            raise LogReplaced(position, entry, str(place))

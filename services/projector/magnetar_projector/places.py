"""Places in the log as people name them: a position, a time, a message id."""

import re
from datetime import UTC, datetime

from magnetar_common.bus import MessageId
from magnetar_common.errors import MagnetarError
from magnetar_common.log import Until, until_message, until_position, until_wall

Place = int | MessageId | datetime
"""Up to and including this position, this message, or what had been appended at this time."""

_MESSAGE = re.compile(r"-?\d+:-?\d+:-?\d+")


class BadPlace(MagnetarError):
    """The text names no place in the log."""


class NoSuchPlace(MagnetarError):
    """The log, as far as it is known here, does not hold that place."""


def parse_place(text: str) -> Place:
    """Read a position (``42``), a message id (``12:34:-1``) or an RFC 3339 time (``2026-01-31T12:00:00Z``).

    A time without an offset is UTC.

    Raises:
        BadPlace: it is none of these.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    if _MESSAGE.fullmatch(text):
        return MessageId.parse(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadPlace(
            f"{text!r} is no place in the log; give a position (42), a message id (12:34:-1) "
            "or a time (2026-01-31T12:00:00Z)"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def until(place: Place) -> Until:
    """Return the test for :func:`magnetar_common.log.replay` that ends at a place."""
    if isinstance(place, datetime):
        return until_wall(wall_of(place))
    return until_message(place) if isinstance(place, MessageId) else until_position(place)


def wall_of(time: datetime) -> int:
    """Return milliseconds since the epoch."""
    return round(time.timestamp() * 1000)


def time_of(wall: int) -> str:
    """Return milliseconds since the epoch as RFC 3339 in UTC."""
    return datetime.fromtimestamp(wall / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

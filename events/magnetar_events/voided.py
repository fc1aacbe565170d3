"""What was signed off as junk on the log. The key is the message id; every folder skips what is listed."""

from typing import Annotated

from pydantic import Field

from magnetar_events.base import Count, Identifier, Millis, Text, Wire


class Voided(Wire):
    """A message on the log that is no part of its history.

    Attributes:
        message_id: ``ledger:entry:batch`` on the log.
        size: of its bytes.
        sha256: of its bytes, hex: only these very bytes are skipped.
        actor: who signed it off; an opaque id, never a name or an address of a person.
        reason: why, in free text.
        wall: when (ms since the epoch), for people.
    """

    message_id: Identifier
    size: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    actor: Identifier
    reason: Text
    wall: Millis

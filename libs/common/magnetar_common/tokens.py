"""What our own token says of us. Nothing is verified here: that is the broker's part, which has the key."""

import base64
import binascii
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast


@dataclass(frozen=True, slots=True)
class Claims:
    """What a JWT claims.

    Attributes:
        role: the subject, which is Pulsar's role; empty if it cannot be read.
        expires: when it ends (seconds since the epoch); None = never, or it cannot be read.
    """

    role: str = ""
    expires: float | None = None


def claims(token: str) -> Claims:
    """Return what a token claims; nothing of one that is no JWT."""
    try:
        body = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return Claims()
    if not isinstance(said, dict):
        return Claims()
    fields = cast("dict[str, object]", said)
    role, expires = fields.get("sub"), fields.get("exp")
    return Claims(role if isinstance(role, str) else "", expires if isinstance(expires, int | float) else None)


def fault(token: str) -> str:
    """Return what is wrong with a token that the broker refused, as far as can be seen from here."""
    if not token:
        return "there is no token"
    said = claims(token)
    who = f" of role {said.role}" if said.role else ""
    if said.expires is not None and said.expires <= time.time():
        since = datetime.fromtimestamp(said.expires, UTC)
        return f"the token{who} expired at {since:%Y-%m-%dT%H:%M:%SZ}, {_ago(time.time() - said.expires)} ago"
    if token.count(".") != 2:  # header, claims, signature
        return "the token is no JWT"
    return f"the token{who} is not signed with the broker's key"


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

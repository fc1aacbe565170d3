"""What a credential looks like in a text: what is refused in a request, and taken out of everything else.

Known forms only; a password that looks like any other word cannot be told from one. None asks what comes before it: in
the bytes of a message that is the text's length, which may look like a letter.
"""

import re
from urllib.parse import unquote

USER_AND_PASSWORD = re.compile(r"(?P<before>:/{1,2})[^/\\\s:@'\"]*:[^/\\\s@'\"]*@")
"""``scheme://user:password@``."""

SECRET_PARAMETER = re.compile(
    r"(?P<before>[?&;#](?:x-(?:amz|goog|oss|cos|obs)-[a-z-]+|awsaccesskeyid|key"
    r"|(?:[a-z0-9]+[-_.])*[a-z0-9]*(?:sig|signature|token|jwt|auth|pwd|passwd|password|passphrase|secret|credentials?"
    r"|api[-_.]?key|access[-_.]?key|account[-_.]?key|private[-_.]?key|secret[-_.]?key))=)(?!\*\*\*)[^\s&'\"#]+",
    re.IGNORECASE,
)
"""Parameters that sign or open a URL, in its query or its fragment: ``sig``, ``hf_token``, ``X-Amz-Signature``, …"""

_JWT = re.compile(r"(?P<before>)ey[A-Za-z0-9_-]{6,}\.ey[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*")
_BEARER = re.compile(r"(?P<before>Bearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_TOKEN = re.compile(r"(?P<before>token:)[A-Za-z0-9._~+/=-]{8,}")
_PRIVATE_KEY = re.compile(
    r"(?P<before>)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL
)

_FORMS = (
    ("@", USER_AND_PASSWORD),
    ("=", SECRET_PARAMETER),
    (".ey", _JWT),
    ("bearer", _BEARER),
    ("token:", _TOKEN),
    ("private key", _PRIVATE_KEY),
)
"""Each with what it cannot be without, in lower case: most texts hold none of these, and cost next to nothing."""


def holds_credential(text: str) -> bool:
    """Whether a text holds something that looks like a credential."""
    if "%" in text and (plain := unquote(text)) != text and holds_credential(plain):
        return True
    lower = text.lower()
    for needle, form in _FORMS:  # noqa: SIM110 - every text of every input comes by here, and a generator takes twice as long
        if needle in lower and form.search(text):
            return True
    return False


def bytes_hold_credential(data: bytes) -> bool:
    """Whether there is one anywhere in the bytes of a message, whatever its fields are."""
    return holds_credential(data.decode("latin-1"))


def redacted(text: str) -> str:
    """Return the text with ``***`` in place of whatever looks like a credential."""
    if "%" in text and (plain := unquote(text)) != text and holds_credential(plain):
        return redacted(plain)
    lower = text.lower()
    for needle, form in _FORMS:
        if needle in lower:
            text = form.sub(_covered, text)
    return text


def _covered(match: re.Match[str]) -> str:
    at = "@" if match.re is USER_AND_PASSWORD else ""
    return f"{match['before']}***{at}"

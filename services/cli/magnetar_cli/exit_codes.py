"""What the exit codes of ``magnetar`` mean. They are part of its interface: scripts branch on them."""

from enum import IntEnum

from magnetar_common.errors import (
    BusUnavailable,
    Deposed,
    MagnetarError,
    NoRoute,
    NoSuchMessage,
    NotPermitted,
    NotThere,
    RequestRefused,
    TopicsUnsafe,
    Unanswered,
    Unauthenticated,
    Untrusted,
)
from magnetar_projector.places import BadPlace, NoSuchPlace

NOT_FOUND_STATUS = 404


class ExitCode(IntEnum):
    """Exit codes."""

    OK = 0
    """Done, and true."""
    FAILED = 1
    """Tried, and it did not work; a check did not hold; a model failed for good."""
    USAGE = 2
    """A flag, a name or a manifest is wrong; nothing was sent."""
    REJECTED = 3
    """The scheduler refused the request; the message names its code and field."""
    TIMED_OUT = 4
    """What was waited for did not happen in time; it may still."""
    NOT_FOUND = 5
    """There is no such model, server, service or place in the log."""
    BROKER_UNREACHABLE = 6
    """No broker answers where the context says that one is."""
    DENIED = 7
    """The broker does not accept the token, its role may not do this, or the broker's own certificate is not trusted."""
    DEPOSED = 75
    """A scheduler that led and no longer does, or lost the broker (EX_TEMPFAIL): start it again, and it stands by."""
    INTERRUPTED = 130
    """Ctrl-C."""


MEANING = (
    "Exit codes: 0 done; 1 failed; 2 usage or manifest wrong; 3 rejected by the scheduler; 4 timed out; 5 not found; "
    "6 no broker; 7 token, permission or certificate; 75 deposed (scheduler); 130 interrupted."
)
"""The same in a line, for `--help`."""


class CommandError(MagnetarError):
    """A command ends here.

    Attributes:
        code: exit code.
        hint: what to do next; empty = the message says it.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class NotFound(CommandError):
    """There is no such thing."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, ExitCode.NOT_FOUND, hint)


class TimedOut(CommandError):
    """What was waited for did not happen in time."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, ExitCode.TIMED_OUT, hint)


class Misused(CommandError):
    """A flag, a name or a manifest is wrong."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, ExitCode.USAGE, hint)


_CODES: tuple[tuple[type[BaseException], ExitCode, str], ...] = (
    (RequestRefused, ExitCode.REJECTED, ""),
    (Unanswered, ExitCode.TIMED_OUT, "magnetar doctor"),
    (TimeoutError, ExitCode.TIMED_OUT, "is a scheduler leading? magnetar doctor"),
    (BadPlace, ExitCode.USAGE, ""),
    (NoSuchPlace, ExitCode.NOT_FOUND, ""),
    (NotThere, ExitCode.NOT_FOUND, "magnetar topics apply"),
    (Unauthenticated, ExitCode.DENIED, "which broker is meant? magnetar context list"),
    (NotPermitted, ExitCode.DENIED, "who may? magnetar topics grants"),
    (Untrusted, ExitCode.DENIED, ""),
    (NoSuchMessage, ExitCode.NOT_FOUND, ""),
    (BusUnavailable, ExitCode.BROKER_UNREACHABLE, "which broker is meant? magnetar context list"),
    (Deposed, ExitCode.DEPOSED, ""),
    (TopicsUnsafe, ExitCode.FAILED, "magnetar topics check"),
)


def judge(error: BaseException) -> tuple[ExitCode, str]:
    """Return the exit code that an error means, and a hint (empty for none)."""
    if isinstance(error, CommandError):
        return error.code, error.hint
    if isinstance(error, NoRoute):
        gone = error.status == NOT_FOUND_STATUS
        return (ExitCode.NOT_FOUND, "magnetar model list") if gone else (ExitCode.FAILED, "magnetar model status NAME")
    for cls, code, hint in _CODES:
        if isinstance(error, cls):
            return code, hint
    return ExitCode.FAILED, ""

"""Every error that Magnetar raises, in one tree. Each message says what happened, to which object, and what to do."""


class MagnetarError(Exception):
    """The root: catch this to catch them all."""


class BusError(MagnetarError):
    """The broker or the connection to it."""


class BusUnavailable(BusError):
    """The broker did not answer, or not yet; trying again may help."""


class BusRefused(BusError):
    """The broker said no (permission, schema, size, name); trying again will not help."""


class NotThere(BusRefused):
    """The broker has no such topic, namespace or tenant."""


class NotPermitted(BusRefused):
    """The broker knows who we are, and this role may not do that."""


class Unauthenticated(BusRefused):
    """The broker does not know who we are: no token, an expired one, or one that it does not accept."""


class Untrusted(BusRefused):
    """Whoever answers at the broker's address cannot prove that it is the broker (TLS)."""


class Unguarded(MagnetarError):
    """A service would answer whoever asks from another machine, or cannot know who may: it has no token."""


class SendTimedOut(BusUnavailable):
    """No acknowledgement came. The message may have been stored all the same."""


class TopicHeld(BusError):
    """Another producer holds the topic exclusively."""


class Fenced(BusError):
    """This producer lost its exclusive hold; it can never write again."""


class CannotFence(BusError):
    """The broker does not enforce exclusive producers, and no lock stands in for it."""


class TopicsUnsafe(MagnetarError):
    """The broker is set up so that it would lose data."""


class LogError(MagnetarError):
    """The log cannot be followed further. A folder halts: going on would be to guess."""


class LogHole(LogError):
    """Positions are missing from the log."""

    def __init__(self, expected: int, found: int, message_id: str) -> None:
        super().__init__(
            f"the log has a hole: position {expected} should come next, message {message_id} holds {found}; "
            "nothing after it can be trusted: find out who wrote or deleted on this topic. "
            f"If that message is junk: magnetar log void {message_id}"
        )
        self.expected = expected
        self.found = found


class LogFork(LogError):
    """One position holds two different entries."""

    def __init__(self, position: int, first: str, second: str, message_id: str) -> None:
        super().__init__(
            f"the log forks at position {position}: entry {first} and, in message {message_id}, entry {second}; "
            f"find out who wrote it. If that message is junk: magnetar log void {message_id}"
        )
        self.position = position


class LogReplaced(LogError):
    """The log no longer holds what was read from it: its topic was deleted, and made anew."""

    def __init__(self, position: int, entry: str, message_id: str) -> None:
        super().__init__(
            f"the log no longer holds position {position} (entry {entry}, message {message_id}), which was read from it: "
            "its topic was deleted and made anew, or set back. To go on from here would be to forget everything: restore "
            "the topic, or, if this is meant, remove the snapshots and start all schedulers and projectors afresh"
        )
        self.position = position


class LogUnreadable(LogError):
    """A message on the log is not an entry."""


class LogTooNew(LogError):
    """The log holds what only a newer version understands."""


class NoSnapshotStore(MagnetarError):
    """Snapshots cannot be had from where the settings say that they are."""


class ArchiveBroken(MagnetarError):
    """An archive of the log is damaged, or is not what it should be."""


class NotVoidable(LogError):
    """A message of the log is part of its history, or may be: it cannot be signed off as junk."""


class NoSuchMessage(LogError):
    """The log has no message of this id."""


class Deposed(MagnetarError):
    """This process led and no longer does. It must exit, and so release everything that it holds."""


class RequestRefused(MagnetarError):
    """The scheduler refused a request."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(f"{code}: {field}: {message}" if field else f"{code}: {message}")
        self.code = code
        self.field = field
        self.message = message


class SigningKeyUnusable(MagnetarError):
    """A private key cannot be read, or is not an Ed25519 key; or nothing is installed to sign with."""


class NoRoute(MagnetarError):
    """No replica can take an inference request.

    ``status`` is what HTTP says of it: 404 when the log knows no such model, 503 (try again) otherwise.
    """

    def __init__(self, model: str, status: int, message: str) -> None:
        super().__init__(f"{model}: {message}")
        self.model = model
        self.status = status


class Unanswered(MagnetarError):
    """A request was not answered in time; it may be yet. To ask again with the same id is safe."""

    def __init__(self, request: str, message: str) -> None:
        super().__init__(f"{message}; it may be yet: ask again with the same id, {request}")
        self.request = request


class NotAvailable(MagnetarError):
    """A model that was asked for does not answer with all of its replicas.

    ``state`` is the outcome's: Failed, ScheduleFailed, Degraded, Progressing, Superseded, Removed, …
    """

    def __init__(self, model: str, state: str, code: str, message: str) -> None:
        super().__init__(": ".join(part for part in (f"{model} is {state}", code, message) if part))
        self.model = model
        self.state = state
        self.code = code


class InferenceRefused(MagnetarError):
    """An inference server answered, and the answer is no: the request is wrong, or the model failed on it."""

    def __init__(self, model: str, server: str, status: int, message: str) -> None:
        super().__init__(f"{model} on {server}: {status} {message}")
        self.model = model
        self.server = server
        self.status = status
        self.message = message

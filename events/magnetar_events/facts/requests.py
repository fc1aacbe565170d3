"""What came of a request, and which reports came to nothing."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestAccepted:
    """A request was taken up.

    Attributes:
        request: its id.
        source: its source.
        kind: of request.
        subject: what it is about.
        generation: the model's that answers it (0 = not of a model).
        actor: who asked; a mere claim while ``authverified`` is ``none``.
        authtype: ``user``, ``service``, …
        authverified: how the leader knows: ``signature`` = the actor signed; ``gateway`` = the publisher did, and vouches
            for the actor; ``none`` = it does not.
        reason: why, in free text.
        publisher: who signed; empty = nobody.
    """

    request: str
    source: str
    kind: str
    subject: str
    generation: int
    actor: str
    authtype: str
    authverified: str
    reason: str
    publisher: str = ""


@dataclass(slots=True)
class RequestRejected:
    """A request changed nothing.

    Attributes:
        request: its id; empty if that could not be read.
        source: its source; empty if that could not be read.
        kind: of request.
        subject: what it was about.
        code: UNDECODABLE, UNKNOWN_KIND, INVALID, CREDENTIAL_IN_URI, CREDENTIAL_IN_TEXT, GENERATION_CONFLICT, NOT_FOUND, …
        field: which field is wrong, e.g. ``event.model.memory``.
        message: for people.
        publisher: who signed it; empty = nobody, as far as is known.
    """

    request: str
    source: str
    kind: str
    subject: str
    code: str
    field: str
    message: str
    publisher: str = ""


@dataclass(slots=True)
class RequestRepeated:
    """A client's retry: ``position`` is the entry that handled the first."""

    request: str
    source: str
    position: int


@dataclass(slots=True)
class ReportIgnored:
    """A report changed nothing: it answers an older command, or comes from a superseded agent, or is not legal."""

    server: str
    subject: str
    code: str
    message: str

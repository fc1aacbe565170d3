"""Servers on which nothing is placed: cordoned or draining."""

from dataclasses import dataclass


@dataclass(slots=True)
class ServerCordoned:
    """Nothing is placed on the server until it is resumed; what is there stays. If it was draining, that is over."""

    server: str
    reason: str


@dataclass(slots=True)
class ServerDraining:
    """Nothing is placed on the server, and what is there leaves once it is Available elsewhere.

    Attributes:
        due: log time (ms) at which is said what could not leave; it goes on serving.
        incarnation: the life of an agent that is to end, with which this is over; empty = until the server is resumed.
        reason: why.
    """

    server: str
    due: int
    incarnation: str
    reason: str


@dataclass(slots=True)
class LeftBehind:
    """A version on a draining server, and why it is still there."""

    model: str
    generation: int
    reason: str


@dataclass(slots=True)
class ServerDrained:
    """Nothing is left on a draining server; or its time is over, and this is what could not leave.

    Attributes:
        models: how many are left.
        left: up to a hundred of them, first those that fit nowhere else.
    """

    server: str
    models: int
    left: tuple[LeftBehind, ...]


@dataclass(slots=True)
class ServerResumed:
    """The server is neither cordoned nor drained any more."""

    server: str
    reason: str

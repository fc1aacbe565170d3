"""What becomes of a model's versions, and how its traffic is divided between them."""

from dataclasses import dataclass


@dataclass(slots=True)
class ArtifactPinned:
    """The first digest seen of a version: every other replica must have the same."""

    model: str
    generation: int
    digest: str


@dataclass(slots=True)
class VersionFailed:
    """A version cannot be had: every place that was tried, and why.

    Attributes:
        retriable: a new server may still help; otherwise only a new version does.
        places: ``server: code: message``.
    """

    model: str
    generation: int
    code: str
    message: str
    retriable: bool
    places: tuple[str, ...]


@dataclass(slots=True)
class VersionRevived:
    """A version that had failed for a retriable reason is tried again."""

    model: str
    generation: int
    reason: str


@dataclass(slots=True)
class VersionRetired:
    """Nothing of an old version is left."""

    model: str
    generation: int


@dataclass(slots=True)
class VersionKept:
    """A version that is being replaced is kept at another number of replicas.

    Attributes:
        replicas: how many.
        full: what it returns to if the version that replaces it fails; 0 = this is it.
    """

    model: str
    generation: int
    replicas: int
    full: int
    reason: str


@dataclass(slots=True)
class TrafficTarget:
    """An exact version and its weight in percent."""

    generation: int
    weight: int


@dataclass(slots=True)
class TrafficChanged:
    """The model's traffic table is this one."""

    model: str
    targets: tuple[TrafficTarget, ...]
    reason: str

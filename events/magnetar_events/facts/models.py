"""Which models are wanted, and how they may be changed."""

from dataclasses import dataclass

from magnetar_events.models import ModelSpec


@dataclass(slots=True)
class ModelWanted:
    """A version of a model is wanted.

    Attributes:
        spec: what is wanted of it.
        again: it was wanted before and is still known: its replicas and its pinned artifact go on.
        rollback_of: the earlier version, long gone, whose specification this new one has; 0 = none.
    """

    model: str
    generation: int
    spec: ModelSpec
    again: bool = False
    rollback_of: int = 0


@dataclass(slots=True)
class ModelScaled:
    """Another number of replicas of the wanted version is wanted."""

    model: str
    replicas: int
    owner: str


@dataclass(slots=True)
class ModelFrozen:
    """Nothing of the model is changed until it is unfrozen.

    Attributes:
        actor: who asked, as people are told: ``unverified NAME``, ``NAME (signed)`` or ``NAME via PUBLISHER (signed)``.
        reason: why, in free text.
    """

    model: str
    actor: str
    reason: str


@dataclass(slots=True)
class ModelUnfrozen:
    """The model may be changed again."""

    model: str


@dataclass(slots=True)
class ModelUndeployed:
    """The model is no longer wanted; whatever its servers say, it is forgotten at log time ``due`` (ms)."""

    model: str
    due: int


@dataclass(slots=True)
class ModelRemoved:
    """Nothing of the model is left."""

    model: str

"""Who leads, at which fold version, on which broker."""

from dataclasses import dataclass


@dataclass(slots=True)
class LeaderElected:
    """A process leads from here on.

    Attributes:
        term: one more than the previous.
        leader: who.
        cluster: Magnetar cluster that it leads.
        broker: id of the broker cluster: message ids in ``handled`` compare only within it.
        version: of the software.
    """

    term: int
    leader: str
    cluster: str
    broker: str
    version: str


@dataclass(slots=True)
class LeaderAlive:
    """The leader could still append."""

    term: int


@dataclass(slots=True)
class UpgradeFinalized:
    """From here on the log holds what only software of this fold version knows; older software neither folds nor leads."""

    fold_version: int


@dataclass(slots=True)
class LogRebased:
    """The log is on another broker cluster: message ids mean something only there from here on."""

    broker: str
    previous: str

"""What every running broker offers, whoever started it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, Self

from magnetar_common.errors import MagnetarError

PULSAR_VERSION = "4.2.4"
"""The Pulsar that Magnetar is developed and tested against.

Older ones never compact away an unbatched tombstone (fixed in 4.0.11 and 4.2.2). The jar lock, the container image and
``docker-compose.pulsar.yml`` name the same version; a test compares them.
"""

BrokerKind = Literal["embedded", "jvm", "docker", "yours"]


class BrokerError(MagnetarError):
    """A broker did not start, did not stop, or was asked for something that is not ours to do."""


class BrokerUnavailable(BrokerError):
    """This machine cannot run that kind of broker; the message is the reason, fit for one line of a report."""


class RunningBroker(ABC):
    """A broker that accepts connections. As a context manager it is stopped on leaving.

    Attributes:
        kind: How it runs. ``yours`` was there before us: it is never stopped, killed or restarted.
        service_url: Where Pulsar clients connect, ``pulsar://host:port``.
        admin_url: Root of the admin REST interface, or None where there is none (embedded).
    """

    kind: BrokerKind
    service_url: str
    admin_url: str | None

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The broker's process id; None while it is down, or where the process is not ours."""

    @abstractmethod
    def stop(self) -> None:
        """End it in order (SIGTERM), by force after a deadline. Stopping a stopped broker does nothing."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL), and return when it is gone."""

    @abstractmethod
    def restart(self) -> None:
        """Start it again on the same ports and data, after stopping it if it still runs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

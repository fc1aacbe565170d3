"""A broker that somebody else runs, named by the environment."""

from __future__ import annotations

import os

from magnetar_common.brokers.broker import BrokerError, RunningBroker


class YourBroker(RunningBroker):
    """Known by its addresses only. Leaving its context leaves it alone."""

    kind = "yours"

    def __init__(self, service_url: str, admin_url: str | None = None) -> None:
        """Name a broker.

        Args:
            service_url: ``pulsar://…`` or ``pulsar+ssl://…``.
            admin_url: Root of its admin interface.
        """
        self.service_url = service_url
        self.admin_url = admin_url

    @classmethod
    def from_environment(cls) -> YourBroker | None:
        """The broker at ``MAGNETAR_PULSAR_URL`` (and ``MAGNETAR_PULSAR_ADMIN_URL``), or None when that is not set."""
        url = os.environ.get("MAGNETAR_PULSAR_URL")
        return cls(url, os.environ.get("MAGNETAR_PULSAR_ADMIN_URL")) if url else None

    @property
    def pid(self) -> int | None:
        """None: not ours."""
        return None

    def stop(self) -> None:
        """Do nothing: it was there before us."""

    def kill(self) -> None:
        """Refuse.

        Raises:
            BrokerError: Always.
        """
        raise BrokerError(f"{self.service_url} is not ours to kill")

    def restart(self) -> None:
        """Refuse.

        Raises:
            BrokerError: Always.
        """
        raise BrokerError(f"{self.service_url} is not ours to restart")

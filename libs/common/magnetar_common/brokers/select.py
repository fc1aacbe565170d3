"""Which real Pulsar this machine can offer."""

from __future__ import annotations

from pathlib import Path

from magnetar_common.brokers import jvm
from magnetar_common.brokers.broker import BrokerUnavailable, RunningBroker
from magnetar_common.brokers.docker import DockerBroker
from magnetar_common.brokers.yours import YourBroker


def real_pulsar(data: Path) -> RunningBroker:
    """Yours if ``MAGNETAR_PULSAR_URL`` names one, else one of our own.

    Args:
        data: Folder for the broker's data, if it is a JVM of ours.

    Raises:
        BrokerUnavailable: There is none to be had; the message has the reason for each way.
        BrokerError: One could have been had, but did not start.
    """
    return YourBroker.from_environment() or own_pulsar(data)


def own_pulsar(data: Path) -> RunningBroker:
    """A real Pulsar that may be killed and restarted: Docker, else a JVM.

    Args:
        data: Folder for the broker's data, if it is a JVM of ours.

    Raises:
        BrokerUnavailable: There is none to be had; the message has the reason for each way.
        BrokerError: One could have been had, but did not start.
    """
    try:
        return DockerBroker()
    except BrokerUnavailable as without_docker:
        try:
            return jvm.start(data)
        except BrokerUnavailable as without_java:
            raise BrokerUnavailable(f"{without_docker}; {without_java}") from None

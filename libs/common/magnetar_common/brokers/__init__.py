"""Brokers as processes: the embedded one, and a real Pulsar on a JVM, in Docker, or yours."""

from magnetar_common.brokers.broker import (
    PULSAR_VERSION,
    BrokerError,
    BrokerKind,
    BrokerUnavailable,
    RunningBroker,
)

__all__ = ["PULSAR_VERSION", "BrokerError", "BrokerKind", "BrokerUnavailable", "RunningBroker"]

"""The bus: producers, readers, exclusive holds, on any broker. See :mod:`magnetar_common.bus.base` for the contract."""

from magnetar_common.bus.base import (
    EARLIEST,
    LATEST,
    Anchor,
    Bus,
    Message,
    MessageId,
    Producer,
    Reader,
    SendCallback,
    just_before,
)
from magnetar_common.settings import BusSettings

__all__ = [
    "EARLIEST",
    "LATEST",
    "Anchor",
    "Bus",
    "Message",
    "MessageId",
    "Producer",
    "Reader",
    "SendCallback",
    "connect",
    "just_before",
]


def connect(settings: BusSettings | None = None) -> Bus:
    """Connect to the broker that the settings name (by default, the environment).

    Nothing is exchanged yet: what may fail is to open something on it.
    """
    from magnetar_common.bus.pulsar import PulsarBus

    return PulsarBus(settings or BusSettings())

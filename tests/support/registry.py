"""The registry topic in memory: written by hand, and read as it was written."""

import time

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord
from magnetar_events.codec import FINGERPRINT
from magnetar_events.records import Address

DEADLINE = 20.0
"""What is to be said is said within this time (seconds)."""

QUICK = {"heartbeatMs": "100"}
"""Metadata of an instance that beats often; of one that seldom does, ``SLOW``."""

SLOW = {"heartbeatMs": "20000"}


def record(instance: str, status: str = "UP", name: str = "ranker", **fields: object) -> ServiceRecord:
    given = {"service_name": name, "instance_id": instance, "status": status, "timestamp": 0, **fields}
    return ServiceRecord.model_validate({"address": Address(host="127.0.0.1", port=1), **given})


class Registry:
    """The topic; ``bus`` is that of whoever watches it, the one to cut off."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        own = MemoryBus(self.broker)
        self._producer = own.producer(SERVICE_REGISTRY.name)
        self._reader = own.reader(SERVICE_REGISTRY.name)

    def say(self, instance: str, status: str = "UP", name: str = "ranker", **fields: object) -> None:
        said = record(instance, status, name, **fields)
        self._producer.send(SERVICE_RECORD.encode(said), key=instance, properties=SERVICE_RECORD.properties)

    def bury(self, instance: str) -> None:
        self._producer.send(b"", key=instance)

    def junk(self, instance: str) -> None:
        self._producer.send(b"\xff" * 30, key=instance)

    def next(self, instance: str) -> ServiceRecord | None:
        """Return what is said of an instance next: a record, or None for its tombstone."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            message = self._reader.read(0.1)
            if message is not None and message.key == instance:
                return (
                    SERVICE_RECORD.decode(message.payload, message.properties[FINGERPRINT]) if message.payload else None
                )
        raise AssertionError(f"nothing was said of {instance}")

"""The loop-back probe: proof that what is published on the registry topic is read here.

It travels the same way as everybody's heartbeats: through the broker, into the same view. Its key begins with
``probe/``; whoever looks for services skips such keys (:func:`is_probe`), and the registry service retires the probes
that were left behind, as it retires any silent instance.
"""

import re
import time

from magnetar_common.beacon import Beacon
from magnetar_common.bus.base import Bus
from magnetar_common.leases import Leases
from magnetar_common.topics import SERVICE_REGISTRY
from magnetar_events import SERVICE_RECORD, ServiceRecord, schemas
from magnetar_events.records import Address

_PREFIX = "probe/"
_NUMBER = "number"


def is_probe(key: str) -> bool:
    """Whether a key of the registry topic is a probe's, and so no service's."""
    return key.startswith(_PREFIX)


class Probe:
    """Sends probes from a thread of its own (a broker that is gone blocks nobody), and tells the leases what returns.

    ``tick`` and ``seen`` are for the thread that owns the leases.

    Args:
        bus: where the registry is.
        owner: id of this process, unique for each life of it.
        leases: whom to tell.
        topic: the registry topic.
    """

    def __init__(self, bus: Bus, owner: str, leases: Leases, *, topic: str = SERVICE_REGISTRY.name) -> None:
        self.key = f"{_PREFIX}{owner}"
        self._leases = leases
        self._number = 0
        self._sent: dict[int, float] = {}
        self._next = float("-inf")
        schema = schemas.schema_json(SERVICE_REGISTRY.schema)
        self._beacon = Beacon(bus, topic, self.key, self._value, schema=schema).start()

    def tick(self, now: float) -> None:
        """Send a probe when one is due: three in the time after which their absence counts."""
        if now < self._next:
            return
        patience = self._leases.patience
        self._next = now + patience / 3
        self._sent = {number: sent for number, sent in self._sent.items() if now - sent <= patience}
        self._sent[self._number + 1] = now  # noted first: the beacon may send this number the moment it is set
        self._number += 1
        self._beacon.wake()

    def seen(self, record: ServiceRecord, now: float) -> None:
        """Take note of a probe that was read. Somebody else's is none of our business."""
        number = record.metadata.get(_NUMBER, "")  # anybody can write here: whatever it is, it must not stop us
        ours = record.instance_id == self.key and re.fullmatch(r"[0-9]{1,18}", number)
        if ours and (sent := self._sent.pop(int(number), None)) is not None:
            self._leases.probe_seen(sent, now)

    def close(self) -> None:
        """Stop probing."""
        self._beacon.close()

    def _value(self) -> tuple[bytes, dict[str, str]]:
        record = ServiceRecord(
            service_name="probe",
            instance_id=self.key,
            address=Address(host="", port=0),
            status="UP",
            timestamp=time.time_ns() // 1_000_000,
            metadata={_NUMBER: str(self._number)},
        )
        return SERVICE_RECORD.encode(record), SERVICE_RECORD.properties

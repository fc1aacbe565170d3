"""Which cluster this is: message ids compare only within one, and the log says in which it was written."""

import time
import uuid

from magnetar_common.bus.base import Bus
from magnetar_common.errors import BusUnavailable, NotPermitted
from magnetar_common.topics import CLUSTER_ID


def read_cluster_id(bus: Bus, timeout_s: float) -> str:
    """Return the identity of the cluster's data, made up on the first call ever.

    It is the first message of a topic of its own, so that it lives and dies with the data, and needs no more permission
    than to read and write; if two ask for the first time at once, the broker's order decides.

    Raises:
        BusUnavailable: the broker could not be asked in time; or there is none yet, and we may not make it up.
        NotThere: the namespace is missing: topics were never applied.
    """
    deadline = time.monotonic() + timeout_s
    reader = bus.reader(CLUSTER_ID.name, name="cluster-id")
    try:
        proposed = False
        while time.monotonic() < deadline:
            first = reader.read(0.1)
            if first is not None:
                return first.payload.decode()
            if not proposed and reader.at_end():
                proposed = True
                try:
                    producer = bus.producer(CLUSTER_ID.name, name="cluster-id")
                except NotPermitted:
                    continue  # who only reads waits for the first scheduler
                producer.send(f"{bus.kind}-{uuid.uuid4().hex}".encode())
                producer.close()
    finally:
        reader.close()
    raise BusUnavailable(f"{CLUSTER_ID.name} could not be read within {timeout_s} s")

"""A bus in memory whose readers go wrong when told to, as real ones were seen to."""

from typing import Literal

from magnetar_common.bus import EARLIEST, Message, MessageId
from magnetar_common.bus.memory import MemoryBus, MemoryReader
from magnetar_common.errors import BusUnavailable

Fault = Literal["", "silent", "gone", "fails"]


class WaywardReader:
    """``silent``: the broker has more and it gives nothing. ``gone``: no connection. ``fails``: it says so itself."""

    def __init__(self, native: MemoryReader) -> None:
        self.topic = native.topic
        self.fault: Fault = ""
        self.closed = False
        self._native = native

    @property
    def is_connected(self) -> bool:
        return self.fault != "gone" and self._native.is_connected

    def read(self, timeout: float) -> Message | None:
        if self.fault == "fails":
            raise BusUnavailable("reading failed")
        return self._native.read(timeout) if self.fault == "" else None

    def at_end(self) -> bool:
        return self.fault == "" and self._native.at_end()

    def close(self) -> None:
        self.closed = True
        self._native.close()


class WaywardBus(MemoryBus):
    """Every reader that was opened is in ``readers``; ``refuses`` = that many more attempts to open one fail."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[WaywardReader] = []
        self.refuses = 0

    def reader(  # type: ignore[override]
        self, topic: str, after: MessageId = EARLIEST, *, compacted: bool = False, name: str = ""
    ) -> WaywardReader:
        if self.refuses:
            self.refuses -= 1
            raise BusUnavailable("no broker")
        self.readers.append(WaywardReader(super().reader(topic, after, compacted=compacted, name=name)))
        return self.readers[-1]

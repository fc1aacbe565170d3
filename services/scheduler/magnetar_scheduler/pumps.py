"""Pumps: each follows one input topic on a thread of its own and hands its messages to the leader, in order."""

import threading
from collections.abc import Callable

import structlog

from magnetar_common.bus import Bus, Message, MessageId
from magnetar_common.errors import BusError

_log = structlog.get_logger(__name__)

POLL_S = 0.5
"""How long one read waits (seconds): the time within which a pump notices that it is to stop."""


class Pump:
    """Reads a topic from a place on; reopens after the last message handed over when the broker was away.

    Args:
        bus: where the topic is.
        topic: full name.
        after: start after this message.
        hand_over: takes a message; may block, which slows the pump down.
        on_failure: told of an exception that ends the pump.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        after: MessageId,
        hand_over: Callable[[Message], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.topic = topic
        self._bus = bus
        self._after = after
        self._hand_over = hand_over
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pump of {topic.rpartition('/')[2]}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what was read and not handed over is read again by whoever comes next."""
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._follow()
                except BusError as error:
                    _log.warning("an input topic is out of reach", topic=self.topic, error=str(error))
                    self._stopping.wait(POLL_S)
        except Exception as error:  # noqa: BLE001 - it ends the process, through the one who asked to be told
            self._on_failure(error)

    def _follow(self) -> None:
        reader = self._bus.reader(self.topic, self._after, name="magnetar-scheduler")
        try:
            while not self._stopping.is_set():
                message = reader.read(POLL_S)
                if message is not None:
                    self._hand_over(message)
                    self._after = message.id
        finally:
            reader.close()

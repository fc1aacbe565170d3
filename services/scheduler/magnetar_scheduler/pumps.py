"""Pumps: each follows one input topic on a thread of its own and hands its messages to the leader, in order."""

import threading
from collections.abc import Callable

import structlog

from magnetar_common.bus import Bus, Message, MessageId
from magnetar_common.bus.follower import Follower
from magnetar_common.errors import BusError

_log = structlog.get_logger(__name__)

POLL_S = 0.5
"""How long one read waits (seconds): the time within which a pump notices that it is to stop."""


class Pump:
    """Reads a topic from a place on, whatever the broker does.

    Args:
        bus: where the topic is.
        topic: full name.
        after: start after this message.
        hand_over: takes a message; may block, which slows the pump down, and may raise ``BusError`` to be asked again.
        on_failure: told of an exception that ends the pump.

    Raises:
        BusError: the topic cannot be opened.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        after: MessageId,
        hand_over: Callable[[Message], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._follower = Follower(bus, topic, after, name="magnetar-scheduler")
        self._hand_over = hand_over
        self._on_failure = on_failure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pump of {topic.rpartition('/')[2]}", daemon=True)
        self.check = self._follower.check

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop; what was read and not handed over is read again by whoever comes next."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)
        self._follower.close()

    def _run(self) -> None:
        try:
            message: Message | None = None
            while not self._stopping.is_set():
                message = message or self._follower.read(POLL_S)
                if message is None:
                    continue
                try:
                    self._hand_over(message)
                except BusError as error:
                    _log.warning("an input cannot be understood now", topic=message.topic, error=str(error))
                    self._stopping.wait(POLL_S)
                else:
                    message = None
        except Exception as error:  # noqa: BLE001 - it ends the process, through the one who asked to be told
            self._on_failure(error)

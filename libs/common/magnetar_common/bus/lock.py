"""A lock file that keeps a second leader out where the broker does not: the embedded one lets every producer in."""

import fcntl
import os
from pathlib import Path

from magnetar_common.errors import CannotFence, TopicHeld


class TopicLock:
    """Holds one topic for this process. The kernel lets go when the process ends, however it ends."""

    def __init__(self, data_dir: str, topic: str) -> None:
        """Take the lock.

        Raises:
            TopicHeld: another producer on this machine has it.
            CannotFence: there is no folder to keep the lock in.
        """
        if not data_dir:
            raise CannotFence(
                f"{topic} needs one writer, which the embedded broker does not enforce; "
                "set MAGNETAR_PULSAR_DATA_DIR to the broker's data folder, so that a lock in it can"
            )
        path = Path(data_dir) / f"{topic.rpartition('://')[2].replace('/', '~')}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise TopicHeld(f"{topic} is held exclusively by another producer (lock {path})") from None

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

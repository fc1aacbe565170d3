"""Threads whose failure is heard of: an exception that ends one is handed to whoever can end the process."""

import threading
from collections.abc import Callable

Failed = Callable[[BaseException], object]
"""Told of what ended a thread that was not to end."""


def guarded(name: str, run: Callable[[], None], failed: Failed) -> threading.Thread:
    """Return a daemon thread, not started yet, that tells ``failed`` of the exception that ends it."""

    def target() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - handed over, and there it ends the process
            failed(error)

    return threading.Thread(target=target, name=name, daemon=True)

"""The way to the broker and to the state: the log, folded here."""

import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from magnetar_cli.contexts import bus_settings
from magnetar_cli.exit_codes import CommandError, ExitCode, NotFound
from magnetar_common.admin import Admin
from magnetar_common.bus import Bus, connect
from magnetar_common.evolve import fold
from magnetar_common.log import LogReader, LogRecord
from magnetar_common.state import Model, State

_KNOCK_S = 3.0
_PATIENCE_S = 5
_LOOK_S = 0.1
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


@contextmanager
def connected() -> Generator[Bus]:
    """Connect to the broker that is meant.

    Raises:
        CommandError: nobody listens there; found out within 3 seconds.
    """
    settings = bus_settings()
    knock(settings.url)
    bus = connect(settings.model_copy(update={"operation_timeout_s": min(settings.operation_timeout_s, _PATIENCE_S)}))
    try:
        yield bus
    finally:
        bus.close()


@contextmanager
def administered() -> Generator[Admin | None]:
    """Open the admin interface of the broker that is meant; None for one that has none (embedded)."""
    settings = bus_settings()
    if not settings.admin_url:
        knock(settings.url)
        yield None
        return
    with Admin(settings) as admin:
        yield admin


def knock(url: str) -> None:
    """Make sure that somebody listens at a broker's URL (at one of its hosts, if it names several).

    Raises:
        CommandError: nobody does, with the exit code for that.
    """
    try:
        parts = urlsplit(url)
        places = [_place(host, _PORTS[parts.scheme]) for host in parts.netloc.split(",")]
    except (KeyError, ValueError):
        raise CommandError(f"{url!r} is not the URL of a broker; write pulsar://host:port", ExitCode.USAGE) from None
    reason = ""
    for host, port in places:
        try:
            with socket.create_connection((host, port), timeout=_KNOCK_S):
                return
        except OSError as error:
            reason = error.strerror or str(error)
    raise CommandError(
        f"no broker answers at {url} ({reason})",
        ExitCode.BROKER_UNREACHABLE,
        "start one with `magnetar up`, or choose another: magnetar context list",
    )


def _place(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        return text.strip("[]"), default
    return host.strip("[]"), int(port)


class Following:
    """The state as the log has it, folded here, and kept up while somebody looks. For one thread."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.state = State()
        self._reader = LogReader(bus, name="magnetar-cli")

    def records(self, *, ever: bool = False) -> Iterator[LogRecord]:
        """Yield what the log holds and is not folded yet. Each is folded when the next is asked for.

        So while an entry is looked at, the state is still the one that it was decided on.

        Args:
            ever: at the end, wait for more.

        Raises:
            LogError: the log has a hole or a fork, or cannot be read.
        """
        for record in self._ever() if ever else self._reader.stored():
            if self._reader.follows(self.state, record):
                yield record
                fold(self.state, record.entry, str(record.message_id))

    def _ever(self) -> Iterator[LogRecord]:
        while True:
            if (record := self._reader.read(1.0)) is not None:
                yield record

    def catch_up(self) -> State:
        """Return the state as of now."""
        for _ in self.records():
            pass
        return self.state

    def wait(
        self, condition: Callable[[State], bool], seconds: float, look: Callable[[State], None] | None = None
    ) -> bool:
        """Keep up until a condition holds; return whether it did within ``seconds``.

        Args:
            condition: asked after each look at the log.
            seconds: from now.
            look: sees the state each time, for progress.
        """
        deadline = time.monotonic() + seconds
        while not condition(self.catch_up()):
            if look is not None:
                look(self.state)
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def model(self, key: str) -> Model:
        """Return a model as of now.

        Raises:
            NotFound: the log knows none of this name.
        """
        model = self.catch_up().models.get(key)
        if model is None:
            raise NotFound(f"there is no model {key}", "magnetar model list")
        return model

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()


@contextmanager
def following() -> Generator[Following]:
    """Connect to the broker that is meant, and follow its log."""
    with connected() as bus:
        log = Following(bus)
        try:
            yield log
        finally:
            log.close()

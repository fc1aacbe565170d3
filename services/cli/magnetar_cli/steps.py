"""A story told in steps, each of which is checked: the first that does not hold ends it, and is named."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.status import Status
from rich.text import Text

from magnetar_agent.environments import EnvironmentUnavailable
from magnetar_cli.exit_codes import CommandError
from magnetar_cli.output import STDERR, put
from magnetar_common.errors import MagnetarError

_POLL_S = 0.1


class Step:
    """A step while it is under way."""

    def __init__(self, spinner: Status) -> None:
        self._spinner = spinner
        self._notes: list[RenderableType] = []

    def doing(self, what: str) -> None:
        """Show what is going on right now."""
        self._spinner.update(what)

    def note(self, what: RenderableType) -> None:
        """Show something below the step's line, once it holds."""
        self._notes.append(Text(f"    {what}", style="dim") if isinstance(what, str) else what)

    def check(self, holds: object, otherwise: str) -> None:
        """Go on only if something holds.

        Raises:
            CommandError: it does not.
        """
        if not holds:
            raise CommandError(otherwise)

    def until(self, holds: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        """Wait until something holds, showing how it is.

        Raises:
            CommandError: it did not within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not holds():
            self.doing(what())
            if time.monotonic() > deadline:
                raise CommandError(f"not within {seconds:g} s: {what()}")
            time.sleep(_POLL_S)

    @property
    def notes(self) -> list[RenderableType]:
        """What is to be shown below the step's line."""
        return self._notes


class Story:
    """Numbers the steps, and shows each with the time it took."""

    def __init__(self) -> None:
        self._count = 0
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str) -> Generator[Step]:
        """Take a step.

        Raises:
            CommandError: it does not hold; the message names it.
        """
        self._count += 1
        began = time.monotonic()
        with STDERR.status(title) as spinner:
            step = Step(spinner)
            try:
                yield step
            except (MagnetarError, EnvironmentUnavailable, TimeoutError) as error:
                hint = error.hint if isinstance(error, CommandError) else ""
                raise CommandError(f"step {self._count} ({title}) does not hold: {error}", hint=hint) from error
        took = f"{time.monotonic() - began:.1f} s"
        told = Text.assemble(("✓ ", "bold green"), (f"{self._count:>2}  {title}", "bold"), (f"  {took}", "dim"))
        put(told, *step.notes)

"""Waiting for a model to be in a state, with progress."""

import time

from magnetar_cli.connection import Following
from magnetar_cli.exit_codes import CommandError, Misused, TimedOut
from magnetar_cli.output import STDERR
from magnetar_common.state import State
from magnetar_common.status import ModelState, ModelStatus, model_status

TERMINATED = "Terminated"
"""The state of a model that is not there any more."""

STATES = (*(state.value for state in ModelState), TERMINATED)
"""States that can be waited for."""

_PREFIX = "model"  # Seldon's users write ModelAvailable


def parse_state(text: str) -> str:
    """Return a state by its name, in any case, with or without Seldon's ``Model`` before it.

    Raises:
        Misused: there is none of that name.
    """
    wanted = text.strip().lower().removeprefix(_PREFIX)
    for state in STATES:
        if wanted == state.lower():
            return state
    raise Misused(f"{text!r} is no state of a model", f"known are: {', '.join(STATES)}")


def wait_for(log: Following, key: str, wanted: str, seconds: float) -> None:
    """Wait until a model is in a state.

    Args:
        log: where to look.
        key: of the model; it need not be there yet.
        wanted: one of `STATES`.
        seconds: how long, at most.

    Raises:
        TimedOut: it was not.
        CommandError: it cannot come to be: the model failed for good.
    """
    began = time.monotonic()
    short = key.removeprefix("default/")

    def so(state: State) -> bool:
        status = status_of(state, key)
        if status is None:
            return wanted == TERMINATED
        if status.state == wanted:
            return True
        if status.state is ModelState.FAILED and not status.retriable and wanted != TERMINATED:
            raise CommandError(f"{key} failed, {status.code}: {status.reason}", hint=f"magnetar model status {short}")
        return False

    with STDERR.status(f"waiting for {key} to be {wanted}") as spinner:

        def look(state: State) -> None:
            spinner.update(f"{described(status_of(state, key), key)} [dim]({time.monotonic() - began:.0f} s)[/dim]")

        reached = log.wait(so, seconds, look)
    if not reached:
        now = described(status_of(log.state, key), key)
        raise TimedOut(f"{key} was not {wanted} within {seconds:g} s; {now}", f"magnetar model status {short}")


def status_of(state: State, key: str) -> ModelStatus | None:
    """Return how a model is; None for one that is not there."""
    model = state.models.get(key)
    return model_status(model) if model is not None else None


def described(status: ModelStatus | None, key: str) -> str:
    """Return how a model is, in a line."""
    if status is None:
        return f"there is no model {key}"
    reason = status.reason or f"{status.available} of {status.wanted} replicas are available"
    return f"{key} v{status.generation} is {status.state}: {reason}"

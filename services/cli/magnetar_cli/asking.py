"""Sending requests, and hearing what the scheduler says to them."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from magnetar_cli.connection import Following, connected
from magnetar_cli.contexts import signing_settings
from magnetar_cli.exit_codes import CommandError, ExitCode, TimedOut
from magnetar_cli.manifests import Manifest
from magnetar_cli.output import STDERR, Format, Json, note, show
from magnetar_cli.waiting import parse_state, wait_for
from magnetar_common.bus import Bus
from magnetar_common.client import Handle, Magnetar, Outcome
from magnetar_common.errors import RequestRefused, Unanswered
from magnetar_common.quotas import tenant_of
from magnetar_common.signing import signer_of
from magnetar_events.requests import Actor, DeployModel, SetPolicy, SetTenant

SOURCE = "magnetar-cli"
"""What requests of this command name as their source."""

ANSWER_S = 20.0
"""A request that is not answered for this long (seconds) has no scheduler to answer it."""


def _state(name: str) -> str:
    return parse_state(name) if name else ""


Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
Wait = Annotated[
    str, typer.Option("--wait", "-w", metavar="STATE", callback=_state, help="Wait until the model is in this state.")
]
Seconds = Annotated[float, typer.Option("--timeout", "-t", min=0, help="Seconds to wait, at most.")]
Generation = Annotated[
    int | None,
    typer.Option("--expected-generation", min=0, help="Refuse unless this is the model's version now; 0 = none."),
]


@contextmanager
def asking(bus: Bus) -> Generator[Magnetar]:
    """Open a way to ask: in the name of whoever signs, or else of whoever runs this."""
    signer = signer_of(signing_settings())
    actor = signer.actor if signer else Actor(authtype="user", authid=f"uid-{os.getuid()}")
    with Magnetar(bus, source=SOURCE, actor=actor, signer=signer) as magnetar:
        yield magnetar


def ask(what: str, wish: Callable[[Magnetar], Handle]) -> Outcome:
    """Connect, ask, and return the outcome once the scheduler has accepted; errors as for :func:`answered`."""
    with connected() as bus, asking(bus) as magnetar:
        return answered(what, lambda: wish(magnetar))


def answered(what: str, ask: Callable[[], Handle]) -> Outcome:
    """Ask, and return the outcome once the scheduler has accepted.

    Raises:
        CommandError: it has not.
        TimedOut: nobody says anything.
    """
    with STDERR.status(f"{what}: waiting for the scheduler"):
        handle = ask()
        try:
            return handle.accepted(ANSWER_S)
        except Unanswered as error:
            raise TimedOut(f"{what}: no scheduler answered within {ANSWER_S:g} s", "magnetar doctor") from error
        except RequestRefused as error:
            raise refused(what, error) from error
        finally:
            handle.close()


def refused(what: str, error: RequestRefused) -> CommandError:
    """Return a refusal with what it was about, named once, and what to do next."""
    told = error if what in error.message else RequestRefused(error.code, error.field, f"{what}: {error.message}")
    name = what.removeprefix("default/")
    hint = ""
    if error.code == "FROZEN":
        hint = f"magnetar model unfreeze {name}"
    elif error.code == "NOT_FOUND" and error.field == "event.to":
        hint = f"magnetar model history {name} --versions"
    elif error.code == "NOT_FOUND" and error.field == "event.name":
        hint = "magnetar tenant list" if what.startswith("tenant") else "magnetar model list"
    elif error.code == "TENANT_QUOTA":
        hint = f"magnetar tenant show {tenant_of(what)}"
    return CommandError(str(told), ExitCode.REJECTED, hint)


def send(
    bus: Bus,
    manifests: list[Manifest],
    form: Format,
    *,
    reason: str,
    wait: str,
    seconds: float,
    expected: int | None = None,
) -> None:
    """Ask for all that the manifests want, show what became of each, and perhaps wait for the models.

    The first that is refused ends it; what was accepted before stays so.
    """
    rows: list[Json] = []
    try:
        with asking(bus) as magnetar:
            for manifest in manifests:
                request = manifest.request
                outcome = answered(request.subject, partial(_ask, magnetar, request, reason, expected))
                rows.append({"subject": request.subject, "result": "accepted", "generation": outcome.generation})
    finally:
        show(rows, {"what": lambda row: row["subject"], "result": _result}, form)
    if wait:
        log = Following(bus)
        try:
            for manifest in manifests:
                if isinstance(manifest.request, DeployModel):
                    wait_for(log, manifest.request.subject, wait, seconds)
                    note(f"{manifest.request.subject} is {wait}")
        finally:
            log.close()


def _ask(magnetar: Magnetar, request: DeployModel | SetPolicy | SetTenant, reason: str, expected: int | None) -> Handle:
    if isinstance(request, DeployModel):
        return magnetar.deploy(request.model, reason=reason, expected_generation=expected)
    if isinstance(request, SetTenant):
        return magnetar.set_tenant(request.tenant, reason=reason)
    return magnetar.set_policy(request.policy, reason=reason)


def _result(row: Json) -> str:
    return f"{row['result']}, version {row['generation']}" if row["generation"] else row["result"]

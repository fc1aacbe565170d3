"""``magnetar log void`` and ``magnetar log rebase``."""

import os
from typing import Annotated

import typer
from pydantic import ValidationError

from magnetar_cli.connection import administered, connected, knock
from magnetar_cli.contexts import bus_settings
from magnetar_cli.exit_codes import Misused
from magnetar_cli.output import Format, Output, note, write
from magnetar_common import topic_policies
from magnetar_common.bus import MessageId, connect
from magnetar_common.errors import BusRefused
from magnetar_common.render import plain
from magnetar_common.repair import void as sign_off
from magnetar_common.topics import VOIDED, topics_of, under
from magnetar_scheduler.rebase import rebase as rebased_log


def void(
    message: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="As the error names it: ledger:entry:batch.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why it is junk; it is kept for ever.")],
    actor: Annotated[str, typer.Option("--actor", help="Who signs it off: an opaque id. [default: uid-<yours>]")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Sign off a message that somebody else wrote to the log as junk: every folder skips it, and goes on.

    Refused for what fits the log. Schedulers that ended over it go on when they are started again; projectors by themselves.
    """
    try:
        place = MessageId.parse(message)
    except ValueError:
        raise Misused(f"{message!r} is no message id; write ledger:entry:batch, as the error does") from None
    _keep_the_list()
    with connected() as bus:
        try:
            voided = sign_off(bus, place, actor=actor or f"uid-{os.getuid()}", reason=reason)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise Misused(f"--{first['loc'][0]}: {first['msg']}") from error
    if output is not Format.TABLE:
        write({"messageId": str(place), "new": voided is not None, "voided": plain(voided)}, output)
    elif voided is None:
        note(f"message {place} was signed off already")
    else:
        note(f"message {place} is void: {voided.size} bytes, sha256 {voided.sha256}, signed off by {voided.actor}")


def rebase(
    *,
    finalize: Annotated[
        bool, typer.Option("--finalize", help="Finalize the upgrade with it, if that is needed.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """After the log moved to another broker cluster: bind it to the one that it is on now. Stop all schedulers first."""
    settings = bus_settings()
    knock(settings.url)
    rebased = rebased_log(lambda: connect(settings), finalize=finalize)
    if output is not Format.TABLE:
        write(plain(rebased), output)
        return
    note(f"position {rebased.position}: the log is on broker cluster {rebased.broker}; it was on {rebased.previous}")
    after = ", ".join(f"{topic} after {place}" for topic, place in rebased.handled.items())
    note(f"inputs go on: {after or 'from the start of each'}")


def _keep_the_list() -> None:
    """See that the broker keeps the list for ever, before there is something in it."""
    with administered() as admin:
        if admin is None:
            return
        try:
            topic_policies.apply(
                admin, [t for t in topics_of(admin.tenant) if t.name == under(admin.tenant, VOIDED.name)]
            )
        except BusRefused as error:
            note(f"the policies of {VOIDED.name} could not be seen to ({error}); have magnetar topics check run")

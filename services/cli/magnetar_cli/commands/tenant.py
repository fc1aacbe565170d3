"""``magnetar tenant …``."""

from typing import Annotated

import typer
from pydantic import ValidationError

from magnetar_cli import shown
from magnetar_cli.asking import Reason, ask
from magnetar_cli.connection import following
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import Format, Output, note, put, show, table, write
from magnetar_common.tenancy import tenant_status
from magnetar_events.requests import DeleteTenant
from magnetar_events.tenants import Tenant, subject_of

app = typer.Typer(help="Tenants: a floor that is kept for one, and a cap that it never passes.", no_args_is_help=True)

Named = Annotated[str, typer.Argument(metavar="NAME", help="name of the tenant, as models say it")]
_Replicas = Annotated[int | None, typer.Option(min=0, help="Replicas; 0 = none.")]
_Bytes = Annotated[str | None, typer.Option(metavar="AMOUNT", help="Device memory, for example 80Gi; 0 = none.")]
_OverCap = Annotated[
    str | None, typer.Option(metavar="wait|refuse", help="What becomes of a wish for more than the cap.")
]


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """Show every tenant that has limits or models: what it has of its floor and cap, and how much waits."""
    with following() as log:
        show(shown.tenants(log.catch_up()), shown.TENANTS, output, nothing="there are no tenants")


@app.command("show")
def show_(name: Named, *, output: Output = Format.TABLE) -> None:
    """Show one tenant, with what of its models waits and why."""
    with following() as log:
        row = shown.tenant_row(tenant_status(log.catch_up(), name))
        known = any(each["tenant"] == name for each in shown.tenants(log.state))
    if not known:
        raise NotFound(f"there is no tenant {name}: it has no limits and no models", "magnetar tenant list")
    if output is not Format.TABLE:
        write(row, output)
        return
    put(table([row], shown.TENANTS))
    if row["waiting"]:
        put("", table(row["waiting"], shown.WAITING, "waiting"))


@app.command("set")
def set_(
    name: Named,
    *,
    floor_replicas: _Replicas = None,
    floor_bytes: _Bytes = None,
    cap_replicas: _Replicas = None,
    cap_bytes: _Bytes = None,
    over_cap: _OverCap = None,
    reason: Reason = "",
) -> None:
    """Set a tenant's floor and cap. What is not given stays as it is."""
    given = {
        "floor_replicas": floor_replicas,
        "floor_bytes": floor_bytes,
        "cap_replicas": cap_replicas,
        "cap_bytes": cap_bytes,
        "over_cap": over_cap,
    }
    with following() as log:
        now = log.catch_up().tenants.get(name)
    before = now.model_dump() if now is not None else {"name": name}
    changes = {field: value for field, value in given.items() if value is not None}
    try:
        tenant = Tenant.model_validate({**before, **changes})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "tenant"
        raise Misused(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error
    ask(subject_of(name), lambda magnetar: magnetar.set_tenant(tenant, reason=reason))
    note(f"tenant {name} has these limits from here on: magnetar tenant show {name}")


@app.command()
def delete(name: Named, *, reason: Reason = "") -> None:
    """Let a tenant have neither floor nor cap any more. Its models stay."""
    try:
        DeleteTenant(name=name)
    except ValidationError as error:
        raise Misused(f"{name!r} is no name of a tenant") from error
    ask(subject_of(name), lambda magnetar: magnetar.delete_tenant(name, reason=reason))
    note(f"tenant {name} has neither floor nor cap any more")

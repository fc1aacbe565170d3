"""``magnetar context …``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from magnetar_cli import contexts, options
from magnetar_cli.contexts import BrokerContext
from magnetar_cli.output import Columns, Format, Json, Output, note, show
from magnetar_common.settings import BusSettings
from magnetar_common.signing import SigningSettings

app = typer.Typer(help="Named contexts: which broker is meant.", no_args_is_help=True)

Named = Annotated[str, typer.Argument(metavar="NAME")]

_CONTEXTS: Columns = {
    "": lambda row: "*" if row["inUse"] else "",
    "name": lambda row: row["name"],
    "url": lambda row: row["url"],
    "admin url": lambda row: row["adminUrl"] or "-",
    "data": lambda row: row["dataDir"] or "-",
}


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """Show every context, and which is in use."""
    known = contexts.load()
    used = contexts.in_use(known)
    rows: list[Json] = [
        {"name": name, "inUse": name == used, **context.model_dump(by_alias=True, exclude={"token"})}
        for name, context in sorted(known.contexts.items())
    ]
    if not used:
        rows.insert(0, _ours())
    show(rows, _CONTEXTS, output)


@app.command()
def use(name: Named) -> None:
    """Use a context from now on."""
    known = contexts.load()
    known.named(name)
    contexts.save(known.model_copy(update={"current": name}))
    note(f"using {name}; MAGNETAR_PULSAR_URL or --context still come first")


def _set(name: Named, **values: Any) -> None:
    """Add a context, or change the fields given of one that is there."""
    given = {field: value for field, value in values.items() if value is not None}
    for file in ("token_file", "trust_certs", "data_dir", "signing_key_file"):  # it is used from any folder
        if given.get(file):
            given[file] = str(Path(given[file]).expanduser().absolute())
    contexts.put(name, BrokerContext(**given), use=not contexts.load().current)
    note(f"{name} is in {contexts.config_file()}")


_set.__name__ = "set"
_FIELDS = [
    *options.parameters(BusSettings, environment=False),
    *options.parameters(SigningSettings, prefix=contexts.SIGNING, environment=False),
]
app.command("set")(options.command(_set, _FIELDS))


@app.command()
def remove(name: Named) -> None:
    """Remove a context."""
    contexts.load().named(name)
    contexts.drop(name)


def _ours() -> Json:
    settings = BusSettings()
    return {
        "name": "(environment)",
        "inUse": True,
        "url": settings.url,
        "adminUrl": settings.admin_url,
        "tokenFile": settings.token_file,
        "dataDir": settings.data_dir,
    }

"""``magnetar keys …``."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from magnetar_cli.exit_codes import CommandError, Misused
from magnetar_cli.output import line, note
from magnetar_common.signing import Signer, new_key
from magnetar_events.base import Name

app = typer.Typer(help="Keys that sign requests.", no_args_is_help=True)

Publisher = Annotated[str, typer.Argument(metavar="NAME", help="Of the publisher, as the policy is to have it.")]


@app.command()
def new(
    name: Publisher,
    *,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Where to write it. [default: NAME.pem]")] = None,
) -> None:
    """Make a private key in a file of one's own, and print the public key, which goes into the policy."""
    try:
        TypeAdapter[str](Name).validate_python(name)
    except ValidationError as error:
        raise Misused(f"{name!r} is not the name of a publisher: lower-case letters, digits, '-' and '.'") from error
    path = file or Path(f"{name}.pem")
    try:
        key = new_key(path)
    except FileExistsError as error:
        raise CommandError(f"{path} is there already, and is left as it is", hint="choose another --file") from error
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    line(Signer(name, key).public_key)
    note(f"the private key is in {path}; into the policy: publishers: {{{name}: {{key: <what is printed>}}}}")

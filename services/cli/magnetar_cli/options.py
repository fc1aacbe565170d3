"""Command-line options made from pydantic settings: every field is a flag and an environment variable, written once."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from magnetar_cli.exit_codes import Misused

S = TypeVar("S", bound=BaseSettings)

_COMPOSITE = (tuple, list, set, frozenset, dict)
_ATTRIBUTE = re.compile(r"^ {4}(\w+): (.*)$")


def parameters(cls: type[BaseSettings], *, prefix: str = "", environment: bool = True) -> list[inspect.Parameter]:
    """Return one keyword parameter for each field, as typer reads them; secrets have none.

    A field that ``repr`` does not show is a secret, and whoever looks at the processes of a machine reads flags.

    None means "not given": then the settings class itself looks into the environment and at its defaults.

    Args:
        cls: the settings.
        prefix: of the flags, so that two classes can be options of one command.
        environment: whether a variable stands for a flag that is not given.
    """
    said = descriptions(cls)
    return [
        _parameter(name, info, prefix, said.get(name, ""), variable(cls, name) if environment else None)
        for name, info in cls.model_fields.items()
        if info.repr
    ]


def settings_of(cls: type[S], values: Mapping[str, Any], *, prefix: str = "") -> S:
    """Return the settings that the options given and the environment make.

    Args:
        cls: the settings.
        values: what typer passed: every parameter by name.
        prefix: as it was for :func:`parameters`.

    Raises:
        Misused: one has no valid value; the message names its flag and its variable.
    """
    given = {name: value for name in cls.model_fields if (value := values.get(_name(prefix, name))) is not None}
    try:
        return cls(**{name: _parsed(cls.model_fields[name], value) for name, value in given.items()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = [str(part) for part in first["loc"]]
        if not place or place[0] not in cls.model_fields:
            raise Misused(first["msg"]) from error
        raise Misused(f"{_flag(prefix, place[0])} (or {variable(cls, place[0])}): {first['msg']}") from error


def command(fn: Callable[..., None], added: list[inspect.Parameter]) -> Callable[..., None]:
    """Give ``fn`` more options: it must take them as ``**values``."""
    own = [p for p in inspect.signature(fn).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]

    def run(**values: Any) -> None:
        fn(**values)

    everything = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *added)]
    run.__name__, run.__doc__ = fn.__name__, fn.__doc__
    run.__annotations__ = {p.name: p.annotation for p in everything}
    run.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    return run


def variable(cls: type[BaseSettings], name: str) -> str:
    """Return the environment variable of a field."""
    return f"{cls.model_config.get('env_prefix', '')}{name}".upper()


def descriptions(cls: type) -> dict[str, str]:
    """Return what a class's docstring says of its attributes, each as one line."""
    found: dict[str, str] = {}
    name = ""
    _, _, section = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    for line in section.splitlines():
        if match := _ATTRIBUTE.match(line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith("     "):
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    return found


def _parameter(name: str, info: FieldInfo, prefix: str, said: str, envvar: str | None) -> inspect.Parameter:
    kind = _plain(info.annotation)
    flag = _flag(prefix, name)
    declared = f"{flag}/--no-{flag.removeprefix('--')}" if kind is bool else flag
    default = info.get_default(call_default_factory=True)
    shown = "" if default in ("", None, (), [], {}) else f" [default: {_shown(default)}]"
    option = typer.Option(declared, envvar=envvar, show_default=False, help=f"{said}{shown}".strip() or None)
    return inspect.Parameter(
        _name(prefix, name),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],  # type: ignore[valid-type]
    )


def _plain(annotation: Any) -> type:
    """Return the type that the command line parses; everything that is not plain is text, and pydantic's to judge."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else str
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation if annotation in (bool, int, float) else str


def _parsed(info: FieldInfo, value: Any) -> Any:
    """Text for a list or a mapping is JSON, or (a list) words with commas between them."""
    kind: Any = get_origin(info.annotation) or info.annotation
    if not (isinstance(value, str) and isinstance(kind, type) and issubclass(kind, _COMPOSITE)):
        return value
    if value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except ValueError:
            return value  # pydantic says what is wrong with it
    return value if issubclass(kind, dict) else [word.strip() for word in value.split(",") if word.strip()]


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, cast("list[Any]", default))) if isinstance(default, (tuple, list)) else str(default)


def _flag(prefix: str, name: str) -> str:
    return f"--{_name(prefix, name)}".replace("_", "-")


def _name(prefix: str, name: str) -> str:
    return f"{prefix}{name}"

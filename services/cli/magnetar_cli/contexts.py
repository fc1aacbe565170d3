"""Named contexts: which broker is meant, kept in a file of the user's.

An explicit ``--context`` (or ``MAGNETAR_CONTEXT``) comes first; then ``MAGNETAR_PULSAR_URL`` and the rest of the
environment; then the context in use; then the defaults. So what a shell or a container sets is never overruled by a
file that somebody forgot.
"""

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings

from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import to_yaml
from magnetar_common.settings import BusSettings
from magnetar_common.signing import SigningSettings

CONTEXT = "MAGNETAR_CONTEXT"
"""Environment variable that names a context."""

CONFIG = "MAGNETAR_CONFIG"
"""Environment variable that names the file."""


SIGNING = "signing_"
"""What the names of a context's fields begin with that are of :class:`SigningSettings`."""


class BrokerContext(BaseModel):
    """How to reach one broker, and how to sign what is asked there.

    The same fields as :class:`BusSettings` and :class:`SigningSettings`; what is not set comes from the environment.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", hide_input_in_errors=True
    )

    url: str = "pulsar://127.0.0.1:6650"
    admin_url: str = ""
    tenant: str = "magnetar"
    token: str = Field(default="", repr=False)
    token_file: str = ""
    trust_certs: str = ""
    operation_timeout_s: int = 10
    client_log: str = ""
    data_dir: str = ""
    signing_key_file: str = ""
    signing_name: str = ""
    signing_cluster: str = "local"


class Contexts(BaseModel):
    """All contexts, and which is in use (empty = none)."""

    model_config = ConfigDict(extra="forbid")

    current: str = ""
    contexts: dict[str, BrokerContext] = Field(default_factory=dict)

    def named(self, name: str) -> BrokerContext:
        """Return a context.

        Raises:
            NotFound: there is none of that name.
        """
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotFound(f"there is no context {name!r} in {config_file()}", f"known are: {known}")
        return self.contexts[name]


def config_file() -> Path:
    """Return where contexts are kept: ``$MAGNETAR_CONFIG``, else ``~/.config/magnetar/contexts.yaml``."""
    named = os.environ.get(CONFIG)
    return Path(named).expanduser() if named else Path("~/.config/magnetar/contexts.yaml").expanduser()


def load() -> Contexts:
    """Read the file; none is an empty one.

    Raises:
        Misused: it is not what it should be.
    """
    try:
        text = config_file().read_text()
    except FileNotFoundError:
        return Contexts()
    try:
        return Contexts.model_validate(yaml.safe_load(text) or {})
    except (yaml.YAMLError, ValidationError) as error:
        reason = _first(error) if isinstance(error, ValidationError) else str(error)
        raise Misused(f"{config_file()} cannot be read: {reason}", "mend it, or remove it") from error


def save(contexts: Contexts) -> None:
    """Write the file, for its owner only (a token may be in it), in one step: whoever reads it never sees half."""
    path = config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(to_yaml(contexts.model_dump(by_alias=True, exclude_unset=True)))
    scratch.replace(path)


def put(name: str, context: BrokerContext, *, use: bool) -> None:
    """Add or replace a context, and perhaps use it from now on. What is replaced keeps the fields that are not set."""
    contexts = load()
    before = contexts.contexts.get(name)
    fields = {**(before.model_dump(exclude_unset=True) if before else {}), **context.model_dump(exclude_unset=True)}
    everything = {**contexts.contexts, name: BrokerContext(**fields)}
    save(Contexts(current=name if use else contexts.current, contexts=everything))


def drop(name: str) -> None:
    """Remove a context; one that is not there is gone already."""
    contexts = load()
    others = {key: value for key, value in contexts.contexts.items() if key != name}
    save(Contexts(current="" if contexts.current == name else contexts.current, contexts=others))


def in_use(contexts: Contexts) -> str:
    """Return the name of the context that commands use now; empty = the environment, or the defaults."""
    if explicit := os.environ.get(CONTEXT):
        return explicit
    return "" if "MAGNETAR_PULSAR_URL" in os.environ else contexts.current


def bus_settings() -> BusSettings:
    """Return how to reach the broker that is meant.

    Raises:
        NotFound: the named context does not exist.
        Misused: the file or the environment is not valid.
    """
    try:
        return BusSettings(**_fields_in_use())
    except ValidationError as error:
        raise Misused(f"the settings of the broker are not valid: {_first(error)}") from error


def signing_settings() -> SigningSettings:
    """Return how requests are signed.

    Raises:
        NotFound: the named context does not exist.
        Misused: the file is not valid.
    """
    fields = _fields_in_use().items()
    return SigningSettings(**{name.removeprefix(SIGNING): value for name, value in fields if name.startswith(SIGNING)})


def _fields_in_use() -> dict[str, Any]:
    contexts = load()
    name = in_use(contexts)
    return contexts.named(name).model_dump(exclude_unset=True) if name else {}


def export(settings: BaseSettings) -> None:
    """Put settings into this process's environment, where services look for them."""
    prefix = str(settings.model_config.get("env_prefix", ""))
    for field, value in settings.model_dump().items():
        os.environ[f"{prefix}{field.upper()}"] = str(value)
    os.environ.pop(CONTEXT, None)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"

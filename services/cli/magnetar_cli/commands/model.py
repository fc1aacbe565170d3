"""``magnetar model …``."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, cast

import typer

from magnetar_cli import manifests, shown
from magnetar_cli.asking import Generation, Reason, Seconds, Wait, ask, send
from magnetar_cli.commands.apply import File
from magnetar_cli.connection import Following, connected, following
from magnetar_cli.exit_codes import Misused, NotFound
from magnetar_cli.output import Columns, Format, Json, Output, note, put, show, table, write
from magnetar_cli.waiting import TERMINATED, wait_for
from magnetar_common.actors import who
from magnetar_common.client import Handle, Magnetar, Outcome
from magnetar_common.errors import BusUnavailable
from magnetar_common.inference import InferenceClient, Routes
from magnetar_common.log import LogRecord
from magnetar_common.render import plain
from magnetar_common.status import frozen_because
from magnetar_events.requests import DeployModel
from magnetar_projector.history import history_of
from magnetar_projector.places import time_of
from magnetar_projector.versions import NoSuchVersion, between, versions_of
from magnetar_projector.versions import shown as past

app = typer.Typer(help="Models: want them, see them, use them.", no_args_is_help=True)

P = ParamSpec("P")

Named = Annotated[str, typer.Argument(metavar="NAME", help="name, or tenant/name")]

DEFAULT_TENANT = "default"
_ROUTES_S = 10.0
_DIGEST = re.compile("[0-9a-f]{64}")
_EXAMPLE = """for example '{"inputs": [...]}', or @request.json"""


def key_of(name: str) -> str:
    """Return a model's key."""
    return name if "/" in name else f"{DEFAULT_TENANT}/{name}"


@app.command()
def load(
    file: File,
    *,
    reason: Reason = "",
    expected: Generation = None,
    wait: Wait = "",
    timeout: Seconds = 120.0,
    output: Output = Format.TABLE,
) -> None:
    """Want the models of a manifest."""
    wanted = manifests.read(file)
    for manifest in wanted:
        if not isinstance(manifest.request, DeployModel):
            raise Misused(f"{manifest.source}: is not a Model", f"magnetar apply -f {file}")
    with connected() as bus:
        send(bus, wanted, output, reason=reason, wait=wait, seconds=timeout, expected=expected)


@app.command()
def unload(
    name: Named,
    *,
    reason: Reason = "",
    expected: Generation = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait until nothing of it is left.")] = False,
    timeout: Seconds = 120.0,
) -> None:
    """No longer want a model: unroute, unload everywhere, forget."""
    key = key_of(name)
    _change(key, Magnetar.undeploy, reason=reason, expected_generation=expected)
    note(f"{key} is no longer wanted")
    if wait:
        _reached(key, TERMINATED, timeout)


@app.command()
def scale(
    name: Named,
    replicas: Annotated[int, typer.Argument(min=0, max=1000)],
    *,
    reason: Reason = "",
    now: Annotated[bool, typer.Option("--now", help="What leaves does so at once: its requests may fail.")] = False,
    expected: Generation = None,
    wait: Wait = "",
    timeout: Seconds = 120.0,
) -> None:
    """Want another number of replicas."""
    key = key_of(name)
    _change(key, Magnetar.scale, replicas, now=now, reason=reason, expected_generation=expected)
    note(f"{key} is to have {replicas} {'replica' if replicas == 1 else 'replicas'}")
    if wait:
        _reached(key, wait, timeout)


@app.command()
def rollback(
    name: Named,
    *,
    to: Annotated[int, typer.Option("--to", min=1, metavar="VERSION", help="Which one: model history --versions.")],
    reason: Reason = "",
    expected: Generation = None,
    wait: Wait = "",
    timeout: Seconds = 120.0,
) -> None:
    """Want an earlier version again: any one in the log, as long as its artifact is still the same."""
    key = key_of(name)
    outcome = _change(key, Magnetar.rollback, to, reason=reason, expected_generation=expected)
    as_new = f", as version {outcome.generation}" if outcome.generation != to else ""
    note(f"{key} is to be as in version {to} again{as_new}")
    if wait:
        _reached(key, wait, timeout)


@app.command()
def freeze(name: Named, *, reason: Reason = "") -> None:
    """Let nothing of a model be changed until it is unfrozen: whoever asks for it is refused, with the reason."""
    key = key_of(name)
    with following() as log:
        before = _frozen(log, key)
        _change(key, Magnetar.freeze, reason=reason)
        already = before and before == _frozen(log, key)
    note(f"{key} was frozen already {before.removeprefix('frozen ')}" if already else f"{key} is frozen")


@app.command()
def unfreeze(name: Named, *, reason: Reason = "") -> None:
    """Let a frozen model be changed again; what it missed meanwhile is done now."""
    key = key_of(name)
    with following() as log:
        before = _frozen(log, key)
    _change(key, Magnetar.unfreeze, reason=reason)
    note(f"{key} is no longer frozen" if before else f"{key} was not frozen")


def _frozen(log: Following, key: str) -> str:
    model = log.catch_up().models.get(key)
    return frozen_because(model) if model is not None else ""


@app.command("list")
def list_(*, output: Output = Format.TABLE) -> None:
    """Show every model."""
    with following() as log:
        show(shown.models(log.catch_up()), shown.MODELS, output, nothing="there are no models")


@app.command()
def status(name: Named, *, wait: Wait = "", timeout: Seconds = 60.0, output: Output = Format.TABLE) -> None:
    """Show one model with its replicas, perhaps after waiting for a state."""
    key = key_of(name)
    with following() as log:
        if wait:
            wait_for(log, key, wait, timeout)
            if wait == TERMINATED:
                note(f"there is no model {key}")
                return
        row = shown.model_row(log.model(key))
        row["unreturned"] = shown.unreturned(log.state, key)
    if output is not Format.TABLE:
        write(row, output)
        return
    put(table([row], shown.MODELS))
    if row["replicas"]:
        put("", table(row["replicas"], shown.REPLICAS, "replicas"))
    if row["unreturned"]:
        put("", table(row["unreturned"], shown.UNRETURNED, "unloaded, with memory that is not given back"))


@app.command()
def infer(
    name: Named,
    payload: Annotated[
        str, typer.Argument(help="Open Inference Protocol request: JSON, @FILE, or - (standard input).")
    ],
    *,
    timeout: Seconds = 30.0,
) -> None:
    """Send an inference request to a replica that the route table names, and show the answer."""
    body = _payload(payload)
    with connected() as bus, Routes(bus) as routes, InferenceClient(routes) as client:
        if not routes.wait_ready(_ROUTES_S):
            raise BusUnavailable(f"the routes were not read within {_ROUTES_S:g} s")
        answer = client.infer(key_of(name), body, timeout=timeout)
    note(f"version {answer.generation}, from {answer.server}")
    write(answer.json, Format.JSON)


@app.command()
def history(
    name: Named,
    *,
    versions: Annotated[bool, typer.Option("--versions", help="The versions, and what became of each.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show what was asked of a model: by whom, when, why, and what each wish changed."""
    key = key_of(name)
    if versions:
        show([past(version) for version in versions_of(key, _records(key))], _VERSIONS, output)
        return
    changes = history_of(key, _records(key))
    show([{**plain(change), "time": time_of(change.wall)} for change in changes], _HISTORY, output)


@app.command()
def diff(
    name: Named,
    a: Annotated[int, typer.Argument(min=1, metavar="A", help="a version")],
    b: Annotated[int, typer.Argument(min=1, metavar="B", help="another")],
    *,
    output: Output = Format.TABLE,
) -> None:
    """Show in what two versions of a model differ, whether anything is left of them or not."""
    key = key_of(name)
    try:
        differences = between(versions_of(key, _records(key)), a, b)
    except NoSuchVersion as error:
        raise NotFound(f"{key}: {error}", f"magnetar model history {name} --versions") from error
    columns: Columns = {"field": lambda row: row["field"], f"v{a}": _before, f"v{b}": _after}
    show([plain(each) for each in differences], columns, output, nothing=f"versions {a} and {b} are the same")


def _records(key: str) -> list[LogRecord]:
    """Return the whole log, which has heard of a model.

    Raises:
        NotFound: it has not.
    """
    with following() as log:
        records = list(log.records())
    if not any(getattr(fact, "model", "") == key for record in records for fact in record.entry.facts):
        raise NotFound(f"there was never a model {key}", "magnetar model list")
    return records


def _before(row: Json) -> Any:
    return _side(row["before"])


def _after(row: Json) -> Any:
    return _side(row["after"])


def _side(value: Any) -> Any:
    if value is None or value in ("", []):
        return "-"
    return value[:12] if isinstance(value, str) and _DIGEST.fullmatch(value) else value


_HISTORY: Columns = {
    "position": lambda row: row["position"],
    "time": lambda row: row["time"],
    "what": lambda row: row["kind"],
    "version": lambda row: row["generation"],
    "who": lambda row: _asked(row) if row["request"] else "-",
    "source": lambda row: row["source"],
    "reason": lambda row: row["reason"],
    "changes": lambda row: "; ".join(f"{d['field']}: {_before(d)} → {_after(d)}" for d in row["differences"]),
}


def _asked(row: Json) -> str:
    return who(row["actor"], row["authtype"], row["authverified"], row["publisher"])


_VERSIONS: Columns = {
    "version": lambda row: row["generation"],
    "time": lambda row: row["time"],
    "who": _asked,
    "reason": lambda row: row["reason"],
    "artifact": lambda row: row["digest"][:12] or "-",
    "rollback of": lambda row: row["rollbackOf"] or "-",
    "outcome": lambda row: f"{row['outcome']}, {row['code']}: {row['message']}" if row["code"] else row["outcome"],
}


def _reached(key: str, wanted: str, seconds: float) -> None:
    """Wait until a model is in a state, and say so; errors as for :func:`wait_for`."""
    with following() as log:
        wait_for(log, key, wanted, seconds)
    note(f"{key} is {wanted}")


def _change(
    key: str, wish: Callable[Concatenate[Magnetar, str, P], Handle], *what: P.args, **options: P.kwargs
) -> Outcome:
    """Ask for a change of a model by the client's method for it; errors as for :func:`magnetar_cli.asking.answered`."""
    tenant, _, name = key.partition("/")
    options["tenant"] = tenant
    return ask(key, lambda magnetar: wish(magnetar, name, *what, **options))


def _payload(text: str) -> dict[str, Any]:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text()
        body: Any = json.loads(text)
    except OSError as error:
        raise Misused(f"{text[1:]} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Misused(f"the payload is not JSON: {error}", _EXAMPLE) from error
    if not isinstance(body, dict):
        raise Misused("the payload must be a JSON object", _EXAMPLE)
    return cast("dict[str, Any]", body)

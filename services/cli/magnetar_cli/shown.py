"""How the state is shown: rows (whole, for JSON and YAML) and the columns of the tables made from them."""

from collections.abc import Callable, Iterator

from magnetar_cli.output import Columns, Json
from magnetar_common.amounts import amount, counted
from magnetar_common.drains import left_on, phase, stuck_on
from magnetar_common.memory import total
from magnetar_common.render import plain, server_to_dict
from magnetar_common.state import Model, Server, State
from magnetar_common.status import model_status
from magnetar_common.tenancy import TenantStatus, tenant_statuses


def model_row(model: Model) -> Json:
    """Return how a model is, whole."""
    status = plain(model_status(model))
    target = model.versions.get(model.generation)
    return {**status, "spec": plain(target.spec) if target else {}, "size": target.size if target else 0}


def models(state: State) -> list[Json]:
    """Return every model, by key."""
    return [model_row(state.models[key]) for key in sorted(state.models)]


def replicas(state: State) -> list[Json]:
    """Return every replica of every model, in order of model, version and server."""
    return [plain(replica) for key in sorted(state.models) for replica in model_status(state.models[key]).replicas]


def unreturned(state: State, model: str) -> list[Json]:
    """Return what unloaded replicas of a model have not given back, in order of server; ``leaked`` = nor in time."""
    return [
        {**plain(each), "server": key, "leaked": held is server.leaked}
        for key, server in sorted(state.servers.items())
        for held in (server.awaited, server.leaked)
        for each in held.values()
        if each.model == model
    ]


def servers(state: State) -> list[Json]:
    """Return every server, by key."""
    return [_server(state, server) for _, server in sorted(state.servers.items())]


def server_row(state: State, server: Server) -> Json:
    """Return a server, whole: what is on it, and of a draining one why it is still there."""
    why = {(left.model, left.generation): left.reason for left in left_on(state, server)} if server.draining else {}
    held = [
        {**plain(replica), "whyHere": why.get(place, "")}
        for place, replica in sorted(server.replicas.items(), key=lambda item: item[0])
    ]
    order = state.cordons.get(server.key)
    return {**_server(state, server), "replicas": held, "order": plain(order) if order else None}


def _server(state: State, server: Server) -> Json:
    return {
        **server_to_dict(server),
        "schedulable": server.schedulable,
        "keptFor": [
            f"{model} v{generation}"
            for neighbour in state.fleet.neighbours(state, server)
            for model, generation in state.quotas.claims.get(neighbour.key, ())
        ],
        "phase": phase(server),
        "unreturned": {"awaited": total(server.awaited.values()), "leaked": total(server.leaked.values())},
        "modelsLeft": len(server.replicas) if server.draining else 0,
        "modelsStuck": len(stuck_on(state, server)) if server.draining else 0,
    }


def _because(row: Json) -> str:
    reason = f"{row['code']}: {row['reason']}".removeprefix(": ")
    return reason if row["code"] == "FROZEN" else "; ".join(filter(None, (row["frozen"], reason)))


def tenant_row(status: TenantStatus) -> Json:
    """Return how a tenant is, whole."""
    amounts = {name: getattr(status, name)._asdict() for name in ("used", "wanted", "over")}
    return {**plain(status), **amounts, "waiting": [plain(each) for each in status.waiting]}


def tenants(state: State) -> list[Json]:
    """Return every tenant that has limits or models, by name."""
    return [tenant_row(status) for status in tenant_statuses(state)]


MODELS: Columns = {
    "model": lambda row: row["model"],
    "state": lambda row: row["state"],
    "version": lambda row: row["generation"],
    "available": lambda row: f"{row['available']}/{row['wanted']}",
    "traffic": lambda row: ", ".join(f"v{each['generation']} {each['weight']} %" for each in row["active"]) or "-",
    "servers": lambda row: ", ".join(r["server"] for r in row["replicas"] if r["state"] == "Available") or "-",
    "reason": _because,
}

REPLICAS: Columns = {
    "model": lambda row: row["model"],
    "version": lambda row: row["generation"],
    "server": lambda row: row["server"],
    "state": lambda row: row["state"],
    "memory": lambda row: amount(sum(each["bytes"] for each in row["bookings"])),
    "command": lambda row: row["position"],
    "reason": lambda row: f"{row['code']}: {row['reason']}".removeprefix(": "),
}


def _state(row: Json) -> str:
    said = row["lostCode"] or "Lost" if row["lost"] else row["phase"] or row["record"]["status"]
    if row["lost"] and row["phase"]:
        said += f", {row['phase']}"
    if not row["modelsLeft"]:
        return said
    stuck = f", {row['modelsStuck']} stuck" if row["modelsStuck"] else ""
    return f"{said}, {row['modelsLeft']} left{stuck}"


UNRETURNED: Columns = {
    "version": lambda row: row["generation"],
    "server": lambda row: row["server"],
    "unloaded": lambda row: row["position"],
    "memory": lambda row: ", ".join(f"{amount(each['bytes'])} on {each['device']}" for each in row["bookings"]),
    "state": lambda row: "leaked" if row["leaked"] else "not given back yet",
}

SERVERS: Columns = {
    "server": lambda row: row["key"],
    "state": _state,
    "schedulable": lambda row: ", kept for ".join(["yes" if row["schedulable"] else "no", *row["keptFor"]]),
    "runtime": lambda row: " ".join(_runtime(row["record"]["server"])),
    "host": lambda row: row["record"]["server"]["host"],
    "address": lambda row: f"{row['record']['address']['host']}:{row['record']['address']['port']}",
    "models": lambda row: len(row["replicas"]),
    "booked": lambda row: amount(row["booked"]),
    "unreturned": lambda row: ", ".join(_unreturned(row["unreturned"])) or "-",
    "free": lambda row: ", ".join(_device(each) for each in row["devices"].values()) or "-",
}

TENANTS: Columns = {
    "tenant": lambda row: row["tenant"],
    "replicas": lambda row: row["used"]["replicas"],
    "floor": lambda row: _limit(row, "floorReplicas"),
    "cap": lambda row: _limit(row, "capReplicas"),
    "memory": lambda row: amount(row["used"]["bytes"]),
    "memory floor": lambda row: _limit(row, "floorBytes", amount),
    "memory cap": lambda row: _limit(row, "capBytes", amount),
    "over cap": lambda row: row["limits"]["overCap"] if row["limits"] else "-",
    "waiting": lambda row: len(row["waiting"]),
    "note": lambda row: "; ".join(_tenant_notes(row)) or "-",
}

WAITING: Columns = {
    "model": lambda row: row["model"],
    "code": lambda row: row["code"],
    "reason": lambda row: row["reason"],
}


def _limit(row: Json, name: str, as_text: Callable[[int], str] = str) -> str:
    limit = row["limits"][name] if row["limits"] else 0
    return as_text(limit) if limit else "-"


def _tenant_notes(row: Json) -> Iterator[str]:
    over = row["over"]
    if over["replicas"]:
        yield f"{counted(over['replicas'], 'replica')} over its cap"
    if over["bytes"]:
        yield f"{amount(over['bytes'])} over its cap"
    if row["belowFloor"]:
        yield "below its floor"


ON: Columns = {
    "model": lambda row: row["model"],
    "version": lambda row: row["generation"],
    "state": lambda row: row["state"],
    "memory": lambda row: amount(sum(each["bytes"] for each in row["bookings"])),
    "reason": lambda row: f"{row['code']}: {row['reason']}".removeprefix(": "),
}
"""What is on a server that does not drain."""

HELD: Columns = {
    **{title: column for title, column in ON.items() if title != "reason"},
    "why it is still here": lambda row: row["whyHere"] or ON["reason"](row),
}
"""What is still on one that does."""


def _runtime(info: Json) -> Iterator[str]:
    yield info["runtime"]["kind"] or "-"
    if info["runtime"]["version"]:
        yield info["runtime"]["version"]


def _unreturned(held: Json) -> Iterator[str]:
    yield from (f"{amount(size)} {state}" for state, size in held.items() if size)


def _device(device: Json) -> str:
    return f"{device['uuid']} {device['error'] or amount(device['free'])}"

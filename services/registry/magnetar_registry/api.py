"""The registry over HTTP, for whoever does not speak Pulsar: look-ups, and watches as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast, get_args

from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from magnetar_common.discovery import Discovery
from magnetar_events import ServiceRecord
from magnetar_events.records import Status

_STATUSES = get_args(Status)


def routes(discovery: Discovery) -> Sequence[BaseRoute]:
    """Return the routes that answer from a live view of the registry.

    ``GET /v1/services``
        every service, with the number of its instances by status.
    ``GET /v1/services/{name}?status=``
        its instances; all of them unless a status is given.
    ``GET /v1/services/{name}/watch``
        server-sent events: ``snapshot`` (a list), then ``changed`` (a record) and ``gone`` (its ``instanceId``).
    ``GET /v1/services/{name}/{instance}``
        one of them; an instance id may hold slashes.

    Errors are ``{"error": …}`` with 400 or 404. A service that nobody offers has an empty list, and is not an error.
    """

    def services(_: Request) -> JSONResponse:
        return JSONResponse({"services": [_summary(*service) for service in discovery.services().items()]})

    def instances(request: Request) -> JSONResponse:
        found = discovery.instances(request.path_params["name"], _status(request))
        return JSONResponse({"instances": [_json(record) for record in found]})

    def instance(request: Request) -> JSONResponse:
        name, wanted = request.path_params["name"], request.path_params["instance"]
        for record in discovery.instances(name, None):
            if record.instance_id == wanted:
                return JSONResponse(_json(record))
        raise HTTPException(404, f"service {name!r} has no instance {wanted!r}")

    async def watch(request: Request) -> EventSourceResponse:
        return EventSourceResponse(_events(discovery, request.path_params["name"]))

    return [
        Route("/v1/services", services),
        Route("/v1/services/{name}", instances),
        Route("/v1/services/{name}/watch", watch),
        Route("/v1/services/{name}/{instance:path}", instance),
    ]


async def _events(discovery: Discovery, name: str) -> AsyncIterator[dict[str, str]]:
    """Yield the snapshot and the changes. A slow reader gets the newest of each instance, never a backlog."""
    loop = asyncio.get_running_loop()
    pending: dict[str, ServiceRecord | None] = {}
    arrived = asyncio.Event()

    def put(instance: str, record: ServiceRecord | None) -> None:
        pending[instance] = record
        arrived.set()

    def changed(instance: str, record: ServiceRecord | None) -> None:
        loop.call_soon_threadsafe(put, instance, record)

    # The watch begins with what is there; those calls are queued in the loop, and are the snapshot.
    watch = await asyncio.to_thread(discovery.watch, name, changed)
    try:
        snapshot = [_json(record) for record in pending.values() if record is not None]
        pending.clear()
        arrived.clear()
        yield {"event": "snapshot", "data": json.dumps(snapshot)}
        while True:
            await arrived.wait()
            arrived.clear()
            batch = dict(pending)
            pending.clear()
            for instance, record in batch.items():
                if record is None:
                    yield {"event": "gone", "data": json.dumps({"instanceId": instance})}
                else:
                    yield {"event": "changed", "data": json.dumps(_json(record))}
    finally:
        watch.close()


def _status(request: Request) -> Status | None:
    status = request.query_params.get("status")
    if status is not None and status not in _STATUSES:
        raise HTTPException(400, f"status {status!r} is none of {', '.join(_STATUSES)}")
    return cast("Status | None", status)


def _summary(name: str, instances: list[ServiceRecord]) -> dict[str, Any]:
    counts = {status: sum(r.status == status for r in instances) for status in _STATUSES}
    return {"serviceName": name, "instances": {status: count for status, count in counts.items() if count}}


def _json(record: ServiceRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", by_alias=True)

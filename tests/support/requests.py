"""Asking for models on a bus, and reading the routes that come of it."""

import httpx

from magnetar_common.bus import EARLIEST, Bus
from magnetar_common.topics import MODEL_EVENTS, ROUTES
from magnetar_events import MODEL_EVENT, ROUTE, ModelEvent, Route
from magnetar_events.policy import Policy
from magnetar_events.requests import DeployModel, ScaleModel, SetPolicy, UndeployModel
from magnetar_events.schemas import schema_json
from tests.support.world import spec

IRIS = "default/iris"


def ask(bus: Bus, event: ModelEvent) -> None:
    producer = bus.producer(MODEL_EVENTS.name, schema=schema_json(MODEL_EVENTS.schema))
    producer.send(MODEL_EVENT.encode(event), key=event.event.subject, properties=MODEL_EVENT.properties)
    producer.close()


def deploy(bus: Bus, name: str = "iris", **fields: object) -> None:
    ask(bus, ModelEvent(event=DeployModel(model=spec(name, **fields))))


def undeploy(bus: Bus, name: str = "iris") -> None:
    ask(bus, ModelEvent(event=UndeployModel(name=name)))


def scale(bus: Bus, replicas: int, name: str = "iris") -> None:
    ask(bus, ModelEvent(event=ScaleModel(name=name, replicas=replicas)))


def set_policy(bus: Bus, **fields: object) -> None:
    ask(bus, ModelEvent(event=SetPolicy(policy=Policy(**fields))))  # type: ignore[arg-type]


def last_route(bus: Bus, model: str = IRIS) -> Route | None:
    """The newest route of a model; None = it has none, or no longer."""
    reader, last = bus.reader(ROUTES.name, EARLIEST), b""
    while (message := reader.read(0.05)) is not None:
        if message.key == model:
            last = message.payload
    reader.close()
    return ROUTE.decode(last, "") if last else None


def servers_routed(bus: Bus, model: str = IRIS) -> set[str]:
    route = last_route(bus, model)
    return {e.server for t in route.targets for e in t.endpoints} if route else set()


def infer(bus: Bus, model: str, body: object) -> httpx.Response:
    """The answer to a V2 inference, asked of the first place that the route names.

    Raises:
        LookupError: it names none.
        httpx.HTTPError: nobody answers there.
    """
    route = last_route(bus, model)
    endpoints = [endpoint for target in route.targets for endpoint in target.endpoints] if route else []
    if not endpoints:
        raise LookupError(f"{model} is routed nowhere")
    url = f"http://{endpoints[0].host}:{endpoints[0].http_port}/v2/models/{endpoints[0].served_name}/infer"
    return httpx.post(url, json=body, timeout=30, trust_env=False)

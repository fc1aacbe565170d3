"""The route of a model, computed from the state: exact versions with weights, and their replicas that are Available."""

from magnetar_common.state import Model, State
from magnetar_common.status import model_status
from magnetar_common.transitions import R
from magnetar_events import ROUTE
from magnetar_events.compiled import trusted
from magnetar_events.models import served_name
from magnetar_events.routes import Endpoint, Route, RouteTarget

_route, _target, _endpoint = trusted(Route), trusted(RouteTarget), trusted(Endpoint)


def route_of(state: State, model: Model) -> Route:
    """Return a model's route as of the state's position. Replicas are in order of server."""
    targets = tuple(
        _target(
            generation=target.generation, weight=target.weight, endpoints=_endpoints(state, model, target.generation)
        )
        for target in model.traffic
    )
    note = "" if any(target.endpoints for target in targets) else model_status(model).reason[:512]
    return _route(
        model=model.key,
        tenant=model.key.partition("/")[0],
        term=state.term,
        position=state.position,
        targets=targets,
        note=note,
    )


def _endpoints(state: State, model: Model, generation: int) -> tuple[Endpoint, ...]:
    found: list[Endpoint] = []
    for replica in sorted(model.of(generation), key=lambda r: r.server):
        if replica.state is R.AVAILABLE:
            server = state.servers[replica.server]
            info = server.info
            found.append(
                _endpoint(
                    server=replica.server,
                    host=server.record.address.host,
                    http_port=replica.http_port or info.http_port,
                    grpc_port=info.grpc_port,
                    served_name=served_name(model.key, generation),
                    runtime=info.runtime.kind,
                )
            )
    return tuple(found)


def content(route: Route) -> bytes:
    """Return what a route says, whoever published it and when: two that send requests to the same places say the same."""
    return ROUTE.encode(route.model_copy(update={"term": 0, "position": 0}))

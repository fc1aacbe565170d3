"""Routes on ``routes``: where each model answers. The key is the model; an empty payload means that there is no such model."""

from magnetar_events.base import Count, Name, Text, Wire
from magnetar_events.reports import ModelKey


class Endpoint(Wire):
    """One replica that answers.

    Attributes:
        server: ``cluster/server/replica``.
        host: address.
        http_port: inference over HTTP (Open Inference Protocol).
        grpc_port: inference over gRPC; 0 = none.
        served_name: the model's name in that server.
        runtime: kind of server.
    """

    server: str
    host: str
    http_port: int
    grpc_port: int = 0
    served_name: str
    runtime: str = ""


class RouteTarget(Wire):
    """An exact version, its weight (percent), and its replicas that are Available."""

    generation: Count
    weight: Count
    endpoints: tuple[Endpoint, ...] = ()


class Route(Wire):
    """A model's route. No targets: the model is known but nothing of it is loaded (503, retry), as against no route (404).

    Attributes:
        model: key.
        term: leadership that published it.
        position: of the entry that it reflects; with ``term``, the order of routes.
        targets: exact versions with weights.
    """

    model: ModelKey
    tenant: Name
    term: Count
    position: Count
    targets: tuple[RouteTarget, ...] = ()
    note: Text = ""

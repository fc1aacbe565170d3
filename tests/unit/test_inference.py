"""Inference by the route table, against real HTTP servers that answer, refuse, hang and die."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar_common.brokers.ports import free_ports
from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import InferenceRefused, NoRoute
from magnetar_common.inference import ATTEMPTS, InferenceClient, Routes
from magnetar_common.topics import ROUTES
from magnetar_events import ROUTE, Route
from magnetar_events.models import served_name
from magnetar_events.routes import Endpoint, RouteTarget
from tests.support.leading import eventually

SECONDS = 20.0
IRIS = "default/iris"
BODY = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}


def endpoint(server: str, port: int, generation: int = 1) -> Endpoint:
    return Endpoint(server=server, host="127.0.0.1", http_port=port, served_name=served_name(IRIS, generation))


Answer = Callable[[str], tuple[int, object]]


def answers(path: str) -> tuple[int, object]:
    """What a server that has the model says."""
    name = path.split("/")[3]
    if path.endswith("/infer"):
        return 200, {"model_name": name, "outputs": []}
    return 200, {} if path.endswith("/ready") else {"name": name, "platform": "tests"}


class Server:
    """A replica on a port of its own; ``answer`` says what it does with a path."""

    def __init__(self, name: str, answer: Answer = answers) -> None:
        self.key = f"local/{name}/0"
        self.answer = answer
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet an answer

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def do_GET(self) -> None:
                server.asked.append(self.path)
                status, body = server.answer(self.path)
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that gave up waiting is part of the tests."""

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def endpoint(self, generation: int = 1) -> Endpoint:
        return endpoint(self.key, self.port, generation)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def serve(name: str, answer: Answer = answers) -> Server:
        servers.append(Server(name, answer))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What a hanging server waits for."""
    event = threading.Event()
    yield event
    event.set()


class World:
    """A routes topic with a leader to write it, and a client to follow it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.producer = MemoryBus(self.broker).producer(ROUTES.name, exclusive=True)
        self.routes = Routes(self.bus)
        self.client = InferenceClient(self.routes, seed=1)
        self.position = 0

    def route(self, *targets: RouteTarget, model: str = IRIS, term: int = 1, place: int = 0, note: str = "") -> Route:
        """Publish a route."""
        self.position = place or self.position + 1
        route = Route(model=model, tenant="default", term=term, position=self.position, targets=targets, note=note)
        self.producer.send(ROUTE.encode(route), key=model, properties=ROUTE.properties)
        return route

    def spread(self, *servers: Server, generation: int = 1) -> None:
        endpoints = tuple(server.endpoint(generation) for server in servers)
        route = self.route(RouteTarget(generation=generation, weight=100, endpoints=endpoints))
        assert self.routes.wait_for(IRIS, lambda now: now == route, SECONDS)

    def close(self) -> None:
        self.client.close()
        self.routes.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    assert world.routes.wait_ready(SECONDS)
    yield world
    world.close()


def dead_endpoint() -> Endpoint:
    (port,) = free_ports(1)
    return endpoint("local/dead/0", port)


def test_an_answer_names_the_model_as_it_was_asked_for(world: World, serve: Callable[..., Server]) -> None:
    """The served name stays between us and the server; who answered, and which version, is said beside."""
    one = serve("a")
    world.spread(one, generation=3)
    answer = world.client.infer("iris", BODY)
    assert answer.json == {"model_name": "iris", "outputs": []}
    assert (answer.server, answer.served_name, answer.generation) == (one.key, "default_iris_3", 3)
    assert world.client.infer(IRIS, BODY).json["model_name"] == IRIS
    assert world.client.metadata("iris").json == {"name": "iris", "platform": "tests"}
    assert world.client.ready("iris")
    assert one.asked[0] == "/v2/models/default_iris_3/infer"


def test_requests_are_spread_over_the_replicas(world: World, serve: Callable[..., Server]) -> None:
    """In turn among equals."""
    servers = [serve(name) for name in "abc"]
    world.spread(*servers)
    assert set(Counter(world.client.infer("iris", BODY).server for _ in range(30)).values()) == {10}


def test_versions_are_drawn_by_weight_among_those_that_are_ready(world: World, serve: Callable[..., Server]) -> None:
    """80 to 20; a version without a replica gets nothing, whatever its weight, and weight 0 is none."""
    one, two = serve("a"), serve("b")
    old = RouteTarget(generation=1, weight=80, endpoints=(one.endpoint(1),))
    new = RouteTarget(generation=3, weight=20, endpoints=(two.endpoint(3),))
    off = RouteTarget(generation=2, weight=0, endpoints=(two.endpoint(2),))
    route = world.route(old, new, off)
    assert world.routes.wait_for(IRIS, lambda now: now == route, SECONDS)
    drawn = Counter(world.client.infer("iris", BODY).generation for _ in range(300))
    assert drawn.keys() == {1, 3}
    assert 200 < drawn[1] < 280
    route = world.route(RouteTarget(generation=1, weight=80), new)
    assert world.routes.wait_for(IRIS, lambda now: now == route, SECONDS)
    assert {world.client.infer("iris", BODY).generation for _ in range(20)} == {3}
    route = world.route(off)
    assert world.routes.wait_for(IRIS, lambda now: now == route, SECONDS)
    with pytest.raises(NoRoute):
        world.client.infer("iris", BODY)


def test_s31_no_such_model_is_404_and_known_but_not_loaded_is_503(world: World) -> None:
    """404 only where there is no route; a route without replicas is 503, with the reason that the leader gave."""
    with pytest.raises(NoRoute) as unknown:
        world.client.infer("ghost", BODY)
    assert (unknown.value.status, unknown.value.model) == (404, "default/ghost")
    world.route(note="NO_ROOM: no server has room")
    assert world.routes.wait_for(IRIS, lambda now: now is not None, SECONDS)
    with pytest.raises(NoRoute, match="no server has room") as waiting:
        world.client.infer("iris", BODY)
    assert waiting.value.status == 503
    assert not world.client.ready("iris")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": "Model default_iris_1 not found"}),
        (400, {"error": "Request for unknown model: 'default_iris_1' is not found"}),
        (400, "Model default_iris_1 is not ready yet"),
        (503, ""),
    ],
)
def test_a_replica_without_the_model_is_passed_over(
    world: World, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, status: int, body: object
) -> None:
    """Every request is answered by the other replica, and the one that could not is left alone for a while."""
    monkeypatch.setattr("magnetar_common.inference.ASIDE_S", (60.0, 60.0))
    bad, good = serve("a", lambda _: (status, body)), serve("b")
    world.spread(bad, good)
    assert {world.client.infer("iris", BODY).server for _ in range(10)} == {good.key}
    assert len(bad.asked) == 1


def test_a_wrong_request_is_final(world: World, serve: Callable[..., Server]) -> None:
    """What the model refuses, or fails on, is not tried elsewhere."""
    servers = [serve(name, lambda _: (400, {"error": "expected 4 columns"})) for name in "ab"]
    world.spread(*servers)
    with pytest.raises(InferenceRefused, match="expected 4 columns") as refused:
        world.client.infer("iris", BODY)
    assert refused.value.status == 400
    for server in servers:
        server.answer = lambda _: (500, "boom")
    with pytest.raises(InferenceRefused, match="boom"):
        world.client.infer("iris", BODY)
    assert sum(len(server.asked) for server in servers) == 2


def test_s28_a_dead_replica_costs_no_request(world: World, serve: Callable[..., Server]) -> None:
    """A refused connection is tried elsewhere; so is one that breaks off in the middle of an answer."""
    good = serve("a")
    target = RouteTarget(generation=1, weight=100, endpoints=(dead_endpoint(), good.endpoint()))
    route = world.route(target)
    assert world.routes.wait_for(IRIS, lambda now: now == route, SECONDS)
    assert {world.client.infer("iris", BODY).server for _ in range(5)} == {good.key}

    def break_off(_: str) -> tuple[int, object]:
        raise ConnectionError

    broken = serve("b", break_off)
    world.spread(broken, good)
    assert {world.client.infer("iris", BODY).server for _ in range(5)} == {good.key}


def test_s28_draining_takes_effect_with_the_next_request(world: World, serve: Callable[..., Server]) -> None:
    """Once a route without it is there, a replica gets nothing more."""
    one, two = serve("a"), serve("b")
    world.spread(one, two)
    for _ in range(4):
        world.client.infer("iris", BODY)
    world.spread(two)
    before = len(one.asked)
    assert {world.client.infer("iris", BODY).server for _ in range(10)} == {two.key}
    assert len(one.asked) == before


def test_s29_a_ghost_is_gone_when_its_model_is(world: World, serve: Callable[..., Server]) -> None:
    """A route that is taken back is gone at once."""
    world.spread(serve("a"))
    world.producer.send(b"", key=IRIS)
    assert world.routes.wait_for(IRIS, lambda now: now is None, SECONDS)


def test_s30_a_replica_that_hangs_does_not_hold_up_the_others(
    world: World, serve: Callable[..., Server], released: threading.Event
) -> None:
    """40 callers, one of two replicas hangs: all are answered by the other, within their time."""

    def hang(path: str) -> tuple[int, object]:
        released.wait()
        return answers(path)

    stuck, good = serve("a", hang), serve("b")
    world.spread(stuck, good)
    with ThreadPoolExecutor(8) as pool:
        answered = list(pool.map(lambda _: world.client.infer("iris", BODY, timeout=4).server, range(40)))
    assert set(answered) == {good.key}
    assert len(stuck.asked) <= 8


def test_s30_no_more_than_a_limit_is_in_progress_at_one_replica(
    world: World, serve: Callable[..., Server], released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it a caller is told at once, with 503, while those that wait still get their answer."""
    monkeypatch.setattr("magnetar_common.inference.LIMIT", 2)

    entered = threading.Semaphore(0)

    def hold(path: str) -> tuple[int, object]:
        entered.release()
        released.wait()
        return answers(path)

    world.spread(serve("a", hold))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(world.client.infer, "iris", BODY, timeout=SECONDS) for _ in range(2)]
        for _ in waiting:
            assert entered.acquire(timeout=SECONDS)
        with pytest.raises(NoRoute, match="no replica can take a request now") as busy:
            world.client.infer("iris", BODY)
        assert busy.value.status == 503
        released.set()
        assert {future.result().json["model_name"] for future in waiting} == {"iris"}


def test_when_every_replica_fails_each_is_named(world: World, serve: Callable[..., Server]) -> None:
    """503, with what each of them said; and the next request tries them again, for somebody is better than nobody."""
    one = serve("a", lambda _: (503, {"error": "starting"}))
    target = RouteTarget(generation=1, weight=100, endpoints=(dead_endpoint(), one.endpoint()))
    route = world.route(target)
    assert world.routes.wait_for(IRIS, lambda now: now == route, SECONDS)
    with pytest.raises(NoRoute, match=r"(?s)(?=.*local/dead/0: ConnectError)(?=.*local/a/0: 503 starting)") as failed:
        world.client.infer("iris", BODY)
    assert failed.value.status == 503
    one.answer = answers
    assert world.client.infer("iris", BODY).server == one.key


def test_a_request_that_every_version_change_overtakes_is_answered(world: World, serve: Callable[..., Server]) -> None:
    """What is tried at versions that have left the route uses up no attempt at the newest."""
    last = ATTEMPTS + 3

    def gone(path: str) -> tuple[int, object]:
        generation = int(path.split("/")[3].rsplit("_", maxsplit=1)[-1])
        if generation == last:
            return answers(path)
        world.spread(server, generation=generation + 1)
        assert world.routes.wait_for(IRIS, lambda route: bool(route and route.position == world.position), SECONDS)
        return 404, ""

    server = serve("a", gone)
    world.spread(server)

    assert world.client.infer("iris", BODY).generation == last


def test_s22_a_version_change_under_requests_fails_none(world: World, serve: Callable[..., Server]) -> None:
    """Route to the new version, then the old one is unloaded: a request that meets a 404 finds the new one."""
    server = serve("a")
    world.spread(server)
    stop, failures, done = threading.Event(), [], Counter[int]()

    def ask() -> None:
        while not stop.is_set():
            try:
                done[world.client.infer("iris", BODY).generation] += 1
            except NoRoute as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for generation in range(2, 12):
        world.spread(server, generation=generation)
        gone = {served_name(IRIS, old) for old in range(1, generation)}
        server.answer = lambda path, gone=gone: (404, "") if path.split("/")[3] in gone else answers(path)
        eventually(lambda generation=generation: done[generation], within=SECONDS)
    stop.set()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert done


def test_a_route_is_never_replaced_by_an_older_one(world: World, serve: Callable[..., Server]) -> None:
    """Newest by (term, position): what a deposed leader still says is not heard."""
    world.spread(serve("a"))
    newest = world.route(term=3, place=7)
    assert world.routes.wait_for(IRIS, lambda now: now == newest, SECONDS)
    world.route(term=2, place=900, note="late")
    world.route(model="default/other", term=3, place=8)
    assert world.routes.wait_for("other", lambda now: now is not None, SECONDS)
    assert world.routes.get("iris") == newest


def test_s12_the_last_good_table_stays_while_the_broker_is_away(world: World, serve: Callable[..., Server]) -> None:
    """No request fails when the broker does."""
    world.spread(serve("a"))
    world.broker.disconnect(world.bus)
    assert {world.client.infer("iris", BODY).generation for _ in range(5)} == {1}


def test_s12_a_topic_that_comes_back_empty_takes_no_route_away(world: World, serve: Callable[..., Server]) -> None:
    """A re-read that finds nothing is doubted; what is published afterwards counts, though its numbers begin anew."""
    world.spread(serve("a"))
    world.spread(serve("b"))
    with world.broker.changed:
        world.broker.topic(ROUTES.name).messages.clear()
    assert world.routes._view.resync(SECONDS)
    assert world.routes._view.keys() == []
    assert world.client.infer("iris", BODY).generation == 1
    world.route(place=1, note="a new log")
    assert world.routes.wait_for(IRIS, lambda now: now is not None and now.note == "a new log", SECONDS)


def test_a_doubted_route_is_let_go_in_the_end() -> None:
    """A tombstone that was compacted away while nobody looked is found out, if a little later."""
    broker = MemoryBroker()
    producer = MemoryBus(broker).producer(ROUTES.name)
    producer.send(ROUTE.encode(Route(model=IRIS, tenant="default", term=1, position=1)), key=IRIS)
    with Routes(MemoryBus(broker), doubt_s=0.0) as routes:
        assert routes.wait_for("iris", lambda now: now is not None, SECONDS)
        with broker.changed:
            broker.topic(ROUTES.name).messages.clear()
        assert routes._view.resync(SECONDS)
        assert routes.get("iris") is None

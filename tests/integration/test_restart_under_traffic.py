"""The scheduler restarts while requests are answered, and none of them notices."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from magnetar_common.bus.memory import MemoryBroker, MemoryBus
from magnetar_common.errors import MagnetarError
from magnetar_common.inference import InferenceClient, Routes
from tests.support.agents import SimulatedAgent
from tests.support.brokers import prepared
from tests.support.leading import eventually, leading
from tests.support.requests import IRIS, deploy, servers_routed
from tests.unit.test_inference import BODY, Server


@pytest.mark.parametrize("kind", ["memory", pytest.param("pulsar", marks=pytest.mark.pulsar)])
def test_no_request_fails_while_the_scheduler_restarts(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two leaderships and the gap between them: every request is answered, by both replicas, in every phase."""
    broker = MemoryBroker()
    connect = (
        (lambda: MemoryBus(broker))
        if kind == "memory"
        else prepared(request.getfixturevalue("pulsar_broker"), str(tmp_path))
    )
    bus, servers = connect(), [Server("a"), Server("b")]
    agents = [SimulatedAgent(bus, server.key.split("/")[1], http_port=server.port) for server in servers]
    routes = Routes(bus)
    client, stop = InferenceClient(routes), threading.Event()
    answered: Counter[str] = Counter()
    failures: list[MagnetarError] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                answered[client.infer("iris", BODY).server] += 1
            except MagnetarError as error:
                failures.append(error)

    def all_answer() -> None:
        before = Counter(answered)
        eventually(lambda: all(answered[server.key] > before[server.key] + 20 for server in servers))

    asking = threading.Thread(target=ask)
    try:
        with leading(connect):
            deploy(bus, replicas=2)
            eventually(lambda: len(servers_routed(bus)) == 2)
            assert routes.wait_for(IRIS, lambda route: sum(len(t.endpoints) for t in route.targets) == 2, 20)
            asking.start()
            all_answer()
        all_answer()  # nobody leads
        with leading(connect, identity="next") as led:
            all_answer()
            eventually(lambda: led.leader._routes._next > 0)  # the routes were compared with the state
            all_answer()
            assert led.state.term == 2
    finally:
        stop.set()
        asking.join(10)
        for agent in agents:
            agent.die()
        for server in servers:
            server.close()
        client.close()
        routes.close()
    assert failures == []

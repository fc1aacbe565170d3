"""Cordons, drains and agents that are told to end, on the production loops and on virtual time, with faults in between."""

from magnetar_common.drains import STUCK, phase
from magnetar_common.status import ModelState
from magnetar_events import facts as f
from magnetar_events.requests import CordonServer, DrainServer, ResumeServer
from tests.simulation.directed import Endpoints, Facts, ask, begin, deploy, homes, kill_leader, state_of
from tests.simulation.simulation import Simulation, simulation

HEARTBEAT_S = 2.0
"""Of the simulated agents (virtual seconds)."""


def drain(running: Simulation, *servers: str, seconds: float = 60.0) -> None:
    """Ask for drains, one right after the other."""
    for server in servers:
        ask(running, f"drain {server}", DrainServer(server=f"{server}/0", deadline_ms=round(1000 * seconds)))


def held(running: Simulation, server: str) -> list[str]:
    """Return what a server really holds."""
    return running.cluster.servers[server].ready()


def test_s22_s33_a_drain_through_a_take_over_moves_all_and_no_route_shrinks() -> None:
    """The leader is killed in the middle of it, and its successor goes on where it was."""
    with simulation("drain") as running:
        begin(running, "iris", "wine", "rose", "gin", replicas=2, policy={"piece": 1})
        server = next(iter(homes(running, "iris")))
        seen, facts = Endpoints(running), Facts(running)
        drain(running, server)
        running.until(lambda: facts.of(f.ServerDraining), 20.0, "it drains")
        kill_leader(running)
        running.until(lambda: facts.of(f.ServerDrained), 60.0, "it is drained")
        running.settle()
        assert held(running, server) == []
        assert all(server not in homes(running, model) for model in ("iris", "wine", "rose", "gin"))
        assert [number for _, number in seen.all if number < 2] == []
        assert [fact.models for fact in facts.of(f.ServerDrained)] == [0]  # type: ignore[union-attr]


def test_s33_two_servers_that_drain_at_once_empty_into_the_others() -> None:
    """None of the two is chosen for what leaves the other."""
    with simulation("drain2") as running:
        begin(running, "iris", "wine", "rose", replicas=2)
        servers = ("a", "b")
        facts = Facts(running)
        drain(running, *servers)
        running.until(lambda: len(facts.of(f.ServerDraining)) == 2, 20.0, "both drain")
        running.settle()
        assert [held(running, server) for server in servers] == [[], []]
        assert {fact.server for fact in facts.of(f.ReplicaPlaced)} <= {"local/c/0", "local/d/0"}  # type: ignore[union-attr]
        assert state_of(running, "iris") is ModelState.AVAILABLE


def test_s34_a_drain_ends_by_its_deadline_names_what_is_stuck_and_keeps_it_served() -> None:
    """And when there is room again, however late, it leaves."""
    with simulation("stuck", servers=1) as running:
        begin(running, "iris")
        facts = Facts(running)
        drain(running, "a", seconds=5.0)
        running.until(lambda: facts.of(f.ServerDrained), 20.0, "the deadline")
        (said,) = facts.of(f.ServerDrained)
        assert isinstance(said, f.ServerDrained)
        assert [(left.model, "1 draining" in left.reason) for left in said.left] == [("default/iris", True)]
        running.settle()
        assert phase(running.checker.state.servers["local/a/0"]) == STUCK
        assert homes(running, "iris") == {"a"}
        ask(running, "resume a", ResumeServer(server="a/0"))
        running.until(lambda: facts.of(f.ServerResumed), 20.0, "it is taken back")
        running.settle()
        assert state_of(running, "iris") is ModelState.AVAILABLE
        assert facts.of(f.ReplicaChanged) == [], "nothing moved for it"


def test_a_load_that_finishes_during_a_drain_is_undone() -> None:
    """The server went on loading what was called off; in the end it holds nothing, and the model is elsewhere."""
    with simulation("undone") as running:
        begin(running)
        for server in running.cluster.servers.values():
            server.slowness = 6.0
        deploy(running, "iris")
        running.until(lambda: any(s.models for s in running.cluster.servers.values()), 20.0, "a load")
        (home,) = (name for name, server in running.cluster.servers.items() if server.models)
        drain(running, home)
        running.settle()
        assert held(running, home) == []
        assert homes(running, "iris") not in (set(), {home})


def test_a_restarted_agent_finds_its_server_cordoned() -> None:
    """The order is for the name: another life of its agent is placed on as little as the one before."""
    with simulation("name") as running:
        begin(running)
        ask(running, "cordon", CordonServer(server="a/0"))
        drain(running, "b")
        running.until(lambda: len(running.checker.state.cordons) == 2, 20.0, "the orders")
        for name in "ab":
            running.cluster.services[f"agent-{name}"].process.kill()
        running.settle()
        for number in range(6):
            deploy(running, f"m{number}")
        running.settle()
        assert [held(running, name) for name in "ab"] == [[], []]


def test_an_agent_that_is_told_to_end_leaves_when_its_models_are_available_elsewhere() -> None:
    """No route shrinks; its next life is like any other, and the drain is over with the one that ended."""
    with simulation("sigterm") as running:
        begin(running, "iris", "wine", replicas=2)
        home = next(iter(homes(running, "iris")))
        seen, facts = Endpoints(running), Facts(running)
        agent = running.cluster.services[f"agent-{home}"]
        agent.wanted = False
        process = agent.process
        agent.terminate()
        running.until(lambda: not process.alive, 30.0, "it ends")
        assert held(running, home) == []
        running.settle()
        assert [fact.models for fact in facts.of(f.ServerDrained)] == [0]  # type: ignore[union-attr]
        assert [fact.code for fact in facts.of(f.ServerLost)] == ["DOWN"]  # type: ignore[union-attr]
        assert [number for _, number in seen.all if number < 2] == []
        agent.wanted = True
        agent.start()
        running.settle()
        assert running.checker.state.servers[f"local/{home}/0"].schedulable


def test_an_agent_with_nowhere_to_go_ends_at_its_deadline_and_the_log_names_what_it_took_along() -> None:
    """It does not wait for ever; what it held is told with the reason before it is lost."""
    with simulation("nowhere", servers=1) as running:
        begin(running, "iris")
        facts = Facts(running)
        agent = running.cluster.services["agent-a"]
        agent.wanted = False
        process, began = agent.process, running.hub.now
        agent.terminate()
        running.until(lambda: not process.alive, 60.0, "it ends")
        assert running.hub.now - began >= 12.0  # its drain_timeout_s
        running.until(lambda: facts.of(f.ServerLost), 30.0, "it is lost")
        said = facts.of(f.ServerDrained, f.ServerLost)
        assert [type(fact) for fact in said] == [f.ServerDrained, f.ServerLost]
        assert [left.model for left in said[0].left] == ["default/iris"]  # type: ignore[union-attr]


def test_a_second_signal_does_not_wait() -> None:
    """Told again, it says goodbye at once."""
    with simulation("twice", servers=1) as running:
        begin(running, "iris")
        agent = running.cluster.services["agent-a"]
        agent.wanted = False
        process, facts = agent.process, Facts(running)
        agent.terminate()
        running.run_for(1.0)
        assert process.alive
        agent.stop()  # what the lifecycle does on the second signal
        running.until(lambda: not process.alive, 10.0, "it ends")
        running.until(lambda: facts.of(f.ServerLost), 20.0, "it is known")


def test_s44_a_model_that_its_server_dropped_is_asked_for_again_within_two_heartbeats() -> None:
    """The digest in the heartbeat is not the expected one, the inventory follows, and with it the load."""
    with simulation("dropped") as running:
        begin(running, "iris")
        (home,) = homes(running, "iris")
        facts = Facts(running)
        running.cluster.servers[home].drop("default_iris_1")
        running.until(
            lambda: [fact for fact in facts.of(f.ReplicaChanged) if fact.after == "LoadRequested"],  # type: ignore[union-attr]
            2 * HEARTBEAT_S,
            "it is to be loaded again",
        )
        running.settle()
        assert homes(running, "iris") == {home}


def test_s43_what_failed_everywhere_names_every_place_and_a_new_server_brings_it_back() -> None:
    """Attempts have a limit, and so have servers; then it is Failed until something new is there."""
    with simulation("failed", servers=3) as running:
        late = running.cluster.services["agent-c"]
        late.wanted = False
        late.process.kill()
        for name in "ab":
            running.cluster.servers[name].trouble = 1.0
        begin(running, "iris", policy={"load_attempts": 2, "load_servers": 3})
        assert state_of(running, "iris") is ModelState.FAILED
        failed = running.checker.state.models["default/iris"].target.failed
        assert failed is not None
        assert failed.retriable
        assert [place.partition(": ")[0] for place in failed.places] == ["local/a/0", "local/b/0"]
        late.wanted = True
        late.start()
        running.until(lambda: homes(running, "iris") == {"c"}, 60.0, "the new server has it")
        running.settle()
        assert state_of(running, "iris") is ModelState.AVAILABLE

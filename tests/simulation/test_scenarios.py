"""Rows of SCENARIOS.md, each on the production loops and on virtual time; every invariant holds all the while, too."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from magnetar_common import beacon
from magnetar_common.bus import Message
from magnetar_common.errors import Deposed
from magnetar_common.status import ModelState
from magnetar_common.topics import COMMANDS, SERVICE_REGISTRY
from magnetar_events import facts as f
from tests.simulation import bus
from tests.simulation.directed import Endpoints, Facts, begin, deploy, homes, kill_leader, leading, state_of
from tests.simulation.invariants import Violated
from tests.simulation.mutations import MUTATIONS
from tests.simulation.simulation import Simulation, simulation


def test_10_l21_schedulers_and_a_server_that_die_together_lose_no_model() -> None:
    """Kill both: what is wanted comes from the log, the model is not said to be ready until it is, and then it is."""
    with simulation("10") as running:
        begin(running, "iris")
        (home,) = homes(running, "iris")
        running.cluster.supervised[home] = True
        for service in (*running.cluster.schedulers, running.cluster.services[f"agent-{home}"]):
            service.process.kill()
        assert not homes(running, "iris")
        running.until(lambda: state_of(running, "iris") is not ModelState.AVAILABLE, 30.0, "the loss is known")
        running.settle()
        assert state_of(running, "iris") is ModelState.AVAILABLE


def test_11_12_a_restart_of_every_scheduler_takes_no_route_away() -> None:
    """Whoever follows the routes sees none shrink, before the agents are heard again, and after."""
    with simulation("11") as running:
        begin(running, "iris", "wine", replicas=2)
        seen = Endpoints(running)
        for service in running.cluster.schedulers:
            service.process.kill()
        running.until(lambda: running.checker.state.term > 1, 20.0, "a new leader")
        running.run_for(70.0)  # and over one comparison of the routes
        assert [number for _, number in seen.all if number < 2] == []


def test_11_without_a_single_server_a_scheduler_still_leads() -> None:
    """It answers, and says why nothing is placed."""
    with simulation("11b", servers=0) as running:
        begin(running, "iris")
        assert state_of(running, "iris") is ModelState.SCHEDULE_FAILED
        kill_leader(running)
        running.settle()


def test_13_what_was_half_started_is_adopted_or_stopped() -> None:
    """Leader and agent die while the server loads; the load goes on, and ends as one replica that is known."""
    with simulation("13") as running:
        for name, server in running.cluster.servers.items():
            server.slowness = 8.0
            running.cluster.supervised[name] = False
        begin(running)
        deploy(running, "iris")
        running.until(lambda: any(s.models for s in running.cluster.servers.values()), 20.0, "a load")
        home = next(name for name, server in running.cluster.servers.items() if server.models)
        running.cluster.services[f"agent-{home}"].process.kill()
        kill_leader(running)
        running.settle()
        assert homes(running, "iris")


def test_16_an_outage_of_the_broker_is_nobodys_death() -> None:
    """For 30 s nobody reaches the broker: servers go on serving, nobody is declared lost, and all return by themselves."""
    with simulation("16") as running:
        begin(running, "iris", "wine", replicas=2)
        facts = Facts(running)
        before = {name: server.ready() for name, server in running.cluster.servers.items()}
        running.cluster.broker.outage(30.0)
        running.run_for(29.0)
        assert {name: server.ready() for name, server in running.cluster.servers.items()} == before
        running.settle()
        running.run_for(40.0)
        assert facts.of(f.ServerLost, f.ReplicaPlaced, f.ReplicaChanged) == []


def first_heard_after_an_outage(monkeypatch: pytest.MonkeyPatch, *, jitter: bool = True) -> list[float]:
    """Return when (seconds) each of ten agents is heard first after 30 s without a broker, all reconnected at once."""
    monkeypatch.setattr(bus, "RECONNECT_S", (0.05, 0.05))  # the spread is to be our own, and not the client's
    with simulation("16c", servers=10, projector=False, registry=False) as running, monkeypatch.context() as changed:
        begin(running)
        first: dict[str, float] = {}
        agents = {f"{name}/0" for name in running.cluster.servers}

        def stored(message: Message, _: object) -> None:
            if message.topic == SERVICE_REGISTRY.name and message.key.rpartition("/")[0] in agents:
                first.setdefault(message.key, running.hub.now)

        if not jitter:
            changed.setattr(beacon, "random", SimpleNamespace(uniform=lambda low, high: high if low else 0.0))
        running.cluster.broker.outage(30.0)
        running.run_for(29.9)
        running.cluster.broker.on_stored.append(stored)
        running.run_for(15.0)
        assert len(first) == len(agents), first
        return sorted(first.values())


def test_16_a_fleet_comes_back_spread_over_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the broker is back everybody sees it in the same moment, and is heard in one of his own."""
    times = first_heard_after_an_outage(monkeypatch)
    assert times[-1] - times[0] > 1.0
    assert max(sum(begin <= at < begin + 0.5 for at in times) for begin in times) <= len(times) / 2


def test_16_a_fleet_in_step_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-example: without the beacons' jitter all are heard in one moment, so that the test above can fail."""
    times = first_heard_after_an_outage(monkeypatch, jitter=False)
    assert times[-1] - times[0] < 0.5


def test_16_who_really_dies_during_an_outage_is_noticed() -> None:
    """The hold ends, and the one who stays silent is declared lost; the others are not."""
    with simulation("16b") as running:
        begin(running, "iris")
        facts = Facts(running)
        running.cluster.broker.outage(10.0)
        agent = running.cluster.services["agent-c"]
        agent.wanted = False
        agent.process.kill()
        running.until(lambda: facts.of(f.ServerLost), 120.0, "c is lost")
        running.settle()
        assert [fact.server for fact in facts.of(f.ServerLost)] == ["local/c/0"]  # type: ignore[union-attr]


def test_17_an_agent_that_is_back_in_time_keeps_its_models() -> None:
    """A cut that is shorter than a lease moves nothing, and a restart is told from it by the incarnation."""
    with simulation("17") as running:
        begin(running, "iris")
        facts = Facts(running)
        (home,) = homes(running, "iris")
        agent = running.cluster.services[f"agent-{home}"]
        connection = agent.process.connections[0]
        connection.sever(noticed=True)
        running.run_for(4.0)
        connection.heal()
        running.run_for(20.0)
        assert facts.of(f.ServerLost, f.ServerSuperseded, f.ReplicaPlaced) == []
        agent.process.kill()
        running.until(lambda: facts.of(f.ServerSuperseded), 30.0, "its next life is known")
        running.settle()


@pytest.mark.parametrize("hours", [-1, 1])
def test_18_clocks_decide_nothing(hours: int) -> None:
    """An agent, and then a new leader, whose clock is an hour off: a warning, and nothing else."""
    with simulation(f"18{hours}") as running:
        begin(running, "iris")
        facts = Facts(running)
        agent = running.cluster.services["agent-a"]
        agent.process.skew = 3600.0 * hours
        running.run_for(15.0)
        agent.process.skew = 0.0
        for scheduler in running.cluster.schedulers:
            scheduler.skew = -3600.0 * hours
            scheduler.process.skew = scheduler.skew
        kill_leader(running)
        running.run_for(30.0)
        assert facts.of(f.ServerLost, f.ReplicaPlaced, f.ReplicaChanged) == []
        assert any("clock skew" in line for line in running.hub.told())
        running.settle()


def test_19_an_agent_whose_server_is_gone_says_so_and_recovers() -> None:
    """No human is needed: it takes nothing while its server is down, and serves again once it is back."""
    with simulation("19") as running:
        begin(running, "iris")
        (home,) = homes(running, "iris")
        server = running.cluster.servers[home]
        server.die()
        running.until(
            lambda: running.checker.state.servers[f"local/{home}/0"].record.status == "STARTING", 20.0, "it says so"
        )
        running.until(lambda: state_of(running, "iris") is ModelState.AVAILABLE, 60.0, "it is loaded elsewhere")
        server.boot()
        running.settle()


def test_20_whatever_is_restarted_the_log_decides() -> None:
    """All services end at once and start again: the same models, the same versions, and nothing was loaded again."""
    with simulation("20") as running:
        running.cluster.supervised = dict.fromkeys(running.cluster.supervised, False)
        begin(running, "iris", "wine", replicas=2)
        before = {key: model.generation for key, model in running.checker.state.models.items()}
        loaded = {name: dict(server.ever) for name, server in running.cluster.servers.items()}
        for service in running.cluster.services.values():
            service.process.kill()
        running.run_for(10.0)
        running.settle()
        assert {key: model.generation for key, model in running.checker.state.models.items()} == before
        assert {name: server.ever for name, server in running.cluster.servers.items()} == loaded


def test_l3_a_leader_that_was_stopped_commands_nobody_when_it_goes_on() -> None:
    """Stopped for longer than the keep-alive, replaced, and continued: it ends, and nobody obeyed it."""
    with simulation("l3") as running:
        begin(running, "iris")
        old, term = leading(running), running.checker.state.term
        deploy(running, "wine")
        running.run_for(0.02)
        old.freeze()
        running.until(lambda: running.checker.state.term > term, 30.0, "another leader")
        running.run_for(60.0)
        old.thaw()
        running.until(lambda: not old.alive, 15.0, "it ends")
        assert isinstance(old.error, Deposed)
        running.settle()


def test_l9_the_first_command_on_a_new_topic_is_heard() -> None:
    """A server that joins is commanded at once, and hears it at once: its reader is open before it is announced."""
    with simulation("l9") as running:
        running.cluster.services["agent-d"].wanted = False
        running.cluster.services["agent-d"].process.kill()
        begin(running)
        sent: list[str] = []
        running.cluster.broker.on_sent.append(
            lambda producer, sending: sent.append(sending.key) if producer.topic == f"{COMMANDS.name}d-0" else None
        )
        deploy(running, "iris", server="d")
        running.cluster.services["agent-d"].wanted = True
        running.cluster.services["agent-d"].start()
        running.until(lambda: homes(running, "iris") == {"d"}, 20.0, "it is loaded")
        assert sent.count("default/iris") == 1


def test_l18_a_mass_loss_is_limited_and_every_suspicion_ends() -> None:
    """Three of six die at once, one is evicted a minute: all are lost in the end, none before its turn."""
    with simulation("l18", servers=6, projector=False, registry=False) as running:
        begin(running, "iris", policy={"evictions_per_minute": 1, "forget_server_ms": 3_600_000})
        dead = [running.cluster.services[f"agent-{name}"] for name in "bcd"]
        for agent in dead:
            agent.wanted = False
            agent.process.kill()
        times: list[float] = []
        for number in range(1, 4):
            running.until(
                lambda n=number: sum(s.lost for s in running.checker.state.servers.values()) == n, 150.0, "one more"
            )
            times.append(running.hub.now)
        assert [later - earlier >= 59.0 for earlier, later in pairwise(times)] == [True, True]
        running.settle()


@pytest.mark.parametrize("registry", [True, False])
def test_l19_a_server_lost_before_a_take_over_stays_lost(registry: bool) -> None:
    """What a new leader finds of a dead server in the registry was said before it died, and revives nobody."""
    with simulation("l19", registry=registry) as running:
        begin(running, "iris")
        dead = running.cluster.services["agent-d"]
        dead.wanted = False
        dead.process.kill()
        running.until(lambda: running.checker.state.servers["local/d/0"].lost, 60.0, "its lease lapses")
        running.run_for(10.0)
        kill_leader(running)
        running.run_for(20.0)
        assert running.checker.state.servers["local/d/0"].lost
        running.settle()


def test_l19_the_dead_that_a_reread_revived_would_be_seen() -> None:
    """Of all the mutations this is the one that a random adversary takes longest to find."""
    mutate, invariants = MUTATIONS["a re-read renews leases"]
    with pytest.raises(Violated) as seen, mutate():
        test_l19_a_server_lost_before_a_take_over_stays_lost(registry=False)
    assert seen.value.name in invariants


def heartbeat_s(running: Simulation) -> float:
    """Return how often agents are heard here (seconds), with what a message takes on its way."""
    return max(settings.heartbeat_s for settings in running.cluster._settings.values()) + 1.0


def test_l19_after_a_time_without_a_leader_nothing_is_placed_on_who_is_not_heard_again() -> None:
    """Nobody leads for 20 s, and two servers die meanwhile: what was read of them before counts for nothing."""
    with simulation("l19c", registry=False) as running:
        begin(running)
        stopped = [*running.cluster.schedulers, *(running.cluster.services[f"agent-{name}"] for name in "ab")]
        for service in stopped:
            service.wanted = False
            service.process.kill()
        deploy(running, "iris", replicas=3)
        running.run_for(20.0)
        facts, term = Facts(running), running.checker.state.term
        running.cluster.schedulers[0].start()
        running.until(lambda: running.checker.state.term > term, 20.0, "a leader")
        running.until(lambda: len(facts.of(f.ReplicaPlaced)) == 2, heartbeat_s(running), "placed on the others")
        running.until(lambda: len(facts.of(f.ServerLost)) == 2, 60.0, "the dead are lost")
        assert {fact.server for fact in facts.of(f.ReplicaPlaced)} == {"local/c/0", "local/d/0"}  # type: ignore[union-attr]


def test_l19_a_standby_that_takes_over_trusts_what_was_read_before_for_as_long_as_any_reading() -> None:
    """What the registry held of the dead is no heartbeat: their readings are too old before their leases are over."""
    with simulation("l19d", registry=False) as running:
        begin(running)
        dead = running.cluster.services["agent-a"]
        dead.wanted = False
        dead.process.kill()
        facts = Facts(running)
        kill_leader(running)
        running.until(lambda: facts.of(f.ServerReadingStale), 10.0, "its reading is too old")
        assert not facts.of(f.ServerLost)
        running.until(lambda: facts.of(f.ServerLost), 60.0, "it is lost")
        assert [fact.server for fact in facts.of(f.ServerReadingStale)] == ["local/a/0"]  # type: ignore[union-attr]


def test_a_standby_that_takes_over_a_healthy_fleet_places_at_once() -> None:
    """Also what is asked for in the moment in which the leader dies; nobody is lost, moved or doubted for it."""
    with simulation("take-over") as running:
        begin(running, "wine", replicas=2)
        facts = Facts(running)
        deploy(running, "iris", replicas=4)
        kill_leader(running)
        running.until(lambda: len(facts.of(f.ReplicaPlaced)) == 4, 1.0, "placed")
        running.settle()
        assert facts.of(f.ServerLost, f.ServerReadingStale) == []
        assert {fact.model for fact in facts.of(f.ReplicaPlaced)} == {"default/iris"}  # type: ignore[union-attr]


def test_l22_an_agent_that_dies_while_loading_leaves_no_model_behind() -> None:
    """Within a lease its replica is lost, and the model is loaded elsewhere."""
    with simulation("l22") as running:
        begin(running)
        for server in running.cluster.servers.values():
            server.slowness = 8.0
        deploy(running, "iris")
        running.until(lambda: any(s.models for s in running.cluster.servers.values()), 20.0, "a load")
        home = next(name for name, server in running.cluster.servers.items() if server.models)
        agent = running.cluster.services[f"agent-{home}"]
        agent.wanted = False
        agent.process.kill()
        running.settle()
        assert homes(running, "iris") - {home}

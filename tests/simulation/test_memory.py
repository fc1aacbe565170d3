"""Memory on the production loops: models that take more than declared, and servers that give back late, or never."""

from magnetar_common.status import ModelState
from magnetar_events import facts as f
from magnetar_events.requests import ScaleModel, UndeployModel
from tests.simulation.directed import Facts, ask, begin, deploy, homes, state_of
from tests.simulation.servers import GREED, MIB, Habits
from tests.simulation.simulation import Simulation, simulation

GPU = {"devices": 1, "memory": 400 * MIB}


def undeploy(running: Simulation, name: str) -> None:
    ask(running, f"undeploy {name}", UndeployModel(name=name))


def test_37_what_a_model_really_takes_is_what_is_placed_by() -> None:
    """Two GPUs of 1,000 MiB, models that declare 400 and take 600: one on each, and another replica fits on neither."""
    with simulation("37", habits=Habits(greedy=1.0), over_commit=0) as running:
        begin(running, "one", **GPU)
        deploy(running, "two", **GPU)  # not at the same time: then nobody could say who took what
        running.settle()
        facts = Facts(running)
        assert running.checker.state.models["default/one"].target.size == int(GREED * 400 * MIB)
        ask(running, "scale", ScaleModel(name="one", replicas=2))
        running.settle()
        assert state_of(running, "one") is ModelState.DEGRADED
        assert facts.of(f.ReplicaPlaced) == []


def test_37_a_load_that_fails_for_memory_is_learnt_from_and_goes_elsewhere() -> None:
    """A server is filled behind the leader's back; the model that did not fit there is available elsewhere."""
    with simulation("37b", habits=Habits(), over_commit=30) as running:
        begin(running)
        facts = Facts(running)
        for name in "ab":
            running.cluster.servers[name].host.used["gpu-0"] = 900 * MIB
        deploy(running, "iris", devices=1, memory=390 * MIB)
        running.settle()
        assert state_of(running, "iris") is ModelState.AVAILABLE
        assert homes(running, "iris") == {"c"}
        failed = [fact for fact in facts.of(f.ReplicaChanged) if fact.code == "LOAD_FAIL_MEMORY"]
        assert {fact.server.split("/")[1] for fact in failed} <= {"a", "b"}


def test_39_what_comes_back_late_is_awaited() -> None:
    """Nothing is placed on what is not given back yet, and all is placed once it is; nobody is called leaky."""
    with simulation("39", habits=Habits(late=1.0), over_commit=0) as running:
        begin(running, "one", "two", policy={"memory_return_ms": 60_000}, devices=1, memory=900 * MIB)
        facts = Facts(running)
        undeploy(running, "one")
        deploy(running, "next", devices=1, memory=900 * MIB)
        running.settle()
        assert state_of(running, "next") is ModelState.AVAILABLE
        told = facts.of(f.MemoryAwaited, f.MemoryReturned, f.MemoryLeaked)
        assert [type(fact) for fact in told] == [f.MemoryAwaited, f.MemoryReturned]
        order = facts.of(f.MemoryReturned, f.ReplicaPlaced)
        assert [type(fact) for fact in order] == [f.MemoryReturned, f.ReplicaPlaced]
        assert [f"default/{fact.model}" for fact in facts.of(f.SizeLearnt)] == []


def test_39_what_never_comes_back_has_leaked_until_the_server_starts_again() -> None:
    """Marked, told, and still booked; the model that waits for it is placed when another life begins."""
    with simulation("39b", servers=1, habits=Habits(never=1.0), over_commit=0) as running:
        begin(running, "one", devices=1, memory=900 * MIB)
        running.cluster.supervised["a"] = True
        facts = Facts(running)
        undeploy(running, "one")
        deploy(running, "next", devices=1, memory=900 * MIB)
        running.until(lambda: facts.of(f.MemoryLeaked), 60.0, "it is marked as leaky")
        running.settle()
        assert state_of(running, "next") is ModelState.SCHEDULE_FAILED
        assert running.checker.state.booked == {("host-0", "gpu-0"): 900 * MIB}
        running.cluster.services["agent-a"].process.kill()
        running.until(lambda: state_of(running, "next") is ModelState.AVAILABLE, 60.0, "it is placed")
        running.settle()
        assert not running.checker.state.servers["local/a/0"].leaked

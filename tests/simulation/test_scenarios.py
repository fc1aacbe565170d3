"""Rows of SCENARIOS.md, each on the production loops and on virtual time; the invariants hold all the while, too."""

import pytest

from magnetar_events import ModelEvent
from magnetar_events.policy import Policy
from magnetar_events.requests import DeployModel, RequestKind, SetPolicy
from tests.simulation.adversary import POLICY
from tests.simulation.simulation import Simulation, simulation
from tests.support.world import spec


def ask(running: Simulation, identifier: str, wish: RequestKind) -> None:
    user = running.cluster.users[0]
    user.ask(ModelEvent(id=identifier, source=user.name, time=0, event=wish))


def begin(running: Simulation, *models: str, **fields: object) -> None:
    """Set the rules, deploy models, and wait until they are Available."""
    ask(running, "policy", SetPolicy(policy=Policy(**POLICY)))  # type: ignore[arg-type]
    for name in models:
        ask(running, f"deploy {name}", DeployModel(model=spec(name, **fields)))
    running.settle()


def kill_leader(running: Simulation) -> None:
    leader = running.checker.leader()
    term = running.checker.state.term
    next(process for process, known in running.checker.leaders.items() if known is leader).kill()
    running.until(lambda: running.checker.state.term > term, 20.0, "another leader")


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

"""What directed tests do to a simulation: ask, wait, kill the leader, look at what was stored."""

from magnetar_common.bus.base import Message
from magnetar_common.status import ModelState, model_status
from magnetar_common.topics import ROUTES, STATE_CHANGES
from magnetar_events import ENTRY, ROUTE, ModelEvent
from magnetar_events.codec import FINGERPRINT
from magnetar_events.entry import BARRIER
from magnetar_events.facts import Fact
from magnetar_events.policy import Policy
from magnetar_events.requests import DeployModel, RequestKind, SetPolicy
from tests.simulation.adversary import POLICY
from tests.simulation.runtime import Process
from tests.simulation.simulation import Simulation
from tests.support.world import spec


def ask(running: Simulation, identifier: str, wish: RequestKind) -> None:
    """Ask for something, as a user."""
    user = running.cluster.users[0]
    user.ask(ModelEvent(id=identifier, source=user.name, time=0, event=wish))


def deploy(running: Simulation, name: str, **fields: object) -> None:
    """Ask for a model."""
    ask(running, f"deploy {name}", DeployModel(model=spec(name, **fields)))


def begin(running: Simulation, *models: str, policy: dict[str, object] | None = None, **fields: object) -> None:
    """Set the rules, deploy models, and wait until all is at rest."""
    ask(running, "policy", SetPolicy(policy=Policy(**{**POLICY, **(policy or {})})))
    for name in models:
        deploy(running, name, **fields)
    running.settle()


def leading(running: Simulation) -> Process:
    """Return the process that leads."""
    leader = running.checker.leader()
    return next(process for process, known in running.checker.leaders.items() if known is leader)


def kill_leader(running: Simulation) -> None:
    """Kill the leader, and wait until another has said that it leads."""
    term = running.checker.state.term
    leading(running).kill()
    running.until(lambda: running.checker.state.term > term, 20.0, "another leader")


def state_of(running: Simulation, model: str) -> ModelState:
    """Return what the log says of a model."""
    return model_status(running.checker.state.models[f"default/{model}"]).state


def homes(running: Simulation, model: str) -> set[str]:
    """Return the servers that really hold a model."""
    return {
        name
        for name, server in running.cluster.servers.items()
        if any(held.startswith(f"default_{model}_") for held in server.ready())
    }


class Facts:
    """The facts that are stored from here on."""

    def __init__(self, running: Simulation) -> None:
        self.all: list[Fact] = []
        running.cluster.broker.on_stored.append(self._stored)

    def _stored(self, message: Message, producer: object) -> None:
        if message.topic == STATE_CHANGES.name:
            entry = ENTRY.decode_trusted(message.payload, message.properties.get(FINGERPRINT, ""))
            if entry.position != BARRIER:
                self.all.extend(entry.facts)

    def of(self, *kinds: type) -> list[Fact]:
        """Return those of some kinds."""
        return [fact for fact in self.all if isinstance(fact, kinds)]


class Endpoints:
    """How many replicas each route that is stored from here on names: (model, number)."""

    def __init__(self, running: Simulation) -> None:
        self.all: list[tuple[str, int]] = []
        running.cluster.broker.on_stored.append(self._stored)

    def _stored(self, message: Message, producer: object) -> None:
        if message.topic == ROUTES.name:
            route = ROUTE.decode(message.payload, "") if message.payload else None
            self.all.append((message.key, sum(len(t.endpoints) for t in route.targets) if route else 0))

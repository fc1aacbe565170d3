"""The demo: a model from ``DeployModel`` to inference, two failures survived, and the story from the log alone."""

from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.table import Table
from rich.text import Text

from magnetar_agent import environments
from magnetar_cli import iris, shown
from magnetar_cli.asking import asking
from magnetar_cli.commands.log import row_of
from magnetar_cli.connection import Following
from magnetar_cli.output import Json, put, table
from magnetar_cli.plan import Plan
from magnetar_cli.stack import Stack
from magnetar_cli.steps import Step, Story
from magnetar_cli.traffic import Traffic
from magnetar_cli.waiting import described, status_of
from magnetar_common.bus import Bus, connect
from magnetar_common.log import replay, until_position
from magnetar_common.render import state_digest
from magnetar_common.settings import HttpSettings
from magnetar_common.state import State
from magnetar_common.transitions import R
from magnetar_events import facts as f
from magnetar_events.models import ModelSpec, served_name
from magnetar_projector.narrative import concerns

MODEL = "default/iris"
AGENTS = 3
REPLICAS = 2

_WARM_S = 240.0  # loads, reloads and answers
_LEASE_S = 240.0  # a lease of 9 s, and the load elsewhere
_PROJECTED_S = 60.0
_ENOUGH = 20
"""Requests that must be answered rightly before a claim is made of traffic."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment to come back to.

    Attributes:
        title: what had just happened.
        position: of the log.
        serving: the servers whose own indexes said that they have the model ready.
    """

    title: str
    position: int
    serving: frozenset[str]


class Demonstration:
    """Runs once, on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._story = Story()
        self._moments: list[Moment] = []

    def run(self) -> None:
        """Tell it all.

        Raises:
            CommandError: a step does not hold. Whatever was started has been stopped by then.
        """
        put("Magnetar: an event-sourced control plane for model serving. The log is the state.", "")
        with self._story.step("An environment for MLServer, apart from Magnetar's own") as step:
            environment = environments.ensure("mlserver", say=step.doing)
            step.note(f"in {environment.root}")
        with self._story.step("A small scikit-learn model is trained: iris, by logistic regression") as step:
            accuracy = iris.train(environment, self._folder / "iris")
            step.note(f"accuracy {accuracy}, in {self._folder / 'iris'}")
        stack = Stack(Plan(self._folder, agents=AGENTS), lambda _: None)
        try:
            with self._story.step(
                "A broker, a scheduler, a registry, a projector, and three agents, each with an MLServer"
            ) as step:
                stack.say = step.doing
                stack.start()
                for name, part in stack.everything.items():
                    step.note(f"{name:<11} pid {part.pid}, {part.url}")
            bus = connect(stack.bus_settings)
            log = Following(bus)
            traffic = Traffic(bus, MODEL)
            try:
                self._tell(stack, bus, log, traffic)
            finally:
                traffic.close()
                log.close()
                bus.close()
            with self._story.step("Everything is stopped, and no process is left") as step:
                stack.stop()
                left = stack.survivors()
                step.check(not left, f"still running: {'; '.join(left)}")
        finally:
            stack.stop()
        put("", Text(f"Every step was checked. {self._story.elapsed:.0f} s.", style="bold"))

    def _tell(self, stack: Stack, bus: Bus, log: Following, traffic: Traffic) -> None:
        self._join(log)
        self._deploy(bus, log)
        with self._story.step("Real inference requests are answered, and rightly") as step:
            traffic.start()
            self._answered(step, traffic, REPLICAS)
            names = ", ".join(iris.SPECIES)
            step.note(f"{names} are recognised; {_counted(traffic)}")
        self._remember(log, "deployed and serving")
        self._lose_agent(stack, log, traffic)
        self._lose_server(stack, log, traffic)
        traffic.close()
        self._read_back(stack, bus, log)

    def _join(self, log: Following) -> None:
        with self._story.step("All three servers have joined, and said what they hold: nothing") as step:
            step.until(
                lambda: sum(server.schedulable for server in log.catch_up().servers.values()) == AGENTS,
                _WARM_S,
                lambda: f"{sum(s.schedulable for s in log.state.servers.values())} of {AGENTS} servers are schedulable",
            )
            held = {key for key in log.state.servers if _has_model(log.state, key)}
            step.check(not held, f"{', '.join(sorted(held))} hold the model already")

    def _deploy(self, bus: Bus, log: Following) -> None:
        title = f"DeployModel is published: {MODEL}, {REPLICAS} replicas"
        with self._story.step(title) as step, asking(bus) as magnetar:
            spec = ModelSpec(
                name=MODEL.partition("/")[2],
                storage_uri=(self._folder / "iris").absolute().as_uri(),
                requirements=("sklearn",),
                memory=100 * 2**20,
                replicas=REPLICAS,
            )
            handle = magnetar.deploy(spec, reason="the demo")
            outcome = handle.accepted(_WARM_S)
            step.note(f"accepted as version {outcome.generation}")
            for now in handle.progress(_WARM_S):
                step.doing(f"{now.state}: {now.available} of {now.wanted} replicas are Available {now.message}")
            handle.close()
            end = handle.outcome
            step.check(end.state == "Available", f"{MODEL} is {end.state}: {end.message}")
            self._agree(step, log, REPLICAS)

    def _lose_agent(self, stack: Stack, log: Following, traffic: Traffic) -> None:
        serving = sorted(_available(log.catch_up()))
        victim = serving[0]
        third = next(key for key in log.state.servers if key not in serving)
        title = f"kill -9 of the agent of {victim} and its MLServer together: {third} takes over"
        with self._story.step(title) as step:
            traffic.failures.clear()
            before = traffic.sent
            killed = stack.kill_agent(_agent(victim))
            step.until(
                lambda: _available(log.catch_up()) == frozenset((serving[1], third)),
                _LEASE_S,
                lambda: f"{described(status_of(log.state, MODEL), MODEL)}; {traffic.sent - before} requests meanwhile",
            )
            step.note(f"killed: {', '.join(map(str, killed))}")
            self._agree(step, log, REPLICAS)
            self._answered(step, traffic, REPLICAS)
            step.check(traffic.answers[third], f"{third} answered no request")
            step.note(f"{traffic.sent - before} requests were sent meanwhile, none failed")
        self._remember(log, f"{victim} is lost, {third} has taken over")

    def _lose_server(self, stack: Stack, log: Following, traffic: Traffic) -> None:
        victim = min(_available(log.catch_up()))
        agent = stack.agents[_agent(victim)]
        title = f"kill -9 of the MLServer of {victim} alone: its agent starts it again, and reloads"
        with self._story.step(title) as step:
            traffic.failures.clear()
            before, agent_pid = traffic.sent, agent.pid
            killed = stack.kill_server(_agent(victim))
            step.check(killed, f"the agent of {victim} has no server below it")
            step.until(
                lambda: not set(killed) & set(stack.server_pids(agent)),
                _WARM_S,
                lambda: f"the MLServer of {victim} is to be gone",
            )
            step.until(
                lambda: bool(self._index(log.catch_up(), victim)) and len(_available(log.state)) == REPLICAS,
                _WARM_S,
                lambda: f"{described(status_of(log.state, MODEL), MODEL)}; {traffic.sent - before} requests meanwhile",
            )
            step.check(agent.pid == agent_pid and not agent.restarts, f"the agent of {victim} is not the same process")
            there = stack.server_pids(agent)
            step.check(there and not set(killed) & set(there), f"{killed} were killed, and {there} run")
            step.note(f"killed: {', '.join(map(str, killed))}; in their place: {', '.join(map(str, there))}")
            self._agree(step, log, REPLICAS)
            self._answered(step, traffic, REPLICAS)
            step.note(f"{traffic.sent - before} requests were sent meanwhile, none failed")

    def _read_back(self, stack: Stack, bus: Bus, log: Following) -> None:
        rows: list[Json] = []
        with self._story.step("The story, from the log alone") as step:
            again = Following(bus)
            for record in again.records():
                rows += [
                    row_of(record, fact)
                    for fact in record.entry.facts
                    if isinstance(fact, f.LeaderElected) or MODEL in concerns(again.state, fact)
                ]
            again.close()
            step.check(state_digest(again.state) == state_digest(log.catch_up()), "two folds of one log differ")
            step.check(not again.state.illegal, f"{again.state.illegal} facts are illegal")
            kinds = {row["kind"] for row in rows}
            missing = {"RequestAccepted", "ReplicaPlaced", "TrafficChanged", "ServerLost"} - kinds
            step.check(not missing, f"nothing is said of {', '.join(sorted(missing))}")
            step.note(_told(rows))
        for moment in self._moments:
            with self._story.step(f"The state replayed at position {moment.position}: {moment.title}") as step:
                state = replay(bus, until_position(moment.position))
                step.check(state.position == moment.position, f"the replay ended at position {state.position}")
                step.check(
                    _available(state) == moment.serving,
                    f"the replay says {sorted(_available(state))}, the servers said {sorted(moment.serving)}",
                )
                step.note(table(shown.replicas(state), shown.REPLICAS))
                self._projected(step, stack, state)

    # --- what is checked more than once -------------------------------------------------------------------------------

    def _agree(self, step: Step, log: Following, wanted: int) -> None:
        """The servers' own indexes say what our status says."""
        says: dict[str, bool | None] = {}

        def agree() -> bool:
            state = log.catch_up()
            says.update({key: self._index(state, key) for key, server in state.servers.items() if not server.lost})
            ready = frozenset(key for key, has in says.items() if has)
            return ready == _available(state) and len(ready) == wanted

        step.until(agree, _WARM_S, lambda: f"the servers say {says}, the log {sorted(_available(log.state))}")
        ready = sorted(key for key, has in says.items() if has)
        step.note(f"POST /v2/repository/index: {served_name(MODEL, 1)} is READY on {', '.join(ready)}")

    def _answered(self, step: Step, traffic: Traffic, servers: int) -> None:
        """Requests are answered from here on by so many servers, and not one has failed."""
        before = traffic.answers.copy()

        def enough() -> bool:
            new = traffic.answers - before
            return bool(traffic.failures) or (new.total() >= _ENOUGH and len(new) >= servers)

        step.until(enough, _WARM_S, lambda: f"requests are to be answered by {servers} servers; {_counted(traffic)}")
        step.check(not traffic.failures, f"{len(traffic.failures)} requests failed, the first: {traffic.failures[:1]}")

    def _index(self, state: State, key: str) -> bool | None:
        """Ask a server itself whether it has the model ready; None = it does not answer."""
        server = state.servers[key]
        url = f"http://{server.record.address.host}:{server.info.http_port}/v2/repository/index"
        try:
            models = httpx.post(url, json={}, timeout=5.0, trust_env=False).raise_for_status().json()
        except httpx.HTTPError:
            return None
        return any(each["name"] == served_name(MODEL, 1) and each["state"] == "READY" for each in models)

    def _projected(self, step: Step, stack: Stack, state: State) -> None:
        """The projector, which never heard of us, says the same of that moment."""
        url = f"{stack.services['projector'].url}/v1/state"

        def same() -> bool:
            asked = {"at": str(state.position)}
            answer = httpx.get(url, params=asked, headers=HttpSettings().headers(), timeout=10.0, trust_env=False)
            return answer.is_success and answer.json()["digest"] == state_digest(state)

        step.until(same, _PROJECTED_S, lambda: f"the projector is to have the same state at position {state.position}")
        step.note(f"sha256 {state_digest(state)[:16]}…; the projector says the same")

    def _remember(self, log: Following, title: str) -> None:
        state = log.catch_up()
        serving = frozenset(key for key, s in state.servers.items() if not s.lost and self._index(state, key))
        self._moments.append(Moment(title, state.position, serving))


def _available(state: State) -> frozenset[str]:
    model = state.models.get(MODEL)
    replicas = model.replicas.values() if model is not None else ()
    return frozenset(replica.server for replica in replicas if replica.state is R.AVAILABLE)


def _has_model(state: State, key: str) -> bool:
    return bool(state.servers[key].replicas)


def _agent(server: str) -> str:
    """``local/mlserver/0`` is the server of the agent ``mlserver-0``."""
    _, name, replica = server.split("/")
    return f"{name}-{replica}"


def _counted(traffic: Traffic) -> str:
    return f"{traffic.sent} requests: " + ", ".join(f"{n} by {s}" for s, n in sorted(traffic.answers.items()))


def _told(rows: list[Json]) -> Table:
    told = Table(box=None, pad_edge=False, show_header=False)
    told.add_column(justify="right", style="dim")
    told.add_column(style="dim")
    told.add_column(overflow="fold")
    for row in rows:
        told.add_row(f"{row['position']:>6}", row["time"].partition("T")[2], Text(row["text"]))
    return told

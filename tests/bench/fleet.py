"""Many simulated agents in one process, as cheap as can be: they would be on other machines.

``python -m tests.bench.fleet AGENTS URL ADMIN_URL TENANT`` registers them, sends their heartbeats and obeys their commands at
once. Of what is over so soon an agent reports only that it is. It writes lines for whoever measures: ``up`` once all
are registered, then ``term TERM SECONDS`` (monotonic) for the first load commanded in each term. On SIGUSR1 all register
again at once.
"""

import argparse
import signal
import time

import pulsar

from magnetar_common.bus import Bus, connect
from magnetar_common.settings import BusSettings
from magnetar_common.topics import AGENT_EVENTS, SERVICE_REGISTRY, commands_topic, under
from magnetar_events import AGENT_EVENT, COMMAND, SERVICE_RECORD, AgentEvent, Command, ServiceRecord
from magnetar_events import reports as r
from magnetar_events.codec import FINGERPRINT
from magnetar_events.commands import LoadModel, ReportInventory, UnloadModel
from magnetar_events.models import index_digest, served_name
from magnetar_events.schemas import schema_json
from tests.support.world import MIB, record

HEARTBEAT_S = 3.0
LABELS = {f"label-{n:02d}": "x" * 40 for n in range(32)}
"""They make a record as large as a record may be: about 2 KB."""


def record_of(number: int) -> ServiceRecord:
    """Return the record of one of them."""
    return record(f"s{number:04d}", memory=10**6 * MIB).model_copy(update={"labels": LABELS})


def held_by(number: int, agents: int, models: int) -> list[tuple[str, int]]:
    """Return what one of so many agents holds after so many models were placed, one by one: each went to the next."""
    return [(f"default/m{n}", 1) for n in range(number, models, agents)]


class Agent:
    """What one of them knows."""

    def __init__(self, number: int, held: list[tuple[str, int]]) -> None:
        self.record = record_of(number)
        self.loaded = dict.fromkeys(held, "a" * 64)
        self.digest = ""
        self.number = 0
        self.next_beat = 0.0


class Fleet:
    """The agents, one consumer of all their commands, and a producer for each of their topics."""

    def __init__(self, bus: Bus, native: pulsar.Client, tenant: str, count: int, models: int, *, idle: bool) -> None:
        self._idle = idle
        self._agents = [Agent(n, held_by(n, count, models)) for n in range(count)]
        self._by_name = {info.server: agent for agent in self._agents if (info := agent.record.server)}
        topics = [under(tenant, commands_topic(name, 0)) for name in self._by_name]
        self._commands = native.subscribe(
            topics, f"fleet-{time.time_ns()}", initial_position=pulsar.InitialPosition.Latest
        )
        self._reports = bus.producer(AGENT_EVENTS.name, schema=schema_json(AGENT_EVENTS.schema), batching=True)
        self._registry = bus.producer(SERVICE_REGISTRY.name, schema=schema_json(SERVICE_REGISTRY.schema), batching=True)
        self._term = 0
        self._reconnecting = False
        now = time.monotonic()
        for n, agent in enumerate(self._agents):
            self._beat(agent)
            agent.next_beat = now + HEARTBEAT_S * (n + 1) / count

    def run(self) -> None:
        """Obey and beat for ever. The agents beat in turn, so that the one to be asked next is known."""
        turn = 0
        signal.signal(signal.SIGUSR1, self._reconnect)
        while True:
            if self._reconnecting:
                self._reconnecting = False
                for agent in self._agents:
                    self._beat(agent)
            while (now := time.monotonic()) >= self._agents[turn].next_beat:
                self._beat(self._agents[turn])
                self._agents[turn].next_beat = max(now, self._agents[turn].next_beat) + HEARTBEAT_S
                turn = (turn + 1) % len(self._agents)
            try:
                message = self._commands.receive(max(1, int((self._agents[turn].next_beat - now) * 1000)))
            except pulsar.Timeout:
                continue
            command = COMMAND.decode_trusted(message.data(), message.properties().get(FINGERPRINT, ""))
            self._obey(self._by_name[command.server], command)

    def _reconnect(self, *_: object) -> None:
        """All at once say again who they are, as after an outage whose end nobody spreads."""
        self._reconnecting = True

    def _beat(self, agent: Agent) -> None:
        info = agent.record.server
        assert info is not None
        if not agent.digest:
            agent.digest = index_digest(served_name(model, generation) for model, generation in agent.loaded)
        info = info.model_copy(update={"digest": agent.digest, "report": agent.number})
        rec = agent.record.model_copy(update={"server": info, "timestamp": time.time_ns() // 10**6})
        payload = SERVICE_RECORD.encode(rec)
        self._registry.send_async(payload, lambda _: None, key=rec.instance_id, properties=SERVICE_RECORD.properties)

    def _obey(self, agent: Agent, command: Command) -> None:
        wanted, at = command.command, command.position
        if isinstance(wanted, ReportInventory):
            models = tuple(
                r.InventoryModel(model=m, generation=g, ready=True, digest=d) for (m, g), d in agent.loaded.items()
            )
            self._report(agent, r.InventoryReported(position=at, models=models, digest=agent.digest))
            return
        assert isinstance(wanted, (LoadModel, UnloadModel))
        if self._idle:
            return
        of = {"model": wanted.model, "generation": wanted.generation, "position": at}
        if isinstance(wanted, LoadModel):
            if command.term > self._term:
                self._term = command.term
                print(f"term {command.term} {time.monotonic()}", flush=True)
            digest = wanted.artifact_digest or "a" * 64
            agent.loaded[wanted.model, wanted.generation] = digest
            self._report(agent, r.ModelLoaded(**of, digest=digest))
        else:
            agent.loaded.pop((wanted.model, wanted.generation), None)
            self._report(agent, r.ModelUnloaded(**of))
        agent.digest = ""

    def _report(self, agent: Agent, report: r.ReportKind) -> None:
        info = agent.record.server
        assert info is not None
        agent.number += 1
        event = AgentEvent(
            cluster=info.cluster, server=info.server, replica=info.replica, incarnation=info.incarnation,
            number=agent.number, time=0, report=report,
        )  # fmt: skip
        payload = AGENT_EVENT.encode(event)
        self._reports.send_async(payload, lambda _: None, key=event.server_key, properties=AGENT_EVENT.properties)


def main() -> None:
    """Be the fleet until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", type=int)
    parser.add_argument("url")
    parser.add_argument("admin_url")
    parser.add_argument("tenant")
    parser.add_argument("--idle", action="store_true", help="obey nothing, and only say what is held")
    parser.add_argument("--models", type=int, default=0, help="hold so many from the start")
    asked = parser.parse_args()
    bus = connect(BusSettings(url=asked.url, admin_url=asked.admin_url, tenant=asked.tenant))
    native = pulsar.Client(asked.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"))
    fleet = Fleet(bus, native, asked.tenant, asked.agents, asked.models, idle=asked.idle)
    print("up", flush=True)
    fleet.run()


if __name__ == "__main__":
    main()

"""What a stack on this machine is to consist of."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BrokerChoice = Literal["embedded", "jvm"]
ServerKind = Literal["mlserver", "triton", "process"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start.

    Attributes:
        data: folder for everything: the broker's data, read model, artifacts, logs.
        agents: how many agents, each with an inference server of its own.
        kind: of the inference servers.
        broker: which broker; None = the embedded one where it can be had, else the JVM's.
        process_command: for ``process``: what starts one model's server.
    """

    data: Path
    agents: int = 3
    kind: ServerKind = "mlserver"
    broker: BrokerChoice | None = None
    process_command: str = ""

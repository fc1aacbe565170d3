"""The agent's settings."""

import json
import socket
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class AgentSettings(BaseSettings):
    """How an agent runs; each field is also an environment variable ``MAGNETAR_AGENT_…``.

    Attributes:
        cluster: Magnetar cluster that the server belongs to.
        server: name of the server; its replicas share it.
        replica: index of this replica.
        host: the machine, for the booking of its devices; empty = its host name.
        region: where it is.
        zone: where in the region.
        kind: kind of inference server.
        url: HTTP root of a server that runs already; empty = start one and keep it running.
        grpc_port: gRPC port of a server that runs already; 0 = none.
        repository: model repository of a server that runs already, as this host sees it.
        command: for ``process``: how one model's server is started; ``{model}``, ``{name}``, ``{host}`` and
            ``{port}`` are filled in.
        capabilities: what it can load, separated by commas; empty = what its environment has.
        labels: free, as ``key=value`` separated by commas.
        max_models: at most this many; 0 = no limit.
        memory_bytes: at most this much for all models together; 0 = what its devices have.
        over_commit_percent: how much more than the memory may be promised.
        folder: for artifacts, repository and logs.
        secrets_dir: folder of this host's secrets; empty = only the environment.
        artifact_roots: folders that ``file:`` URIs may lead into, separated by commas; empty = whatever the agent may
            read, which whoever may deploy a model can then have loaded.
        advertised_host: address at which inference requests reach the server.
        bind: where health, metrics and ``/terminate`` are served.
        port: of these; 0 = any free one.
        heartbeat_s: seconds between heartbeats.
        load_concurrency: loads and unloads that run at once.
        load_attempts: tries of one call to the server whose transport failed.
        load_elapsed_s: seconds after which no new try begins.
        load_timeout_s: seconds after which a load has failed.
        server_wait_s: an operation waits for a server that is down for this many seconds before it is tried.
        canary_s: seconds between canary inferences of a model; 0 = never.
        canary_patience_s: an answer that takes longer than this many seconds is none; two in a row, and the model is
            loaded afresh.
        drain_timeout_s: on SIGTERM and ``/terminate`` the agent waits for its models to be Available elsewhere, and ends
            after this many seconds at the latest; 0 = SIGTERM does not wait.
        configuration: the whole of the above as one JSON object; single settings win over it.
        log_json: log lines as JSON.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_AGENT_", extra="ignore")

    cluster: str = "local"
    server: str = "mlserver"
    replica: int = Field(default=0, ge=0)
    host: str = ""
    region: str = ""
    zone: str = ""
    kind: Literal["mlserver", "triton", "process"] = "mlserver"
    url: str = ""
    grpc_port: int = Field(default=0, ge=0, le=65_535)
    repository: str = ""
    command: str = ""
    capabilities: str = ""
    labels: str = ""
    max_models: int = Field(default=0, ge=0)
    memory_bytes: int = Field(default=0, ge=0)
    over_commit_percent: int = Field(default=0, ge=0, le=1000)
    folder: str = ".magnetar/agent"
    secrets_dir: str = ""
    artifact_roots: str = ""
    advertised_host: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65_535)
    heartbeat_s: float = Field(default=3.0, gt=0)
    load_concurrency: int = Field(default=4, ge=1)
    load_attempts: int = Field(default=4, ge=1)
    load_elapsed_s: float = Field(default=15.0, gt=0)
    load_timeout_s: float = Field(default=600.0, gt=0)
    server_wait_s: float = Field(default=20.0, ge=0)
    canary_s: float = Field(default=30.0, ge=0)
    canary_patience_s: float = Field(default=30.0, gt=0)
    drain_timeout_s: float = Field(default=60.0, ge=0)
    configuration: str = ""
    log_json: bool = True
    log_level: str = "INFO"

    @model_validator(mode="before")
    @classmethod
    def _whole_configuration(cls, values: dict[str, Any]) -> dict[str, Any]:
        text = values.get("configuration")
        if not text:
            return values
        try:
            whole: object = json.loads(text)
        except ValueError as error:
            raise ValueError(f"configuration is not JSON: {error}") from error
        if not isinstance(whole, dict):
            raise ValueError("configuration must be a JSON object")  # noqa: TRY004 - pydantic turns ValueError into its own
        fields = cast("dict[str, Any]", whole)
        unknown = sorted(fields.keys() - cls.model_fields.keys())
        if unknown:
            raise ValueError(f"configuration has unknown fields: {', '.join(unknown)}")
        return {**fields, **values}

    @model_validator(mode="after")
    def _complete(self) -> "AgentSettings":
        if self.url and not self.repository:
            raise ValueError(
                "repository: a server that runs already must say where its model repository is (and url is set)"
            )
        if self.kind == "process" and not self.command:
            raise ValueError("command: kind 'process' needs the command that starts one model's server")
        return self

    @property
    def host_name(self) -> str:
        """The machine's name."""
        return self.host or socket.gethostname()

    @property
    def home(self) -> Path:
        """The agent's folder, absolute."""
        return Path(self.folder).absolute()

    def artifact_folders(self) -> tuple[Path, ...]:
        """Return the folders that `file:` URIs may lead into."""
        return tuple(Path(item.strip()).absolute() for item in self.artifact_roots.split(",") if item.strip())

    def label_map(self) -> dict[str, str]:
        """Return the labels."""
        pairs = (item.partition("=") for item in self.labels.split(",") if item.strip())
        return {key.strip(): value.strip() for key, _, value in pairs}

    def capability_list(self) -> tuple[str, ...]:
        """Return the capabilities that were set."""
        return tuple(item.strip() for item in self.capabilities.split(",") if item.strip())

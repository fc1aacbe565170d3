"""The projector as a process: settings, the read model, the bus, HTTP, and the loop in a thread."""

import threading

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from magnetar_common.bus import Bus, connect
from magnetar_common.lifecycle import Lifecycle
from magnetar_common.ops import Health, OpsServer, configure_logging
from magnetar_common.settings import BusSettings, SnapshotSettings
from magnetar_common.snapshot import Snapshots
from magnetar_common.topic_policies import check_at_start
from magnetar_common.topics import STATE_CHANGES, VOIDED
from magnetar_projector.api import routes
from magnetar_projector.projector import Projector
from magnetar_projector.queries import Queries
from magnetar_projector.read_model import ReadModel
from magnetar_projector.snapshots import SnapshotWriter


class ProjectorSettings(BaseSettings):
    """How to run a projector; each field is also an environment variable ``MAGNETAR_PROJECTOR_…``.

    Attributes:
        data: file of the read model, or ``:memory:``. It can be deleted at any time: the log has everything in it.
        host: where to listen.
        port: 0 = any free port.
        batch_entries: entries written in one transaction while catching up, at most.
        batch_ms: time between two transactions while catching up, at most.
        log_json: one JSON object a line on stderr; else for people.
        log_level: ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR``.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_PROJECTOR_", extra="ignore")

    data: str = "magnetar-projector.sqlite"
    host: str = "127.0.0.1"
    port: int = Field(default=9083, ge=0, le=65_535)
    batch_entries: int = Field(default=1_000, ge=1)
    batch_ms: int = Field(default=200, ge=1)
    log_json: bool = True
    log_level: str = "INFO"


def run(settings: ProjectorSettings, snapshot_settings: SnapshotSettings | None = None) -> int:
    """Run a projector on the broker that the environment names, until SIGTERM or SIGINT; return the exit code."""
    configure_logging("projector", json=settings.log_json, level=settings.log_level)
    with Lifecycle() as life:
        check_at_start(BusSettings(), (STATE_CHANGES, VOIDED))
        bus = connect()
        life.on_stop("bus", bus.close)
        start(settings, bus, life, snapshot_settings or SnapshotSettings())
        life.wait()
    return life.exit_code


def start(
    settings: ProjectorSettings, bus: Bus, life: Lifecycle, snapshot_settings: SnapshotSettings | None = None
) -> OpsServer:
    """Start a projector that ends with ``life``; return where it answers.

    A log that cannot be followed does not end the process: it says so on ``/readyz``, and goes on answering for what
    came before.

    Raises:
        MagnetarError: the port is taken, or snapshots cannot be had from where the settings say.
        sqlite3.Error: the file cannot be opened.
    """
    snapshot_settings = snapshot_settings or SnapshotSettings(url="")
    store = Snapshots.from_settings(snapshot_settings)
    read_model = ReadModel(settings.data, snapshots=store)
    life.on_stop("read model", read_model.close)
    projector = Projector(
        bus,
        read_model,
        batch_entries=settings.batch_entries,
        batch_ms=settings.batch_ms,
        snapshots=SnapshotWriter.from_settings(store, read_model, snapshot_settings),
    )
    health = Health()
    health.add("log", projector.healthy)
    server = OpsServer(health, host=settings.host, port=settings.port, routes=routes(Queries(read_model)))
    server.start()
    life.on_stop("http", server.stop)

    def project() -> None:
        try:
            projector.run(life.stopping)
        except Exception as error:  # noqa: BLE001 - without its loop the process is no use
            life.fail(error)

    thread = threading.Thread(target=project, name="projector", daemon=True)
    thread.start()
    life.on_stop("projector", thread.join)
    return server


def main() -> int:
    """Run with the settings of the environment."""
    return run(ProjectorSettings())


if __name__ == "__main__":
    raise SystemExit(main())

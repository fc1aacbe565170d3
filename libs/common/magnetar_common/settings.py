"""Settings from the environment. They only connect: whatever ``decide`` depends on is policy, in the log."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class BusSettings(BaseSettings):
    """How to reach the broker; each field is also an environment variable ``MAGNETAR_PULSAR_…``.

    Attributes:
        url: ``pulsar://host:port``, ``pulsar+ssl://…``.
        admin_url: ``http://host:port`` of the admin REST API; empty = the broker has none (embedded).
        tenant: Pulsar tenant of Magnetar's topics: several Magnetars can share a Pulsar.
        token: JWT, or empty.
        trust_certs: path of the CA certificates for ``pulsar+ssl``.
        operation_timeout_s: seconds until opening something is given up.
        data_dir: folder of the embedded broker's data; a lock in it keeps a second leader out where the broker cannot.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_PULSAR_", extra="ignore")

    url: str = "pulsar://127.0.0.1:6650"
    admin_url: str = ""
    tenant: str = "magnetar"
    token: str = Field(default="", repr=False)
    trust_certs: str = ""
    operation_timeout_s: int = 10
    data_dir: str = ""


class SnapshotSettings(BaseSettings):
    """Where snapshots are, and how often one is written; each field is also a variable ``MAGNETAR_SNAPSHOTS_…``.

    The projector writes them; schedulers and the projector start from them.

    Attributes:
        url: a folder in anything that fsspec reaches (``file:///var/lib/magnetar``, ``s3://bucket/folder``, …), its
            credentials where that driver looks for them; empty = no snapshots, every start reads the whole log.
        every_entries: one is written after so many entries of the log, and at the end of a projector.
        pause_s: seconds between two of them, at least.
        keep: the newest so many are kept.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_SNAPSHOTS_", extra="ignore")

    url: str = ""
    every_entries: int = Field(default=10_000, ge=1)
    pause_s: float = Field(default=30.0, ge=0)
    keep: int = Field(default=3, ge=1)

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
        client_log: file for what the Pulsar client itself has to say; empty = standard error (with the embedded broker, a
            file beside its data).
        data_dir: folder of the embedded broker's data; a lock in it keeps a second leader out where the broker cannot.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_PULSAR_", extra="ignore")

    url: str = "pulsar://127.0.0.1:6650"
    admin_url: str = ""
    tenant: str = "magnetar"
    token: str = Field(default="", repr=False)
    trust_certs: str = ""
    operation_timeout_s: int = 10
    client_log: str = ""
    data_dir: str = ""

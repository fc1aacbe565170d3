"""Settings from the environment. They only connect: whatever ``decide`` depends on is policy, in the log.

A field that ``repr`` does not show is a secret: it is in no log line, no error and no flag of the command line (a
process's arguments are for everybody on its machine to read).
"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from magnetar_common.errors import MagnetarError, Unauthenticated, Unguarded


class BusSettings(BaseSettings):
    """How to reach the broker; each field is also an environment variable ``MAGNETAR_PULSAR_…``.

    Attributes:
        url: ``pulsar://host:port``, ``pulsar+ssl://…`` (the certificate must be for this host); several brokers of one
            cluster as ``pulsar://host:port,host:port``.
        admin_url: ``http(s)://host:port`` of the admin REST API, several separated by commas; empty = the broker has none
            (embedded).
        tenant: Pulsar tenant of Magnetar's topics: several Magnetars can share a Pulsar.
        token: JWT, or empty.
        token_file: file with the JWT; read again whenever it is needed, so that it can be replaced. Goes before
            ``token``.
        trust_certs: path of the CA certificates for ``pulsar+ssl`` and ``https``; empty = the machine's.
        operation_timeout_s: seconds until opening something is given up.
        client_log: file for what the Pulsar client itself has to say; empty = standard error (with the embedded broker, a
            file beside its data).
        data_dir: folder of the embedded broker's data; a lock in it keeps a second leader out where the broker cannot.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_PULSAR_", extra="ignore", hide_input_in_errors=True)

    url: str = "pulsar://127.0.0.1:6650"
    admin_url: str = ""
    tenant: str = "magnetar"
    token: str = Field(default="", repr=False)
    token_file: str = ""
    trust_certs: str = ""
    operation_timeout_s: int = 10
    client_log: str = ""
    data_dir: str = ""

    def current_token(self) -> str:
        """Return the token as it is now; empty for none.

        Raises:
            Unauthenticated: its file cannot be read, or is empty.
        """
        return (
            _secret(self.token_file, "MAGNETAR_PULSAR_TOKEN_FILE", Unauthenticated) if self.token_file else self.token
        )


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


class HttpSettings(BaseSettings):
    """Who may ask this process over HTTP; each field is also an environment variable ``MAGNETAR_HTTP_…``.

    Attributes:
        token: what callers must send as ``Authorization: Bearer …``; empty = nothing, on a loopback address only.
        token_file: file with it; read again for each request, so that it can be replaced. Goes before ``token``.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_HTTP_", extra="ignore", hide_input_in_errors=True)

    token: str = Field(default="", repr=False)
    token_file: str = ""

    def current_token(self) -> str:
        """Return the token as it is now; empty for none.

        Raises:
            Unguarded: its file cannot be read, or is empty.
        """
        return _secret(self.token_file, "MAGNETAR_HTTP_TOKEN_FILE", Unguarded) if self.token_file else self.token

    def headers(self) -> dict[str, str]:
        """Return what to send to a process that was started with the same settings."""
        token = self.current_token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def _secret(file: str, variable: str, missing: type[MagnetarError]) -> str:
    try:
        text = Path(file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise missing(f"the token file {file} cannot be read ({reason}): see {variable}") from None
    if not text:
        raise missing(f"the token file {file} is empty: see {variable}")
    return text

"""Signed requests: what is signed, by whom, and how a signature is checked (Ed25519, RFC 8032; extra ``signing``).

The signature covers the payload, so everything in it: source, id, time, cluster and wish. It cannot be moved to another
message, another cluster or another publisher. See ``docs/signing.md``, which has a test vector.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import BaseSettings, SettingsConfigDict

from magnetar_common.errors import SigningKeyUnusable
from magnetar_events.codec import FINGERPRINT
from magnetar_events.policy import Publisher
from magnetar_events.requests import Actor

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "magnetar-signature"
"""Name of the message property: ``<publisher>:<base64 of the 64 bytes>``."""

CONTEXT = "magnetar-request-v1"
"""First line of what is signed: a signature made for anything else is none here."""

_LONGEST = 63 + 1 + 88
_FINGERPRINT_LENGTH = 16


class NotAuthentic(Exception):
    """A signature is not what it says.

    Attributes:
        code: UNKNOWN_PUBLISHER or SIGNATURE_INVALID.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SigningSettings(BaseSettings):
    """How a program signs its requests; each field is also an environment variable ``MAGNETAR_SIGNING_…``.

    Attributes:
        key_file: private key (PEM, PKCS 8), as `magnetar keys new` writes it; empty = requests are not signed.
        name: of the publisher, as the policy has it.
        cluster: Magnetar cluster that requests are for: a signed request names it.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_SIGNING_", extra="ignore")

    key_file: str = ""
    name: str = ""
    cluster: str = "local"


def signed_bytes(publisher: str, fingerprint: str, payload: bytes) -> bytes:
    """Return what is signed: three lines (context, publisher, the writer's schema's fingerprint), then the payload."""
    return f"{CONTEXT}\n{publisher}\n{fingerprint}\n".encode() + payload


class Signer:
    """Signs in the name of one publisher.

    Args:
        name: of the publisher, as the policy has it.
        key: its private key.
        cluster: Magnetar cluster that requests are for.
    """

    def __init__(self, name: str, key: "Ed25519PrivateKey", cluster: str = "local") -> None:
        self.name = name
        self.cluster = cluster
        self._key = key

    @classmethod
    def from_file(cls, path: str | Path, name: str, cluster: str = "local") -> "Signer":
        """Read a private key from a PEM file.

        Raises:
            SigningKeyUnusable: it cannot be read, or is no Ed25519 key; or there is no name to sign by.
        """
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise SigningKeyUnusable("signing needs a library: pip install 'magnetar[signing]'") from error
        if not name:
            raise SigningKeyUnusable(f"no publisher is named for {path}: set MAGNETAR_SIGNING_NAME")
        try:
            key = load_pem_private_key(Path(path).expanduser().read_bytes(), password=None)
        except OSError as error:
            raise SigningKeyUnusable(f"the signing key {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:  # not PEM, or encrypted; what it says may quote the file
            raise SigningKeyUnusable(f"{path} is not an unencrypted private key in PEM") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningKeyUnusable(f"{path} is not an Ed25519 key: make one with `magnetar keys new`")
        return cls(name, key, cluster)

    @property
    def public_key(self) -> str:
        """Base64 of the public key's 32 bytes, as the policy holds it."""
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    @property
    def actor(self) -> Actor:
        """The publisher itself: the only actor that one who is no gateway may name."""
        return Actor(authtype="service", authid=self.name)

    def sign(self, payload: bytes, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the properties with the payload's signature among them; its schema's fingerprint is there already."""
        signature = self._key.sign(signed_bytes(self.name, properties[FINGERPRINT], payload))
        return {**properties, SIGNATURE: f"{self.name}:{base64.b64encode(signature).decode()}"}


def signer_of(settings: SigningSettings) -> Signer | None:
    """Return the signer that the settings name, or None if they name no key.

    Raises:
        SigningKeyUnusable: they name one that cannot be used.
    """
    return Signer.from_file(settings.key_file, settings.name, settings.cluster) if settings.key_file else None


def new_key(path: Path) -> "Ed25519PrivateKey":
    """Make a key and write it to a new file that its owner alone can read.

    Raises:
        FileExistsError: there is something; it is left alone.
        OSError: it cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    return key


def verified_publisher(publishers: Mapping[str, Publisher], signature: str, fingerprint: str, payload: bytes) -> str:
    """Return who signed a message.

    Args:
        publishers: whose keys are known.
        signature: value of the property ``SIGNATURE``.
        fingerprint: of the writer's schema.
        payload: as it came.

    Raises:
        NotAuthentic: nobody whom we know.
    """
    from cryptography.exceptions import InvalidSignature

    name, _, encoded = signature[: _LONGEST + 1].partition(":")
    if len(signature) > _LONGEST or len(fingerprint) != _FINGERPRINT_LENGTH:
        raise NotAuthentic("SIGNATURE_INVALID")
    publisher = publishers.get(name)
    if publisher is None:
        raise NotAuthentic("UNKNOWN_PUBLISHER")
    try:
        _key_of(publisher.key).verify(
            base64.b64decode(encoded, validate=True), signed_bytes(name, fingerprint, payload)
        )
    except (binascii.Error, ValueError, InvalidSignature) as error:
        raise NotAuthentic("SIGNATURE_INVALID") from error
    return name


@lru_cache(maxsize=1_000)
def _key_of(public_key: str) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key))

"""A Pulsar that asks who is there: TLS with a certificate authority of its own, tokens (JWT), and permissions."""

import base64
import datetime as dt
import ipaddress
import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from magnetar_common.brokers import RunningBroker, jvm
from magnetar_common.brokers.ports import free_ports
from magnetar_common.settings import BusSettings

_DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority, and what it has signed, as files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Magnetar test {name}")])
        certificate = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """Return the files of a certificate for hosts (names or addresses) and of its key (PKCS#8)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, x509.SubjectAlternativeName([_general(host) for host in hosts]))
        files = self._folder / f"{name}.cert.pem", self._folder / f"{name}.key.pem"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True)
class SecureBroker:
    """A broker that serves only over TLS to who has a token, and what is needed to reach it.

    Attributes:
        process: the broker.
        url: for clients; its certificate is for ``localhost`` alone.
        admin_url: of its admin interface, over TLS.
        authority: who signed its certificate.
    """

    process: RunningBroker
    url: str
    admin_url: str
    authority: Authority
    key: bytes

    def token(self, role: str, *, expires_in_s: float | None = None) -> str:
        """Return a token for a role."""
        claims: dict[str, object] = {"sub": role}
        if expires_in_s is not None:
            claims["exp"] = int(time.time() + expires_in_s)
        return jwt.encode(claims, self.key, algorithm="HS256")

    def settings(self, tenant: str, token: str, **fields: object) -> BusSettings:
        """Return how to reach it with a token."""
        values = {
            "url": self.url,
            "admin_url": self.admin_url,
            "tenant": tenant,
            "token": token,
            "trust_certs": str(self.authority.certificate),
            **fields,
        }
        return BusSettings(**values)  # type: ignore[arg-type]


def forged(role: str) -> str:
    """Return a token that no broker signed."""
    return jwt.encode({"sub": role}, secrets.token_bytes(32), algorithm="HS256")


ADMIN = "admin"
"""The broker's superuser."""


def start(folder: Path) -> SecureBroker:
    """Start one on a JVM.

    Raises:
        BrokerUnavailable: this machine has no Java, or the jars cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    certificate, private = authority.issue("broker", ["localhost"])
    key = secrets.token_bytes(32)
    tls, admin_tls = free_ports(2)

    def token(role: str) -> str:
        return jwt.encode({"sub": role}, key, algorithm="HS256")

    settings = {
        "advertisedAddress": "localhost",
        "brokerServicePortTls": str(tls),
        "webServicePortTls": str(admin_tls),
        "tlsCertificateFilePath": str(certificate),
        "tlsKeyFilePath": str(private),
        "tlsTrustCertsFilePath": str(authority.certificate),
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationRefreshCheckSeconds": "1",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(key).decode()}",
        "superUserRoles": f"{ADMIN},broker",
        # The broker asks itself over the plain port on loopback, where everybody needs a token all the same.
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token('broker')}",
    }
    admin_url = f"https://localhost:{admin_tls}"
    http = httpx.Client(
        base_url=admin_url,
        headers={"Authorization": f"Bearer {token(ADMIN)}"},
        verify=ssl.create_default_context(cafile=str(authority.certificate)),
        timeout=2,
    )

    def ready() -> bool:
        try:
            return http.get("/admin/v2/namespaces/public/default").is_success
        except httpx.TransportError:
            return False

    process = jvm.start(folder / "data", settings=settings, ready=ready)
    return SecureBroker(process, f"pulsar+ssl://localhost:{tls}", admin_url, authority, key)

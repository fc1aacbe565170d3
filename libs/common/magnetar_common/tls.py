"""Whether who answers at an address can prove who it is: certificates and host names, always verified."""

import socket
import ssl
from urllib.parse import urlsplit

from magnetar_common.errors import Untrusted

_PORT = 6651
_KNOCK_S = 2.0
_WRONG_HOST = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED


def context(trust_certs: str) -> ssl.SSLContext:
    """Return what verifies with these CA certificates (a file), or with the machine's if the path is empty.

    Raises:
        Untrusted: the file is not there, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=trust_certs or None)
    except (OSError, ssl.SSLError) as error:
        raise Untrusted(
            f"the CA certificates in {trust_certs} cannot be read ({error.strerror or error}): "
            "see MAGNETAR_PULSAR_TRUST_CERTS"
        ) from None


def distrust(error: BaseException | None, where: str) -> Untrusted | None:
    """Return the error for a certificate that did not convince, found anywhere in a chain of causes; None for others.

    Args:
        error: what was raised.
        where: whom was asked.
    """
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    if error.verify_code in _WRONG_HOST:
        todo = "connect by a name that is in the certificate, or have one made for this name"
    elif error.verify_code == _EXPIRED:
        todo = "have it renewed"
    else:
        todo = "MAGNETAR_PULSAR_TRUST_CERTS must name the certificate of the authority that signed it"
    return Untrusted(f"the certificate at {where} is not trusted: {error.verify_message.rstrip('.')}: {todo}")


def examine(url: str, trust_certs: str) -> None:
    """Shake hands with every host of a ``pulsar+ssl`` URL that answers; do nothing for other URLs.

    Raises:
        Untrusted: one of them does not convince.
    """
    parts = urlsplit(url)
    if parts.scheme != "pulsar+ssl":
        return
    verifier = context(trust_certs)
    for place in parts.netloc.split(","):
        one = urlsplit(f"//{place}")
        host, port = one.hostname or "", one.port or _PORT
        try:
            with (
                socket.create_connection((host, port), timeout=_KNOCK_S) as connection,
                verifier.wrap_socket(connection, server_hostname=host),
            ):
                pass
        except OSError as error:
            if (untrusted := distrust(error, f"{host}:{port}")) is not None:
                raise untrusted from None

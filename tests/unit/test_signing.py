"""Signatures on requests: made, checked, and worth nothing anywhere but on their own message."""

import base64
import re
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from magnetar_common.errors import SigningKeyUnusable
from magnetar_common.signing import (
    SIGNATURE,
    NotAuthentic,
    Signer,
    SigningSettings,
    new_key,
    signed_bytes,
    signer_of,
    verified_publisher,
)
from magnetar_events.codec import FINGERPRINT
from magnetar_events.policy import Publisher

DOC = Path(__file__).parent.parent.parent / "docs" / "signing.md"
FP = "0123456789abcdef"
PAYLOAD = b"a request"


@pytest.fixture
def ops() -> Signer:
    return Signer("ops", Ed25519PrivateKey.generate())


@pytest.fixture
def publishers(ops: Signer) -> dict[str, Publisher]:
    """`ops`; and `twin`, who has the same key."""
    return {name: Publisher(key=ops.public_key) for name in ("ops", "twin")}


def test_the_publisher_is_known_by_its_signature(ops: Signer, publishers: dict[str, Publisher]) -> None:
    """What its signer signed is its own, and the other properties stay."""
    signed = ops.sign(PAYLOAD, {FINGERPRINT: FP, "ce_id": "1"})
    assert verified_publisher(publishers, signed[SIGNATURE], FP, PAYLOAD) == "ops"
    assert (signed[FINGERPRINT], signed["ce_id"]) == (FP, "1")


def test_a_signature_cannot_be_moved(ops: Signer, publishers: dict[str, Publisher]) -> None:
    """Not to other bytes, not to another schema that would read them otherwise, not to another name with the same key."""
    signature = ops.sign(PAYLOAD, {FINGERPRINT: FP})[SIGNATURE]
    for moved in (
        (signature, FP, PAYLOAD + b"!"),
        (signature, "f" * 16, PAYLOAD),
        (signature.replace("ops:", "twin:"), FP, PAYLOAD),
    ):
        with pytest.raises(NotAuthentic) as refused:
            verified_publisher(publishers, *moved)
        assert refused.value.code == "SIGNATURE_INVALID"


@pytest.mark.parametrize(
    ("signature", "code"),
    [
        ("nobody:" + "A" * 88, "UNKNOWN_PUBLISHER"),
        ("", "UNKNOWN_PUBLISHER"),
        ("ops", "SIGNATURE_INVALID"),
        ("ops:", "SIGNATURE_INVALID"),
        ("ops:not base64", "SIGNATURE_INVALID"),
        ("ops:ünïcode", "SIGNATURE_INVALID"),
        ("ops:" + base64.b64encode(b"short").decode(), "SIGNATURE_INVALID"),
        ("ops:" + base64.b64encode(bytes(64)).decode(), "SIGNATURE_INVALID"),
        ("ops:" + "A" * 5_000_000, "SIGNATURE_INVALID"),
        ("\x00" * 200, "SIGNATURE_INVALID"),
    ],
    ids=lambda text: text[:24],
)
def test_what_is_no_signature_is_refused(signature: str, code: str, publishers: dict[str, Publisher]) -> None:
    """Whatever stands in the property, it raises nothing else."""
    with pytest.raises(NotAuthentic) as refused:
        verified_publisher(publishers, signature, FP, PAYLOAD)
    assert refused.value.code == code


def test_other_languages_can_sign_by_the_documentation() -> None:
    """The bytes are as docs/signing.md says, and its test vector (the key is RFC 8032's first) comes out."""
    told = dict(re.findall(r"^\| ([a-z ]+) \| `([^`]*)` \|$", DOC.read_text(), re.MULTILINE))
    payload = bytes.fromhex(told["payload"])
    signer = Signer(told["publisher"], Ed25519PrivateKey.from_private_bytes(bytes.fromhex(told["private key"])))
    assert signed_bytes(told["publisher"], told["fingerprint"], payload).hex() == told["signed bytes"]
    assert signer.public_key == told["public key"]
    assert signer.sign(payload, {FINGERPRINT: told["fingerprint"]})[SIGNATURE] == told["property"]


def test_a_new_key_is_for_its_owner_only_and_replaces_nothing(tmp_path: Path) -> None:
    """Mode 0600 from the first moment; a file that is there stays."""
    path = tmp_path / "ops.pem"
    key = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.from_file(path, "ops").public_key == Signer("ops", key).public_key
    with pytest.raises(FileExistsError):
        new_key(path)
    assert Signer.from_file(path, "ops").public_key == Signer("ops", key).public_key


def test_a_key_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """Not there, not PEM, another kind of key, no name; and what the file holds is not quoted."""
    other = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ec.pem").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "junk.pem").write_text("my secret")
    new_key(tmp_path / "good.pem")
    for file, name, said in (
        ("none.pem", "ops", "No such file"),
        ("junk.pem", "ops", "not an unencrypted private key"),
        ("ec.pem", "ops", "not an Ed25519 key"),
        ("good.pem", "", "MAGNETAR_SIGNING_NAME"),
    ):
        with pytest.raises(SigningKeyUnusable, match=said) as refused:
            Signer.from_file(tmp_path / file, name)
        assert "secret" not in str(refused.value)


def test_the_environment_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key file nothing is signed."""
    assert signer_of(SigningSettings()) is None
    new_key(tmp_path / "ops.pem")
    monkeypatch.setenv("MAGNETAR_SIGNING_KEY_FILE", str(tmp_path / "ops.pem"))
    monkeypatch.setenv("MAGNETAR_SIGNING_NAME", "ops")
    monkeypatch.setenv("MAGNETAR_SIGNING_CLUSTER", "eu")
    signer = signer_of(SigningSettings())
    assert signer is not None
    assert (signer.name, signer.cluster) == ("ops", "eu")

"""Secrets: what looks like one, where one is taken from, and that none is shown."""

import base64
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from magnetar_cli.contexts import BrokerContext
from magnetar_cli.options import parameters
from magnetar_common import tls, tokens
from magnetar_common.errors import Unauthenticated, Untrusted
from magnetar_common.settings import BusSettings, HttpSettings
from magnetar_common.state import State
from magnetar_events import AGENT_EVENT, MODEL_EVENT
from magnetar_events import facts as f
from magnetar_events.credentials import bytes_hold_credential, holds_credential, redacted
from magnetar_events.entry import Input
from magnetar_events.reports import AgentEvent, ModelLoadFailed
from magnetar_scheduler.decide import decide
from magnetar_scheduler.inputs import understand
from magnetar_scheduler.journal import make_entry
from tests.unit.test_events import encoded, wire


def jwt(**claims: object) -> str:
    """A token that nobody signed."""
    parts = ({"alg": "HS256"}, claims)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + ".c2ln"
    )


SHOWN = {
    "postgres://me:pw-1@host/db": "postgres://***@host/db",
    "see s3://key:se/cret": None,
    f"it said {jwt(sub='me')} and ended": "it said *** and ended",
    "GET https://h/x?a=1&X-Amz-Signature=pw-1&b=2": "GET https://h/x?a=1&X-Amz-Signature=***&b=2",
    "https://h/x?token=pw-1": "https://h/x?token=***",
    "https://h/x#access_token=pw-1": "https://h/x#access_token=***",
    "https://h/x?n=1&hf_token=pw-1": "https://h/x?n=1&hf_token=***",
    "https://h/x?pwd=pw-1;jwt=pw-1&auth=pw-1": "https://h/x?pwd=***&auth=***",
    "https://h/x?key=AIza&x-oss-signature=pw-1": "https://h/x?key=***&x-oss-signature=***",
    "https://h/x?a=1&%73ig=pw-1": "https://h/x?a=1&sig=***",
    "https://h/x?%2573ig=pw-1": "https://h/x?sig=***",
    "Authorization: Bearer pw-123456": "Authorization: Bearer ***",
    "params token:pw-1234567": "params token:***",
    "-----BEGIN PRIVATE KEY-----\npw-1\n-----END PRIVATE KEY-----": "***",
    # and what is none
    "mail ops@example.org: a=b; see https://h:80/x?page=2&author=me&design=a&monkey=b#part=no": None,
    "pulsar+ssl://a:6651,b:6651": None,
    "the token of role me": None,
    "default/iris@3 on local/a/0": None,
}


@pytest.mark.parametrize(("text", "shown"), SHOWN.items(), ids=lambda value: str(value)[:30])
def test_what_looks_like_a_credential_is_covered_and_nothing_else(text: str, shown: str | None) -> None:
    """What is covered says no more of it, and covering twice changes nothing."""
    assert redacted(text) == (text if shown is None else shown)
    assert holds_credential(text) == (shown is not None)
    assert bytes_hold_credential(b"\x00J" + text.encode() + b"\x02") == (shown is not None)
    assert not holds_credential(redacted(text))


@pytest.mark.parametrize(
    "field", ["reason", "source", "id", "correlationId", "labels", "label name", "parameters", "gpuTypes", "actor"]
)
def test_a_request_with_a_credential_in_any_text_leaves_nothing_of_it(field: str) -> None:
    """It is refused with its field, and the whole entry holds no byte of the secret."""
    secret = "https://me:pw-topsecret@ci/1"
    envelope = {"actor": {"authtype": "user", "authid": secret, "authverified": "none"}}
    in_model = {
        "labels": {"labels": {"a": secret}},
        "label name": {"labels": {secret: "a"}},
        "parameters": {"runtime": {"kind": "", "parameters": {"a": secret}}},
        "gpuTypes": {"gpuTypes": [secret]},
    }
    changes = in_model.get(field) or {f"envelope_{field}": envelope.get(field, secret)}
    payload = encoded(wire(**changes))
    source = Input("request", "model-events", "1:1:-1", "default/iris", MODEL_EVENT.fingerprint, payload, len(payload))
    facts = decide(State(), understand(source), 1)
    assert [(fact.code, type(fact)) for fact in facts] == [("CREDENTIAL_IN_TEXT", f.RequestRejected)]
    _, entry = make_entry(State(), source, facts, id="e", term=1, at=1, wall=1, handled={})
    assert b"pw-topsecret" not in entry


def test_what_a_driver_said_is_covered_before_it_is_sent_and_before_it_is_kept() -> None:
    """An agent of ours covers it when it makes the report; of one that does not, the log keeps no bytes."""
    said = "connection to redis://me:pw-topsecret@cache failed"
    report = ModelLoadFailed(
        model="default/iris", generation=1, position=1, code="LOAD_FAILED", retriable=True, message=said
    )
    assert report.message == "connection to redis://***@cache failed"
    careless = report.model_copy(update={"message": said})
    event = AgentEvent(cluster="local", server="a", replica=0, incarnation="one", number=1, time=0, report=careless)
    payload = AGENT_EVENT.encode(event)
    assert b"pw-topsecret" in payload
    source = Input("report", "agent-events", "1:1:-1", "local/a/0", AGENT_EVENT.fingerprint, payload, len(payload))
    assert "pw-topsecret" not in repr(understand(source))
    entry, kept = make_entry(State(), source, [], id="e", term=1, at=1, wall=1, handled={})
    assert (entry.input.data, b"pw-topsecret" in kept) == (None, False)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_do_not_show_their_secrets() -> None:
    """Neither they, nor a context, nor the error for a field that is wrong beside one."""
    for made in (
        BusSettings(token="pw-topsecret"),
        HttpSettings(token="pw-topsecret"),
        BrokerContext(token="pw-topsecret"),
    ):
        assert "pw-topsecret" not in repr(made) + str(made)
    with pytest.raises(ValidationError) as caught:
        BusSettings(token=["pw-topsecret"])  # type: ignore[arg-type]
    assert "pw-topsecret" not in str(caught.value)


def test_no_secret_is_a_flag() -> None:
    """Arguments are for everybody on the machine to read."""
    assert {p.name for p in parameters(BusSettings)} == BusSettings.model_fields.keys() - {"token"}


def test_a_token_file_goes_first_and_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = BusSettings(token="old", token_file=str(file))
    for text in ("one\n", "  two "):
        file.write_text(text)
        assert settings.current_token() == text.strip()
    for content in (b"", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(Unauthenticated, match="MAGNETAR_PULSAR_TOKEN_FILE"):
            settings.current_token()
    file.unlink()
    with pytest.raises(Unauthenticated, match="No such file"):
        settings.current_token()
    assert BusSettings(token="old").current_token() == "old"
    file.write_text("three")
    assert HttpSettings(token_file=str(file)).headers() == {"Authorization": "Bearer three"}


@pytest.mark.parametrize("junk", ["", "a", "a.b.c", "a.bm90IGpzb24.c", "é.é.é", "..", jwt(sub=3, exp="soon")])
def test_a_token_that_cannot_be_read_claims_nothing(junk: str) -> None:
    assert tokens.claims(junk) == tokens.Claims()


def test_what_is_wrong_with_a_token_is_said_without_the_token() -> None:
    now = time.time()
    assert tokens.claims(jwt(sub="me", exp=5)) == tokens.Claims("me", 5)
    assert tokens.fault("") == "there is no token"
    assert tokens.fault("hunter2") == "the token is no JWT"
    assert tokens.fault(jwt(sub="me", exp=now + 60)) == "the token of role me is not signed with the broker's key"
    for age, said in ((30, "30 s ago"), (7200, "2 h ago"), (300_000, "3 d ago")):
        assert tokens.fault(jwt(sub="me", exp=now - age)).endswith(said)


def test_certificates_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    for path in (tmp_path / "ca.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(Untrusted, match=str(path)):
            tls.context(str(path))


# --- what is printed --------------------------------------------------------------------------------------------------

PROGRAM = """
import logging, structlog
from magnetar_common.ops import configure_logging
configure_logging("test", json={json})
secret = "amqp://me:pw-topsecret@host"
structlog.get_logger("a").info("connecting", url=secret, nested={{"deep": [secret]}})
logging.getLogger("b").warning("lost %s", secret)
try:
    raise ValueError(secret)
except ValueError as error:
    structlog.get_logger("a").error("failed", exc_info=error)
"""


@pytest.mark.parametrize("json_", [True, False])
def test_a_log_line_that_holds_one_has_it_covered_in_values_and_in_tracebacks(json_: bool) -> None:
    """The last line of defence, for both forms; lines of other libraries too."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(json=json_)], capture_output=True, text=True, check=True
    )
    assert "pw-topsecret" not in done.stderr + done.stdout
    assert done.stderr.count("amqp://***@host") >= 4
    assert "ValueError" in done.stderr
    if json_:
        assert json.loads(done.stderr.splitlines()[0])["event"] == "connecting"

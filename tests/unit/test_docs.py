"""What README, CONTRIBUTING and docs say is so: their code runs, their names exist, their tables are the code's.

Tables between ``<!-- generated: NAME -->`` and ``<!-- end -->`` are made here from the code: ``python -m
tests.unit.test_docs`` writes them anew.
"""

import ast
import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import prometheus_client.metrics
import pytest
import typer.main
import yaml
from fastavro.schema import fingerprint, to_parsing_canonical_form
from pydantic import BaseModel
from pydantic_settings import BaseSettings

from magnetar_agent.adapters.base import RETRIABLE
from magnetar_agent.settings import AgentSettings
from magnetar_cli import demonstration, exit_codes, manifests
from magnetar_cli.main import app
from magnetar_cli.options import descriptions, variable
from magnetar_common import grants, metrics
from magnetar_common.brokers import embedded
from magnetar_common.bus import connect
from magnetar_common.settings import BusSettings, HttpSettings, SnapshotSettings
from magnetar_common.signing import SigningSettings
from magnetar_common.topics import DAY_MINUTES, TOPICS, Topic
from magnetar_common.transitions import TRANSITIONS, R, is_legal
from magnetar_events import __main__ as schema_commands
from magnetar_events import reports, requests
from magnetar_events.commands import CommandKind
from magnetar_events.facts import Fact
from magnetar_events.policy import Policy, Publisher
from magnetar_events.tenants import Tenant
from magnetar_projector.main import ProjectorSettings
from magnetar_registry.main import RegistrySettings
from magnetar_scheduler.main import SchedulerSettings
from magnetar_scheduler.placement.filters import FILTERS
from magnetar_scheduler.placement.scorers import SCORERS
from tests.support.agents import SimulatedAgent
from tests.support.leading import Led, eventually, leading
from tests.unit.test_inference import Server

ROOT = Path(__file__).parent.parent.parent
DOCS = sorted((ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")))
SETTINGS = (
    BusSettings,
    HttpSettings,
    SigningSettings,
    SnapshotSettings,
    SchedulerSettings,
    RegistrySettings,
    ProjectorSettings,
    AgentSettings,
)

each_doc = pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)


# --- tables that are made from the code ---------------------------------------------------------------------------------


def _table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(titles)
    lines = [head, ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _said(text: str) -> str:
    return text.replace("``", "`")


def _settings(cls: type[BaseSettings]) -> str:
    said = descriptions(cls)
    rows = (
        (f"`{variable(cls, name)}`", f"`{info.default}`" if info.default != "" else "", _said(said[name]))
        for name, info in cls.model_fields.items()
    )
    return _table(("variable", "default", "what it is"), rows)


def _fields(cls: type[BaseModel]) -> str:
    said = descriptions(cls)
    rows = (
        (
            f"`{info.alias}`",
            "required" if info.is_required() else f"`{info.get_default(call_default_factory=True)}`",
            said[name],
        )
        for name, info in cls.model_fields.items()
    )
    return _table(("field", "default", "what it is"), rows)


def _topics() -> str:
    def kept(topic: Topic) -> str:
        if topic.retention_minutes < 0:
            return "for ever"
        days = topic.retention_minutes // DAY_MINUTES
        return f"{days} day{'s' * (days > 1)}"

    rows = (
        (
            f"`{topic.name}{'<server>-<replica>' if topic.family else ''}`",
            f"[`{topic.schema}.avsc`](../events/schemas/{topic.schema}.avsc)" if topic.schema else "none",
            {"one": "one, exclusive", "many": "many"}[topic.writers],
            kept(topic),
            f"from {topic.compaction_threshold // 2**20} MiB on" if topic.compaction_threshold else "no",
        )
        for topic in TOPICS
    )
    return _table(("topic", "schema", "writers", "originals kept", "compacted"), rows)


def _metrics() -> str:
    def users(name: str) -> str:
        theirs = "from magnetar_common.snapshot import" if name == "SNAPSHOTS_IGNORED" else name
        found = {
            path.relative_to(ROOT / "services").parts[0]
            for path in (ROOT / "services").glob("*/*/**/*.py")
            if re.search(rf"\b{theirs}\b", path.read_text()) and "metrics" in path.read_text()
        }
        return ", ".join(sorted(found - {"cli"})) or "all that read, register or watch"

    rows = (
        (f"`{sample.name}{'_total' if sample.type == 'counter' else ''}`", sample.type, labels, users(name), help_)
        for name, metric in vars(metrics).items()
        if isinstance(metric, prometheus_client.metrics.MetricWrapperBase)
        for sample in metric.describe()
        for labels in [", ".join(f"`{label}`" for label in metric._labelnames)]
        for help_ in [sample.documentation]
    )
    return _table(("metric", "type", "labels", "set by", "what it is"), rows)


def _exit_codes() -> str:
    (enum,) = ast.parse(inspect.getsource(exit_codes.ExitCode)).body
    assert isinstance(enum, ast.ClassDef)
    said = {
        code.targets[0].id: text.value.value  # type: ignore[attr-defined]
        for code, text in zip(enum.body, enum.body[1:], strict=False)
        if isinstance(code, ast.Assign) and isinstance(text, ast.Expr)
    }
    return _table(("code", "what it means"), ((code.value, said[code.name]) for code in exit_codes.ExitCode))


def _facts() -> str:
    rows = ((f"`{fact.__name__}`", (inspect.getdoc(fact) or "").splitlines()[0]) for fact in get_args(Fact))
    return _table(("fact", "what it says"), ((name, _said(text)) for name, text in rows))


def _rights() -> str:
    def named(topics: Iterable[Topic], *, own: bool) -> str:
        names = [
            f"`{topic.name.rpartition('/')[2]}{('<its server>' if own else '*') if topic.family else ''}`"
            for topic in topics
        ]
        return ", ".join(names) or "nothing"

    rows = (
        (
            f"`{part}`",
            rights.said,
            named(rights.produce, own=part is grants.Part.AGENT),
            named(rights.consume, own=part is grants.Part.AGENT),
        )
        for part, rights in grants.TABLE.items()
        if part is not grants.Part.ADMIN
    )
    return _table(("`--as`", "who", "writes", "reads"), rows)


def _filters() -> str:
    rows = (
        (f"`{each.against.__module__.rpartition('.')[2]}.py`", f"`{rule}`", said)
        for each in FILTERS
        for rule, said in each.rules.items()
    )
    return _table(("file", "rule", "the server is"), rows)


def mermaid() -> str:
    """The transition table as a diagram."""
    lines = [f"    {before} --> {after}" for before, following in TRANSITIONS.items() for after in sorted(following)]
    lost = [f"    {before} --> {R.LOST}" for before in R if is_legal(before, R.LOST)]
    begin = [f"    [*] --> {R.LOAD_REQUESTED}: placed", f"    [*] --> {R.LOADED}: adopted"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *begin, *lines, *lost, f"    {R.UNLOADED} --> [*]", "```"])


GENERATED: dict[str, Callable[[], str]] = {
    "bus settings": lambda: _settings(BusSettings),
    "signing settings": lambda: _settings(SigningSettings),
    "publisher": lambda: _fields(Publisher),
    "tenant": lambda: _fields(Tenant),
    "snapshot settings": lambda: _settings(SnapshotSettings),
    "http settings": lambda: _settings(HttpSettings),
    "rights": _rights,
    "scheduler settings": lambda: _settings(SchedulerSettings),
    "registry settings": lambda: _settings(RegistrySettings),
    "projector settings": lambda: _settings(ProjectorSettings),
    "agent settings": lambda: _settings(AgentSettings),
    "policy": lambda: _fields(Policy),
    "topics": _topics,
    "metrics": _metrics,
    "exit codes": _exit_codes,
    "filters": _filters,
    "scorers": lambda: _table(("scorer", "better is"), ((f"`{each.name}`", each.said) for each in SCORERS)),
    "load codes": lambda: _table(
        ("code", "tried again"), ((f"`{code}`", "yes" if again else "no: final") for code, again in RETRIABLE.items())
    ),
    "facts": _facts,
    "replica's life": mermaid,
}
BLOCK = re.compile(r"<!-- generated: (?P<name>[^>]+) -->\n(?:(?!<!--).)*<!-- end -->", re.DOTALL)


def regenerated(text: str) -> str:
    """The text with its tables as the code says they are."""
    return BLOCK.sub(lambda m: f"<!-- generated: {m['name']} -->\n{GENERATED[m['name']]()}\n<!-- end -->", text)


@each_doc
def test_generated_tables_are_what_the_code_says(doc: Path) -> None:
    """A table that is out of date is mended by ``python -m tests.unit.test_docs``."""
    assert regenerated(doc.read_text()) == doc.read_text()


def test_every_generated_table_is_somewhere() -> None:
    """What can be generated is in the documentation."""
    assert {m["name"] for doc in DOCS for m in BLOCK.finditer(doc.read_text())} == GENERATED.keys()


# --- code ---------------------------------------------------------------------------------------------------------------


def blocks(language: str, *docs: Path) -> list[str]:
    """Every block of code in a language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [found[1] for doc in docs or DOCS for found in fence.finditer(doc.read_text())]


@pytest.fixture
def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Led]:
    """A leader on a broker that the environment names, and two agents whose servers answer inference."""
    with embedded.start(tmp_path / "broker") as broker:
        monkeypatch.setenv("MAGNETAR_PULSAR_URL", broker.service_url)
        monkeypatch.setenv("MAGNETAR_PULSAR_DATA_DIR", str(tmp_path))
        servers = [Server(name) for name in ("a", "b")]
        with leading(connect) as led:
            bus = connect()
            agents = [SimulatedAgent(bus, server.key.split("/")[1], http_port=server.port) for server in servers]
            yield led
            for agent in agents:
                agent.die()
            bus.close()
            assert led.error is None


@pytest.mark.parametrize("doc", [doc for doc in DOCS if blocks("python", doc)], ids=lambda doc: doc.name)
def test_python_examples_run(doc: Path, led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document's examples, one after the other in one namespace, against a broker, a leader and agents.

    Every model that an example asks for is wanted in the end, so whatever it published was understood.
    """
    monkeypatch.chdir(ROOT)
    namespace: dict[str, Any] = {}
    for example in blocks("python", doc):
        code = example.replace("pulsar://127.0.0.1:6650", BusSettings().url)
        exec(compile(code, doc.name, "exec", dont_inherit=True), namespace)  # our own text
    asked = re.findall(
        r"""\bname="(\w+)",\s+storage_uri|{"name": "(\w+)",\s+"storageUri\"""", "".join(blocks("python", doc))
    )
    eventually(lambda: led.state.models.keys() == {f"default/{a or b}" for a, b in asked})


def test_manifests_are_valid() -> None:
    """Every manifest passes the check that ``magnetar apply`` makes."""
    documents = [each for block in blocks("yaml") for each in yaml.safe_load_all(block)]
    assert {manifests.parse(each, "documentation").request.subject for each in documents} >= {
        "default/iris",
        "policy",
        "tenant:search",
    }


def test_json_examples_are_json() -> None:
    """Every JSON example can be read."""
    assert [json.loads(block) for block in blocks("json")]


def commands() -> list[str]:
    """Every command line in a block of shell, and every one of ours between backticks that has an argument."""
    lines = [
        line.replace("\\\n", " ")
        for block in blocks("sh")
        for line in re.sub(r"\\\n\s*", "", block).splitlines()
        if line and not line.startswith("#")
    ]
    inline = [m[1] for doc in DOCS for m in re.finditer(r"`((?:magnetar|make) [^`…]+)`", doc.read_text())]
    return sorted({*lines, *inline})


@pytest.mark.parametrize("line", commands())
def test_commands_exist(line: str) -> None:
    """Commands, options, targets, extras and files that are named are there."""
    words = shlex.split(line, comments=True)
    while words and ("=" in words[0] or words[0] == "export"):
        words.pop(0)
    match words:
        case []:
            pass
        case ["magnetar", *arguments]:
            _parse(arguments)
        case ["make", *targets]:
            there = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert {target for target in targets if "=" not in target} <= set(there)
        case ["pip", "install", wanted]:
            (extra,) = re.findall(r"\[(\w+)\]", wanted) or [""]
            assert not extra or f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
        case ["docker", "compose", "-f", file, *_]:
            assert (ROOT / file).exists()
        case ["python", "-m", "magnetar_events", verb]:
            assert f'"{verb}"' in inspect.getsource(schema_commands)
        case ["python", "-m", module, *_]:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists() or (ROOT / module.replace(".", "/")).is_dir()
        case ["java", "-cp", _, program, _, schema, *_]:
            assert (ROOT / program).exists()
            assert (ROOT / schema).exists()
        case ["curl", *_, url]:
            assert url.startswith("http://127.0.0.1:")
        case _:
            pytest.fail(f"no test knows this command: {line}")


def _parse(arguments: list[str]) -> None:
    """Let the command line parse it, and go no further. A bare name need only be there."""
    command, name = typer.main.get_command(app), "magnetar"
    while hasattr(command, "get_command") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        command = command.get_command(None, name)
        assert command is not None, f"there is no command {name}"
    if arguments:
        command.make_context(name, arguments)


# --- names --------------------------------------------------------------------------------------------------------------

OTHERS = {"MAGNETAR_REQUIRE", "MAGNETAR_CACHE", "MAGNETAR_DEBUG", "MAGNETAR_CONFIG", "MAGNETAR_CONTEXT"}
"""Environment variables that are no setting of a service; each is looked for in the code."""


def test_environment_variables_exist() -> None:
    """Every variable that is named is a setting, or is read somewhere in the code."""
    known = {variable(cls, name) for cls in SETTINGS for name in cls.model_fields} | OTHERS
    named = {name for doc in DOCS for name in re.findall(r"MAGNETAR_[A-Z_]*[A-Z]\b", doc.read_text())}
    assert named - known <= {"MAGNETAR_SECRET"}
    code = [path.read_text() for folder in ("libs", "services", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert {name for name in OTHERS if any(f'"{name}"' in text for text in code)} == OTHERS
    assert named >= OTHERS


KINDS = {
    kind.__name__ for union in (Fact, requests.RequestKind, reports.ReportKind, CommandKind) for kind in get_args(union)
} | {"Route"}


def test_the_flow_names_real_kinds() -> None:
    """Whatever looks like a kind of message in README's picture is one."""
    (flow,) = blocks("mermaid", ROOT / "README.md")
    named = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", flow))
    assert named <= KINDS
    assert {"DeployModel", "LoadModel", "ModelLoaded", "ReplicaPlaced", "TrafficChanged"} <= named


def test_the_demo_is_quoted_as_it_is() -> None:
    """Each step that README quotes has the words of a step in the demo."""
    source = ast.parse(inspect.getsource(demonstration))
    texts = [node for node in ast.walk(source) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    told = re.compile("|".join(f"(?:{_pattern(node)})" for node in texts if len(_pattern(node)) > 20))
    quoted = re.findall(r"^✓ +\d+  (.+?)  [\d.]+ s$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(quoted) > 5
    assert [line for line in quoted if not told.fullmatch(line)] == []


def _pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(node.value) if isinstance(node.value, str) else ""
    return "".join(_pattern(part) if isinstance(part, ast.Constant) else ".+" for part in node.values)  # type: ignore[attr-defined]


@each_doc
def test_links_lead_somewhere(doc: Path) -> None:
    """Relative links lead to files, and to headings that are there."""
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", doc.read_text()):
        file = doc.parent / target if target else doc
        assert file.exists(), target
        if heading:
            there = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in there}


@each_doc
def test_proofs_exist(doc: Path) -> None:
    """A test that is named as a proof is there."""
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", doc.read_text()):
        assert re.search(rf"def {name}\b" if name else "def test_", (ROOT / file).read_text()), f"{file}::{name}"


def test_the_fingerprint_is_as_described() -> None:
    """docs/log.md tells readers in other languages how to compute it, with an example."""
    (name, value) = re.search(
        r'of the schema `("\w+")` is `([0-9a-f]{16})`', (ROOT / "docs/log.md").read_text()
    ).groups()  # type: ignore[union-attr]
    assert fingerprint(to_parsing_canonical_form(json.loads(name)), "CRC-64-AVRO") == value


if __name__ == "__main__":
    for path in DOCS:
        path.write_text(regenerated(path.read_text()))

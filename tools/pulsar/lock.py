"""Write the lock of Pulsar's jars anew, after a change of `PULSAR_VERSION` or of pom.xml.

    .venv/bin/python tools/pulsar/lock.py

Needs Maven and the network. Everybody else fetches exactly what the lock names (`make pulsar`).
"""

import hashlib
import subprocess
import tempfile
from pathlib import Path

from magnetar_common.brokers import PULSAR_VERSION
from magnetar_common.brokers import jars as locked

HERE = Path(__file__).parent
LOCK = Path(locked.__file__).with_name(locked.LOCK)


def main() -> None:
    """Resolve with Maven, hash what came, write one sorted line per jar."""
    with tempfile.TemporaryDirectory() as scratch:
        lib, listing = Path(scratch, "lib"), Path(scratch, "list.txt")
        subprocess.run(
            ["mvn", "-q", "-B", "-f", HERE / "pom.xml", f"-Dpulsar.version={PULSAR_VERSION}", "-DincludeScope=runtime",
             "dependency:copy-dependencies", f"-DoutputDirectory={lib}", "dependency:list", f"-DoutputFile={listing}"],
            check=True,
        )  # fmt: skip
        lines = sorted(_line(line.split()[0], lib) for line in listing.read_text().splitlines() if line.count(":") >= 4)
        head = f"# The jars of a standalone Pulsar {PULSAR_VERSION}; written by tools/pulsar/lock.py\n"
        text = head + "".join(lines)
        locked.verify(locked.parse_lock(text), lib)
        LOCK.write_text(text)
    print(f"{LOCK.name}: {len(lines)} jars")


def _line(coordinate: str, lib: Path) -> str:
    """`group:artifact:jar[:classifier]:version:scope`, as Maven prints it, to a line of the lock."""
    group, artifact, _, *classifier, version, _ = coordinate.split(":")
    jar = locked.Jar(group, artifact, version, "".join(classifier), "")
    digest = hashlib.sha256((lib / jar.filename).read_bytes()).hexdigest()
    return f"{jar.coordinate} {digest}\n"


if __name__ == "__main__":
    main()

"""Run every measure and print a line each: what, ours, the ceiling, the ratio, and the goal."""

import argparse
import sys

from tests.bench import appending, bursts, decisions, failover, heartbeats, hops, replaying
from tests.bench.measure import Row, Setting, print_table

_MODULES = (decisions, hops, replaying, appending, heartbeats, bursts, failover)
MEASURES = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


def main() -> int:
    """Measure; exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"{', '.join(MEASURES)}; default all")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs, and means nothing")
    asked = parser.parse_args()
    rows: list[Row] = []
    with Setting(quick=asked.quick) as setting:
        for name, module in MEASURES.items():
            if not asked.only or name in asked.only:
                rows += module.measure(setting)
    print_table(rows)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

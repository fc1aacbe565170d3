"""Run every measure and print a line each: what, ours, the ceiling, the ratio, and the goal."""

import argparse
import sys

from tests.bench import decisions, hops, replaying
from tests.bench.measure import Row, print_table


def main() -> int:
    """Measure; exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("only", nargs="*", help="decisions, hops, replaying; default all")
    wanted = parser.parse_args().only
    rows: list[Row] = []
    for module in (decisions, hops, replaying):
        if not wanted or module.__name__.rpartition(".")[2] in wanted:
            rows += module.measure()
    print_table(rows)
    return 0 if all(row.met for row in rows) else 1


sys.exit(main())

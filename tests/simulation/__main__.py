"""``python -m tests.simulation --seeds 1000 --from 0``: run seeds on both cores, and say what they found."""

import argparse
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.simulation import Result, run_seed

BATCH = 10


def _batch(first: int, count: int) -> list[Result]:
    return [run_seed(seed) for seed in range(first, first + count)]


def report(result: Result) -> str:
    """Return what a failing seed tells."""
    assert result.failure is not None
    lines = [
        f"seed {result.seed} at {result.seconds:.2f} virtual seconds:",
        *traceback.format_exception_only(result.failure),
        *(f"  {line}" for line in result.told[-30:]),
        f"again: make simulate SEEDS=1 FROM={result.seed}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run; exit code 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    faults: Counter[str] = Counter()
    failed: list[Result] = []
    done, loads, seconds, began = 0, 0, 0.0, time.monotonic()
    size = min(BATCH, max(1, options.seeds // options.processes))
    firsts = range(options.first, options.first + options.seeds, size)
    counts = [min(size, options.first + options.seeds - first) for first in firsts]
    with ProcessPoolExecutor(options.processes if options.seeds > 1 else 1) as pool:
        for results in pool.map(_batch, firsts, counts):
            for result in results:
                done += 1
                seconds += result.seconds
                loads += result.loads
                faults.update(result.faults)
                if result.failure is not None:
                    failed.append(result)
                    print(f"\n{report(result)}\n", flush=True)
            rate = done / (time.monotonic() - began)
            print(
                f"\r{done}/{options.seeds} seeds, {rate:.1f}/s, {seconds:.0f} virtual seconds, "
                f"{sum(faults.values())} faults, {loads} loads, {len(failed)} failed ",
                end="",
                flush=True,
                file=sys.stderr,
            )
    print("\n" + "\n".join(f"{count:6} {kind}" for kind, count in faults.most_common()))
    for result in failed:
        print(f"failed: seed {result.seed}: {result.invariant}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

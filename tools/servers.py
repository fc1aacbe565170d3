"""Make the inference servers' environments: `python tools/servers.py ensure mlserver triton`, or `unavailable KIND`."""

import argparse
import sys

from magnetar_agent.environments import KINDS, EnvironmentUnavailable, ensure, unavailable


def main() -> int:
    """Run the command; 0 on success, 1 with one line on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("ensure", "unavailable"))
    parser.add_argument("kinds", nargs="+", choices=KINDS, metavar="KIND")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        if arguments.verb == "unavailable":
            print(f"{kind}: {unavailable(kind) or 'nothing against it'}")
            continue
        try:
            print(ensure(kind, say=lambda line: print(line, file=sys.stderr)).root)
        except EnvironmentUnavailable as error:
            print(f"{kind}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

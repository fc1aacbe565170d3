"""``python -m magnetar_events write|release|check``: the committed schemas."""

import sys

from magnetar_events.schemas import SchemaDrift, check, release, write


def main(arguments: list[str]) -> int:
    """Run ``write``, ``release`` or ``check``."""
    actions = {"write": write, "release": release, "check": check}
    if len(arguments) != 1 or arguments[0] not in actions:
        sys.stderr.write("usage: python -m magnetar_events write|release|check\n")
        return 2
    try:
        actions[arguments[0]]()
    except SchemaDrift as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

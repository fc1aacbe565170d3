#!/bin/sh
# Makes .venv with Magnetar, all of its extras and the development tools, at the pinned versions. `make setup` runs it
# when pyproject.toml or constraints.txt changed. PYTHON=... chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."

for python in ${PYTHON:-python3.12 python3.11 python3 python} ''; do
    # A version manager may have a name on the PATH that does not run: ask, do not look.
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && break
done
if [ -z "$python" ]; then
    echo "Magnetar cannot be set up here: install Python 3.11 or 3.12, or name one: make setup PYTHON=/path/to/python" >&2
    exit 1
fi
"$python" tools/preflight.py

echo "setting up .venv with $("$python" --version)" >&2
rm -f .venv/.ready
# One that is there and runs the same Python is brought up to date in place: somebody may be using it.
version() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null; }
[ "$(version .venv/bin/python)" = "$(version "$python")" ] || "$python" -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
pip install --quiet --constraint constraints.txt 'pip>=25.1' # the first that knows dependency groups
pip install --quiet --constraint constraints.txt --editable '.[all]' --group dev
touch .venv/.ready

"""``python -m tests.golden NAME SERVICE_URL``: record the log of a running Magnetar."""

import sys

from tests.golden import record

record(*sys.argv[1:])

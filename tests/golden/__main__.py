"""``python -m tests.golden NAME SERVICE_URL``: record the log of a running Magnetar.

Without arguments: record the scripted log of this fold version, ``upgraded``. Release the schemas first.
"""

import sys

from tests.golden import record, write
from tests.support.logs import upgraded_world

if sys.argv[1:]:
    record(*sys.argv[1:])
else:
    world = upgraded_world()
    write("upgraded", zip(world.payloads, world.schemas, strict=True))

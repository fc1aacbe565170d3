"""What a bus does in a forked child: refuse."""

import json
import subprocess
import sys

from magnetar_common.settings import BusSettings

_FORK = """
import json, os, sys, time
from magnetar_common.bus import EARLIEST, connect
from magnetar_common.errors import BusRefused
from magnetar_common.settings import BusSettings
settings, topic = BusSettings(**json.loads(sys.argv[1])), sys.argv[2]
bus = connect(settings)
reader, producer, anchor = bus.reader(topic), bus.producer(topic), bus.anchor(topic, "anchor")
assert producer.is_connected
answers = []
if os.fork() == 0:
    uses = [
        lambda: reader.read(0),
        lambda: producer.send(b"a child"),
        lambda: producer.send_async(b"a child", answers.append),
        lambda: bus.producer(topic),
        lambda: bus.reader(topic),
        lambda: bus.last_id(topic) if bus.fences else bus.reader(topic),
        lambda: anchor.advance(EARLIEST) if bus.fences else bus.reader(topic),
    ]
    failed = 0
    for number, use in enumerate(uses):
        began = time.monotonic()
        try:
            use()
        except BusRefused as error:
            failed |= ("forked" not in str(error) or time.monotonic() - began > 2) << number
        else:
            failed |= 1 << number
    if producer.is_connected or reader.is_connected or reader.at_end() or answers:
        failed |= 1 << len(uses)
    for opened in (anchor, producer, reader, bus):
        opened.close()
    os.write(1, f"failed: {failed:b}".encode())
    os._exit(failed != 0)
_, status = os.wait()
producer.send(b"the parent goes on")
message = reader.read(10)
assert message is not None and message.payload == b"the parent goes on"
bus.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def assert_refuses_a_fork(settings: BusSettings, topic: str) -> None:
    """Use all of a bus in a forked child, which refuses each use at once; the parent's goes on."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK, json.dumps(settings.model_dump()), topic],
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The demo itself: every step of it is checked by the demo; here, that it ends well and leaves nothing."""

from pathlib import Path

import pytest

from tests.support.processes import running


@pytest.mark.mlserver
@pytest.mark.timeout(300)
def test_the_demo_holds_and_leaves_no_process(tmp_path: Path) -> None:
    with running(tmp_path, "demo") as demo:
        code = demo.process.wait(240)
        said = demo.log.read_text()
        assert code == 0, said
        assert not demo.left()
    for step in ("DeployModel is published", "takes over", "its agent starts it again", "no process is left"):
        assert step in said
    assert said.count("replayed at position") == 2
    assert said.count("none failed") == 2

"""The demo's steps: the first that does not hold ends it, with its number and its name."""

import pytest

from magnetar_cli import iris
from magnetar_cli.exit_codes import CommandError, ExitCode
from magnetar_cli.steps import Story
from magnetar_common.errors import RequestRefused


def test_a_step_that_holds_is_shown_with_what_it_notes(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story()
    with story.step("One is one") as step:
        step.check(1 == 1, "it is not")
        step.note("as ever")
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("✓  1  One is one")
    assert out[1] == "    as ever"


def test_a_step_that_does_not_hold_is_named_and_not_shown_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    story = Story()
    with story.step("One"):
        pass
    with (
        pytest.raises(CommandError, match=r"step 2 \(Two\) does not hold: it is not") as raised,
        story.step("Two") as step,
    ):
        step.check([], "it is not")
    assert raised.value.code is ExitCode.FAILED
    assert "Two" not in capsys.readouterr().out


def test_an_error_of_magnetars_within_a_step_is_the_steps() -> None:
    with pytest.raises(CommandError, match=r"step 1 \(Ask\) does not hold: INVALID"), Story().step("Ask"):
        raise RequestRefused("INVALID", "event.model", "no")


def test_what_is_waited_for_in_vain_says_how_it_was_last() -> None:
    with pytest.raises(CommandError, match="the last word"), Story().step("Wait") as step:
        step.until(lambda: False, 0, lambda: "the last word")


@pytest.mark.parametrize(("classes", "right"), [([0, 1, 2], True), ([0, 2, 1], False), ([0, 1], False)])
def test_an_answer_is_right_only_if_every_flower_is(classes: list[int], right: bool) -> None:
    assert iris.is_right({"outputs": [{"data": classes}]}) is right

"""``model plan`` and ``model explain`` on a log that is there: what a user reads, and that nothing is appended."""

import json
from pathlib import Path

from magnetar_cli.exit_codes import ExitCode
from magnetar_common.bus import Bus
from magnetar_events import facts as f
from tests.integration.test_cli import MANIFEST, Cli, cli, settings
from tests.support.logs import busy_world, write

__all__ = ["cli", "settings"]


def test_explain_and_plan(cli: Cli, bus: Bus, tmp_path: Path) -> None:
    """Of the newest placement, of one long ago, of a refusal, of what waits; and a plan that leaves no trace."""
    world = busy_world()
    placed = [
        (entry.position, fact)
        for entry in world.log
        for fact in entry.facts
        if isinstance(fact, f.ReplicaPlaced) and fact.model == "default/iris"
    ]
    write(bus, *world.log)

    last = cli.json("model", "explain", "iris", "--at", placed[-1][0])
    assert isinstance(last, dict)
    assert (last["position"], last["waiting"]) == (placed[-1][0], False)
    assert all(each["agrees"] for each in last["placements"])
    assert last["placements"][-1]["server"] == placed[-1][1].server

    newest = cli.json("model", "explain", "iris")  # its server was lost, and the other one drains
    assert isinstance(newest, dict)
    assert newest["position"] > placed[-1][0]
    assert [(each["agrees"], each["server"]) for each in newest["placements"]] == [(True, "")]

    first = cli.json("model", "explain", "iris", "--at", placed[0][0])
    assert isinstance(first, dict)
    assert first["position"] == placed[0][0]
    (chosen,) = (each for each in first["placements"][0]["servers"] if each["chosen"])
    assert chosen["server"] == placed[0][1].server
    assert chosen["total"] == placed[0][1].best[0].score == sum(chosen["scores"].values())

    text = cli("model", "explain", "iris", "--at", placed[0][0])
    assert "default/iris version 1 → local/a/0" in text
    assert "chosen" in text
    assert "already holding this version" in text

    waiting = cli.json("model", "explain", "huge")
    assert isinstance(waiting, dict)
    assert waiting["waiting"]
    assert waiting["placements"][0]["server"] == ""
    assert "nowhere, 1 replica: fits on none of 2 servers" in cli("model", "explain", "huge")

    cli("model", "explain", "nobody", expect=ExitCode.NOT_FOUND)
    cli("model", "explain", "iris", "--at", 0, expect=ExitCode.NOT_FOUND)
    cli("model", "explain", "iris", "--at", 100_000, expect=ExitCode.NOT_FOUND)
    assert "it ends at position" in cli.err

    manifest = tmp_path / "iris.yaml"
    manifest.write_text(MANIFEST + MANIFEST.replace("name: iris", "name: other").join(("---", "")))
    before = cli.json("replay")
    plans = json.loads(cli("model", "plan", "-f", manifest, "-o", "json"))
    assert plans["position"] == world.state.position
    assert [each["model"] for each in plans["plans"]] == ["default/iris", "default/other"]
    assert all(each["placements"] for each in plans["plans"])
    assert "default/other version 1 →" in cli("model", "plan", "-f", manifest)
    assert cli.json("replay") == before

    manifest.write_text("apiVersion: magnetar/v1\nkind: Policy\nmetadata: {}\nspec: {}\n")
    cli("model", "plan", "-f", manifest, expect=ExitCode.USAGE)

"""The benchmark of all tasks: its table, its JSON, its errors."""

import json

from gpusim_rl.tools.bench.tasks import HEADS, settings, task_names
from tests.command_lines import command
from tests.worlds import TASKS

SMALL = ("device=cpu", "warmup=1", "seconds=1e-3", "repeats=1", "num_envs=8", "num_steps=4")


def test_a_row_for_each_pair(tmp_path):
    """Each task and sim is measured with the same keys, and the table has a row for each."""
    words = ("tasks", "tasks=[cartpole]", "sims=[native,warp]", "out=all.json", *SMALL)
    done = command("-m gpusim_rl.bench", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "all.json").read_text())
    assert [(x["task"], x["sim"], x["num_envs"]) for x in results] == [
        ("cartpole", "native", 8),
        ("cartpole", "warp", 8),
    ]
    assert all(x["steps_per_s"]["training"]["median"] > 0 for x in results)
    rows = [line.split() for line in done.stdout.splitlines()]
    head = next(i for i, row in enumerate(rows) if HEADS[0] in row)  # below lines of progress
    assert [row[:3] for row in rows[head + 1 : head + 3]] == [
        ["cartpole", "native", "8"],
        ["cartpole", "warp", "8"],
    ]


def test_all_tasks_are_measured_unless_some_are_named():
    """Without tasks= all that there are, each on both engines."""
    words, keys = settings(["device=cpu"])
    assert words == ["device=cpu"] and sorted(keys["tasks"]) == TASKS == sorted(task_names())
    assert keys["sims"] == ["native", "warp"]

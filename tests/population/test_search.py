"""Searches whose members decide by themselves, in this process and in real ones."""

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import yaml

from gpusim_rl.assembly.iteration import Iteration
from gpusim_rl.commands.train import configure
from gpusim_rl.core.paths import search_path
from gpusim_rl.envs import curriculum
from gpusim_rl.population import rules, table
from gpusim_rl.population.clusters import on_ray
from gpusim_rl.population.member import STATES, Member
from gpusim_rl.population.place import host
from gpusim_rl.population.rules import DONE, LOST
from gpusim_rl.population.search import (
    ROWS,
    Search,
    check_search,
    ending,
    forget_failures,
    lineage,
    open_home,
    read_search,
    schedule,
)
from gpusim_rl.population.start import make_home, write_curriculum
from gpusim_rl.report.members import read_members
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.rows import Rows
from gpusim_rl.runs.run import LockError, Run, find_run
from gpusim_rl.runs.summary import summarize
from gpusim_rl.training import trainer as training
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY, refused_here, run_here, succeed
from tests.reports import make_run
from tests.worlds import make_config

WORDS = ("task=cartpole", *(x for x in TINY if not x.startswith(("export", "report"))))
PLACE = (sys.executable, "-m", "gpusim_rl.population.place")
KL = "algo.target_kl: {log: [0.005, 0.05]}"
SPACE = f"search.space={{{KL}, task.weights.calm: {{uniform: [1, 2]}}}}"
PBT = ("search=pbt", "search.trials=4", "search.every=2", "iterations=7", "search.goal=reward")
ASHA = ("search=asha", "search.trials=4", "search.every=2", "iterations=7", "search.goal=reward")
# without importing it: the engine then refuses to start one
WITH_RAY = pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed")
OPTUNA = ("search=optuna", "search.trials=6", "iterations=3", "search.goal=reward")
# long enough to be killed in the middle
LONGER = (*ASHA[:2], *ASHA[-1:], "search.every=10", "iterations=40")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def begin(home: str, *words: str) -> Search:
    """A new search in a folder, with nothing trained."""
    _, search = check_search([*WORDS, SPACE, *words, f"run_dir={home}"])
    assert search
    return open_home(search)


def told(search: Search) -> dict[str, list[dict[str, Any]]]:
    """The rows of each member, without times."""
    rows = {x: Rows(search.home / x / ROWS).read() for x in search.numbers}
    return {
        x: [{k: v for k, v in row.items() if k != "cpu_s"} for row in y] for x, y in rows.items()
    }


def finished(search: Search) -> dict[str, list[dict[str, Any]]]:
    """The rows after all members were hosted in this process, in turn."""
    assert host(search, [*search.numbers]) == 0
    return told(search)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Callable[[tuple[str, ...]], Search]:
    """The search of some words, whose members this process has hosted; not to be changed."""

    @cache
    def search(words: tuple[str, ...]) -> Search:
        new = begin(str(tmp_path_factory.mktemp("search") / "one"), *words)
        finished(new)
        return new

    return search


def place(search: Search, number: int = 0, places: int = 1) -> subprocess.Popen[str]:
    """A process that hosts members."""
    line = [*PLACE, str(search.home), f"{number}", f"{places}", f"{os.getpid()}"]
    env = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(line, env=env, text=True)


def weights(search: Search) -> dict[str, dict[str, Any]]:
    """What each member has learned by its last checkpoint."""
    found = {}
    for name in search.numbers:
        state, _, _ = Run(search.home / name).checkpoints.restore(print)
        found[name] = state
    return found


def same_weights(one: Search, other: Search) -> bool:
    a, b = weights(one), weights(other)
    return all(
        torch.equal(x, b[name][key])
        for name in a
        for key, x in a[name].items()
        if not key.endswith("sums")
    )


def rows_of_metrics(search: Search, names: Iterable[str]) -> int:
    """How many iterations members have written."""
    files = [search.home / name / "metrics.jsonl" for name in names]
    return sum(x.read_text().count("\n") for x in files if x.exists())


SLOWER = [pytest.param(words, marks=pytest.mark.slow) for words in (OPTUNA, PBT)]


@pytest.mark.parametrize("words", [ASHA, *SLOWER], ids=["asha", "optuna", "pbt"])
def test_decisions_repeat_to_the_bit(words, undisturbed):
    """In one process or in two, of which one is killed and goes on: rows and weights agree."""
    one, two = undisturbed(words), begin("two", *words)
    rows = told(one)
    decided = [row for x in rows.values() for row in x if row.keys() & {"stopped", "copied"}]
    drawn = [x for x, y in rows.items() if not one.numbers[x] and y[0]["numbers"]]
    assert decided or len(drawn) == 2
    slow, first = place(two, 1, 2), place(two, 0, 2)
    hosted = [*two.numbers][::2]
    while rows_of_metrics(two, hosted) < 3 and first.poll() is None:
        time.sleep(0.01)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    first = place(two, 0, 2)
    assert first.wait(300) == slow.wait(300) == 0
    assert told(two) == rows
    assert same_weights(one, two)
    assert len([*(two.home / STATES).glob("*")]) <= 3 * len(rows)


def test_asha_keeps_a_half_at_each_decision(undisturbed):
    """Of four members two stop at the first decision and one at the second, the worst ones."""
    rows = told(undisturbed(ASHA))
    stopped = {x: next((r["iteration"] for r in y if "stopped" in r), 7) for x, y in rows.items()}
    assert sorted(stopped.values()) == [2, 2, 4, 7]
    scores = {x: {r["iteration"]: r["score"] for r in y if "score" in r} for x, y in rows.items()}
    for i, n in ((2, 4), (4, 2)):
        order = sorted((s[i] for s in scores.values() if i in s), reverse=True)
        assert len(order) == n
        assert {x for x, s in scores.items() if i in s and s[i] in order[: n // 2]} == {
            x for x, end in stopped.items() if end > i
        }


def test_an_exploit(monkeypatch):
    """All that is learned is the sibling's to the bit, the worlds and draws are its own, and what
    the update reads is the new number."""
    seen: list[tuple[Any, ...]] = []
    copies = Member.copies

    def watched(self: Member, trainer: Any, i: int, mine: Any) -> bool | None:
        before = trainer.loop.iteration.state()
        done = copies(self, trainer, i, mine)
        row = next((x for x in self.rows.read() if x["iteration"] == i and "copied" in x), None)
        if done and row:
            theirs, _ = load(self.state_file(row["copied"], i))
            made = trainer.loop.iteration
            seen.append((before, made.state(), theirs, row))
            learner: Any = made.learner
            # the tensor that the kernel's launch holds
            assert learner.numbers["target_kl"].numpy()[0] == row["numbers"]["algo.target_kl"]
            weight = made.env.scheduled_number("task.weights.calm")
            assert float(weight.flatten()[0]) == row["numbers"]["task.weights.calm"]
        return done

    monkeypatch.setattr(Member, "copies", watched)
    finished(begin("search", *PBT))
    assert seen
    for before, after, theirs, row in seen:
        own = {"iteration", "life"}
        learned = theirs.keys() - own - {x for x in theirs if x.startswith(("numbers/", "env/"))}
        assert len(learned) > 20 and all(torch.equal(after[x], theirs[x]) for x in learned)
        numbers = {f"numbers/{key}": float(theirs[f"numbers/{key}"]) for key in row["numbers"]}
        assert all(float(after[key]) != x for key, x in numbers.items())
        worlds = before.keys() - theirs.keys() - own
        assert worlds and not [x for x in worlds if not torch.equal(before[x], after[x])]
        assert int(after["life"]) == int(before.get("life", 0)) + 1


def test_the_schedule_is_a_curriculum(undisturbed):
    """The lineage of a member, whose numbers one training repeats iteration by iteration."""
    rows = told(undisturbed(PBT))
    name = next(x for x, y in rows.items() if any("copied" in row for row in y))
    found = lineage(rows, name)
    assert found[0][0] == 0 and len(found) > 1
    plan = schedule(found)
    again = f"curriculum={json.dumps(plan)}".replace('"', "")
    words = ("iterations=7", "report=false", "export=none", "run_dir=again", again)
    cfg = make_config(*WORDS, *words)
    trainer = Trainer(cfg, observed=False)
    for row in trainer.steps():
        now = next(x for since, x in reversed(found) if since < row["iteration"])
        for key in plan:
            assert row[f"schedule/{key}"] == pytest.approx(now[key], rel=1e-6)
    trainer.close()
    entry = {"from": 1.0, "to": 4.0, "by": "iteration", "start": 2, "stop": 6}
    entry |= {"steps": [[3, 2.0], [4, 3.0]]}
    assert [curriculum.number_at(entry, i) for i in range(8)] == [1, 1, 1, 2, 3, 3, 4, 4]


def test_what_cannot_be_copied_costs_one_decision(monkeypatch):
    """A file that is gone, or of another shape, is one row; the member goes on with its own."""
    search, gone = begin("search", *PBT), []
    write = Member.write_state

    def broken(self: Member, trainer: Any, i: int) -> None:
        write(self, trainer, i)
        file = self.state_file(self.name, i)
        if i == 2:
            file.unlink()
        elif i == 4:
            from safetensors.torch import save

            file.write_bytes(save({"policy/log_std": torch.zeros(9)}, {"iteration": "4"}))
        gone.append(file)

    monkeypatch.setattr(Member, "write_state", broken)
    rows = finished(search)
    kept = {r["iteration"]: r["error"] for x in rows.values() for r in x if "error" in r}
    assert "no checkpoint" in kept[2] and "does not fit this run" in kept[4]
    assert all(x[-1]["ended"] == "done" for x in rows.values())
    assert any("copied" in r and r["iteration"] == 6 for x in rows.values() for r in x)


def test_a_damaged_row_and_a_failed_member(monkeypatch):
    """Others decide without them; a failure is one line, and no member waits for it."""
    search = begin("search", *ASHA)
    configure = Search.configure
    monkeypatch.setattr(
        Search,
        "configure",
        lambda self, name, numbers: (
            configure(self, name, numbers).replace({"algo.hidden": [0]})
            if name == "member_2"
            else configure(self, name, numbers)
        ),
    )
    rows = finished(search)
    assert (
        rows["member_2"][-1]["ended"] == "failed" and "algo.hidden" in rows["member_2"][-1]["why"]
    )
    assert sum(x[-1].get("ended") == "done" for x in rows.values()) == 1
    member = Member(search, "member_2", lambda: 0)
    file = search.home / "member_0" / ROWS
    lines = file.read_text().splitlines()
    file.write_text("\n".join(["{damaged", *lines[2:]]) + "\n")
    assert member.score_of("member_0", 2) == LOST
    assert member.score_of("member_0", 9) == LOST


def test_a_command_that_is_gone_at_once():
    """A place whose command was killed during its imports trains nothing, and leaves no lock."""
    search = begin("search", *ASHA)
    program = "import os, subprocess, sys\n"
    program += "subprocess.Popen([*sys.argv[1:], f'{os.getpid()}'])\nos.kill(os.getpid(), 9)"
    line = [sys.executable, "-c", program, *PLACE, str(search.home), "0", "1"]
    env = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}
    # until the place has ended, too: it has the pipe
    done = subprocess.run(line, env=env, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "", "")
    assert [x.name for x in search.home.iterdir()] == ["search.yaml"]


def test_a_failure_that_passes(monkeypatch):
    """A member that failed goes on at resume=; a lock is no failure of a member."""
    search = begin("search", "search=random", "search.trials=2", "search.goal=reward")
    configure, failing = Search.configure, [ValueError("no GPU")]

    def broken(self: Search, name: str, numbers: Any) -> Any:
        if failing and name == "member_1":
            raise failing[0]
        return configure(self, name, numbers).replace({"iterations": 2})

    monkeypatch.setattr(Search, "configure", broken)
    assert finished(search)["member_1"][-1]["why"] == "no GPU"
    forget_failures(search)
    failing[0] = LockError("another process")
    with pytest.raises(LockError):
        host(search, [*search.numbers])
    assert not ending(told(search)["member_1"])
    failing.clear()
    rows = finished(search)["member_1"]
    assert rows[0]["numbers"] == search.numbers["member_1"] and rows[-1]["ended"] == "done"


@pytest.mark.parametrize("why", ["stop_at", "done"])
def test_who_ends_early(why, monkeypatch):
    """Only who reached stop_at is the best at later decisions, not whose learner is done."""
    words = ("search=random", "search.trials=1", "iterations=9", "eval_every=2", "stop_at=0.5")
    search = begin("search", "search.goal=reward", *words)
    if why == "stop_at":
        monkeypatch.setattr(training, "success", lambda *_, **__: 1.0)
    else:
        report = Iteration.report

        def report_done(self: Iteration) -> Any:
            read = report(self)
            return lambda: read() | {"done": 1.0}

        monkeypatch.setattr(Iteration, "report", report_done)
    last = finished(search)["member_0"][-1]
    assert last["ended"] == "done" and 0 < (i := last["iteration"]) < 9
    score_of = Member(search, "other", lambda: 0).score_of
    assert score_of("member_0", 9) == (DONE if why == "stop_at" else LOST)
    assert score_of("member_0", i) not in (DONE, LOST)
    assert score_of("member_0", 0) == LOST  # not one that would be the best


def test_a_return_of_zero(monkeypatch):
    """It is a score; one that nobody could tell is lost."""
    member = Member(begin("search", "search=random", "iterations=9"), "member_0", lambda: 0)
    scores: dict[str, float | None] = {"success": 0.5, "return": 0.0}
    monkeypatch.setattr("gpusim_rl.population.member.evaluate", lambda *_: scores)
    actor = SimpleNamespace(calibration=1)
    iteration = SimpleNamespace(policy=SimpleNamespace(actor=actor))
    trainer: Any = SimpleNamespace(loop=SimpleNamespace(iteration=iteration))
    assert member.score(trainer) == (0.5, 0.0)
    for scores["return"] in (None, float("nan")):
        assert member.score(trainer) == LOST


def test_a_full_disk_at_the_end(monkeypatch):
    """A member whose last row cannot be written is not over, as its siblings wait for that row."""
    member = Member(begin("search", *ASHA), "member_0", lambda: 0)
    member.write({"iteration": 0})
    flush, full = Rows.flush, [True] * 3

    def flush_late(self: Rows) -> None:
        if full and full.pop():
            raise OSError(28, "No space left on device")
        flush(self)

    monkeypatch.setattr(Rows, "flush", flush_late)
    monkeypatch.setattr(Search, "configure", lambda *_: int("no number"))
    assert [*member.turns()] == [False, False]
    assert told(member.search)["member_0"][-1]["ended"] == "failed"


def test_the_report_of_a_lost_member(tmp_path):
    """Its score is no number, and stands below returns that are negative."""
    home = tmp_path / "search"
    runs = [make_run(home / f"member_{i}") for i in range(2)]
    said = {"search": {"name": "random", "goal": "return", "space": {"algo.gamma": [0.9, 0.99]}}}
    (home / "search.yaml").write_text(
        yaml.safe_dump(said | {"numbers": {"member_0": {}, "member_1": {}}})
    )
    for run, score in zip(runs, ("-Infinity", "-7.5"), strict=True):
        row = f'{{"iteration": 9, "score": [{score}]}}\n{{"iteration": 9, "ended": "done"}}\n'
        (run / ROWS).write_text(row)
    read = read_members([*map(summarize, runs)])
    assert read
    found = [(x["name"], x["score"]) for x in read["members"]]
    assert found == [("member_1", "-7.50"), ("member_0", "lost")]


def test_the_command_that_repeats_has_the_numbers_of_the_first():
    """Also of a key that never changed, and of which the best member began with another."""
    space = "search.space={algo.target_kl: [0.01, 0.02]}"
    _, search = check_search([*WORDS, *PBT, space, "run_dir=search"])
    assert search
    search = open_home(search)
    for name, rows in {
        "member_0": [{"iteration": 0, "numbers": {"algo.target_kl": 0.01}}],
        "member_1": [
            {"iteration": 0, "numbers": {"algo.target_kl": 0.02}},
            {"iteration": 2, "copied": "member_0", "numbers": {"algo.target_kl": 0.01}},
        ],
    }.items():
        (search.home / name).mkdir()
        (search.home / name / ROWS).write_text("".join(json.dumps(x) + "\n" for x in rows))
    search.numbers["member_1"] = {"algo.target_kl": 0.02}
    write_curriculum(search, "member_1")
    first = (search.home / "curriculum.yaml").read_text().splitlines()[0]
    assert "algo.target_kl=0.01" in first and "0.02" not in first


def test_rules():
    """Answers that the scores which are there settle do not change with those that come."""
    rng = random.Random(0)
    for _ in range(300):
        n = rng.randint(2, 9)
        scores = {f"m{i}": (float(rng.randint(0, 4)),) for i in range(n)}
        keep, mine = rng.randint(1, n), "m0"
        others = {x: y for x, y in scores.items() if x != mine}
        whole = rules.goes_on(scores[mine], mine, others, keep)
        order = sorted(scores, key=lambda x: (-scores[x][0], x))
        assert whole == (mine in order[:keep])
        part = {x: y if rng.random() < 0.5 else None for x, y in others.items()}
        assert rules.goes_on(scores[mine], mine, part, keep) in (whole, None)
    scores = {"a": (3.0,), "b": (1.0,), "c": (2.0,), "d": (0.0,)}
    assert [rules.source_of(scores, x, 0.25, 0.99) for x in scores] == [None, None, None, "a"]
    assert [rules.source_of(scores, x, 0.5, 0.99) for x in scores] == [None, "c", None, "c"]
    search: Any = SimpleNamespace(name="asha", eta=2, trials=16)
    assert rules.rounds(search, 3, 40) == [3, 6, 12, 24]
    assert [rules.survivors(search, i) for i in range(6)] == [16, 8, 4, 2, 1, 1]
    search.name = "pbt"
    assert rules.rounds(search, 10, 40) == [10, 20, 30]
    space, rng = {"log": [1e-6, 1e-1]}, random.Random(1)
    changed = {round(rules.explored(1e-5, space, 0.0, rng) / 1e-5, 6) for _ in range(20)}
    assert changed == {0.8, 1.25}
    assert sum(rules.explored(1e-5, space, 1.0, rng) > 1e-3 for _ in range(99)) in range(25, 55)


def test_numbers_of_optuna():
    """A new member is drawn near those that were good; only the order of scores counts."""
    pytest.importorskip("optuna")
    space = {"a": {"log": [1e-6, 1e-1]}, "b": {"whole": [1, 9]}, "c": [[8], [16]]}

    def score(x: dict[str, Any]) -> float:
        return -abs(math.log10(x["a"]) + 3) - (x["c"] == [8])

    seen = [(x, (score(x),)) for x in rules.first_numbers(space, 8, 1)]
    for i in range(16):
        found = rules.propose(space, seen, i)
        assert found == rules.propose(space, [(x, (3 * y + 1,)) for x, (y,) in seen], i)
        assert type(found["b"]) is int and found["c"] in space["c"]
        seen.append((found, (score(found),)))
    before, after = (sorted(y for _, (y,) in part)[-3:] for part in (seen[:8], seen[8:]))
    assert after[0] > before[0] and after[-1] > -0.2


def test_first_numbers():
    """Each range is covered evenly, by the seed alone."""
    space = {"a": {"log": [1e-3, 1e1]}, "b": {"whole": [1, 8]}, "c": ["x", "y"]}
    numbers = rules.first_numbers(space, 8, 3)
    assert numbers == rules.first_numbers(space, 8, 3) != rules.first_numbers(space, 8, 4)
    assert sorted(x["b"] for x in numbers) == [*range(1, 9)]
    assert sorted(x["c"] for x in numbers) == ["x"] * 4 + ["y"] * 4
    decades = sorted(x["a"] for x in numbers)
    narrow = {"a": {"uniform": [0.12345678, 0.12345679]}, "b": {"log": [0.98765432, 0.98765433]}}
    for x in rules.first_numbers(narrow, 8, 3):
        assert 0.12345678 <= x["a"] <= 0.12345679 and 0.98765432 <= x["b"] <= 0.98765433
    ends = [1e-3 * 10 ** (i / 2) for i in range(9)]
    assert all(
        a * 0.999 <= x <= b * 1.001 for a, x, b in zip(ends, decades, ends[1:], strict=False)
    )


REFUSED = {
    "search=ashaa": "choose one of asha, grid, none, optuna, pbt, random",
    "search=asha": "search=asha needs search.space",
    "search=asha search.trails=4": "did you mean search.trials",
    "search=asha search.trials=0": "a whole number from 1 to 200",
    f"search=pbt search.trials=2 search.space={{{KL}}}": "search=pbt needs 3 members at least",
    f"search=asha search.trials=3 search.eta=4 search.space={{{KL}}}": "needs 4 members",
    f"search=asha search.eta=1 search.space={{{KL}}}": "from 2 to 16",
    f"search=pbt search.quantile=0.7 search.space={{{KL}}}": "search.quantile=0.7",
    "search=asha search.space={algo.target_kll:{log:[1,2]}}": "did you mean algo.target_kl",
    "search=asha search.space={algo.target_kl:{lgo:[1,2]}}": "unknown 'lgo': did you mean log?",
    "search=asha search.space={algo.target_kl:{log:[2,1]}}": "the lower one first",
    "search=asha search.space={algo.target_kl:{log:[0,1]}}": "expected numbers above 0",
    "search=asha search.space={algo.target_kl:{log:[0.1]}}": "expected two numbers",
    "search=asha search.space={algo.target_kl:0.1}": "expected {log: [low, high]}",
    "search=asha search.space={algo.target_kl:[0.1]}": "at least two values",
    "search=asha search.space={algo.target_kl:{uniform:[-1,1]}}": "algo.target_kl=-1",
    "search=asha search.space={algo.update_epochs:{whole:[1.5,2]}}": "expected whole numbers",
    "search=asha search.space={seed:{whole:[1,9]}}": "the same for all members",
    "search=asha search.space={run_dir:[a,b]}": "is no number of a training",
    f"search=asha algo.target_kl=0.1 search.space={{{KL}}}": "leave one out",
    f"search=grid search.space={{{KL}}}": "search=grid takes lists of values alone",
    "search=pbt search.space={algo.update_epochs:{whole:[1,9]}}": "cannot change in training",
    "search=pbt search.space={algo.learning_rate:{log:[0.1,1]}}": "search algo.lr_max",
    "task=quadruped search=pbt search.space={task.fastest:[1,2]}": "expected a list, such as",
    "search=pbt search.space={task.mjcf:[a.xml,b.xml]}": "pbt changes numbers alone",
    f"search=asha search.every=1 task.episode=1 search.space={{{KL}}}": "an episode lasts 5 iter",
    f"search=asha iterations=4 task.episode=10 search.space={{{KL}}}": "no decision before it",
    "search=asha search.space={algo:[ppo,sac]}": "compared at equal samples",
    "search=asha search.space=foo": "search.space=foo: expected {key: where}",
    "search=asha search.space=[1,2]": "search.space=[1, 2]: expected {key: where}",
    "search=asha search.space={1:[2,3]}": "search.space={1: [2, 3]}: expected {key: where}",
    "search=grid search.trials=4 search.space={seed:[1,2]}": "grid has search.space alone",
    "search=grid run_dir=x search.space={seed:[1,2]}": "each run of a multirun needs one of",
    "search=grid hydra/launcher=foo search.space={seed:[1,2]}": "choose one of submitit_slurm",
    f"search=asha stop_at=0.9 stop_when=hopeless search.space={{{KL}}}": "end by its decisions",
    f"search=asha demos=run search.space={{{KL}}}": "members begin anew",
    f"search=asha search.every=100 search.space={{{KL}}}": "no decision before iterations=80",
    f"search=asha gate=true search.space={{{KL}}}": "gate=true: not with search=asha",
    f"search=asha save_every=5 search.space={{{KL}}}": "save_every=5: not with search=asha",
    "search.trials=4": "search.trials needs search=grid, random, asha, pbt or optuna",
    f"-m search=asha seed=1,2 search.space={{{KL}}}": "leave out -m",
}


@pytest.mark.parametrize("line", REFUSED)
def test_wrong_words_are_one_line(line, capsys):
    """Each names the key and the choices, and leaves nothing behind."""
    words, found = [], line
    if "search.space=" in line:
        found, space = line.split("search.space=", 1)
        words = [f"search.space={space}"]
    small = [x for x in WORDS if not (x.startswith("task.episode") and "task.episode" in line)]
    line_words = [*small, *found.split(), *words]
    assert REFUSED[line] in refused_here("train.py", *line_words, capsys=capsys)


def test_a_run_that_goes_on_from_its_beginning():
    """It does not write that checkpoint anew: a kill meanwhile would leave none that is whole."""
    words = (*WORDS, "iterations=1", "report=false", "export=none", "run_dir=run")
    trainer = Trainer(configure(*words, "auto_resume=true"), observed=False)
    trainer.loop.save()
    trainer.loop.checkpoint_writer.close()
    (first,) = trainer.run.checkpoints.saved()
    before = first.stat()
    del trainer
    again = Trainer(configure(*words, "auto_resume=true"), observed=False)
    assert [row["iteration"] for row in again.steps()] == [1]
    again.close()
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.slow
def test_a_whole_search(capsys):
    """Started by its command, stopped, continued, read by play.py; its report needs no network."""
    words = (*WORDS, *PBT, SPACE, "run_dir=search")
    said = succeed("train.py", *words, cwd=Path.cwd())
    assert "decisions after [2, 4, 6]" in said and "best of 4: member_" in said
    best = Path("search/best.txt").read_text().strip()
    assert find_run({"run": "search"}).path == Path("search") / best
    assert (Path("search") / best / "policy.onnx").is_file()
    page = Path("search/report.html").read_text()
    assert "Who was copied" in page and "http" not in page.replace("http-equiv", "").replace(
        "http://www.w3.org", ""
    )
    text = Path("search/curriculum.yaml").read_text()
    assert yaml.safe_load(text)["curriculum"].keys() <= {"algo.target_kl", "task.weights.calm"}
    line = refused_here("train.py", *words, capsys=capsys)
    assert "run_dir=search is not empty" in line
    assert "resume= continues a search as it was" in refused_here(
        "train.py", "resume=search", "seed=2", capsys=capsys
    )
    before = told(read_search(Path("search")))
    assert run_here("train.py", "resume=search", "report=false", capsys=capsys)[0] == 0
    assert told(read_search(Path("search"))) == before


def test_the_table(undisturbed):
    """The best member first, with its numbers and what it decided; the time that is left."""
    search = undisturbed(ASHA)
    members = table.states(search)
    best = table.best_member(members)
    assert best and best.ending == "done" and table.planned(search) == 4 * 2 + 2 * 2 + 3
    shown = table.MemberTable(search)
    shown()
    assert shown.done == 15 and shown.left() == "15 of 15 iterations"
    columns = shown.table(members).columns
    assert next(iter(columns[0].cells)) == best.name
    assert {x.partition(" at ")[0] for x in columns[-1].cells} == {"done", "stopped"}


def test_grid_is_a_multirun(capsys):
    """search=grid has the lines of -m with the same lists."""
    sweep, search = check_search(
        ["task=cartpole", "search=grid", "search.space={seed: [1, 2], algo.hidden: [[8], [9]]}"]
    )
    assert search is None and sweep.lists == {"seed": ["1", "2"], "algo.hidden": ["[8]", "[9]"]}
    assert ["task=cartpole", "seed=1", "algo.hidden=[9]"] in sweep.lines
    home = make_home(sweep)
    line = refused_here("train.py", f"resume={home}", capsys=capsys)
    assert line == f"error: {home} is a multirun: name one of its runs\n"


@pytest.mark.slow
def test_the_command_may_be_ended_and_killed(undisturbed):
    """SIGTERM ends all after a checkpoint, SIGKILL ends the command alone, whose places notice it;
    resume= goes on to the same decisions, and trains no member anew that has ended."""
    words = (*WORDS, *LONGER, SPACE, "run_dir=two", "report=false", "export=none")
    line = [sys.executable, "-m", "gpusim_rl.commands.train"]
    env = os.environ | {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"}

    def start_until(*words: str, iterations: int, number: int) -> tuple[int, str]:
        """The exit code and the output of the command, signalled once so much is done."""
        with subprocess.Popen(
            [*line, *words], env=env, stdout=subprocess.PIPE, text=True
        ) as process:
            while process.poll() is None:
                files = Path("two").glob("*/metrics.jsonl")
                if sum(x.read_text().count("\n") for x in files) >= iterations:
                    process.send_signal(number)
                    break
                time.sleep(0.01)
            said, _ = process.communicate(timeout=300)
        return process.returncode, said

    code, said = start_until(*words, iterations=6, number=signal.SIGTERM)
    assert code == 143 and "resume=two jobs=1 continues" in said
    assert start_until("resume=two", iterations=45, number=signal.SIGKILL)[0] == -9
    done = subprocess.run(
        [*line, "resume=two"], env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0 and "best of 4: member_" in done.stdout, done.stderr
    assert told(read_search(Path("two"))) == told(undisturbed(LONGER))


@pytest.fixture
def two_machines(monkeypatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a Ray of two machines with a core each, here, and what adds a third one."""
    for key, value in {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 2,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": search_path(),
    }.items():
        monkeypatch.setenv(key, value)
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    with socket.socket() as free, TemporaryDirectory(prefix="ray-") as folder:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()

        def start_machine(*words: str) -> None:
            line = [*ray, "start", *words, "--num-cpus=1", "--node-ip-address=127.0.0.1"]
            # on a busy machine Ray gives up to connect, and says so by its exit code
            tries = (subprocess.run(line, check=False, capture_output=True) for _ in range(5))
            assert any(x.returncode == 0 for x in tries)

        add_machine = partial(start_machine, f"--address={address}")
        head = ["--head", f"--port={address.partition(':')[2]}", "--include-dashboard=false"]
        try:
            start_machine(*head, f"--temp-dir={folder}")
            add_machine()
            yield address, add_machine
        finally:
            for process in psutil.process_iter(["cmdline"]):
                if any(folder in word for word in process.info["cmdline"] or ()):
                    kill_all(process)


def kill_all(process: psutil.Process, but: psutil.Process | None = None) -> None:
    """Kill a process and those that it has started, `but` one."""
    with suppress(psutil.NoSuchProcess):
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                if each != but:
                    each.kill()


def places() -> dict[str, psutil.Process]:
    """Number → the process of a place of the search in this directory, of those that run."""
    found = {}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(Path.cwd()) and PLACE[-1] in words:
            found[words[words.index(PLACE[-1]) + 2]] = process
    return found


def lose_a_machine() -> str:
    """Kill what runs on the machine of Ray that is not its head; the number of its place, or ""."""
    for number, place in places().items():
        worker = place.parent()
        raylet = worker and worker.parent()
        if worker and raylet and "--head" not in raylet.cmdline():
            assert "ray::" in worker.name() + "".join(worker.cmdline())
            kill_all(raylet, but=place)
            place.wait(30)  # it does not outlive the process of Ray
            return number
    return ""


@WITH_RAY
@pytest.mark.slow
def test_a_search_on_ray(two_machines, undisturbed):
    """hydra/launcher=ray: the same decisions on two machines; a third takes the place of a lost
    one."""
    address, add_machine = two_machines
    words = (*WORDS, *LONGER, SPACE, "run_dir=two", "report=false", "export=none", "jobs=2")
    launcher = ("hydra/launcher=ray", f"hydra.launcher.address={address}")
    line = [sys.executable, "-m", "gpusim_rl.commands.train", *words, *launcher]
    pipe, lost = subprocess.PIPE, ""
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            while process.poll() is None and not lost:
                files = Path("two").glob("*/metrics.jsonl")
                if sum(x.read_text().count("\n") for x in files) >= 6:
                    lost = lose_a_machine()
                time.sleep(0.01)
            add_machine()
            said, error = process.communicate(timeout=300)
        finally:  # the search would wait for a machine for ever
            process.kill()
    assert process.returncode == 0 and "best of 4: member_" in said, error
    assert f"place_{lost} was ended by signal 9: it goes on" in error
    assert told(read_search(Path("two"))) == told(undisturbed(LONGER))


@WITH_RAY
@pytest.mark.slow
def test_jobs_follow_each_other_on_ray(tmp_path, capsys):
    """A job that has ended gives its core back; one that fails to begin is one line."""
    submit = on_ray({}, tmp_path, 1)

    def ending(*command: str) -> int:
        job = submit([*command], "job")
        while (code := job.poll()) is None:
            time.sleep(0.05)
        return code

    for code in (0, 3, 0, 0):
        assert ending(sys.executable, "-c", f"raise SystemExit({code})") == code
    assert ending("/no such program") == 1 and "job: " in capsys.readouterr().err
    with pytest.raises(ValueError, match="jobs=1 need 1 GPU at once, its machines have 0"):
        on_ray({"num_gpus": 1}, tmp_path, 1)


def test_a_member_of_optuna_that_fails(monkeypatch):
    """Others are drawn from those that have numbers, and one that has begun keeps its own."""
    pytest.importorskip("optuna")
    search = begin("search", *OPTUNA)
    configure, failing = Search.configure, ["member_0", "member_4"]

    def broken(self: Search, name: str, numbers: Any) -> Any:
        if name in failing:
            raise ValueError("no GPU")
        return configure(self, name, numbers)

    monkeypatch.setattr(Search, "configure", broken)
    rows = finished(search)
    assert [x[-1].get("ended") for x in rows.values()].count("failed") == 2
    failing.clear()
    forget_failures(search)
    again = finished(search)
    assert all(x[-1]["ended"] == "done" for x in again.values())
    assert [x[0]["numbers"] for x in again.values()] == [x[0]["numbers"] for x in rows.values()]


@WITH_RAY
def test_what_ray_refuses(capsys, monkeypatch):
    """Another resource than Ray's, or machines without a token: one line, and no folder is left."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    words = (*WORDS, *ASHA, SPACE, "run_dir=search", "hydra/launcher=ray")
    for word, says in {
        "hydra.launcher.partition=gpu": "Ray has address and the numbers num_cpus, num_gpus",
        "hydra.launcher.num_gpus=-1": "Ray has address and the numbers num_cpus, num_gpus",
        "hydra.launcher.address=10.0.0.1:6379": "hydra.launcher.address=10.0.0.1:6379: other",
    }.items():
        assert says in refused_here("train.py", *words, word, capsys=capsys)

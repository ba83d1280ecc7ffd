"""Training survives bad directories, signals, restarts, NaN and too small capacities."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from functools import cache
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.assembly.iteration import make_iteration as build_iteration
from gpusim_rl.commands import train
from gpusim_rl.config import resume
from gpusim_rl.config.sections import Config
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.load_task import load_task
from gpusim_rl.evaluation import evaluate as evaluation
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run, run_that_needs
from gpusim_rl.runs.writer import CheckpointWriter, digests
from gpusim_rl.sim import warp_model
from gpusim_rl.training import dashboard, loop, memory, trainer
from gpusim_rl.training.progress import Progress
from gpusim_rl.training.signals import Signals
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import EXPORTED, TINY, command, environment, refused, run_python, succeed
from tests.disks import fill
from tests.worlds import ROOT, check_words, differing, make_config, make_env, make_ppo

WORDS = ("task=cartpole", *TINY, "log=none")
QUADRUPED = ("task=quadruped", *WORDS[1:])
WARP = (*(x for x in QUADRUPED if not x.startswith("sim")), "sim=warp", "graph=off")
BROKEN = ("algo.learning_rate=1e30", "algo.lr_max=1e30")


def configured(*words: str, base: tuple[str, ...] = WORDS) -> Config:
    """The configuration of a tiny training."""
    return make_config(*base, *words)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def during(monkeypatch, act, at: int = 3) -> None:
    """Call `act` in the midst of a training, before its iteration `at`."""
    step = loop.Training.step

    def spied(self, stop):
        if self.iteration.iterations == at - 1:
            self.checkpoint_writer.wait()
            act()
        return step(self, stop)

    monkeypatch.setattr(loop.Training, "step", spied)


def last_iteration(path: Path | str) -> int:
    """Iterations of a run's last whole checkpoint."""
    return int(Run(Path(path)).checkpoints.restore(print)[1]["iteration"])


def ends(cfg: Config, capsys) -> tuple[object, str, str]:
    """Exit code, stdout and stderr of a training that does not end well."""
    try:  # pytest.raises would keep the run, and its lock
        train.train_or_exit(cfg)
    except SystemExit as end:
        return end.code, *capsys.readouterr()
    pytest.fail("it ended well")


@pytest.mark.parametrize("room", [False, True])
def test_a_full_disk(disk, monkeypatch, capsys, room):
    """One warning, unless older checkpoints make room; what was not written is there later."""
    path, filler = disk / "run", disk / "filler"

    def act() -> None:
        for older in Run(path).checkpoints.saved()[:-1] if not room else ():
            older.unlink()
        fill(filler)

    during(monkeypatch, act)
    during(monkeypatch, filler.unlink, at=6)
    words = ("iterations=8", "save_every=1", f"run_dir={path}")
    train.train_or_exit(configured(*words, base=QUADRUPED))
    assert last_iteration(path) == 8
    said = capsys.readouterr().out
    warnings = 0 if room else 1
    assert said.count("cannot be written (No space left on device): training goes on") == warnings
    assert said.count("can be written again") == warnings
    assert room or said.count("metrics.jsonl cannot be written") == 1
    assert [row["iteration"] for row in Run(path).rows()] == list(range(1, 9))
    checkpoints = Run(path).checkpoints
    for checkpoint in checkpoints.saved():
        checkpoints.check(checkpoint, checkpoints.manifest())
    assert not list(path.glob("**/.*.part*"))


def test_a_run_goes_on_where_the_disk_is_full(disk):
    """resume= with nothing changed needs no room: the training goes on, and saves when there is."""
    path, filler = disk / "run", disk / "filler"
    words = ("iterations=8", "save_every=1", f"run_dir={path}")
    trainer = Trainer(train.configure(*QUADRUPED, *words))
    for row in trainer.steps():
        if row["iteration"] == 3:
            break
    del trainer  # it holds the lock
    fill(filler)
    cfg = train.configure(f"resume={path}")
    for row in Trainer(cfg).steps():
        if row["iteration"] == 6:
            filler.unlink()
    assert last_iteration(path) == 8
    assert [row["iteration"] for row in Run(path).rows()] == list(range(1, 9))


def test_a_report_of_before_is_not_said_to_be_written(here, monkeypatch, capsys):
    """One line says that report.html cannot be written, and none the contrary."""
    old = Path("run/report.html")
    old.parent.mkdir()
    old.touch()
    os.utime(old, (0, 0))
    monkeypatch.setattr("gpusim_rl.report.tables.render", lambda *_: "")
    monkeypatch.setattr("gpusim_rl.report.command.write_whole", no_room)
    words = ("iterations=1", "run_dir=run", "auto_resume=true", "report=true")
    train.train_or_exit(configured(*words))
    out, err = capsys.readouterr()
    assert err.startswith("no run/report.html: ") and "wrote run/eval.json\n" in out


def no_room(path: Path, data: bytes) -> None:
    """`write_whole` on a full disk."""
    raise OSError(28, "No space left on device", str(path))


def test_an_error_of_a_score_keeps_its_traceback(here, monkeypatch):
    """A ValueError in a task's own `score` is no mistake of the command line: it is not caught."""

    def score(self, record):
        raise ValueError("a bug in score")

    monkeypatch.setattr(load_task("cartpole"), "score", score)
    with pytest.raises(ValueError, match="a bug in score"):
        train.train_or_exit(configured("iterations=1", "run_dir=run"))
    assert not (here / "run" / "eval.json").exists()


def test_a_directory_that_turns_read_only(disk, monkeypatch, capsys):
    """One line and exit code 1 at the end; earlier checkpoints are whole."""
    path = disk / "run"

    def lock() -> None:
        subprocess.run(["mount", "--bind", path, path], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)

    during(monkeypatch, lock)
    words = ("iterations=5", "save_every=1", f"run_dir={path}")
    code, out, err = ends(configured(*words, base=QUADRUPED), capsys)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: ") and "Read-only" in err
    # Once for the checkpoints, once for the rows, and once for the calibration.
    assert out.count("cannot be written (Read-only file system)") == 3
    assert last_iteration(path) == 2


def test_a_directory_that_vanishes(here, monkeypatch):
    """A run directory that somebody removes is made again at the next save, and can be resumed."""
    policy = Path("run/policy.onnx")
    monkeypatch.setattr("gpusim_rl.training.trainer.export_policy", lambda *_: policy.touch())
    during(monkeypatch, lambda: shutil.rmtree("run"))
    train.train_or_exit(configured("iterations=5", "save_every=2", "run_dir=run", EXPORTED))
    assert last_iteration("run") == 5
    assert Run(Path("run")).config["num_envs"] == 16 and policy.exists()
    assert [row["iteration"] for row in Run(Path("run")).rows()][-1] == 5


def test_a_directory_that_becomes_another_run(here, monkeypatch, capsys):
    """A run whose directory is another run's now leaves that one alone, and says so."""
    others = []

    def replaced() -> None:
        shutil.rmtree("run")
        others.append(Run.create(Path("run"), configured("seed=7").plain))

    during(monkeypatch, replaced)
    code, out, err = ends(configured("iterations=5", "save_every=1", "run_dir=run"), capsys)
    assert (code, err.count("\n")) == (1, 1)
    assert "another run is there now" in err and "another run is there now" in out
    assert Run(Path("run")).config["seed"] == 7
    assert not others[0].checkpoints.saved() and not others[0].rows()


def test_two_processes(here):
    """A second process in a directory is refused; the lock of a dead one does not count."""
    run = Run.create(Path("run"), configured().plain)
    ppo = make_ppo(make_env("cartpole", 16), num_steps=4, hidden=(16,))
    run.checkpoints.save(0, ppo.state(), {})
    line = refused("train.py", "resume=run", "iterations=3", cwd=here)
    assert f"run is being written by process {os.getpid()}" in line
    del run
    Run(Path("run")).lock()
    assert not Path("run/.lock").read_bytes()  # it is given back, and names nobody


@pytest.mark.slow
def test_a_checkpoint_vouches_for_its_configuration(here):
    """What an edit of config.yaml changes is said, or refused as on the command line."""
    for seed in (1, 2):
        words = (*WORDS, f"seed={seed}", "iterations=1", f"run_dir=s{seed}")
        succeed("train.py", *words, cwd=here)
    file = here / "s1" / "config.yaml"
    text = file.read_text()
    file.write_text(text.replace("  gamma: 0.98\n", "  gamma: 0.9\n"))
    play = ("run=s1", "mode=evaluate", "episodes=2", "out=eval.json")
    said = command("play.py", *play, cwd=here)
    trained = "checkpoints/000001.safetensors was not trained with s1/config.yaml"
    assert said.returncode == 0 and said.stderr.count("warning") == 1
    assert f"{trained}: algo.gamma 0.98 → 0.9" in said.stderr.splitlines()[0]
    said = command("train.py", "resume=s1", "iterations=2", cwd=here)
    assert said.returncode == 0
    assert said.stderr.startswith("warning: algo.gamma 0.98 → 0.9: from iteration 1 on")
    file.write_text(text.replace("  sigma: 0.5\n", "  sigma: 0.4\n"))
    line = refused("train.py", "resume=s1", "iterations=3", cwd=here)
    says = "s1/config.yaml does not belong to the last checkpoint: task.sigma 0.5 → 0.4"
    assert says in line
    file.write_text(text.replace("num_envs: 16\n", ""))
    assert "num_envs 16 → 256" in refused("train.py", "resume=s1", "iterations=3", cwd=here)
    file.write_text(text.replace("mjcf: cartpole.xml", "mjcf: hopper.xml"))
    line = refused("train.py", "resume=s1", "iterations=3", cwd=here)
    assert "hopper.xml" in line
    file.write_text(text)
    shutil.rmtree(here / "s1" / "checkpoints")
    shutil.copytree(here / "s2" / "checkpoints", here / "s1" / "checkpoints")
    assert "last checkpoint: seed 2 → 1" in refused("train.py", "resume=s1", cwd=here)
    (note,) = {load(Run(here / "s2").checkpoints.latest())[1]["config"]}
    for damaged in ("[]", "{", "[" * 100000):
        with pytest.raises(ValueError, match="its configuration cannot be read"):
            resume.edits({"config": damaged}, json.loads(note), Path("file"))


@pytest.mark.slow
def test_a_signal(tmp_path):
    """It ends a training after a checkpoint; time while the process was stopped does not count."""
    words = (*WORDS, "run_dir=run", "auto_resume=true", "save_every=1000")
    line = [sys.executable, str(ROOT / "train.py"), *words, "iterations=100000"]
    env = environment(tmp_path / "home")
    with subprocess.Popen(
        line, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while len(Run(tmp_path / "run").rows()) < 3:
            assert process.poll() is None
            time.sleep(0.02)
        before, begun = Run(tmp_path / "run").rows()[-1], time.monotonic()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)
        while len(Run(tmp_path / "run").rows()) < before["iteration"] + 5:
            assert process.poll() is None
            time.sleep(0.02)
        after, passed = Run(tmp_path / "run").rows()[-1], time.monotonic() - begun
        assert after["time_s"] - before["time_s"] < passed - 1.2
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "python train.py resume=run continues" in out
    assert err.startswith("SIGTERM: ends after this iteration") and err.count("\n") == 1
    _, note = load(Run(tmp_path / "run").checkpoints.latest())
    done = int(note["iteration"])
    assert done == len(Run(tmp_path / "run").rows()) >= 3
    succeed("train.py", *words, f"iterations={done + 2}", cwd=tmp_path)
    assert [row["iteration"] for row in Run(tmp_path / "run").rows()] == list(range(1, done + 3))


def test_a_second_signal_ends_at_once():
    """The first is noted, the second ends the process with 128 + its number, whatever it does."""
    program = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
from gpusim_rl.training.signals import Signals
with Signals(print) as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.caught == signal.SIGTERM
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""
    done = run_python(program)
    assert done.returncode == 130 and done.stderr.startswith("SIGTERM: ")
    before = signal.getsignal(signal.SIGTERM)
    with Signals(print):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("iterations", ["", 'iterations="6"'])
def test_many_solver_iterations_are_named(here, capsys, iterations):
    """A model of the user's with MuJoCo's 100 trains on MuJoCo Warp, and one line says the cost."""
    ours = (ASSETS / "cartpole.xml").read_text()
    (here / "mine.xml").write_text(ours.replace('iterations="6" ls_iterations="10"', iterations))
    words = ("task=cartpole", *WARP[1:], "task.mjcf=mine.xml", "iterations=1", "run_dir=run")
    made = Trainer(make_config(*words))
    next(made.steps())
    made.close()
    said = capsys.readouterr().out
    cost = "launches all of them in every timestep, about 5,000 kernels a control step"
    assert said.count("the model's solver has iterations=100") == (not iterations)
    assert (cost in " ".join(said.split())) == (not iterations)


def test_auto_resume_begins_and_goes_on(here, capsys):
    """It trains in runs/<task>/s<seed>; done already, it changes nothing."""
    words, states = (*WORDS, "auto_resume=true", "seed=3", "iterations=2"), []
    for _ in range(2):
        train.train_or_exit(check_words(*words))
        states.append(load(Run(Path("runs/cartpole/s3")).checkpoints.latest()))
    assert capsys.readouterr().out.startswith("run: runs/cartpole/s3")
    (weights, _), (again, note) = states
    assert note["iteration"] == "2" and not differing(weights, again)


def test_auto_resume_of_a_users_model(here):
    """The run's copy of the model is used, also without the file; another is refused."""
    text = (ASSETS / "cartpole.xml").read_text()
    (here / "mine.xml").write_text(text)
    (here / "other.xml").write_text(text.replace('mass="0.1"', 'mass="0.2"'))
    words = (*WORDS, "auto_resume=true", "run_dir=run", "task.mjcf=mine.xml")
    for iterations in (1, 2):
        train.train_or_exit(check_words(*words, f"iterations={iterations}"))
    (here / "mine.xml").unlink()
    train.train_or_exit(check_words("resume=run", "iterations=3"))
    with pytest.raises(ValueError, match=r"task\.mjcf run/model/task/model\.xml → other\.xml"):
        check_words("resume=run", "task.mjcf=other.xml")


def test_an_interrupt_from_python(here, monkeypatch, capsys):
    """Ctrl-C ends a loop over trainings, after a checkpoint from which the first one goes on."""
    show = dashboard.Dashboard.show
    interrupt = lambda *row: (show(*row), os.kill(os.getpid(), signal.SIGINT))  # noqa: E731
    monkeypatch.setattr(dashboard.Dashboard, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train.train(*WORDS, "iterations=9", "run_dir=run")
    out = capsys.readouterr().out
    assert re.search(r"stopped after iteration 1; .* resume=run continues", out)
    assert Run.open("run").checkpoints.latest().exists()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_late_signal(number, here, monkeypatch, capfd):
    """One after an iteration's saves were decided leaves its checkpoint, and resume= goes on."""
    log = loop.Training.log

    def late(self, row):
        log(self, row)
        if row["iteration"] == 5:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(loop.Training, "log", late)
    cfg = configured("iterations=50", "save_every=100", "run_dir=run")
    code, out, err = ends(cfg, capfd)
    done = last_iteration("run")
    assert code == 128 + number and done == len(Run(Path("run")).rows())
    assert err.startswith(f"{number.name}: ends after this iteration") and err.count("\n") == 1
    assert " ".join(out.split()).endswith(" resume=run continues")
    train.train_or_exit(check_words("resume=run", f"iterations={done + 1}"))
    assert [row["iteration"] for row in Run(Path("run")).rows()] == [*range(1, done + 2)]


def test_roll_backs_outlive_restarts(here, monkeypatch, capsys):
    """A run that gave up gives up at once after a restart."""
    words = (*BROKEN, "rollbacks=1", "iterations=20", "run_dir=run")
    code, out, err = ends(configured(*words), capsys)
    assert code == 1 and "after 1 roll-backs" in err and out.count("back to") == 1
    code, out, err = ends(check_words("resume=run"), capsys)
    assert code == 1 and "after 1 roll-backs" in err and out.count("back to") == 0


def test_a_reached_success_is_remembered(here, monkeypatch):
    """A run that reached stop_at trains no further when it is resumed."""
    monkeypatch.setattr("gpusim_rl.training.trainer.tracking", lambda *_: 1.0)
    monkeypatch.setattr("gpusim_rl.evaluation.evaluate.evaluate", lambda *a, **k: {"success": 0.9})
    train.train_or_exit(configured("iterations=6", "stop_at=0.8", "eval_every=2", "run_dir=run"))
    Trainer(check_words("resume=run")).train()
    assert Path("run/eval.json").exists()
    train.train_or_exit(check_words("resume=run"))
    assert last_iteration("run") == len(Run(Path("run")).rows()) == 2


@pytest.mark.parametrize(("log_every", "end"), [(1, 3), (2, 4)])
def test_a_learner_that_is_done(here, monkeypatch, capsys, log_every, end):
    """It ends the training as its goal does, once a row says so, for good."""
    measures = PPO.measures

    def done(self):
        return torch.cat([measures(self), (self.spec.iteration[None] >= 3).float()])

    monkeypatch.setattr(PPO, "metrics", (*PPO.metrics, Metric("done", "train/done")))
    monkeypatch.setattr(PPO, "measures", done)
    Trainer(configured("iterations=9", f"log_every={log_every}", "run_dir=run")).train()
    assert f"iteration {end}: the training ends, as its learner is done" in capsys.readouterr().out
    assert last_iteration("run") == end
    capsys.readouterr()
    Trainer(check_words("resume=run")).train()
    assert f"run: its learner was done at iteration {end}\n" in capsys.readouterr().err
    assert last_iteration("run") == end == Run(Path("run")).rows()[-1]["iteration"]


def test_a_run_that_goes_on_has_not_ended(here):
    """resume= removes the ends of before, unless there is nothing to do; scores are kept."""
    path = Trainer(configured("iterations=1", "run_dir=run")).train().path
    endings = [path / "eval.json", path / "report.json"]
    for file in endings:
        file.write_text("{}")
    for more, stays in ((1, True), (2, False)):
        Trainer(check_words("resume=run", f"iterations={more}")).train()
        assert [file.exists() for file in endings] == [stays, stays]
    former = path / "eval-1.json"
    assert former.read_text() == "{}" and run_that_needs(former.resolve())
    former.unlink()
    former.symlink_to("config.yaml")
    with pytest.raises(ValueError, match=r"eval-1\.json is a link"):
        Run.open(path)


def test_stop_at_evaluates_when_it_may_be_reached(here, monkeypatch):
    """Only a better mean reward, or the fourth, is evaluated, outside of its time."""
    evaluated, rewards = [], iter([1.0, 2.0, 2.0, 1.5, 1.0, 5.0, 2.5, 4.0])
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1e4 * len(evaluated))

    def evaluate(policy, task, **_):
        evaluated.append(len(evaluated))
        return {"success": 0.0}

    def report(learner):
        read, value = original(learner), next(rewards)
        return lambda: read() | {"reward": value}

    original = Iteration.report
    monkeypatch.setattr(Iteration, "report", report)
    monkeypatch.setattr("gpusim_rl.evaluation.evaluate.evaluate", evaluate)
    monkeypatch.setattr("gpusim_rl.training.progress.time", clock)
    words = ["stop_at=0.9", "eval_every=1", "save_every=1", "episodes=2"]
    # The reward that an evaluation goes by is the mean of the rows since the last one.
    result = Trainer(configured("iterations=6", "run_dir=run", *words)).train()
    rows = Run(Path("run")).rows()
    assert [row["iteration"] for row in rows if "success" in row] == [1, 2, 3, 4]
    assert result.iterations == 6
    Trainer(check_words("resume=run", "iterations=8")).train()
    rows = Run(Path("run")).rows()
    # Iteration 7 because the mean of 4 to 6 is higher, 8 because it is a fourth.
    assert [row["iteration"] for row in rows if "success" in row] == [1, 2, 3, 4, 7, 8]
    assert len(evaluated) == 6 and rows[-1]["time_s"] < 5e3  # of 6e4 s in evaluations


def test_the_best_checkpoint_stays(here, monkeypatch):
    """With stop_at the checkpoint of the best evaluation outlives the later ones."""
    monkeypatch.setattr(Progress, "may_reach", lambda *_: True)
    scores = iter((0.2, 0.9, 0.4, 0.5, 0.1, 0.3))
    monkeypatch.setattr(evaluation, "evaluate", lambda *a, **k: {"success": next(scores, 0.0)})
    words = ("iterations=6", "stop_at=0.95", "eval_every=1", "save_every=100", "run_dir=run")
    train.train_or_exit(configured(*words))
    checkpoints = Run(Path("run")).checkpoints
    assert {path.stem for path in checkpoints.saved()} == {"000002", "000004", "000005", "000006"}
    assert checkpoints.manifest()["000002.safetensors"]["success"] == 0.9


def evaluate_later(monkeypatch, scores: Iterator[float]) -> None:
    """Let each evaluation be due, and end two iterations after it began, with the next success."""

    def begin(learner, evaluate):
        begun = learner.iterations
        return lambda wait: next(scores) if wait or learner.iterations == begun + 2 else None

    monkeypatch.setattr(Progress, "may_reach", lambda *_: True)
    monkeypatch.setattr(Iteration, "begin_evaluation", begin)


def test_evaluations_may_come_later(here, monkeypatch):
    """A late success is in the row of then, with its iteration, whose checkpoint it marks."""
    evaluate_later(monkeypatch, iter((0.2, 0.9, 0.4, 0.5, 0.95)))
    words = ("stop_at=0.93", "eval_every=1", "save_every=100", "iterations=10", "run_dir=run")
    Trainer(configured(*words)).train()
    run = Run(Path("run"))
    rows = [x for x in run.rows() if "success" in x]
    late = [(x["iteration"], x.get("success_of"), x["success"]) for x in rows]
    assert late == [(3, 1, 0.2), (6, 4, 0.9), (9, 7, 0.4), (10, None, 0.5)]
    manifest = run.checkpoints.manifest()
    assert manifest["000004.safetensors"]["success"] == 0.9
    assert manifest["000009.safetensors"]["success"] is None
    Trainer(check_words("resume=run", "iterations=20")).train()
    assert last_iteration("run") == 13 == run.rows()[-1]["iteration"]
    Trainer(check_words("resume=run")).train()
    assert last_iteration("run") == 13


@pytest.mark.parametrize("spoilt", [4, 5])
def test_what_is_judged_late_is_saved_unless_it_was_bad(spoilt, here, monkeypatch):
    """A bad iteration leaves no checkpoint; one beside it takes none from the policy judged."""
    evaluate_later(monkeypatch, repeat(0.5))
    report = Iteration.report

    def report_bad(learner):
        read, i = report(learner), learner.iterations
        return lambda: read() | {"bad": float(i == spoilt)}

    monkeypatch.setattr(Iteration, "report", report_bad)
    words = ("stop_at=0.93", "eval_every=4", "save_every=100", "iterations=7", "run_dir=run")
    Trainer(configured(*words)).train()
    judged = Run(Path("run")).checkpoints.manifest().get("000004.safetensors")
    assert (judged is not None and judged["success"] == 0.5) == (spoilt == 5)


def two_minibatches() -> PPO:
    """A quadruped's learner after an iteration of two minibatches."""
    env = make_env("quadruped", 16)
    ppo = make_ppo(env, num_steps=4, num_minibatches=2, update_epochs=1)
    ppo.iteration()
    ppo.report()()
    return ppo


@cache
def undisturbed() -> torch.Tensor:
    """(T, B, no) what its worlds observe in the next iteration."""
    ppo = two_minibatches()
    ppo.iteration()
    return ppo.source.record.obs.clone()


@pytest.mark.parametrize("what", ["physics", "observation", "reward", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_counted(what, value):
    """NaN and Inf: counted once, never learned from, neighbors bit-identical."""
    spoilt = two_minibatches()
    env, judge, fused = spoilt.env, spoilt.env.outcome, spoilt.learner.fused
    assert fused is not None
    before = spoilt.learner.optimizer.weights["actor"].detach().clone()
    if what == "physics":
        env.sim.qpos[5, 3] = value
    elif what == "observation":
        env.observation["actor"][5, 7] = value
    elif what == "reward":

        def judged(s):
            terms, reward, end, failed = judge(s)
            reward[5] = value
            env.outcome = judge
            return terms, reward, end, failed

        env.outcome = judged
    else:
        sample = fused._sample

        class Sample:
            set_param_at_index_from_ctype = sample.set_param_at_index_from_ctype

            def launch(self, stream):
                sample.launch(stream)
                fused.grad_mean[3, 2] = value

        fused._sample = Sample()
    spoilt.iteration()
    row = spoilt.report()()
    assert row["fault"] == (what != "gradient") and row["skipped"] == 2 * (what == "gradient")
    assert all(torch.isfinite(v).all() for v in spoilt.policy.state_dict().values())
    # Both minibatches were skipped.
    assert torch.equal(before, spoilt.learner.optimizer.weights["actor"]) == (what == "gradient")
    others = [i for i in range(16) if i != 5]
    assert torch.equal(undisturbed()[:, others], spoilt.source.record.obs[:, others])
    for _ in range(2):
        spoilt.iteration()
    assert spoilt.report()()["fault"] == 0


def test_the_failure_is_the_world(tmp_path):
    """The worst step names world, step and reason, and holds the world's state."""
    env = make_env("quadruped", 16)
    for _ in range(3):
        env.step(torch.zeros(16, 12))
    env.worst_step.clear()
    env.sim.qvel[11, 4] = 1e9
    qpos = env.sim.qpos[11].clone()
    env.step(torch.zeros(16, 12))
    worst = env.worst_step.read(env.worst_step.worst())
    assert (worst.world, worst.step, worst.score) == (11, 4, float("inf"))
    assert "physics" in worst.why
    assert torch.equal(worst.tensors["qpos"], qpos) and worst.tensors["qvel"][4] == 1e9
    assert torch.equal(worst.tensors["model/body_mass"], env.sim.model("body_mass")[11])


@pytest.mark.slow
def test_capacities_grow(here, monkeypatch, capsys):
    """What is exceeded is doubled and kept; the PPO before is gone when the next is made."""
    built, alive, opened = [], [], []
    monkeypatch.setattr(Iteration, "open", lambda self, path: opened.append(path))

    def make(*args, **kwargs):
        alive.append(sum(ppo() is not None for ppo in built))
        ppo = build_iteration(*args, **kwargs)
        built.append(weakref.ref(ppo))
        return ppo

    monkeypatch.setattr(trainer, "make_iteration", make)
    monkeypatch.setattr(memory, "make_iteration", make)
    # These are far too few rows.
    monkeypatch.setattr(warp_model, "probe", lambda mjm, **_: (40, 4, mjm.key_qpos.repeat(16, 0)))
    train.train_or_exit(configured("num_envs=8", "iterations=6", "run_dir=run", base=WARP))
    out = capsys.readouterr().out
    assert "steps went over a capacity, and were left out: going on with sim.njmax=8\n" in out
    grown = Run(Path("run")).config["sim"]["njmax"]
    rows = Run(Path("run")).rows()
    assert grown >= 8 and rows[0]["overflow"] > 0
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len(alive) >= 2 and not any(alive)
    assert len(opened) >= 2  # reward models know the run again


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_short_training_that_learned_nothing_fails(here, capsys, iterations):
    """If every iteration was bad, a training that is too short for a roll-back ends with 1, too."""
    words = (f"iterations={iterations}", "run_dir=run", *BROKEN, "algo.num_minibatches=4")
    code, _, err = ends(configured(*words), capsys)
    assert code == 1 and "error: every iteration was bad: " in err


def test_threads_are_the_run_s(monkeypatch):
    """`threads` alone says on how many threads networks are made and updated, and so the bits."""
    states, used = [], set()
    minibatch, init = PPO.minibatch, ActorCritic.__init__

    def seen(method):
        def call(*args, **kwargs):
            used.add(torch.get_num_threads())
            return method(*args, **kwargs)

        return call

    monkeypatch.setattr(PPO, "minibatch", seen(minibatch))
    monkeypatch.setattr(ActorCritic, "__init__", seen(init))
    for process in (1, 2, 4):
        with torch_threads(process):
            words = ("threads=3", "algo.hidden=[128]", "num_envs=128")
            ppo = build_iteration(configured(*words, base=QUADRUPED))
            ppo.iteration()
            assert torch.get_num_threads() == process
        states.append(ppo.state())
    assert used == {3}
    assert all(torch.equal(x, y[name]) for y in states for name, x in states[0].items())


def test_a_run_keeps_its_threads(here):
    """The number of threads that a run began with is in its config.yaml, and stays."""
    with torch_threads(2):
        train.train_or_exit(configured("iterations=1", "run_dir=run"))
    assert Run(Path("run")).config["threads"] == 2
    with torch_threads(1):
        train.train_or_exit(check_words("resume=run", "iterations=2"))
    assert Run(Path("run")).config["threads"] == 2


def test_evaluations_leave_no_engine(monkeypatch):
    """An evaluation's Sim, with its threads and memory, is gone at its end."""
    sims, make = [], evaluation.make_actuated

    def spied(*args, **kwargs):
        sim = make(*args, **kwargs)
        sims.append(weakref.ref(sim))
        return sim

    monkeypatch.setattr(evaluation, "make_actuated", spied)
    monkeypatch.setattr(evaluation, "FEWEST", 4)
    cfg = configured("task.episode=0.1")
    trainer.success(cfg, build_iteration(cfg))
    assert len(sims) == 1 and sims[0]() is None


def test_capacities_that_are_fixed(here, capsys):
    """With sim.grow=false the message says what to set, and to what."""
    words = ("num_envs=8", "iterations=1", "run_dir=run", "sim.njmax=4", "sim.grow=false")
    code, out, _ = ends(configured(*words, base=WARP), capsys)
    assert code == 1  # no step was whole
    assert "steps went over a capacity, and were left out: set sim.njmax=8\n" in out


def test_a_slow_disk_keeps_the_newest(here, monkeypatch):
    """States replace one another while they wait; hashes are all written."""
    run, said, gate = Run.create(Path("run"), configured().plain), [], []
    save = run.checkpoints.save

    def slow(*args, **kwargs):
        while not gate:
            time.sleep(0.01)
        return save(*args, **kwargs)

    monkeypatch.setattr(run.checkpoints, "save", slow)
    writer = CheckpointWriter(run, said.append)
    for i in range(1, 6):
        writer.save(i, {"x": torch.full((3,), i)}, {})
        writer.hash(i, {"x": torch.full((3,), i)})
    gate.append(1)
    assert writer.close() and not said
    assert run.checkpoints.latest().stem == "000005" and len(run.checkpoints.saved()) <= 2
    rows = run.rows("hashes.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["sha256"] == digests({"x": torch.full((3,), 1)})


def test_the_writer_frees_nothing(here):
    """The thread that saved a state frees it: another could break a CUDA graph's capture."""
    freed = []
    writer = CheckpointWriter(Run.create(Path("run"), configured().plain), print)
    for i in range(3):
        x = torch.zeros(3)
        weakref.finalize(x, lambda: freed.append(threading.current_thread()))
        (writer.hash(i, {"x": x}) if i % 2 else writer.save(i, {"x": x}, {}))
        del x
        deadline = time.monotonic() + 60
        while not (len(writer._written) == 1 and not writer._busy):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(freed) == i
    writer.close()
    assert freed == 3 * [threading.main_thread()]

"""Films during a training: made by another process, of the checkpoint of their iteration."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpusim_rl.commands.train import configure, train, write_results
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.paths import quoted
from gpusim_rl.runs.run import Run
from gpusim_rl.runs.writer import CheckpointWriter
from gpusim_rl.training.films import Films
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import EXPORTED, TINY, succeed
from tests.films import decoded

PYTHON = sys.executable


@pytest.mark.slow
def test_a_training_films_what_it_has_learned(tmp_path):
    """film_every= leaves a film of five seconds for its iterations, and nothing else."""
    words = ("task=cartpole", *TINY, "iterations=2", "film_every=2", "run_dir=run", "export=none")
    said = succeed("train.py", *words, "save_every=50", cwd=tmp_path)
    assert "no film" not in said
    assert [p.name for p in (tmp_path / "run" / "films").iterdir()] == ["000002.mp4"]
    assert len(decoded(tmp_path / "run" / "films" / "000002.mp4", 480, 720)) == 125


def test_films_are_begun_while_it_trains(elsewhere, monkeypatch):
    """Each is, also where rows come at its iterations alone: when the next row does."""
    begun, started, saved = set[int](), Films.start, CheckpointWriter.save

    def start(films: Films, i: int, lowest: bool = True) -> None:
        begun.add(i)
        started(films, i, lowest)

    def save(writer: CheckpointWriter, *words: Any, **more: Any) -> None:
        saved(writer, *words, **more)
        writer.wait()  # as if an iteration took longer

    monkeypatch.setattr(Films, "start", start)
    monkeypatch.setattr(CheckpointWriter, "save", save)
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    words = ("task=cartpole", *TINY, "log=none", "run_dir=run", "iterations=6")
    train(*words, "film_every=2", "log_every=2", "save_every=50")
    assert begun == {2, 4, 6}


@pytest.fixture
def films(tmp_path, monkeypatch):
    """Films each two iterations, whose processes fail at once, and what they say."""
    lines: list[str] = []
    films = Films(tmp_path, 2, [], lines.append)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    (tmp_path / "checkpoints").mkdir()
    for i in (2, 4, 6):
        (tmp_path / "checkpoints" / f"{i:06d}.safetensors").write_bytes(b"broken")
    yield films, lines, tmp_path / "films"
    films.stop()


def starts(lines: list[str]) -> list[str]:
    """What lines say before their reason."""
    return [line.split(":")[0] for line in lines]


def test_a_film_that_fails_is_one_line(films, monkeypatch):
    """It says why, and leaves no copy of the checkpoint."""
    films, lines, folder = films
    monkeypatch.setattr(sys, "executable", PYTHON)
    films({"iteration": 1.0})
    assert not folder.exists()
    films({"iteration": 2.0})
    films({"iteration": 3.0})
    assert films.process is not None and films.copied(2).exists()
    films.finish()
    why = f"{folder.parent} is not a run directory: it has no config.yaml"
    assert lines[-1] == f"no film of iteration 2: {why}"
    assert not [*folder.iterdir()]


def test_results_do_not_wait_for_films(elsewhere, monkeypatch):
    """Ctrl-C while the last film is made loses no result, and leaves nothing of the film."""
    words = ("task=cartpole", *TINY, EXPORTED, "log=none", "run_dir=run", "iterations=1")
    trainer = Trainer(configure(*words, "film_every=1"))
    trainer.train()

    def interrupted(films: Films) -> None:
        films.copy_if_due()
        assert films.pending == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(Films, "finish", interrupted)
    policy = Path("run/policy.onnx")
    monkeypatch.setattr("gpusim_rl.training.trainer.export_policy", lambda *_: policy.touch())
    scores = trainer.evaluate()
    with pytest.raises(KeyboardInterrupt):
        write_results(trainer, scores)
    names = {file.name for file in Path("run").iterdir()}
    assert {"eval.json", "readings.json", "policy.onnx"} <= names
    assert not [*Path("run/films").iterdir()]


def test_only_the_newest_waits(films):
    """A newer checkpoint takes the place of one that waits; each film that is lost has a line."""
    films, lines, folder = films
    films({"iteration": 2.0})
    films({"iteration": 4.0})
    films.process.poll = lambda: None  # it takes long
    films({"iteration": 6.0})
    films({"iteration": 8.0})
    lost = "no film of iteration 4: that of 2 takes too long, and 6 is newer"
    assert lines == [lost] and films.pending == 6
    films({"iteration": 9.0})
    assert (films.due, films.pending, len(lines)) == (8, 6, 1)
    films({"iteration": 10.0})
    assert lines[1:] == ["no film of iteration 8: its checkpoint is not written in time"]
    assert (films.due, films.pending) == (10, 6)
    films.stop()
    lost = [f"no film of iteration {i}: the training has ended before" for i in (2, 6, 10)]
    assert lines[2:] == lost and not [*folder.iterdir()]
    films.stop()
    assert films.process is None and len(lines) == 5


def test_the_end_makes_each_film_that_is_left(films):
    """That which is being made begins again; the one that waits and the one that is due follow."""
    films, lines, folder = films
    films({"iteration": 2.0})
    films({"iteration": 4.0})
    films.process.poll = lambda: None  # it takes long
    films({"iteration": 6.0})
    assert (films.made, films.pending, films.due) == (2, 4, 6)
    films.finish()
    assert starts(lines) == [f"no film of iteration {i}" for i in (2, 4, 6)]
    assert not [*folder.iterdir()]


def test_films_of_a_training_that_was_killed(films):
    """The next one films the newest copy and the last checkpoint, and says what is lost."""
    films, lines, folder = films
    folder.mkdir()
    half = folder / ".000002.mp4.0123.part.mp4"
    for file in (half, *map(films.copied, (2, 4))):
        file.write_bytes(b"broken")
    again = Films(folder.parent, 2, [], lines.append)
    assert (again.pending, again.due) == (4, 6)
    assert [*folder.iterdir()] == [films.copied(4)]
    assert lines == ["no film of iteration 2: its training was killed"]
    again.finish()
    assert starts(lines[1:]) == [f"no film of iteration {i}" for i in (4, 6)]
    (folder / "000006.mp4").touch()
    again = Films(folder.parent, 2, [], lines.append)
    assert again.pending is again.due is None
    films.copied(8).touch()
    Films(folder.parent, None, [], lines.append)  # of another process of several
    assert films.copied(8).exists()
    Films(folder.parent, 0, [], lines.append)
    assert lines[3:] == ["no film of iteration 8: its training was killed"]
    assert [file.name for file in folder.iterdir()] == ["000006.mp4"]


def test_a_process_that_cannot_start(films, monkeypatch):
    """It costs a film and a line, and leaves nothing."""
    films, lines, folder = films
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    films({"iteration": 2.0})
    films({"iteration": 3.0})
    assert len(lines) == 1 and lines[0].startswith("a film is not made: [Errno 2]")
    assert films.process is None and not [*folder.iterdir()]


def test_no_film_ends_a_training(films):
    """A stranger's run may have a file named films, or directories in the place of films' files."""
    films, lines, folder = films
    folder.touch()
    for i in range(2, 6):
        films({"iteration": float(i)})
    assert starts(lines) == ["a film is not made"] * 2
    folder.unlink()
    (folder / ".000006.mp4.x").mkdir(parents=True)
    (folder / "000008.safetensors").mkdir()
    checkpoints = folder.parent / "checkpoints"
    shutil.copy(checkpoints / "000006.safetensors", checkpoints / "000008.safetensors")
    for i in (6, 8, 9):
        films({"iteration": float(i)})
    films.finish()
    broken, failed = sorted(lines[2:])  # the process may end at any time
    assert broken.startswith("a film is not made: ") and str(films.copied(8)) in broken
    assert failed.startswith("no film of iteration 6: ") and (folder / ".000006.mp4.x").is_dir()


def test_a_film_that_has_ended_is_not_made_again(films):
    """The end takes what is there, and removes what a killed process left."""
    films, lines, folder = films
    films({"iteration": 2.0})
    films({"iteration": 3.0})
    films.process.wait()
    started = films.process
    part = folder / ".000002.mp4.0123.part.mp4"
    part.write_bytes(b"half a film")
    assert Run(folder.parent).films() == []
    films.finish()
    assert films.process is None and started.returncode and len(lines) == 1
    assert not part.exists()


def test_paths_of_any_characters_are_words():
    """The command line of a film reads them as they are."""
    for name in ("a(1)", "a,b", "x=1", "[2]", "it's", "a b", "$x", "{a}", "back\\slash"):
        word = quoted("run", Path("/tmp", name))
        assert compose_plain("play", [word])["run"] == f"/tmp/{name}"


@pytest.mark.skipif(sys.platform != "linux", reason="ends with its parent on Linux alone")
def test_its_process_ends_with_the_training(tmp_path):
    """It is of lowest priority, and does not outlive a training that was killed."""
    child = "from gpusim_rl.commands.film import attend; import os, sys, time; attend({}, True); "
    child += "print(os.getpid(), os.sched_getscheduler(0), flush=True); time.sleep(600)"
    parent = "import os, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
    parent += f"{child!r}.format(os.getpid())]); time.sleep(600)"
    line = [sys.executable, "-c", parent]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout
        number, scheduler = map(int, training.stdout.readline().split())
        training.kill()
    assert scheduler == os.SCHED_IDLE
    for _ in range(600):
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # it has ended, and nobody has asked how
            return
        time.sleep(0.1)
    pytest.fail("the process of the film goes on")


def test_without_opengl_no_training_begins(tmp_path, elsewhere, monkeypatch):
    """A training that could not be filmed is refused at once, and makes no run."""
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="off-screen OpenGL"):
        train("task=cartpole", *TINY, "film_every=2", "run_dir=run")
    assert not [*tmp_path.iterdir()]

"""Files that a learner of the user's own declares: how a run keeps them, and how it goes on."""

import shutil
from pathlib import Path

import pytest

from gpusim_rl.assembly.learners import own_files
from gpusim_rl.config import resume
from gpusim_rl.runs.run import Run
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.worlds import check_words, write_files

LEARNER = """
from dataclasses import dataclass, replace
from pathlib import Path
from gpusim_rl.algorithms.ppo import settings, spec
from gpusim_rl.core.file_keys import FileKey

class Labels(str):
    def write(self, path):
        path.write_text(self)

@dataclass(kw_only=True, frozen=True)
class Settings(settings.Settings):
    labels: str | None = None

SPEC = replace(spec.SPEC, settings=Settings, files=(FileKey({key!r}, {how!r}{read}),))
"""
READ = ", read=lambda path: Labels(path.read_text())"
WORDS = ("task=cartpole", *TINY, "log=none", "algo=mine", "algo.fused=false", "iterations=1")
LABELS = "algo.labels=labels.txt"
CHANGED = "resume= continues a run as it was, which cannot change: "
# how → its copy in the run, and why another file, and the same one under another name, are refused
KEPT = {
    "copy": ("model/algo.labels.txt", r"algo\.labels .* → other\.txt", ""),
    "keep": ("model/algo.labels.txt", r"algo\.labels .* → other\.txt", r"algo\.labels .* → same"),
    "hash": (None, r"files\.algo\.labels \w{64} → \w{64}", ""),
}


@pytest.fixture
def write(tmp_path, monkeypatch, no_own_tasks):
    """Writes the learner with a file key into an empty working directory, with three files."""
    monkeypatch.chdir(tmp_path)

    def files(how: str, key: str = "algo.labels", read: str | None = None) -> None:
        read = (READ if how == "keep" else "") if read is None else read
        code = LEARNER.format(key=key, how=how, read=read)
        texts = {"labels.txt": "left", "same.txt": "left", "other.txt": "right"}
        yaml = "defaults: [ppo, _self_]\nname: mine\nlabels: null\n"
        own = {"algorithms/mine.py": code, "conf/algo/mine.yaml": yaml}
        write_files(Path(), own | texts)

    return files


def given(*words: str) -> str:
    """The text that the learner of a training is given, which then trains."""
    trainer = Trainer(check_words(*words))
    labels = trainer.loop.iteration.spec.given["algo.labels"]
    trainer.train()
    trainer.close()
    return labels.read_text() if isinstance(labels, Path) else str(labels)


@pytest.mark.parametrize("how", KEPT)
def test_a_run_keeps_the_file(how, write, capsys):
    """A moved run goes on with its file; another one is refused in one line."""
    write(how)
    copy, other, same = KEPT[how]
    assert given(*WORDS, LABELS, "run_dir=run") == "left"
    Path("run").rename("moved")
    run = Run.open(Path("moved"))
    assert run.config["algo"]["labels"] == copy or how == "hash"
    assert [*run.path.glob("model/*")] == ([run.path / copy] if copy else [])
    assert check_words(*WORDS, LABELS, "run_dir=moved", "auto_resume=true").resume == "moved"
    if copy:
        Path("labels.txt").unlink()
    go_on = ("resume=moved", "task_code=here", "iterations=2")
    assert given(*go_on) == "left"
    with pytest.raises(ValueError, match=CHANGED + other):
        check_words(*go_on, "algo.labels=other.txt")
    if same:
        with pytest.raises(ValueError, match=CHANGED + same):
            check_words(*go_on, "algo.labels=same.txt")
    else:
        assert given(*go_on, "iterations=3", "algo.labels=same.txt") == "left"
    assert "warning" not in capsys.readouterr().err
    if copy:
        file, text = run.path / "config.yaml", (run.path / "config.yaml").read_text()
        file.write_text(text.replace(copy, "../same.txt"))
        with pytest.raises(ValueError, match="lies outside of the run"):
            resume.load_config(run, "here")
    else:
        shutil.copy("other.txt", "labels.txt")
        with pytest.raises(ValueError, match=CHANGED + other):
            check_words(*go_on, "algo.labels=labels.txt")


def test_a_file_that_the_run_had_not_is_refused(write):
    """A key that was null stays null: nothing would keep its file."""
    write("copy")
    trainer = Trainer(check_words(*WORDS, "run_dir=run"))
    trainer.train()
    trainer.close()
    before = Path("run/config.yaml").read_text()
    words = ("resume=run", "task_code=here", "iterations=2", LABELS)
    with pytest.raises(ValueError, match=CHANGED + r"algo\.labels null → labels\.txt$"):
        Trainer(check_words(*words))
    assert Path("run/config.yaml").read_text() == before


@pytest.mark.parametrize(
    "declared, words, says",
    [
        (["copy"], ["algo.labels=none.txt"], r"^algo\.labels=none\.txt: no such file$"),
        (["hash"], ["algo.labels=7"], r"^algo\.labels=7: expected a path$"),
        (["copy", "algo.lables"], [], r"^unknown file key 'algo\.lables': choose one of .*labels"),
        (["cut"], [], r"algo\.labels: 'cut': choose one of copy, keep, hash$"),
        (
            ["copy", "algo.labels", ", '../x'"],
            [],
            r"labels: name='\.\./x' lies outside of the run$",
        ),
        (["copy", "algo.labels", ", '/tmp/x'"], [], r"labels: name='/tmp/x' lies outside of the"),
        (["keep", "algo.labels", ""], [], r"^file key algo\.labels: keep needs read"),
    ],
)
def test_mistakes(declared, words, says, write):
    """One line, before there is a run."""
    write(*declared)
    with pytest.raises((ValueError, OSError), match=says) as caught:
        Trainer(check_words(*WORDS, *(words or [LABELS]), "run_dir=run"))
    assert "\n" not in str(caught.value) and not Path("run").exists()


def test_a_key_of_ours(write):
    """A learner may have one, such as that of the distillation which it is made from."""
    write("keep", "teacher", "")
    assert own_files(check_words(*WORDS, "teacher=labels.txt")) == ()

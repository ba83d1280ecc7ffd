"""Questions and answers of a run: what is kept, what is taken back, and what strangers may send."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from gpusim_rl.core import errors
from gpusim_rl.runs import labels as module
from gpusim_rl.runs.labels import AGAIN, Labels, turned

ABOUT = {"dt": "0.02", "terms": '{"speed": 3}', "seed": "1", "policy": "abc", "drawn": "2"}


def clips(seed: int, n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of random clips of 5 steps: views (n, 2, 5, 3) and poses (n, 2, 5, 2)."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, 5, 3, generator=g), torch.randn(n, 2, 5, 2, generator=g)


@pytest.fixture
def labels(tmp_path, monkeypatch) -> Labels:
    """Four pairs that were asked about before iteration 3; lines are said anew in each test."""
    monkeypatch.setattr(errors, "warn_once", errors.warn)
    made = Labels(tmp_path)
    made.ask(3, *clips(0), ABOUT)
    return made


def give(labels: Labels, pair: int | str, answer: str, who: str = "anna") -> None:
    """Answer a pair of iteration 3, or one of that name."""
    name = f"000003:{pair}"
    digest = labels.pairs()[name.removesuffix(AGAIN)].digest
    labels.answer(name, answer, who, digest)


def test_answers_are_appended_and_taken_back(labels):
    """The last answer of a person counts, none after an undo; the file only grows."""
    give(labels, 0, "left")
    give(labels, 1, "right")
    give(labels, 0, "same")
    give(labels, 1, "undo")
    give(labels, 1, "left", who="bert")
    read = labels.answers()
    assert read.lines == 5 and [row["answer"] for row in read.rows][:2] == ["left", "right"]
    assert read.valid() == {("anna", "000003:0"): "same", ("bert", "000003:1"): "left"}
    assert labels.answers(2).valid() == {
        ("anna", "000003:0"): "left",
        ("anna", "000003:1"): "right",
    }
    text = labels.csv().decode().splitlines()
    assert text[0] == "pair,answer,who,time,clips" and len(text) == 6


def test_questions_are_written_once(labels):
    """Asking again changes nothing; a pair's digest is that of clips, seed and policy."""
    first = labels.pairs()
    labels.ask(3, *clips(1), ABOUT)
    assert {k: x.digest for k, x in labels.pairs().items()} == {
        k: x.digest for k, x in first.items()
    }
    assert [bool(x.about["drawn"]) for x in first.values()] == [True, True, False, False]
    assert not labels.pairs(before=2) and len(labels.pairs(before=3)) == 4
    labels.ask(4, *clips(0), ABOUT | {"policy": "abd"})
    both = labels.pairs()
    assert both["000004:0"].digest != both["000003:0"].digest


def test_several_programs_append_at_once(labels):
    """Forty answers from eight threads are forty whole lines."""
    digest = labels.pairs()["000003:0"].digest
    with ThreadPoolExecutor(8) as pool:
        give = partial(Labels(labels.path.parent).answer, "000003:0", "left", digest=digest)
        assert len([*pool.map(give, [f"person {i}" for i in range(40)])]) == 40
    assert len(labels.answers().valid()) == 40


def test_an_answerer_is_compared_with_itself_and_with_others(labels):
    """A pair that is seen again has its sides changed; two who disagree are both kept."""
    give(labels, 0, "left")
    give(labels, f"0{AGAIN}", "right")
    give(labels, 1, "left")
    give(labels, f"1{AGAIN}", "left")
    give(labels, 0, "left", "bert")
    give(labels, 1, "right", "bert")
    assert labels.report() == {"answers": {"anna": 4, "bert": 2}, "consistent": 0.5, "agree": 0.5}
    assert len(labels.fitting(labels.answers(), labels.pairs())) == 6
    assert turned("same") == "same" and turned("left") == "right"


def test_an_iteration_reads_what_it_read(labels):
    """A continuation reads as many lines as the run did; a file that was changed is refused."""
    give(labels, 0, "left")
    assert labels.answers_at(3).lines == 1
    give(labels, 1, "right")
    assert labels.answers_at(3).lines == 1 and labels.answers_at(6).lines == 2
    text = labels.file.read_text()
    labels.file.write_text(text.replace("left", "same"))
    with pytest.raises(ValueError, match="first 1 lines are not those that iteration 3 learned"):
        labels.answers_at(3)
    labels.file.write_text(text)
    assert labels.answers_at(3).lines == 1


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "1 lines are left out: they are no JSON"),
        ("[" * 3000, "1 lines are left out: they are no JSON"),
        ('{"pair": "000003:0"}', "1 lines are left out: they have other columns"),
        ({"answer": "NaN"}, "an answer is none of left, right, same, unclear"),
        ({"answer": 3}, "1 lines are left out: they have other columns"),
        ({"who": "\x1b[2J"}, "a word is not 1 to 40 printable characters"),
        ({"clips": "\ud800"}, "a word is not 1 to 40 printable characters"),
        ({"who": ""}, "a word is not 1 to 40 printable characters"),
        ({"pair": "000009:0"}, "1 answers are about clips that are not here, 0 about other clips"),
        ({"clips": "0" * 16}, "0 answers are about clips that are not here, 1 about other clips"),
    ],
)
def test_hostile_lines_are_left_out(labels, line, says, capsys):
    """Each is said in one line without control characters, kept in the file, and not used."""
    give(labels, 0, "left")
    row = labels.answers().rows[0] | {"pair": "000003:1"}
    text = line if isinstance(line, str) else json.dumps(row | line)
    with labels.file.open("a") as file:
        file.write(f"{text}\n")
    read = labels.answers()
    fit = labels.fitting(read, labels.pairs())
    assert fit == {("anna", "000003:0"): "left"} and read.lines == 2
    said = capsys.readouterr().err
    assert says in said and len(set(said.splitlines())) == 1 and "\x1b" not in said
    assert text in labels.file.read_text()


def test_hostile_files_are_left_out(labels, capsys, monkeypatch):
    """NaN, cut, foreign, linked and huge files of clips: one line each, and the rest counts."""
    view, pose = clips(1)
    view[0, 0, 0, 0] = torch.nan
    labels.ask(4, view, pose, ABOUT)
    whole = (labels.path / "000003.safetensors").read_bytes()
    (labels.path / "000005.safetensors").write_bytes(whole[:-9])
    (labels.path / "000006.safetensors").symlink_to(labels.path / "000003.safetensors")
    (labels.path / "000007.safetensors").write_bytes(whole.replace(b"questions 1", b"questions 9"))
    big = labels.path / "000008.safetensors"
    with big.open("wb") as file:
        file.truncate(module.LARGEST_QUESTIONS + 1)
    assert set(labels.pairs()) == {f"000003:{i}" for i in range(4)}
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5 and all("its pairs are left out" in line for line in said)
    with labels.file.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match="is larger than"):
        labels.answers()


def test_an_answer_that_is_none_is_refused(labels):
    """Nothing is written for it."""
    for answer, who, says in (("up", "anna", "none of"), ("left", "a\nb", "printable")):
        with pytest.raises(ValueError, match=says):
            labels.answer("000003:0", answer, who, "0")
    assert not labels.file.exists()


def test_a_full_disk_loses_only_what_it_says(labels, monkeypatch):
    """Half of a line is refused, as is half that a kill left; neither joins the next answer."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:9]))
        with pytest.raises(OSError, match="No space left on device"):
            give(labels, 0, "left")
    give(labels, 1, "right")
    give(labels, 2, "same")
    assert [*labels.answers().valid().values()] == ["right", "same"]
    assert len(labels.file.read_bytes().splitlines()) == 3


def test_the_table_holds_no_formula(labels):
    """A spreadsheet would run it."""
    give(labels, 0, "left", "=1+1")
    assert labels.csv().decode().splitlines()[1].startswith("000003:0,left,'=1+1,")


def test_each_file_is_read_once(labels, monkeypatch):
    """What has not changed is known; what has is read again."""
    read, files = module.read_pairs, []
    monkeypatch.setattr(module, "read_pairs", lambda file: files.append(file.stem) or read(file))
    for _ in range(2):
        assert len(labels.pairs()) == 4
    labels.ask(4, *clips(1), ABOUT)
    assert len(labels.pairs()) == 8 and files == ["000003", "000004"]
    os.utime(labels.path / "000003.safetensors", ns=(1, 1))
    assert len(labels.pairs()) == 8 and files[2:] == ["000003"]


def test_answers_of_another_run(labels, tmp_path):
    """They are copied with their clips, once; a run without answers is refused."""
    give(labels, 2, "right")
    other = tmp_path / "other"
    other.mkdir()
    new = Labels(other)
    for _ in range(2):
        new.adopt(tmp_path)
    fit = new.fitting(new.answers(), new.pairs(before=0))
    assert fit == {("anna", "earlier-000003:2"): "right"}
    with pytest.raises(ValueError, match="this run has no answers"):
        Labels(tmp_path / "third").adopt(Path("nowhere"))
    assert new.waiting() == []
    new.ask(5, *clips(1), ABOUT)
    assert new.waiting() == [f"000005:{i}" for i in range(4)] and not new.waiting(before=4)
    new.answer("000005:1", "left", "bert", new.pairs()["000005:1"].digest)
    assert new.waiting() == ["000005:0", "000005:2", "000005:3"]


def test_answers_of_many_runs(labels, tmp_path):
    """However often they are adopted, their names stay short and apart; a link is refused."""
    run = tmp_path
    for i in range(6):
        give(Labels(run), 0, "left") if i == 0 else None
        new = Labels(tmp_path / f"{i}")
        new.path.parent.mkdir()
        new.adopt(run)
        new.ask(3, *clips(9 + i), ABOUT)
        new.answer("000003:1", "same", "bert", new.pairs()["000003:1"].digest)
        run = new.path.parent
    assert len(new.fitting(new.answers(), new.pairs())) == 7
    assert max(new.pairs()) == "earlier6-000003:3"
    (new.path / "000004.safetensors").symlink_to(labels.path / "000003.safetensors")
    (tmp_path / "last").mkdir()
    with pytest.raises(OSError, match="symbolic links"):
        Labels(tmp_path / "last").adopt(run)

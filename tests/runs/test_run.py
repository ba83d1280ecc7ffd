"""The run directory: complete files, the last checkpoints, and rows that survive a crash."""

import errno
import json
import os
import resource

import pytest
import torch
from safetensors.torch import save_file

from gpusim_rl.core.files import part_of, write_whole
from gpusim_rl.core.provenance import record, versions
from gpusim_rl.runs.checkpoints import KEEP, load
from gpusim_rl.runs.run import Run, newest
from gpusim_rl.training.progress import Stopwatch
from tests.command_lines import one_line
from tests.worlds import differing, make_env, make_ppo

CONFIG = {"task": {"name": "quadruped"}, "seed": 1, "note": "aé"}


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path / "deep" / "run", CONFIG)


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    """A small state."""
    return {"policy/x": torch.arange(3.0)}


def test_create(run):
    """A new run has configuration, versions, room for checkpoints, and nothing else."""
    files = {".lock", "checkpoints", "config.yaml", "versions.json"}
    assert {p.name for p in run.path.iterdir()} == files
    assert Run.open(run.path).config == CONFIG
    assert json.loads((run.path / "versions.json").read_text()) == record()
    assert versions()["torch"] in (torch.__version__, torch.__version__.split("+")[0])


def test_create_leaves_what_is_there(run, tmp_path):
    """Anything inside is refused, an empty directory is taken, a file is an OSError."""
    with pytest.raises(ValueError, match=r"run_dir=.* is not empty: .*resume="):
        Run.create(run.path, CONFIG)
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "empty", CONFIG)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OSError, match=f"run_dir={path} cannot be written: "):
            Run.create(path, CONFIG)


def test_write_whole(tmp_path):
    """A file is replaced whole, under the eyes of readers; no part remains, also on failure."""
    path = tmp_path / "file"
    write_whole(path, b"one")
    with open(path, "rb") as reader:
        write_whole(path, b"another")
        assert reader.read() == b"one"
    assert path.read_bytes() == b"another" and os.listdir(tmp_path) == ["file"]
    with pytest.raises(TypeError):
        write_whole(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"another" and os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """And no part of the write that broke off."""
    path, (soft, hard) = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_whole(path, b"one")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # bytes of any file
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'$"):
            write_whole(path, b"x" * 300_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"one" and os.listdir(tmp_path) == ["file"]


def test_checkpoints(run):
    """One comes back bit by bit with its note; the last three stay."""
    state = {"a/b": torch.randn(3, 2), "n": torch.tensor(2**40), "x": torch.zeros(0)}
    state |= {"mask": torch.tensor([True, False]), "view": torch.randn(4, 6)[:, ::2]}
    for i in (1, 20, 300, 4000):
        run.checkpoints.save(i, state | {"i": torch.tensor(i)}, {"task": "quadruped"})
    files = {"manifest.json", *(f"{i:06d}.safetensors" for i in (20, 300, 4000))}
    assert KEEP == 3 and {p.name for p in run.checkpoints.path.iterdir()} == files
    tensors, note = load(run.checkpoints.latest())
    assert note == {"iteration": "4000", "task": "quadruped"} and int(tensors.pop("i")) == 4000
    assert differing(tensors, state) == []
    assert all(tensors[name].dtype == x.dtype for name, x in state.items())


def test_more_than_a_million_iterations(run):
    """The last checkpoint is the last also where its number outgrows six digits."""
    for i in (999_998, 999_999, 1_000_000, 1_000_001):
        run.checkpoints.save(i, {"i": torch.tensor(i)}, {})
    assert int(load(run.checkpoints.latest())[0]["i"]) == 1_000_001


def test_load_refuses(run, tmp_path):
    """Missing, empty, cut, not safetensors or not ours: one line with its name."""
    path = run.checkpoints.save(1, {"a": torch.arange(100.0)}, {})
    data = path.read_bytes()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*nowhere"):
        load(tmp_path / "nowhere")
    for broken in (b"", data[:4], data[:60], data[:-1], b"PK" + data):
        path.write_bytes(broken)
        with one_line(f"{path.name} is not a whole checkpoint"):
            load(path)
    save_file({"a": torch.zeros(1)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="not a checkpoint of gpusim_rl"):
        load(path)


def test_a_checkpoint_fits_or_changes_nothing(run):
    """PPO's whole state passes through a file; a misfit is named."""
    ppo = make_ppo(make_env("quadruped", 8))
    ppo.iteration()
    state, _ = load(run.checkpoints.save(1, ppo.state(), {}))
    before = ppo.state()
    assert differing(state, before) == []
    state["env/time"] = state["env/time"][:4]
    with pytest.raises(ValueError, match="the file does not fit this run: 'env/time'"):
        ppo.load(state, "the file")
    assert differing(ppo.state(), before) == []


@pytest.fixture
def rows(run) -> list[dict[str, float]]:
    """Four rows that were logged."""
    assert run.rows() == []
    rows = [{"iteration": i, "return": i / 3} for i in range(1, 5)]
    for row in rows:
        run.log(row)
    return rows


def test_rows(run, rows):
    """Rows come back; a cut one is left out; a rewind drops it and what came later."""
    assert run.rows() == rows
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 5, "ret')
    assert run.rows() == rows
    assert run.rewind(3) == rows[:3] == run.rows()
    run.log(rows[3])
    assert run.rows() == rows and (run.path / "metrics.jsonl").read_text().count("\n") == 4


def test_damaged_rows(run, rows):
    """One costs that row and is counted; a line without end is not read whole."""
    file = run.path / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], lines[1].replace("{", "\x00"), *lines[2:]]))
    assert run.rows() == [rows[0], *rows[2:]] and run.damaged() == {"metrics.jsonl": 1}
    os.truncate(file, 40 << 30)
    assert run.rows() == [rows[0], *rows[2:]] and run.damaged() == {"metrics.jsonl": 2}
    assert run.rewind(3) == [rows[0], rows[2]] and run.damaged() == {"metrics.jsonl": 2}
    assert run.rows() == [rows[0], rows[2]] and run.damaged() == {}


def test_checkpoints_that_change_meanwhile(run, state, monkeypatch):
    """Where a training replaces all checkpoints while they are read, the new ones are taken."""
    checkpoints = run.checkpoints
    for i in range(3):
        checkpoints.save(i, state, {})
    listed, saved = checkpoints.saved(), checkpoints.saved

    def then_others():
        monkeypatch.setattr(checkpoints, "saved", saved)
        for i in range(10, 14):
            checkpoints.save(i, state, {})
        return listed

    monkeypatch.setattr(checkpoints, "latest", lambda: listed[-1])
    monkeypatch.setattr(checkpoints, "saved", then_others)
    assert checkpoints.restore(print)[2].stem == "000013"


@pytest.mark.parametrize("room", [0, 1, 2])
def test_old_checkpoints_make_room(run, state, monkeypatch, room):
    """On a full disk the oldest checkpoints are removed for the new one, and one always stays."""
    checkpoints = run.checkpoints
    for i in (999998, 999999, 1000000):
        checkpoints.save(i, state, {}, success=1.0 if i == 999998 else None)

    def full(path, data):
        if len(checkpoints.saved()) > room:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        write_whole(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("gpusim_rl.runs.checkpoints.write_whole", full)
        if room:
            checkpoints.save(1000001, state, {})
        else:
            with pytest.raises(OSError, match="quota"):
                checkpoints.save(1000001, state, {})
    kept = {0: ["1000000"], 1: ["1000000", "1000001"], 2: ["999999", "1000000", "1000001"]}
    assert [path.stem for path in checkpoints.saved()] == kept[room]
    assert checkpoints.restore(print)[2].stem == kept[room][-1]


def test_a_part_is_no_checkpoint(tmp_path):
    """What a killed process has left of a checkpoint is not taken for one, and goes."""
    part = part_of(tmp_path / "run" / "checkpoints" / "000007.safetensors")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    assert Run(tmp_path / "run").checkpoints.saved() == []
    assert not list(tmp_path.glob("**/*.safetensors"))
    Run.create(tmp_path / "run", CONFIG, again=True)
    assert not part.exists()


def test_newest(tmp_path):
    """The one with the newest checkpoint, at any depth, and with a configuration."""
    with pytest.raises(FileNotFoundError, match="no run with a checkpoint"):
        newest(tmp_path)
    for name, time in (("a/x", 300), ("a/y", 500), ("b", 400), ("c", 900)):
        run = Run.create(tmp_path / name, CONFIG)
        os.utime(run.checkpoints.save(1, {"a": torch.zeros(1)}, {}), (time, time))
    (tmp_path / "c" / "config.yaml").unlink()
    assert newest(tmp_path) == tmp_path / "a" / "y"


def test_stopwatch():
    """It goes on from where it stood; what is skipped counts neither beside nor in a pause."""
    watch = Stopwatch(100.0)
    assert 100.0 < watch.seconds <= watch.seconds < 160.0
    watch.start, watch.last = watch.start - 1000.0, watch.last - 1000.0
    assert 1100.0 < watch.seconds < 1160.0
    with watch.paused():
        watch.skip()
    assert 100.0 <= watch.seconds < 160.0

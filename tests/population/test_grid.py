"""Multiruns, with a small program in the place of trainings."""

import os
import signal
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gpusim_rl.config import command_line
from gpusim_rl.core.files import new_directory
from gpusim_rl.population import clusters
from gpusim_rl.population import start as multirun
from tests.reports import make_run

FAKE = """
import os, signal, sys, time
from pathlib import Path
words = dict(word.split("=", 1) for word in sys.argv[1:])
for name in ("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RESTART_COUNT"):
    print(name, os.environ.get(name))
print("words", *sys.argv[1:])
print("a warning", file=sys.stderr)
if words["seed"] == "2":
    os.kill(os.getpid(), signal.SIGKILL)
if words["seed"] == "3":
    sys.exit(4)
if words["seed"] in "89":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    Path(words["run_dir"].strip("'"), "ready").touch()
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """An empty working directory, where trainings are FAKE."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(multirun, "PROGRAM", (sys.executable, "-c", FAKE))
    return tmp_path


def start(*words: str) -> int:
    """The exit code of train.py -m in this process."""
    try:
        multirun.run(command_line.check_multirun(["-m", "task=cartpole", *words]))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_failed_and_killed_runs(monkeypatch, capfd):
    """The others go on; the last line names both, and devices are taken in turn."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert start("seed=1,2,3,4", "jobs=2") == 1
    out, err = capfd.readouterr()
    *warnings, last = err.splitlines()
    assert last == ("error: 2 of 4 runs failed: seed_2 (ended by signal 9), seed_3 (exit code 4)")
    assert sorted(warnings) == [f"seed_{i}: a warning" for i in (1, 2, 3, 4)]
    assert {x.split()[-1] for x in out.splitlines() if "CUDA_VISIBLE" in x} == {"3", "5"}
    (home,) = Path("runs/multirun").iterdir()
    words = f"export=none task=cartpole log.group='{home.name}' run_dir='{home}/seed_1'"
    assert f"seed_1: words {words.replace(' log', ' seed=1 log', 1)}\n" in out
    assert [file.name for file in home.iterdir()] == ["search.yaml"]
    about = yaml.safe_load((home / "search.yaml").read_text())
    assert about["swept"] == {"seed": ["1", "2", "3", "4"]} and about["words"][-1] == "jobs=2"


def test_one_at_a_time(monkeypatch, capfd):
    """Without jobs= in order, with the terminal and all devices; so has one that names its own."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert start("seed=5,1,4", "log.group=mine") == 0
    out, err = capfd.readouterr()
    seeds = [line.split("seed=")[1][0] for line in out.splitlines() if line.startswith("words")]
    assert seeds == ["5", "1", "4"] and err == "a warning\n" * 3
    assert out.count("CUDA_VISIBLE_DEVICES 3,5\n") == 3 == out.count(" log.group=mine run_dir=")
    assert start("seed=5,1", "device=cuda:1", "jobs=2") == 0
    assert capfd.readouterr().out.count("CUDA_VISIBLE_DEVICES 3,5\n") == 2


def test_equal_names_share_no_directory(monkeypatch, capfd):
    """Two multiruns of a second, runs of equal values, several processes."""
    monkeypatch.setattr(multirun, "datetime", SimpleNamespace(now=lambda: datetime(2026, 1, 2)))
    for _ in range(2):
        assert start("seed=1,1", "jobs=2") == 0
    homes = [path.name for path in sorted(Path("runs/multirun").iterdir())]
    assert homes == ["2026-01-02_00-00-00", "2026-01-02_00-00-00-2"]
    out = capfd.readouterr().out
    assert all(
        f"run_dir='runs/multirun/{home}/seed_1{x}'" in out for home in homes for x in ("", "-2")
    )
    threads = [threading.Thread(target=new_directory, args=(Path("a/b"),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([*Path("a").iterdir()]) == 20
    assert start("run_dir=x,y", "seed=1") == 0
    assert "run_dir=x seed=1 log.group=" in capfd.readouterr().out
    Path("file").touch()
    with pytest.raises(OSError, match="file/run cannot be written: "):
        new_directory(Path("file/run"))


def test_a_signal_ends_all(capfd):
    """Ctrl-C lets all that run end and starts no other. The last line names what is not done."""

    def interrupt() -> None:
        while len([*Path.cwd().glob("runs/multirun/*/*/ready")]) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert start("seed=8,9,4,1", "jobs=2") == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    thread.join()
    assert capfd.readouterr().err.endswith(
        "error: 4 of 4 runs were stopped: seed_8 (exit code 143), seed_9 (exit code 143), "
        "seed_4 (not begun), seed_1 (not begun)\n"
    )


def test_a_process_of_torchrun(monkeypatch, capfd):
    """The first alone makes directories; each training has its number in the store."""
    for name, value in dict(RANK=1, WORLD_SIZE=2, TORCHELASTIC_RESTART_COUNT=1).items():
        monkeypatch.setenv(name, str(value))
    assert start("seed=1,4") == 0
    out = capfd.readouterr().out
    assert [f"TORCHELASTIC_RESTART_COUNT {i}\n" in out for i in (200, 201)] == [True, True]
    assert not [*Path.cwd().iterdir()] and "run_dir=" not in out
    assert start("seed=1,4", "jobs=2") == 2


def test_the_report_of_all(monkeypatch, capsys):
    """It is written after the last to end, also if one failed; its failure is one line."""
    codes = {"1": [None, None, 0], "2": [3], "4": [0]}

    def start_fake(job: multirun.Job, place: int) -> SimpleNamespace:
        seed = next(word for word in job.overrides if word.startswith("seed="))
        path = Path(job.overrides[-1].removeprefix("run_dir=").strip("'"))
        path.rmdir()
        make_run(path, seed)
        left = [*codes[seed[-1]]]

        def poll() -> int | None:
            assert not [*Path.cwd().glob("runs/multirun/*/report.html")]
            return left.pop(0)

        return SimpleNamespace(poll=poll, terminate=lambda: None)

    monkeypatch.setattr(multirun, "on_this_machine", lambda sweep: start_fake)
    assert start("seed=1,2,4", "jobs=3") == 1
    (home,) = Path("runs/multirun").iterdir()
    out, err = capsys.readouterr()
    assert out == f"wrote {home}/report.html, which compares 3 runs\n"
    assert err == "error: 1 of 3 runs failed: seed_2 (exit code 3)\n"
    (home / "report.html").unlink()
    assert start("seed=1,4", "report=false") == 0 and capsys.readouterr() == ("", "")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert start("seed=1,4") == 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "report.html: a report needs matplotlib" in err


def test_the_best_run_is_exported(monkeypatch, capfd):
    """By success, then by return, after a table of all; export= or gate= get what they say."""
    scores = {"1": (0.5, 9), "2": (0.75, 1), "4": (0.75, 2), "5": (None, 99), "6": (None, 1)}
    scores["7"] = (1.0, 1)
    lines: list[list[str]] = []

    def start_fake(job: multirun.Job, place: int) -> SimpleNamespace:
        seed = next(word for word in job.overrides if word.startswith("seed="))
        lines.append(job.overrides)
        assert job.path
        job.path.rmdir()
        success, total = scores[seed[-1]]
        make_run(job.path, seed, eval={"success": success, "return": total, "time_s": 12.34})
        return SimpleNamespace(poll=lambda: 3 * (seed == "seed=7"), terminate=lambda: None)

    monkeypatch.setattr(multirun, "on_this_machine", lambda sweep: start_fake)
    program = "import sys; print('exporting', *sys.argv[1:])"
    monkeypatch.setattr(multirun, "EXPORT", (sys.executable, "-c", program))
    assert start("seed=1,2,4,5,7", "report=false") == 1
    (home,) = Path("runs/multirun").iterdir()
    assert all("export=none" in words for words in lines) and len(lines) == 5
    *rows, best, export = capfd.readouterr().out.splitlines()
    assert [x.split() for x in rows] == [
        ["run", "success", "return", "seconds"],
        ["seed_1", "0.500", "9.000", "12.340"],
        ["seed_2", "0.750", "1.000", "12.340"],
        ["seed_4", "0.750", "2.000", "12.340"],
        ["seed_5", "unknown", "99.000", "12.340"],
        ["seed_7", "exit", "code", "3"],
    ]
    assert best == "best of 5: seed_4, success 0.750"
    assert export == f"exporting run='{home}/seed_4' mode=export"
    for word in ("export=controller", "gate=true"):
        lines.clear()
        assert start("seed=1,2", "report=false", word) == 0
        assert not [words for words in lines if "export=none" in words]
        assert "best of" not in capfd.readouterr().out
    assert start("seed=5,6", "report=false") == 0
    assert "seed_5, success unknown\n" in capfd.readouterr().out
    monkeypatch.setattr(multirun, "EXPORT", (sys.executable, "-c", "raise SystemExit(1)"))
    assert start("seed=1,2", "report=false") == 0
    assert capfd.readouterr().err.endswith("seed_2 could not be exported\n")


def test_a_cluster(here, capfd):
    """hydra/launcher= hands the runs to submitit; a resource that it lacks is one line."""
    pytest.importorskip("submitit")
    local = "hydra/launcher=submitit_local"
    assert start("seed=1,2,3", local, "hydra.launcher.timeout_min=5") == 1
    (home,) = Path("runs/multirun").iterdir()
    out, err = capfd.readouterr()
    assert out.count("its output is ") == 3 and [*home.glob("cluster/*.out")]
    assert err == "error: 2 of 3 runs failed: seed_2 (ended by signal 9), seed_3 (exit code 4)\n"
    assert start("seed=1,2", local, "hydra.launcher.nodes=x") == 2
    assert start("seed=1,2", "hydra/launcher=submitit_slurm") == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 2 and "srun" in err
    assert [*Path("runs/multirun").iterdir()] == [home]


def test_resources_of_slurm(here, monkeypatch, capfd):
    """hydra.launcher.KEY= becomes a line of a job for sbatch; a failed job is one line."""
    pytest.importorskip("submitit")
    for name, script in {
        "srun": "",
        "sbatch": f"cp $1 {here}/$$.sh; echo Submitted batch job $$",
        "sacct": "exit 1",
        "scancel": "",
    }.items():
        (here / name).write_text(f"#!/bin/sh\n{script}\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(here), prepend=os.pathsep)
    monkeypatch.setattr(clusters.SlurmJob, "poll", lambda self: 7)
    words = [f"hydra.launcher.{x}" for x in ("timeout_min=9", "partition=gpu", "mem_gb=4")]
    assert start("seed=1,2", "hydra/launcher=submitit_slurm", *words) == 1
    assert "2 of 2 runs failed: seed_1 (exit code 7)" in capfd.readouterr().err
    first, second = (file.read_text() for file in here.glob("*.sh"))
    for line in ("--time=9", "--partition=gpu", "--mem=4GB"):
        assert f"#SBATCH {line}\n" in first and f"#SBATCH {line}\n" in second


def test_without_submitit(monkeypatch, capsys):
    """A launcher whose package is missing, or that is none, is refused in one line."""
    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    for word, says in (
        ("hydra/launcher=submitit_slurm", "needs submitit: python -m pip install -e"),
        ("hydra/launcher=ray", "needs ray: python -m pip install -e"),
        ("hydra/launcher=joblib", "choose one of submitit_slurm, submitit_local, ray"),
        ("hydra.launcher.timeout_min=5", "choose one of submitit_slurm, submitit_local"),
    ):
        assert start("seed=1,2", word) == 2
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1
    assert not [*Path.cwd().iterdir()]

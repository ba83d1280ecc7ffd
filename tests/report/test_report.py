"""A report of one run, of several, and of what a stranger made."""

import base64
import html
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from gpusim_rl.commands.train import configure, train_or_exit
from gpusim_rl.config.compose import compose_plain, parse
from gpusim_rl.core.maths import wilson
from gpusim_rl.gate import command as gate
from gpusim_rl.report import command as report
from gpusim_rl.report import curves, scores, tables
from gpusim_rl.runs.summary import summarize
from gpusim_rl.training import metric_writers
from gpusim_rl.training.metric_writers import Sink
from tests.browser import CHROMIUM, chromium
from tests.command_lines import EXPORTED, TINY, command, refused, succeed
from tests.reports import EVIL, make_run, opened, words_of

SCORES = {"success": 0.75, "upright_s": None, "return": 12.5, "falls": 0.125, "episodes": 512}
CAUSES = {"still": 0.875, "off_yaw": 0.5}  # half of the robots turned wrongly, which was not judged
GATED = {"rows": [], "changed": {}, "skipped": {}, "follows": "velocity", "rotation": False}
GATED |= {"chatter": [], "adopted": None}
GATED |= {"success": {"value": 0.5, "interval": (0.4, 0.6), "of": 9}, "complaints": ["it falls"]}
GATED |= {"verdict": "fail"}
BROKEN = '<img src="data:image/svg+xml;base64,PHN2Zw==">'  # a picture that cannot be drawn


def render(*runs: Path, out: Path) -> str:
    """The page of runs."""
    report.write(list(runs), out)
    return out.read_text()


def append(run: Path, line: str) -> None:
    """Add a line to the metrics of a run."""
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f"{line}\n")


def pictures(page: str) -> list[str]:
    """The SVG pictures of a page."""
    coded = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    return [base64.b64decode(x).decode() for x in coded]


def titles(page: str) -> list[str]:
    """The titles of the panels of a page."""
    return [html.unescape(x) for x in re.findall(r"<figcaption>([^<]*)", page)]


def text_of(page: str) -> str:
    """The text of a page without tags, words apart by one space."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", words_of(page))).split())


def test_one_run(tmp_path):
    """The page has scores with intervals, causes, curves, film, differences, versions and diff."""
    versions = {"torch": "2.13", "commit": "abc", "diff": "+ a < b"}
    words = ("seed=3", "algo.gamma=0.9", "log.name=none")
    run = make_run(tmp_path / "run", *words, eval=SCORES | CAUSES, versions=versions)
    (run / "play.mp4").write_bytes(b"film")
    page = render(run, out=run / "report.html")
    text = html.unescape(re.sub(r"<[^>]*>", " ", words_of(page)))
    low, high = wilson(384, 512)
    assert f"success 0.750 {low:.3f} to {high:.3f}" in " ".join(text.split())
    assert "upright_s" not in text and "evaluation: no success" in text and "128 of 512" in text
    assert re.search(r"the episode ended early\s+64 of 512", text)
    assert re.search(r"the robot moved in the last second\s+64 of 512", text)
    assert "yaw rate was above" not in text
    assert "task ended" in text and "+ a < b" in text and "abc" in text
    assert re.search(r"algo\.gamma\s+0\.98\s+0\.9", text)
    for key in ("run_dir", "log.name", "seed "):
        assert not re.search(rf"^\s*{key}\s+\S+\s+\S+$", text, re.MULTILINE)
    for title in ("Learning", "Reward terms", "Where the time goes"):
        assert f"<h2>{title}</h2>" in page
    for title in ("Measures", "Optimization", "Speed"):
        assert f"<summary>{title}</summary>" in page
    assert f"data:video/mp4;base64,{base64.b64encode(b'film').decode()}" in page
    assert "The best run" not in page
    assert len(pictures(page)) == 8  # success, return, length; a term, a measure, a loss and so on


def test_metrics_of_another_learner(tmp_path):
    """The metrics of a learner are drawn with the labels of metrics.json, whatever their names."""
    about = {"elite_return": {"label": "return of the elite"}, "time_s": {"label": "time"}}
    about |= {"reward/*": {"label": "reward term"}, "broken": 3, "unlogged": {"label": "nothing"}}
    run = make_run(tmp_path / "run", metrics=about)
    row = {"iteration": 13, "env_steps": 1300, "elite_return": 7.0, "time_s": 1.0}
    append(run, json.dumps(row))
    names = titles(render(run, out=run / "report.html"))
    assert "return of the elite" in names and "policy loss" in names
    assert "time" not in names and "nothing" not in names


def test_labels_are_those_of_the_run(tmp_path):
    """Pictures and causes have the labels of metrics.json; a run from before it has its keys."""
    labels = {"return": {"label": "money"}, "terminated": {"label": "share that fell"}}
    run = make_run(tmp_path / "run", metrics=labels, eval=SCORES)
    page = render(run, out=run / "report.html")
    assert "money" in titles(page) and "training: share that fell" in page
    (run / "metrics.json").unlink()
    page = render(run, out=run / "report.html")
    for name in ("return", "policy loss", "steps per s", "terminated"):
        assert name in titles(page), name
    assert "training: terminated" in page and "money" not in page


def test_several_runs(tmp_path):
    """Runs that differ in the seed alone are one line with a band; the table has each run."""
    for gamma in (0.9, 0.95):
        for seed in (1, 2, 3):
            silent = (f"film_every={seed}", f"save_every={seed}")
            words = (f"algo.gamma={gamma}", f"seed={seed}", *silent)
            scores = SCORES | {"success": gamma / 2 if seed < 3 else gamma}
            make_run(tmp_path / f"g{gamma}-s{seed}", *words, rows=10 + seed, eval=scores)
    report.main([str(tmp_path)])
    page = (tmp_path / "report.html").read_text()
    text = text_of(page)
    assert "algo.gamma=0.9 3 0.600 (0.450 to 0.900)" in text
    assert "algo.gamma=0.95 3 0.633 (0.475 to 0.950)" in text
    low, high = wilson(round(0.95 * 512), 512)
    assert f"g0.95-s3 3 0.95 finished 13 / 100 {low:.3f} to {high:.3f} 0.950 12.5" in text
    assert text.index("algo.gamma=0.95 3 ") < text.index("algo.gamma=0.9 3 ")
    assert text.index("g0.95-s3 3") < text.index("g0.9-s3 3") < text.index("g0.95-s1 1")
    assert "6 finished. The best run, g0.95-s3: Finished" in text and "0.950 success" in text
    assert "algo.gamma 0.95, 0.9" in text
    first = pictures(page)[0]
    bands = [x for x in ElementTree.fromstring(first).iter() if "FillBetween" in x.get("id", "")]
    assert len(bands) == 2  # of success, one for each value


def test_several_tasks(tmp_path):
    """Runs of different tasks have a line each, and a table that is no wider than a page."""
    runs = [make_run(tmp_path / "cart"), make_run(tmp_path / "dog")]
    config = compose_plain("config", ["task=quadruped"])
    (runs[1] / "config.yaml").write_text(yaml.safe_dump(config))
    page = render(*runs, out=tmp_path / "a.html")
    assert "cartpole, quadruped · 2 runs" in page and "task.name=quadruped, " in page
    (head,) = (x for x in page.splitlines() if "<th>run<th>" in x)
    assert head.startswith("  <tr><th>run<th>task.name<th>") and head.count("<th>") == 16


def test_a_run_that_failed(tmp_path):
    """It says where and why; one without evaluation or metrics is not finished."""
    why = {"iteration": 12, "world": 4, "step": 9, "why": ["reward"], "term": "up"}
    failed = make_run(tmp_path / "failed", report=why | {"terms": {"up": 3.5}})
    page = render(failed, out=tmp_path / "a.html")
    says = "Failed after 12 of 100 iterations: world 4, step 9: reward; largest reward term up"
    assert says in page
    good = make_run(tmp_path / "good", eval={"success": 0.0})
    text = text_of(render(failed, good, out=tmp_path / "a.html"))
    assert "1 finished, 1 failed. The best run, good: Finished" in text
    earlier = make_run(tmp_path / "earlier", report=why | {"iteration": 3})
    assert "Not finished: 12 of 100 iterations" in render(earlier, out=tmp_path / "b.html")
    empty = make_run(tmp_path / "empty", rows=0)
    (empty / "metrics.jsonl").unlink()
    page = render(empty, out=tmp_path / "c.html")
    assert "Not finished: 0 of 100 iterations" in page and "There are no metrics." in page


def test_hostile_words_are_escaped(tmp_path):
    """Words of a stranger's run, in names, values and directories, are text and nothing else."""
    folder = tmp_path / EVIL.replace("/", "")
    run = make_run(folder, evil=EVIL, eval={EVIL: 0.5, "success": 0.5, "episodes": 4})
    for name, runs in (("one", [run]), ("two", [run, make_run(tmp_path / "b")])):
        page = render(*runs, out=tmp_path / f"{name}.html")
        assert "<script" not in page and "<img src=x" not in page and "&lt;script&gt;" in page
        tags = set(re.findall(r"<([a-z]\w*)[^>]*\son\w+=", words_of(page)))
        assert not tags, "an attribute that runs a script"
        for picture in pictures(page):
            ElementTree.fromstring(picture)
            assert "<script" not in picture
    assert "default-src 'none'" in page


HOSTILE = (
    '{"iteration": 1, "env_steps": 1e400, "return": NaN, "a": [1], "b": "x", "c": true}',
    '{"iteration": 1' + "0" * 400 + ', "env_steps": 5, "return": 1e308}',
    '{"iteration": 1, "env_steps": 100, "return": -1e307, "reward/a": 1e-320}',
    "{" + ", ".join(f'"reward/{i}": {i}' for i in range(5000)) + ', "iteration": 1}',
    "[" * 9000,
    '{"iteration": 1}',
)


def test_hostile_metrics(tmp_path):
    """Rows with numbers that are none, huge ones, or too many of them make a page all the same."""
    runs = [make_run(tmp_path / f"r{i}", f"seed={i}", rows=3) for i in range(len(HOSTILE))]
    for run, line in zip(runs, HOSTILE, strict=True):
        append(run, line)
    page = render(*runs, out=tmp_path / "a.html")
    assert "6 runs" in page and len(page) < 3_000_000
    assert [f"{run.name}<td" in page for run in runs] == [True] * 6


ODD = (
    {"success": -1e300, "episodes": 1e300},
    {"still": 1e308, "fell": -1e308, "success": 2, "episodes": 1e9},
    {"success": 1e308, "return": -1e308, "episodes": -1},
)


def test_scores_that_are_no_shares(tmp_path):
    """Scores of a stranger that count no episodes are shown, and not counted."""
    runs = [make_run(tmp_path / f"{i}", f"seed={i}", rows=0, eval=x) for i, x in enumerate(ODD)]
    for run in runs:
        page = render(run, out=run / "report.html")
        assert "<td>evaluation: " not in page and "success" in page
    assert "3 runs" in render(*runs, out=tmp_path / "a.html")


def test_names_that_no_picture_may_hold(tmp_path, recwarn):
    """Control characters, half a surrogate and the like are escaped; no letter is a warning."""
    names = ("高", "\0a", "a\x1b[2J", "\ud800", "a\nb", "\uffff", "a--><b>")
    row = {"iteration": 3, "env_steps": 300} | {f"reward/{name}": 1.0 for name in names}
    run = make_run(tmp_path / "run", rows=2)
    append(run, json.dumps(row))
    page = render(run, out=run / "report.html")
    names_drawn = titles(page)
    for picture in pictures(page):
        ElementTree.fromstring(picture)
    for name in ("高", r"\x00a", r"a\x1b[2J", r"\ud800", r"a\nb", r"\uffff"):
        assert name in names_drawn
    assert not [str(one.message) for one in recwarn]


def test_a_training_writes_its_report(tmp_path):
    """train.py leaves report.html, says so, and shows what was trained; also if it gives up."""
    here = tmp_path / "here"
    here.mkdir()
    words = ("task=cartpole", *TINY, "log=none", "report=true")
    said = succeed("train.py", *words, "iterations=2", "run_dir=run", cwd=here)
    assert "run/report.html" in said.splitlines()[-3]
    assert "Finished: 2 of 2 iterations." in (here / "run" / "report.html").read_text()
    worse = ("algo.learning_rate=1e30", "algo.lr_max=1e30", "iterations=20", "rollbacks=0")
    done = command("train.py", *words, *worse, "run_dir=bad", cwd=here)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert 'class="failed">Failed after' in (here / "bad" / "report.html").read_text()


def test_the_logger_gets_the_file_with_its_verdict(elsewhere, monkeypatch):
    """The gate writes into the policy before the logger has it; the exit code comes last."""
    logged = []

    class Logged(Sink):
        def add(self, file: Path) -> None:
            logged.append(file.read_bytes())

    def evaluate_file(path: Path, *_: object) -> tuple[dict, bytes]:
        path.write_bytes(path.read_bytes() + b"verdict")
        return GATED, b""

    def export(*_: object) -> None:
        Path("run/policy.onnx").write_bytes(b"onnx and ")

    monkeypatch.setattr(metric_writers, "sink", lambda *_, **__: Logged())
    monkeypatch.setattr(gate, "evaluate_file", evaluate_file)
    monkeypatch.setattr("gpusim_rl.training.trainer.export_policy", export)
    words = ("task=cartpole", *TINY, EXPORTED, "log=none", "gate=true", "iterations=1")
    with pytest.raises(SystemExit) as ended:
        train_or_exit(configure(*words, "run_dir=run"))
    assert ended.value.code == 1 and Path("run/policy.onnx").read_bytes() == b"onnx and verdict"
    assert logged == [b"onnx and verdict"]


def test_without_matplotlib(tmp_path, monkeypatch, capsys):
    """Where matplotlib is missing, a training goes on with one line, and the command names it."""
    run = make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not report.write_or_warn([run], run / "report.html")
    assert not (run / "report.html").exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"no {run}/report.html: a report needs")
    with pytest.raises(SystemExit) as ended:
        report.main([str(run)])
    assert ended.value.code == 2 and "pip install matplotlib" in capsys.readouterr().err


WRONG = {
    "": "",
    "nowhere": "nowhere is not a directory: expected that of a run, or of several",
    "empty": "empty is not a run directory, and has none below it",
    "file": "file is not a directory",
    "out=a.html": "out=a.html: expected RUN directories",
    "run out=a.txt": "out=a.txt: expected a name that ends in .html",
    "run out=": "out=: expected a name that ends in .html",
    "run out=none/a.html": "out=none/a.html: no directory none",
    "run out=dir.html": "out=dir.html is a directory",
    "run out=/proc/a.html": "out=/proc/a.html cannot be written",
    "run out=a.html out=b.html": "out=b.html: out= is given twice",
    "run seed=1": "seed=1: expected RUN directories, and perhaps out=FILE.html",
    "run --open": "--open: expected RUN directories",
    "-m run": "-m: expected RUN directories",
    "run=run": "run=run: expected RUN directories",
    "damaged": "damaged/config.yaml is not YAML",
    "foreign": "foreign/config.yaml is not the configuration of a run",
    "linked": "linked/metrics.jsonl is a link or a pipe",
    "large": "large/metrics.jsonl is larger than",
    "many": "201 runs: a page has at most 200",
    "control": r"control/\x1b[2J/config.yaml is not the configuration",
}


@pytest.fixture(scope="module")
def strange(tmp_path_factory) -> Path:
    """A directory with what WRONG names."""
    here = tmp_path_factory.mktemp("strange")
    run = make_run(here / "run")
    for name in ("damaged", "foreign", "linked", "large"):
        shutil.copytree(run, here / name)
    for name in ("empty", "dir.html", "many", "control"):
        (here / name).mkdir()
    (here / "file").touch()
    (here / "damaged" / "config.yaml").write_text("task: [")
    (here / "foreign" / "config.yaml").write_text("{}")
    (here / "linked" / "metrics.jsonl").unlink()
    (here / "linked" / "metrics.jsonl").symlink_to(here / "file")
    with open(here / "large" / "metrics.jsonl", "ab") as file:
        file.truncate(1 << 30)
    for i in range(201):
        (here / "many" / str(i)).mkdir()
        (here / "many" / str(i) / "config.yaml").touch()
    (here / "control" / "\x1b[2J").mkdir()
    (here / "control" / "\x1b[2J" / "config.yaml").write_text("{}")
    return here


@pytest.mark.parametrize("line", [line for line in WRONG if line])
def test_a_mistake_gets_one_line(strange, line, monkeypatch, capsys):
    """A wrong word ends with one line that names it, and leaves nothing behind."""
    monkeypatch.chdir(strange)
    before = sorted(strange.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        report.main(line.split())
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1 and WRONG[line] in error, error
    assert sorted(strange.rglob("*")) == before


@pytest.mark.slow
def test_the_command_says_how_it_is_called(tmp_path):
    """Without a word it prints its help and ends with 2; a mistake is answered without torch."""
    here = tmp_path / "here"
    here.mkdir()
    done = command("-m gpusim_rl report", cwd=here)
    assert done.returncode == 2 and "gpusim report RUN…" in done.stdout
    says = refused("-m gpusim_rl report", "nowhere", cwd=here, block="torch mujoco warp")
    assert "nowhere is not a directory" in says


@pytest.mark.skipif(not CHROMIUM, reason="needs apt install chromium")
def test_a_page_opens_without_a_network(tmp_path):
    """Every picture is drawn, and hostile words run nothing; a bad page is told."""
    runs = [make_run(tmp_path / f"r{i}", f"seed={i}", eval=SCORES) for i in range(3)]
    runs.append(make_run(tmp_path / "evil", evil=EVIL))
    page, bad = tmp_path / "page.html", tmp_path / "bad.html"
    report.write(runs, page)
    bad.write_text(f"<img src=http://127.0.0.1:9/a.png><script>alert(1)</script>{BROKEN}")
    with chromium() as browser:
        good, wrong = opened(browser, page), opened(browser, bad)
    assert good == ([True] * page.read_text().count("<img "), []) and good[0]
    assert wrong == ([False, False], ["http://127.0.0.1:9/a.png", "alert: 1"])


AXES = {"names": ["forward", "turn"], "units": ["m/s", "rad/s"]}
AXES |= {"bounds": {"relative": 0.08, "least": 0.03}}


def test_constant_commands_have_a_table(tmp_path):
    """Each drive has a row; what is no number, or does not fit the axes, has none."""
    run = make_run(tmp_path / "run", rows=0)
    bounds = {"relative": 0.08, "power": EVIL, EVIL: 3}
    about = {"names": ["forward", "turn"], "units": ["m/s", EVIL], "bounds": bounds}
    good = {"asked": [0.5, 0], "got": [0.62, -0.004], "failed": ["forward", EVIL]}
    bad = [7, {"asked": [1], "got": [1]}, {"asked": [EVIL, 0], "got": [0, 0]}, {"got": None}]
    for drives in ([good, *bad], EVIL, None):
        (run / "drives.json").write_text(json.dumps(about | {"drives": drives}))
        page = render(run, out=tmp_path / "page.html")
        assert ("Asked and got" in page) == (page.count("→") == 2) == isinstance(drives, list)
        assert "+0.50 → +0.62" in page or drives != [good, *bad]
        assert ("relative 0.08" in page) == isinstance(drives, list)
        assert EVIL not in page


def test_constant_commands_have_pictures(tmp_path):
    """Each axis has two, in which a drive that failed along it is a cross of another color."""
    run = make_run(tmp_path / "run", rows=0)
    drives = [{"asked": [0.5, 0], "got": [0.4, 0], "failed": ["forward"]}]
    drives += [{"asked": [x / 10, 0.1], "got": [x / 10, 0.1], "failed": []} for x in range(5)]
    (run / "drives.json").write_text(json.dumps(AXES | {"drives": drives}))
    page = render(run, out=tmp_path / "page.html")
    assert page.count('alt="asked against got"') == 4
    assert {"forward [m/s]", "turn [rad/s]"} <= {*titles(page)}
    drawn = [x for x in pictures(page) if ">asked</text>" in x]
    assert [curves.BAD in picture for picture in drawn] == [True, True, False, False]
    (run / "drives.json").unlink()
    assert "Asked and got" not in render(run, out=tmp_path / "page.html")


def test_the_first_screen(elsewhere):
    """It says success with its interval, how the run was made, and commands for its path."""
    versions = {"commit": "0123456789abcdef", "processor": "CPU of a test", "cores": "2"}
    words = ("seed=3", "algo.gamma=0.9", "threads=1", "log=none", "save_every=7", "run_dir=x")
    run = make_run(Path("run"), *words, eval=SCORES, versions=versions)
    text = text_of(render(run, out=run / "report.html")).partition(" Scores ")[0]
    low, high = wilson(384, 512)
    for words in (
        f"0.750 success {low:.3f} to {high:.3f}: 95 % interval (Wilson) of 512 episodes",
        "python train.py task=cartpole algo.gamma=0.9 iterations=100 log=none save_every=7"
        " threads=1 seed=3",
        "machine CPU of a test, 2 cores commit 0123456789ab",
        "python play.py run=run mode=web",
        "python play.py run=run mode=export out=policy.onnx",
        "python play.py run=run mode=video seconds=10 && gpusim report run",
    ):
        assert words in text
    assert "mode=gate" not in text  # without a file to judge
    (run / "policy.onnx").touch()
    assert "onnx=run/policy.onnx mode=gate" in text_of(render(run, out=run / "report.html"))


def test_commands_for_a_task_of_the_user(elsewhere, monkeypatch):
    """They allow its code, and name the run's copy of a model; each starts as others do."""
    monkeypatch.setattr(sys, "executable", "/elsewhere/bin/python")
    run = make_run(Path("run"), "task_code=here", eval=SCORES)
    commands = [line for _, line in tables.next_commands(summarize(run))]
    assert all("task_code=here" in line for line in commands if "policy.onnx mode" not in line)
    assert any("&& /elsewhere/bin/gpusim report run" in line for line in commands)
    assert all(line.startswith("/elsewhere/bin/python ") for line in commands)
    run = make_run(Path("best"), "export=none", eval=SCORES)
    (run / "policy.onnx").touch()  # of a multirun, which exports its best run
    longer = dict(tables.next_commands(summarize(run)))["Train it for longer"]
    assert longer.endswith("resume=best iterations=200 export=controller")
    run = make_run(Path("other"), "task.mjcf=model/task/model.xml", eval=SCORES)
    assert "task.mjcf=other/model/task/model.xml" in tables.training_command(summarize(run))


def test_the_command_trains_the_same(tmp_path):
    """Its words compose the configuration of the run, with its groups, recipe and curriculum."""
    words = ["task=quadruped", "recipe=robot", "terrain=rough", "seed=4", "task.weights.feet=0.1"]
    config = compose_plain("config", words)
    path = make_run(tmp_path / "run")
    (path / "config.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(config))))
    line = shlex.split(tables.training_command(summarize(path)))
    assert line[:2] == ["python", "train.py"] and len(line) == len(words) + 2
    again = compose_plain("config", line[2:])
    assert tables.plain(again) == tables.plain(config)


def test_a_command_can_be_copied(tmp_path):
    """A shell reads a path with any characters as one word, which the program reads as the path."""
    folder = tmp_path / "$(touch x) 'a b';"
    lines = dict(tables.next_commands(summarize(make_run(folder, eval=SCORES))))
    _, _, word = shlex.split(lines["Watch it"])
    (override,) = parse([word])
    assert override.key_or_group == "run" and override.value() == str(folder)
    odd = make_run(tmp_path / "a\nb", eval=SCORES)
    assert dict(tables.next_commands(summarize(odd)))["Watch it"] == ""


def test_a_score_has_three_digits():
    """And no more than three decimals; what is not 0 is not shown as 0."""
    texts = {0.99414: "0.994", 0.0752: "0.075", 139.39: "139", 68.74: "68.7", 5.346: "5.35"}
    texts |= {0.0: "0", 1.0: "1", -0.004698: "-0.005", 1.1e-4: "0.0001", 2.34e7: "2.34e+07"}
    assert {x: scores.number_text(x) for x in texts} == texts
    assert scores.number_text(12345) == "12345"


def test_the_interval_of_a_product(tmp_path):
    """Success of a robot that walks has the interval of its episodes, times `tracking`."""
    product = {"success": 0.375, "episodes_passed": 0.75, "tracking": 0.5, "episodes": 512}
    run = summarize(make_run(tmp_path / "run", eval=product))
    low, high = wilson(384, 512)
    assert scores.interval(run.scores) == (low / 2, high / 2)
    assert scores.interval(run.scores, "episodes_passed") == (low, high)
    assert scores.interval(run.scores, "tracking") is None


def test_the_end_of_a_training_in_sentences():
    """The success with its interval, then what has a unit; a task of somebody else's shows all."""
    driven = {"success": 0.6, "episodes_passed": 0.75, "tracking": 0.8, "episodes": 128}
    driven |= {"fell": 0.25, "yaw_rmse": 0.10461, "energy_per_metre": 139.4, "return": 68.7}
    first, second = scores.sentences(driven | {"time_s": 52.0}, "quadruped", 35)
    product = "96 of 128 episodes passed × 28 of 35 commands followed"
    assert first == f"success 0.600 (0.535 to 0.654): {product}, falls in 32"
    assert second == "yaw rmse 0.105 rad/s, energy per metre 139 J/m"
    hopper = {"success": 1.0, "return": 2410.0, "speed": 2.0, "falls": 0.5, "episodes": 128}
    assert scores.sentences(hopper, "hopper", 0)[1] == "return 2410, speed 2 m/s"
    own = {"success": None, "bounces": 3.25, "return": 1.0, "episodes": 4}
    assert scores.sentences(own, "ball", 0) == [
        "success unknown of 4 episodes",
        "bounces 3.25, return 1",
    ]


def test_scores_have_units_and_meanings(tmp_path):
    """A score has its unit and a line of what it means, also those of axes; others have none."""
    units = {"forward": "m/s"}
    assert scores.meaning("energy", "getup", {})[0] == "J"
    assert scores.meaning("jerk", "reach_pose", {})[0] == "rad/s³"
    assert scores.meaning("action_rate", "drone", {}) != scores.meaning("action_rate", "ant", {})
    assert scores.meaning("bias_forward", "quadruped", units)[0] == "m/s"
    assert "forward" in scores.meaning("not_forward", "quadruped", units)[1]
    assert scores.meaning("mine", "own", {}) == ("", "")
    run = make_run(tmp_path / "run", rows=0, eval={"upright_s": 2.0})
    page = text_of(render(run, out=tmp_path / "a.html"))
    assert "upright_s 2 s time from which the pole stays upright" in page


def test_a_long_run_has_a_small_page(tmp_path):
    """Curves are sampled: ten times the rows make a page no larger by more than a tenth."""
    sizes = []
    for rows in (1000, 10_000):
        run = make_run(tmp_path / str(rows), rows=rows)
        sizes.append(len(render(run, out=tmp_path / f"{rows}.html")))
    assert sizes[1] < 1.1 * sizes[0] and sizes[1] < 200_000


def test_shares_of_the_time_are_one_band(tmp_path):
    """It says the mean share of each part, and of the rest; of what is no share there is none."""
    run = make_run(tmp_path / "run")
    page = render(run, out=tmp_path / "a.html")
    assert "physics 40 %" in text_of(page) and "other 60 %" in text_of(page)
    row = {"iteration": 13, "env_steps": 1300, "share/physics": 1.0, "share/update": 0.9}
    append(run, json.dumps(row))
    assert "Where the time goes" not in render(run, out=tmp_path / "b.html")

"""The registry: versions by digest, aliases with a history, releases that the gate passed."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpusim_rl import registry
from gpusim_rl.commands import registry as commands
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.commands.registry import RefusedError
from gpusim_rl.deploy.onboard.verdict import digest, read_verdict, with_verdict
from gpusim_rl.gate import command as gate
from gpusim_rl.serve import registry_page
from gpusim_rl.serve.registry import RELEASED, Registry, interface
from tests.command_lines import one_line, run_here
from tests.gate.test_gate import TINY
from tests.serving import NAME, PASS, demo_with

FAIL = PASS | {"verdict": "fail", "complaints": ["normal: falls 0.5"]}


def agree(store: Registry) -> bool:
    """Whether database and alias files agree."""
    return bool(alias_files(store)) and not store.outdated()


def alias_files(store: Registry) -> list[Path]:
    return [*store.folder.glob("*.json")]


# -- versions --------------------------------------------------------------------------------------


def test_a_version_is_the_controller(tmp_path, files):
    """A file and the same with a verdict are one version, whose claim to have passed is dropped."""
    judged = tmp_path / "judged.onnx"
    judged.write_bytes(with_verdict(files[0].read_bytes(), PASS))
    rows = [registry.add(tmp_path / "store", file) for file in (judged, files[0], files[1])]
    assert [row["version"] for row in rows] == [1, 1, 2]
    stored = tmp_path / "store" / "policies" / f"{digest(files[0].read_bytes())}.onnx"
    assert stored.read_bytes() == files[0].read_bytes()
    assert [row["verdict"] for row in registry.list(tmp_path / "store", NAME)] == [None, None]


def test_the_lineage_is_of_hashes(tmp_path, files):
    """A version names the run's configuration and last checkpoint, labels, parent and commit."""
    run, labels = tmp_path / "run", tmp_path / "labels.jsonl"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("000001", "000002"):
        (run / "checkpoints" / f"{name}.safetensors").write_text(name)
    (run / "config.yaml").write_text("seed: 1")
    labels.write_text("{}")
    shutil.copy(files[1], run / "policy.onnx")
    first = registry.add(tmp_path / "store", files[0])
    row = registry.add(tmp_path / "store", run / "policy.onnx", labels=labels, parent=1)
    expected = {"parent": first["digest"], "iteration": 1, "run": "demo"}
    paths = {"config": run / "config.yaml", "labels": labels}
    paths |= {"checkpoint": run / "checkpoints" / "000002.safetensors"}
    expected |= {key: commands.digest(path)["sha256"] for key, path in paths.items()}
    assert row["lineage"].items() >= expected.items() and len(row["lineage"]["commit"]) == 40


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda data: data.replace(b"trunk", b"trUnk", 1), "was changed after its export"),
        (lambda data: data + b" ", "is not an ONNX file"),
        (lambda data: with_verdict(data, PASS).replace(b'"pass"', b'"PASS"'), "was edited after"),
        (lambda data: b"another program's", "is not an ONNX file"),
    ],
)
def test_files_that_are_not_added(tmp_path, files, change, says):
    """An edited file, an edited verdict and another program's file are refused in one line."""
    path = tmp_path / "policy.onnx"
    path.write_bytes(change(files[0].read_bytes()))
    with one_line(says):
        registry.add(tmp_path / "store", path)


ADDER = """
import sys
from gpusim_rl import registry
for file in sys.argv[2:]:
    registry.add(sys.argv[1], file)
"""


def test_processes_add_together(tmp_path):
    """Of policies that two processes add at once, one of them twice, each becomes one version."""
    files = [demo_with(tmp_path, number) for number in range(6)]
    lines = [
        [sys.executable, "-c", ADDER, tmp_path / "many", *files[n::2], files[n]] for n in (0, 1)
    ]
    assert not any([process.wait() for process in [subprocess.Popen(line) for line in lines]])
    rows = registry.list(tmp_path / "many")
    assert [x["version"] for x in rows] == [*range(1, 7)] and len({x["digest"] for x in rows}) == 6
    assert all(Registry(tmp_path / "many").is_whole(x["digest"]) for x in rows)


def promote_forever(folder: Path) -> None:
    """Release and roll back at random, and never end."""
    store, rng = Registry(folder), random.Random(os.getpid())
    while True:
        alias = rng.choice([RELEASED, "candidate"])
        with suppress(ValueError):  # it is there already, or was the first
            if rng.random() < 0.5:
                store.promote(NAME, rng.randint(1, 3), alias)
            else:
                store.rollback(NAME, alias)


def test_a_kill_leaves_all_whole(store):
    """Whatever a killed process was at, database and alias files agree when opened again."""
    rng, last = random.Random(0), 6
    for number in range(1, last + 1):
        if not (pid := os.fork()):
            try:
                promote_forever(store.folder)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.0, 0.3))
        while number == last and not store.history(NAME):  # on a busy machine
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        again = Registry(store.folder)
        assert not again.outdated()
        for about in (json.loads(file.read_text()) for file in alias_files(again)):
            assert again.is_whole(about["sha256"])
            assert about["version"] == again.trail(NAME, about["alias"])[-1]
    assert store.history(NAME)


def test_opening_writes_what_a_killed_process_did_not(store):
    """An event without its alias file, as a kill between the two leaves it, is made up for."""
    store.promote(NAME, 1, "candidate")
    file = store.folder / f"{NAME}.candidate.json"
    for text in ("", json.dumps({"version": 3})):
        file.write_text(text)
        assert agree(Registry(store.folder)) and json.loads(file.read_text())["version"] == 1


# -- aliases ---------------------------------------------------------------------------------------


def test_an_alias_can_be_rolled_back_again_and_again(store):
    """Three releases, two roll-backs, a third refused; a former version can be released anew."""
    for number in (1, 2, 3):
        store.promote(NAME, number, RELEASED, f"reason {number}")
    steps = [registry.rollback(store.folder, NAME, RELEASED)["version"] for _ in range(2)]
    assert steps == [2, 1] and agree(store)
    with pytest.raises(ValueError, match="released of quadruped had no version before"):
        store.rollback(NAME, RELEASED)
    for number in (3, 2, 3):
        store.promote(NAME, number, RELEASED)
    assert [store.rollback(NAME, RELEASED)["version"] for _ in range(3)] == [2, 3, 1]
    rows = registry.history(store.folder, NAME, RELEASED)
    assert [row["version"] for row in rows] == [1, 2, 3, 2, 1, 3, 2, 3, 2, 3, 1]
    assert [row["action"] for row in rows[2:4]] == ["promote", "rollback"]
    assert (rows[0]["by"], rows[0]["why"]) == ("ada", "reason 1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", rows[0]["at"])


def test_an_alias_is_a_whole_file(store, files):
    """What robots poll names the version, its digest and its file, which holds its verdict."""
    store.promote(NAME, 2, RELEASED)
    alias = json.loads((store.folder / f"{NAME}.{RELEASED}.json").read_text())
    assert (alias["version"], alias["sha256"]) == (2, digest(files[1].read_bytes()))
    data = (store.folder / alias["file"]).read_bytes()
    assert digest(data) == alias["sha256"]
    assert (read_verdict(data) or {})["verdict"] == "pass"
    store.promote(NAME, RELEASED, "candidate")
    assert store.list()[1]["aliases"] == ["candidate", RELEASED]


def test_what_may_not_be_released(store, files):
    """An unjudged, a failed, a foreign, an edited and an unknown version are refused."""
    store.promote(NAME, 1, RELEASED)
    wrong: dict[str, Any] = {"has no version 9: it has 1 to 4 and the alias released": 9}
    wrong["drives or follows other things"] = registry.add(store.folder, files[3])["digest"]
    store.record_judgement(store.version(NAME, 2)["digest"], FAIL, "")
    wrong["fails the gate: normal: falls 0.5"] = 2
    store.db.execute("delete from judgement where digest=?", (store.version(NAME, 3)["digest"],))
    wrong["version 3 of quadruped is not judged"] = 3
    for says, which in wrong.items():
        with one_line(says):
            store.promote(NAME, which, RELEASED)
    path = store.path(NAME, 3)
    path.write_bytes(path.read_bytes().replace(b"trunk", b"trUnk", 1))
    with pytest.raises(ValueError, match="was edited or removed"):
        store.promote(NAME, 3, "candidate")
    assert store.version(NAME, RELEASED)["version"] == 1 and agree(store)


def test_interfaces(files):
    """Another robot, period, reading, joint or command is another interface; weights are none."""
    from gpusim_rl.deploy.runtime import Policy

    policies = [Policy(file) for file in files[:2]]
    assert interface(policies[0]) == interface(policies[1])
    changes = dict(dt=0.01, needs={"gyro": 3}, joints=["a"], command=None)
    for key, value in changes.items():
        other = Policy(files[0])
        setattr(other, key, value)
        assert interface(other) != interface(policies[0]), key


# -- the gate and comparisons ----------------------------------------------------------------------


def test_a_release_runs_the_gate(store, files, monkeypatch):
    """promote judges the file itself, records the verdict, and does so once for the same limits."""
    store.db.execute("delete from judgement")
    lines: list[str] = []
    options: dict[str, Any] = dict(words=TINY, say=lines.append)
    registry.promote(store.folder, NAME, 1, RELEASED, **options)
    assert any("normal" in line for line in lines) and registry.list(store.folder)[0]["verdict"]
    (event,) = store.history(NAME)
    assert event["evidence"]["success"] > 0.5 and event["evidence"]["changed"]
    heading, first, second = commands.version_table(store.list()[:2]).splitlines()
    assert heading.split() == "name version aliases success verdict date note".split()
    places = [heading.index(x) for x in heading.split()]
    cells = [[x[a:b].strip() for a, b in pairwise([*places, None])] for x in (first, second)]
    day, won = cells[0].pop(5), float(cells[0].pop(3))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day) and won > 0.5
    assert cells[0] == [NAME, "1", RELEASED, "pass,changed", "policy-0.onnx"]
    assert cells[1] == [NAME, "2", "", "", "unjudged", day, "policy-1.onnx"]
    quick = (*TINY, "gate.quick=true")
    with pytest.raises(ValueError, match="released needs the whole gate"):
        registry.promote(store.folder, NAME, 3, RELEASED, words=quick)
    registry.promote(store.folder, NAME, 3, "candidate", words=quick, say=lines.append)
    judged = store.judgement(store.version(NAME, 3)["digest"])
    assert judged and judged["report"]["changed"]["quick"] is True
    assert store.history(NAME, "candidate")[-1]["evidence"]["changed"]["quick"]
    with pytest.raises(ValueError, match="was judged by a quick gate: a release needs the whole"):
        store.promote(NAME, 3, RELEASED)
    with pytest.raises(ValueError, match=f"no policy is called dog: there are {NAME}"):
        registry.list(store.folder, "dog")
    monkeypatch.setattr(gate, "report_of", None)
    store.record_judgement(store.version(NAME, 2)["digest"], PASS, "")
    store.promote(NAME, 2, RELEASED)
    registry.promote(store.folder, NAME, 1, RELEASED, **options)
    assert [row["version"] for row in store.history(NAME, RELEASED)] == [1, 2, 1]


def test_a_policy_that_fails_is_not_released(store, monkeypatch, capsys):
    """Its verdict is recorded, the alias stays, and the command exits with 1 in one line."""
    store.promote(NAME, 1, RELEASED)
    monkeypatch.setattr(gate, "report_of", lambda *_, **__: {})
    monkeypatch.setattr(gate, "text", lambda _: "")
    monkeypatch.setattr("gpusim_rl.gate.judge.make_verdict", lambda *_: FAIL)
    with pytest.raises(RefusedError, match="version 2 of quadruped fails the gate: normal: falls"):
        registry.promote(store.folder, NAME, 2, RELEASED)
    assert run(capsys, "promote", NAME, "2", RELEASED, f"registry={store.folder}")[0] == 1
    assert store.version(NAME, RELEASED)["version"] == 1
    assert store.list()[1]["verdict"] == "fail"


def test_better_than_the_released_one(store, monkeypatch):
    """A comparison has to prove it; it is recorded, named in the history, and done once."""
    store.promote(NAME, 1, RELEASED)
    proved = {"proved": True, "line": "version 2 is better", "text": ""}
    refused = proved | {"proved": False, "line": "as good"}
    calls: list[Any] = []

    def compare_files(paths: list[Path], cfg: Any, *_: Any) -> dict[str, Any]:
        calls.append(([path.stem for path in paths], cfg["ab"]["prove"]))
        return proved if cfg["ab"]["prove"] == "not_worse" else refused

    monkeypatch.setattr(gate, "compare_files", compare_files)
    with pytest.raises(RefusedError, match="as good"):
        registry.promote(store.folder, NAME, 2, "candidate", better_than=RELEASED)
    for alias in ("candidate", "tried"):
        registry.promote(store.folder, NAME, 2, alias, not_worse_than=RELEASED)
    rows = store.list()
    pair = [rows[0]["digest"], rows[1]["digest"]]
    assert calls == [(pair, "better"), (pair, "not_worse")]
    evidence = [row["evidence"] for row in store.history(NAME)][1:]
    assert evidence == [{"not_worse_than": "version 2 is better"}] * 2
    with pytest.raises(ValueError, match="has no version former"):
        registry.promote(store.folder, NAME, 2, "candidate", better_than="former")


# -- files of versions -----------------------------------------------------------------------------


def test_a_version_travels_as_one_file(store, tmp_path):
    """Imported elsewhere it has its lineage and note, and has to be judged anew."""
    file = tmp_path / "walk.zip"
    registry.export(store.folder, NAME, 2, file)
    row = registry.import_version(tmp_path / "other", file)
    original = store.version(NAME, 2)
    assert (row["version"], row["digest"], row["note"]) == (1, original["digest"], original["note"])
    assert row["lineage"] == original["lineage"] | {"imported": "walk.zip"}
    with pytest.raises(ValueError, match="is not judged"):
        Registry(tmp_path / "other").promote(NAME, 1, RELEASED)


def test_an_exported_version_replaces_no_other_file(store, tmp_path):
    """Neither one of a run nor one of the registry."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("seed: 1")
    for file in (tmp_path / "run" / "config.yaml", store.folder / "registry.db"):
        before = file.read_bytes()
        with pytest.raises(ValueError, match=r"is a file of the run run|would replace a file that"):
            registry.export(store.folder, NAME, 1, file)
        assert file.read_bytes() == before


def test_files_that_are_not_imported(tmp_path, files):
    """What is no archive, lacks something, or holds another text is refused in one line."""
    file = tmp_path / "walk.zip"
    file.write_text("no archive")
    with pytest.raises(ValueError, match="is not the file of a version"):
        registry.import_version(tmp_path / "store", file)
    for about in (None, "{", "[]", '{"name": "a/b", "note": "", "lineage": {}}'):
        with zipfile.ZipFile(file, "w") as archive:
            archive.write(files[0], "policy.onnx")
            if about:
                archive.writestr("version.json", about)
        with pytest.raises(ValueError, match=r"is not the file of a version|name=a/b"):
            registry.import_version(tmp_path / "store", file)


def test_old_files_are_removed(store, files):
    """The newest stay, and what an alias is or was; rows stay, and a file can be added again."""
    for number in (1, 3):
        store.promote(NAME, number, RELEASED)
    assert registry.retain(store.folder, NAME, 1) == [2]
    assert len([*(store.folder / "policies").iterdir()]) == 2 and len(store.list()) == 3
    with pytest.raises(ValueError, match="the file of version 2 of quadruped was removed"):
        store.promote(NAME, 2, "candidate")
    assert registry.add(store.folder, files[1])["version"] == 2
    assert store.rollback(NAME, RELEASED)["version"] == 1 and store.path(NAME, 2).is_file()


# -- the command line ------------------------------------------------------------------------------


def run(capsys: Any, *words: str) -> tuple[int, str, str]:
    """(exit code, output, error) of the command in this process."""
    return run_here("gpusim registry", *words, capsys=capsys)


def test_the_command(tmp_path, capsys):
    """Each verb prints what it did, in lines or as JSON."""
    where = f"registry={tmp_path / 'store'}"
    short = digest(DEMO.read_bytes())[:12]
    assert run(capsys, "add", str(DEMO), where) == (0, f"quadruped version 1, {short}\n", "")
    done = run(capsys, "promote", NAME, short, "candidate", "why=a first try", where)
    assert done == (0, f"candidate: quadruped version 1, {short}\n", "")
    _, said, _ = run(capsys, "history", NAME, where)
    assert re.search("promote candidate to version 1: a first try\n$", said)
    _, said, _ = run(capsys, "list", where)
    assert re.fullmatch(
        r"name +version +aliases +verdict +date\n"
        r"quadruped +1 +candidate +unjudged +\d{4}-\d\d-\d\d\n",
        said,
    )
    says = "error: quadruped has no version 7: it has version 1 and the alias candidate\n"
    assert run(capsys, "promote", NAME, "7", "tried", where) == (2, "", says)
    _, said, _ = run(capsys, "list", where, "format=json")
    assert json.loads(said)[0]["aliases"] == ["candidate"]
    out = tmp_path / "v.zip"
    assert run(capsys, "export", NAME, "1", str(out), where)[1] == f"wrote {out}\n"
    assert run(capsys, "import", str(out), where)[1].startswith("quadruped version 1")
    assert run(capsys, "retain", NAME, "1", where)[1].startswith("removed the files of 0 versions")


@pytest.mark.parametrize(
    "words, says",
    [
        (["sell"], "unknown command 'sell': choose one of add, promote"),
        (["list"], "there is no registry in .*: `add` makes one"),
        (["list", "a", "b"], "list takes 0 to 1 words, not 2"),
        (["list", "why=x"], "list takes the keys registry, format, each once"),
        (["list", "format=xml"], "format=xml: choose one of text, json"),
        (["rollback", "walk", "released", "gate.robots=3"], "rollback takes the keys"),
        (["add", "nothing.onnx"], "no ONNX file nothing.onnx"),
        (["retain", "walk", "some"], "retain some: expected how many versions stay"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, elsewhere, capsys, words, says):
    """A wrong word ends the command with 2, and nothing is made."""
    code, out, error = run(capsys, *words)
    assert (code, out) == (2, "") and re.fullmatch(f"error: .*{says}.*\n", error), error
    assert [*tmp_path.iterdir()] == []


EDITS = [
    ("update version set lineage=?", "[" * 100_000),
    ("update version set lineage=?", '{"a":' * 400 + "1" + "}" * 400),
    ("update version set lineage=?", "[1]"),
    ("update version set lineage=?", "{"),
    ("update version set lineage=?", b"\xff"),
    ("update version set version=?", "first"),
    ("update version set name=?", "../../x"),
    ("update version set digest=?", "../../x"),
    ("update version set at=?", b"3"),
    ("update event set action=?", "rollback"),
    ("update event set alias=?", "../../x"),
    ("update event set evidence=?", "[1]"),
    ("update event set why=?", b"\xff"),
    ("update event set version=?", "first"),
    ("update judgement set report=?", "{}"),
    ("update judgement set report=?", "[" * 100_000),
    ("update judgement set verdict=?", b"3"),
]
VERBS = (["list"], ["list", "format=json"], ["history", NAME], ["rollback", NAME, "candidate"])
VERBS += (["promote", NAME, "2", "candidate"], ["promote", NAME, "1", RELEASED])
VERBS += (["retain", NAME, "1"], ["export", NAME, "1", "x.zip"], ["add", str(DEMO)])


@pytest.mark.parametrize("edit, value", EDITS, ids=[f"{x[7:]}{str(y)[:9]}" for x, y in EDITS])
@pytest.mark.usefixtures("elsewhere")
def test_an_edited_database_is_one_line(store, tmp_path, monkeypatch, capsys, edit, value):
    """Each command and the page; nothing is written outside of the registry."""
    monkeypatch.setattr(commands, "judge", lambda *_: None)  # it would run the gate
    store.promote(NAME, 1, "candidate")
    if "version set" in edit and "lineage" not in edit:
        edit += " where version=3"
    store.db.execute(edit, (value,))
    store.db.close()
    wrong = 0
    for verb in VERBS:
        code, out, error = run(capsys, *verb, f"registry={tmp_path / 'store'}")
        assert (code, error) == (0, "") or (code == 2 and out == ""), error
        assert code == 0 or re.fullmatch("error: .*\n", error), error
        wrong += "registry.db is damaged: " in error
    assert wrong > 0
    with suppress(ValueError):
        registry_page.contents(tmp_path / "store", NAME)
    assert {x.name for x in tmp_path.iterdir()} <= {"store", "x.zip"}
    assert not [*tmp_path.parent.glob("x*")]


@pytest.mark.parametrize("left", [b"", None, "other"])
def test_a_history_that_is_lost_is_said(store, left):
    """A database that is empty, gone or another one, beside files of versions, is no new one."""
    file = store.folder / "registry.db"
    store.db.close()
    file.unlink()
    if left is not None:
        file.write_bytes(b"")
    if left == "other":
        sqlite3.connect(file).execute("create table x (y)")
    with pytest.raises(ValueError, match=r"registry\.db is empty, but .*policies has files: rest"):
        Registry(store.folder, create=True)


def test_a_registry_that_never_was_begins(tmp_path):
    """A process that was killed before its first table left an empty file, and no version."""
    (tmp_path / "registry.db").write_bytes(b"")
    assert Registry(tmp_path).list() == []


def test_parts_of_killed_processes_are_removed(store):
    """Those of an hour ago; others may be written now, or are of other programs."""
    folders = (store.folder, store.folder / "policies")
    old = [folder / f".x.onnx.{'0f' * 8}.part" for folder in folders]
    others = [folder / name for folder in folders for name in (".x.part", f".y.{'00' * 8}.part")]
    for path in (*old, *others):
        path.write_text("")
    for path in (*old, *others[::2]):
        os.utime(path, (0, 0))
    Registry(store.folder)
    assert not any(path.exists() for path in old) and all(path.exists() for path in others)


def test_a_damaged_database_is_one_line(tmp_path, capsys):
    """What is no database of sqlite is refused, and names that are paths are, too."""
    (tmp_path / "registry.db").write_bytes(b"no database" * 100)
    code, _, error = run(capsys, "list", f"registry={tmp_path}")
    assert code == 2 and re.fullmatch("error: .*registry.db: file is not a database\n", error)
    code, _, error = run(capsys, "add", str(DEMO), "name=../x", f"registry={tmp_path / 'store'}")
    assert code == 2 and "name=../x: expected at most 64 letters" in error

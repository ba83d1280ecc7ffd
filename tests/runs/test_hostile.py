"""Files from strangers or a broken disk are refused in one line; nothing in them is executed."""

import datetime
import json
import os
import pickle
import random
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from gpusim_rl.config import resume
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.errors import one_line_errors
from gpusim_rl.core.files import part_of, write_whole
from gpusim_rl.deploy import exported, runtime
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.play.rollouts import FileRollout
from gpusim_rl.robots.model_files import check_confined, copy_model
from gpusim_rl.robots.models import compile_mjcf
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run, newest
from tests.command_lines import command, one_line, refused


@pytest.fixture
def run(tmp_path, trained) -> Run:
    """A copy of the trained run, with two checkpoints."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


def falls_back(run: Run) -> bool:
    """Whether the last checkpoint is refused in one line and the one before it used."""
    said: list[str] = []
    _, note, path = run.checkpoints.restore(said.append)
    assert len(said) == 1 and "\n" not in said[0] and f"going on from {path}" in said[0], said
    return note["iteration"] == "0" and path == run.checkpoints.saved()[-2]


def test_cuts_and_flips(run):
    """Cut at every 1,000th byte, or one of 200 bits flipped, it is never taken for whole."""
    path = run.checkpoints.latest()
    data, rng = path.read_bytes(), random.Random(0)
    broken = [data[:size] for size in range(0, len(data), 1000)]
    for place in [*range(40), *rng.sample(range(len(data)), 160)]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        broken.append(bytes(flipped))
    assert len(broken) > 300
    for content in broken:
        path.write_bytes(content)
        assert falls_back(run)
    path.write_bytes(data)
    said: list[str] = []
    assert run.checkpoints.restore(said.append)[1]["iteration"] == "2" and not said


def giant(path: Path) -> None:
    """Make a file of 40 GB that takes no room on the disk."""
    path.touch()
    os.truncate(path, 40 << 30)


class Evil:
    """Makes a directory when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("checked", [True, False], ids=["manifest", "no manifest"])
def test_what_is_no_checkpoint(run, monkeypatch, checked):
    """Pickles, a zip bomb, a directory, links: refused, with and without a manifest."""
    monkeypatch.chdir(run.path)
    path = run.checkpoints.latest()
    outside = run.path.parent / "outside.safetensors"
    shutil.copy(path, outside)
    if not checked:
        (run.checkpoints.path / "manifest.json").unlink()

    def bomb() -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("data.pkl", b"\0" * 50_000_000)

    makers = [
        lambda: path.write_bytes(pickle.dumps(Evil())),
        lambda: torch.save({"policy": Evil()}, path),
        bomb,
        lambda: path.mkdir(),
        lambda: path.symlink_to(outside),
        lambda: path.symlink_to("/dev/zero"),
        lambda: os.mkfifo(path),
        lambda: path.write_bytes((2**62).to_bytes(8, "little") + b"{}"),
        lambda: path.write_bytes((1 << 20).to_bytes(8, "little") + b"[" * (1 << 20)),
    ]
    for make in makers:
        path.unlink() if not path.is_dir() else path.rmdir()
        make()
        assert falls_back(run)
    assert not Path("executed").exists()


def test_a_checkpoint_larger_than_the_memory(run, monkeypatch):
    """It is refused before it is read or hashed."""
    path = run.checkpoints.latest()
    giant(path)
    manifest = {path.name: {"sha256": "", "bytes": 40 << 30, "success": None}}
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 17)  # 16 GiB
    for read in (load, lambda path: run.checkpoints.check(path, manifest)):
        with pytest.raises(ValueError, match="it is larger than the memory"):
            read(path)


def test_a_damaged_manifest(run):
    """Whatever it holds, one line says what to do."""
    file = run.checkpoints.path / "manifest.json"
    victim = run.path.parent / "victim"
    victim.write_text("mine")
    whole = run.checkpoints.manifest()["000002.safetensors"]
    names = (str(victim), "../config.yaml", "../../victim", "a.safetensors")
    hostile = [json.dumps({name: whole}) for name in names]
    for success in ("x", 2, [1], float("nan")):
        hostile += [json.dumps({"000002.safetensors": whole | {"success": success}})]
    hostile += ['{"a": 1}', '{"a": {}}', '{"a": {"sha256": 1, "bytes": 2}}', "{", "[]", "3", "null"]
    for text in (*hostile, "", "[" * 100_000, "\0" * 100):
        file.write_text(text)
        with one_line("manifest.json is damaged: remove it"):
            run.checkpoints.restore(print)
    assert victim.read_text() == "mine"
    file.write_bytes(b"x" * (1 << 21))
    with pytest.raises(ValueError, match="is damaged"):
        run.checkpoints.restore(print)
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match=r"manifest\.json is damaged: remove it"):
        run.checkpoints.restore(print)


HOSTILE = {  # what is written over a run's configuration
    "_target_": {"_target_": "os.system"},
    "_target_ deep": {"task": {"_target_": "os.system", "_args_": ["touch executed"]}},
    "interpolated number": {"num_envs": "${oc.env:HOME}"},
    "interpolated model": {"task": {"mjcf": "${oc.env:HOME}/x.xml"}},
    "model out of the run": {"task": {"mjcf": "/etc/passwd"}},
    "model above the run": {"task": {"mjcf": "../../secret.xml"}},
    "robot out of the run": {"robot": {"mjcf": "/etc/passwd"}},
    "robot of a package": {"robot": {"mjcf": "os:../../../etc/passwd"}},
    "task by path": {"task": {"name": "../../evil"}},
    "task by module": {"task": {"name": "os.path"}},
    "endless worlds": {"num_envs": float("inf")},
    "no worlds": {"num_envs": -5},
    "nested deep": {"algo": {"gamma": [[[[[[1]]]]]]}},
    "long list": {"algo": {"hidden": ["a"] * 1000}},
    "a date": {"algo": {"amp": datetime.date(2020, 1, 1)}},
    "a set": {"run_dir": {"a"}},
    "not finite": {"algo": {"gamma": float("nan")}},
}


def write_hostile(run: Run, what: str) -> None:
    """Write one of HOSTILE into the configuration of a run."""
    config = run.config
    for key, value in HOSTILE[what].items():
        config[key] = config[key] | value if isinstance(config.get(key), dict) else value
    (run.path / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_config(run, monkeypatch, what):
    """One that names code, reaches out of the run or is none is one line."""
    monkeypatch.chdir(run.path)
    write_hostile(run, what)
    with pytest.raises((ValueError, OSError), match=r"config\.yaml|unknown task") as error:
        resume.load_config(Run.open(run.path))
    assert "\n" not in str(error.value) and not Path("executed").exists()


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch executed']",
        "a: &a [x, x]\nb: &b [*a, *a]\ntask: [*b, *b]",
        "[" * 50_000,
        "task: {name: " + "9" * 10_000 + "}",
        "x" * (1 << 21),
        "\ud7ff\x00",
        "seed: 1" + ":1" * 400_000,
        "seed: 1" + ":1" * 200 + ".0",
        'seed: !!int {=: "1' + ":1" * 400_000 + '"}',
        "seed: !!bool x",
        'seed: !!int ""',
        "seed: !!timestamp x",
        "[{seed: 1}]",
        "task: [",
        "task: walk",
        "",
    ],
    ids="object anchors deep digits long bytes base60 float60 map60 bool int time list open "
    "word empty".split(),
)
def test_config_that_is_none(run, monkeypatch, text):
    """Text that builds objects, nests without end or is too long is refused in one line."""
    monkeypatch.chdir(run.path)
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml"):
        resume.load_config(Run.open(run.path))
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "checkpoints", "model", "checkpoints/manifest.json"]
)
def test_links_out_of_a_run(run, name):
    """A link, dangling or not, or a pipe is refused before anything is read or written."""
    file, outside = run.path / name, run.path.parent / "outside"
    if file.is_dir():
        shutil.rmtree(file)
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    for make in (lambda: file.symlink_to(outside), lambda: os.mkfifo(file)):
        make()
        with pytest.raises(ValueError, match="is a link or a pipe: a run must not contain one"):
            Run.open(run.path)
        file.unlink()
    assert not outside.exists()


def test_a_directory_for_a_checkpoint(run):
    """Where the newest checkpoint is a directory a resume goes on from the one before."""
    path = run.checkpoints.latest()
    path.unlink()
    path.mkdir()
    done = command("train.py", "resume=run", "iterations=3", "export=none", cwd=run.path.parent)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "going on from run/checkpoints/000000" in done.stderr


def test_hostile_runs_by_command(tmp_path, run):
    """train.py and play.py refuse such runs in one line, before torch is loaded."""
    write_hostile(run, "model out of the run")
    for line in (["train.py", "resume=run"], ["play.py", "run=run", "mode=export"]):
        line = refused(*line, cwd=run.path.parent, block="torch")
        assert "task.mjcf='/etc/passwd' lies outside of the run" in line


def test_a_model_is_kept_whole(tmp_path):
    """Its copy holds includes and assets by their names, and compiles alone."""
    far, near = tmp_path / "far", tmp_path / "near"
    (far / "meshes").mkdir(parents=True)
    (far / "meshes" / "rock.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
    )
    (far / "part.xml").write_text('<mujoco><asset><mesh file="rock.obj"/></asset></mujoco>')
    (far / "robot.xml").write_text(
        '<mujoco><compiler meshdir="meshes"/><include file="part.xml"/>'
        '<worldbody><geom type="mesh" mesh="rock" pos="0.123456789 0 0"/></worldbody></mujoco>'
    )
    before = compile_mjcf(str(far / "robot.xml"))
    copy = copy_model(far / "robot.xml", near)
    shutil.rmtree(far)
    after = compile_mjcf(str(copy))
    assert (before.geom_pos == after.geom_pos).all() and after.nmesh == 1
    check_confined(copy.read_text(), near, "it")


@pytest.mark.parametrize(
    "text",
    [
        '<mujoco><include file="/etc/passwd"/></mujoco>',
        '<mujoco><asset><mesh file="../secret.obj"/></asset></mujoco>',
        '<mujoco><include file="part.xml"/></mujoco>',
        '<mujoco><asset><model file="part.xml"/></asset></mujoco>',
        '<mujoco><compiler meshdir="/etc"/><asset><mesh file="passwd"/></asset></mujoco>',
        '<mujoco><asset><texture fileup="/etc/passwd"/></asset></mujoco>',
        '<mujoco xmlns="x"><include file="part.xml"/></mujoco>',
        '<mujoco xmlns:x="x"><asset><mesh file="a" x:file="b"/></asset></mujoco>',
        '<m:mujoco xmlns:m="x"><m:include file="part.xml"/></m:mujoco>',
        '<mujoco xmlns="x"><compiler meshdir="sec"/><asset><mesh file="a.stl"/></asset></mujoco>',
        '<!DOCTYPE m [<!ENTITY a "b">]><mujoco>&a;</mujoco>',
        "<mujoco",
    ],
)
def test_models_stay_where_they_are(tmp_path, text):
    """Files out of its folder and entities are refused in one line."""
    for folder in (tmp_path, None):
        with pytest.raises(ValueError) as error:
            check_confined(text, folder, "model.xml")
        assert str(error.value).startswith("model.xml: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), giant])
def test_assets_are_files_of_a_usual_size(tmp_path, make):
    """A pipe, a link or a sparse file of 40 GB beside a stranger's model is refused, not read."""
    make(tmp_path / "foot.stl")
    with pytest.raises(ValueError, match=r"model\.xml: .*foot\.stl is a link, a pipe or too large"):
        check_confined("<mujoco/>", tmp_path, "model.xml")


def test_links_for_files_that_are_not_whole_yet(tmp_path, monkeypatch):
    """What is written beside a file until it is whole does not go through a link of a stranger."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "policy.onnx"
    (tmp_path / f".policy.onnx.{os.getpid()}.part").symlink_to(victim)
    write_whole(path, b"whole")
    assert path.read_bytes() == b"whole" and len({part_of(path) for _ in range(100)}) == 100
    monkeypatch.setattr("secrets.token_hex", lambda n: "known")
    part_of(path).symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(path, b"again")
    assert path.read_bytes() == b"whole" and victim.read_text() == "mine"


def test_a_run_that_is_begun_again_has_no_links(tmp_path):
    """auto_resume in a directory with links in place of a run's files writes through none."""
    victim, path = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    for name in ("metrics.jsonl", "model/robot/model.xml"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).symlink_to(victim)
        with pytest.raises(ValueError, match="is a link or a pipe: a run must not contain one"):
            Run.create(path, {}, again=True)
        (path / name).unlink()
    assert victim.read_text() == "mine"


def test_no_checkpoint_is_looked_for_through_a_link(tmp_path, monkeypatch):
    """Neither by auto_resume nor by play.py: a linked folder is as empty."""
    outside, path = tmp_path / "outside", tmp_path / "runs" / "a"
    outside.mkdir()
    path.mkdir(parents=True)
    (outside / "000001.safetensors").write_bytes(b"x")
    (path / "config.yaml").write_text("seed: 1")
    (path / "checkpoints").symlink_to(outside)
    assert Run(path).checkpoints.saved() == []
    with pytest.raises(FileNotFoundError, match="no run with a checkpoint"):
        newest(tmp_path / "runs")
    cfg = compose_plain("config", ["auto_resume=true", f"run_dir={path}"])
    assert resume.find_earlier_run(cfg, None)["resume"] is None


def test_commands_for_the_terminal_are_shown(capsys):
    """Control characters of a stranger's file reach the terminal as text."""
    with pytest.raises(SystemExit), one_line_errors():
        raise ValueError("unknown key \x1b[2J\x1b]0;title\x07 ü \u202e")
    line = capsys.readouterr().err
    assert line == "error: unknown key \\x1b[2J\\x1b]0;title\\x07 ü \\u202e\n"


EDITS = (("dt", 1e-9), ("joint_pos", []), ("joint_pos", ["\ud800"] * 12), ("gyro", ["a", "b", "c"]))


def edited(text: str, key: str, value: object) -> str:
    """A description with another dt, or with other joints of a reading."""
    about = json.loads(text)
    for entry in about["inputs"]:
        if entry["name"] == key:
            entry["joints"] = value
    return json.dumps(about | ({"dt": value} if key == "dt" else {}))


def test_hostile_operators(tmp_path, trained):
    """A loop, a strange domain, a constant in another file, also in a branch, is refused."""
    import onnx

    for i, (kind, domain) in enumerate((("Loop", ""), ("Run", "com.stranger"), ("If", ""))):
        model = onnx.load(trained / "policy.onnx")
        inner = onnx.helper.make_node(kind if kind != "If" else "Scan", [], ["y"], domain=domain)
        graph = onnx.helper.make_graph([inner], "inner", [], [])
        node = onnx.helper.make_node("If", ["restart"], ["y"], then_branch=graph)
        model.graph.node.append(node if kind == "If" else inner)
        onnx.save(model, tmp_path / f"{i}.onnx")
        with pytest.raises(ValueError, match=r"the operator [\w.]+ is not allowed"):
            exported.check_operators(tmp_path / f"{i}.onnx")
    model = onnx.load(trained / "policy.onnx")
    for kind in ("value", "sparse_value"):
        far = onnx.TensorProto(name="far", data_location=onnx.TensorProto.EXTERNAL)
        sparse = onnx.SparseTensorProto(values=far)
        constant = onnx.helper.make_node(
            "Constant", [], ["y"], **{kind: far if kind == "value" else sparse}
        )
        graph = onnx.helper.make_graph([constant], "inner", [], [])
        model.graph.node.append(onnx.helper.make_node("If", ["restart"], ["y"], then_branch=graph))
        onnx.save(model, tmp_path / "far.onnx")
        with pytest.raises(ValueError, match="the numbers of 'far' are in another file"):
            exported.check_operators(tmp_path / "far.onnx")
        del model.graph.node[-1]
    exported.check_operators(trained / "policy.onnx")


def test_numbers_beside_a_network(tmp_path):
    """They are taken once each; ranges that overlap would fill the memory, a link leads away."""
    import onnx

    model, path = onnx.ModelProto(), tmp_path / "net.onnx"
    for name, begin in (("a", 0), ("b", 8)):
        far = model.graph.initializer.add(name=name, data_location=onnx.TensorProto.EXTERNAL)
        place = {"location": "net.onnx.data", "offset": f"{begin}", "length": "8"}
        for key, value in place.items():
            far.external_data.add(key=key, value=value)
    beside = tmp_path / "net.onnx.data"
    beside.write_bytes(bytes(range(16)))
    read = exported.parse_onnx(model.SerializeToString(), path).graph.initializer
    assert [x.raw_data[0] for x in read] == [0, 8]
    far = model.graph.initializer.add()
    far.CopyFrom(model.graph.initializer[0])
    with pytest.raises(ValueError, match=r"net\.onnx: its tensors have more numbers than"):
        exported.parse_onnx(model.SerializeToString(), path)
    beside.rename(tmp_path / "other")
    beside.symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match=r"net\.onnx\.data is a link"):
        exported.parse_onnx(model.SerializeToString(), path)


def test_hostile_policies(tmp_path, trained):
    """Another's description, weights elsewhere or a model that reads files: one line."""
    import onnx

    whole = onnx.load(trained / "policy.onnx")
    notes = {prop.key: prop.value for prop in whole.metadata_props}
    about, mjcf = notes["gpusim_rl"], notes["mjcf"]
    abouts = ["{}", "[]", '{"format": 4}', "[" * 100_000]
    abouts += ['{"format": 4, "kind": "controller", "inputs": 3, "dt": "x"}']
    for wrong in ({"dt": 1e9}, {"inputs": 5}, {"memory": [{}]}):
        abouts.append(json.dumps(json.loads(about) | wrong))
    abouts += [edited(about, *edit) for edit in EDITS]
    mjcfs = ['<mujoco><include file="/etc/passwd"/></mujoco>', "<mujoco/>", "no XML"]
    mjcfs += ['<mujoco><worldbody><body><joint/><geom size="1"/></body></worldbody></mujoco>']
    for step in ("1e-9", "1e-300", "9", "0"):
        mjcfs.append(re.sub(r'timestep="[^"]*"', f'timestep="{step}"', mjcf))
    mjcfs += [mjcf.replace('name="gyro"', 'name="other"')]
    for absent in (r'<position name="FL_knee"[^>]*/>', r'<position name="FL_knee".*?/>|<key .*?/>'):
        mjcfs.append(re.sub(absent, "", mjcf, flags=re.S))
    changes = [{"gpusim_rl": x} for x in abouts] + [{"mjcf": x} for x in mjcfs]
    for i, change in enumerate(changes):
        onnx.helper.set_model_props(whole, notes | change)
        path = tmp_path / f"{i}.onnx"
        path.write_bytes(sealed(whole))  # as a stranger does, too
        with pytest.raises(ValueError) as error:
            FileRollout(path)
        assert f"{i}.onnx" in str(error.value)
    assert "0.onnx" in refused("play.py", "onnx=0.onnx", "video=x.mp4", cwd=tmp_path)
    onnx.helper.set_model_props(whole, notes)
    far: dict = dict(save_as_external_data=True, location="weights", size_threshold=0)
    onnx.save(whole, tmp_path / "far.onnx", **far)
    outside = onnx.load(tmp_path / "far.onnx", load_external_data=False)
    (tmp_path / "far.onnx").write_bytes(sealed(outside))
    with pytest.raises(ValueError, match="is not an ONNX file that onnxruntime can load"):
        runtime.Policy(tmp_path / "far.onnx")
    assert command("play.py", "onnx=far.onnx", "video=x.mp4", cwd=tmp_path).returncode == 2

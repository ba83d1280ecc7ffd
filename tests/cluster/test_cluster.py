"""Actors in other processes: as one process in step, and bounded without; one Ray for all tests."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import yaml

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.cluster import engine
from gpusim_rl.cluster.actor import Actor
from gpusim_rl.cluster.ledger import identity
from gpusim_rl.config import command_line, resume
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from tests.command_lines import TINY, environment, run_process, run_python, succeed
from tests.core.test_distributed import torchrun_train
from tests.docs.examples import files
from tests.shared import shared
from tests.worlds import ROOT, make_config, refusal

LATE = "The current node timed out during startup. This could happen because of a busy machine."


@pytest.fixture(scope="session")
def seen(tmp_path_factory) -> dict:
    """What tests/cluster/scenario.py saw."""

    def run(folder: Path) -> None:
        line = [sys.executable, "-m", "tests.cluster.scenario", str(folder / "seen.json")]
        done = run_process(*line, env=environment(folder / "home"))
        assert done.returncode == 0, done.stdout + done.stderr
        (folder / "said.txt").write_text(done.stdout + done.stderr)

    folder = shared(tmp_path_factory, "cluster", run)
    return json.loads((folder / "seen.json").read_text()) | {
        "said": (folder / "said.txt").read_text(),
        "home": [x.name for x in (folder / "home").iterdir()],
    }


def test_actors_have_a_device_of_their_own(monkeypatch):
    """A learner on a GPU has actors on machines without one; `cluster.device` says otherwise."""
    small = ("task=cartpole", *(x for x in TINY if x != "device=cpu"))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    learner = make_iteration(make_config(*small, "device=cpu"), 4).learner
    place = dict(actor=0, life=0, first=0, count=4, again=0)
    about = learner.policy, learner.columns
    plain = make_config(*small, "device=cuda", "cluster=ray").plain
    assert Actor(plain, *about, **place).env.device.type == "cpu"
    plain = make_config(*small, "device=cpu", "cluster=ray", "cluster.device=gpu").plain
    with pytest.raises(ValueError, match="unknown device 'gpu': choose one of auto, cpu, cuda"):
        Actor(plain, *about, **place)


@pytest.mark.slow
def test_in_step_is_one_process(seen):
    """Every bit, with a memory and RND, after a death and after a resume."""
    now = seen["in step"]
    assert now["after a death"] == [] and now["after a resume"] == []
    assert now["deaths"] == 1 and now["correction"] == "none"
    assert now["row"]["cluster/lag_max"] == 0 and now["row"]["cluster/refused"] == 0


@pytest.mark.slow
def test_a_ring_in_step_is_that_of_one_process(seen):
    """The ring of SAC and what is learned, to the bit, after a resume, too."""
    now = seen["ring"]
    assert now["one process"] == [] and now["after a resume"] == []
    assert now["learned"] and now["rows"] == 32


@pytest.mark.slow
def test_a_ring_ahead_joins_no_two_lives(seen):
    """Each actor writes its own worlds, and after a death no window goes on from an earlier life.
    Each packet is learned from once."""
    now = seen["ring ahead"]
    assert now["foreign"] == 0 and now["joined"] == 0
    assert now["windows"] > 500 and now["cut"] > 0 and now["lives"] == [1, 1]
    assert now["learned"] == 2 * now["iterations"] and now["lag"] <= 1
    assert now["deviations"][0] < 0.7 * now["deviations"][1]


@pytest.mark.slow
def test_central_inference_is_one_process(seen):
    """Every bit, with a memory, after a death of the server and one of an actor."""
    now = seen["central"]
    assert now["one process"] == [] and now["deaths"] == 2
    requests, products = now["served"]
    assert requests >= 2 * 6 * 8 and products <= requests


@pytest.mark.slow
def test_no_step_is_learned_from_twice(seen):
    """The lag is bounded and corrected; late packets are refused, all are counted."""
    now = seen["on their own"]
    assert now["row"]["cluster/lag_max"] <= 1
    assert now["row"]["cluster/refused"] >= 1 and now["row"]["cluster/deaths"] == 1
    assert now["learned"] == 2 * now["iterations"]
    for account in now["accounts"].values():
        assert account.get("learned", 0) + account.get("late", 0) <= account["sent"]
    assert now["finite"] and now["changed"] and now["correction"] == "proximal"


@pytest.mark.slow
def test_lives_of_an_actor(seen):
    """A wrong packet, a restart and a resume begin a new one; SIGTERM loses no packet. What was
    collected before another run's policy was taken is too old."""
    now = seen["on their own"]
    assert now["broken"] == [[False] * 4, 2, 2, 4]
    assert now["continued"]["lives"] == [[5, 1], [6, 6]]
    assert now["continued"]["older"] > 1 and now["continued"]["sums"]
    assert now["handed in"]
    assert now["refused"].startswith("actor 1 is refused: its task is ")


@pytest.mark.slow
def test_evaluations_are_beside_the_learner(seen):
    """Each is of its row's policy, outlives a death, marks its checkpoint and ends it."""
    now = seen["on their own"]["evaluated"]
    assert len(now["lateness"]) == 3 and min(now["lateness"]) > 0
    assert now["scores"] == pytest.approx([0.5, 0.5, 0.9], abs=1e-8)
    assert now["repeated"] and now["deaths"] == 1
    assert now["best"] and now["ended"]
    assert seen["on their own"]["continued"]["success"] == 0.25


def test_a_process_is_free_after_an_error(monkeypatch):
    """SIGTERM ends one at once whose last call has failed, and one that works at its next call."""
    process, codes = engine.Process(), []
    monkeypatch.setattr(engine.os, "_exit", codes.append)
    process.worker = SimpleNamespace(fail=lambda: 1 / 0, work=lambda: process.leave())
    with pytest.raises(ZeroDivisionError):
        process.call("fail")
    process.leave()
    assert codes == [0]
    process.leaves = False
    process.call("work")
    assert codes == [0]
    process.call("work")
    assert codes == [0, 0]


@pytest.mark.slow
def test_nothing_is_open_to_others(seen):
    """Every socket listens on 127.0.0.1, and Ray writes no token to the home."""
    sockets = seen["on their own"]["sockets"]
    assert sockets and {*sockets} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert ".ray" not in seen["home"]


@pytest.mark.slow
def test_a_death_is_one_line(seen):
    """Of twelve processes that ended, one line each is said, nothing of Ray's."""
    lines = [line for line in seen["said"].splitlines() if line.strip()]
    assert len(lines) == 12, seen["said"]
    assert all("it is started again" in line for line in lines)
    assert lines[-1].startswith("the evaluator (process ")


@pytest.mark.parametrize(
    "words, says",
    [
        ("cluster=ray num_envs=25", "num_envs=25 does not divide into cluster.actors=2"),
        ("cluster=ray algo=sac cluster.actors=3", "does not divide into cluster.actors=3"),
        ("cluster=ray cluster.spread=2", "cluster.spread=2 is for a learner from a ring"),
        ("cluster=ray cluster.address=10.0.0.1:6379", "RAY_AUTH_MODE=token"),
        ("algo.correction=vtrace", "algo.correction=vtrace changes nothing here"),
        ("algo.correction=proximal", "algo.correction=proximal changes nothing here"),
        (
            "cluster=ray cluster.max_lag=0 algo.correction=vtrace",
            "with cluster.sync=false and cluster.max_lag above 0",
        ),
        ("cluster=ray cluster.inference=centre", "choose one of local, central"),
        (
            "cluster=ray cluster.inference=central cluster.address=10.0.0.1:6379",
            "set cluster.address=null and cluster.device=cpu",
        ),
        ("cluster=spark", "unknown cluster 'spark': choose one of none, ray"),
        ("cluster.actors=0", "cluster.actors=0"),
        ("cluster=ray cluster.labels={market:spot}", "machines of cluster.address"),
        ("cluster=ray cluster.labels={market:3}", "market: 3: expected a word"),
        ("cluster=ray cluster.labels={1:c}", "1: 'c': expected a word"),
        ("cluster=ray cluster.labels={market:'!spot'}", "'!spot': expected a word"),
    ],
)
def test_mistakes_are_one_line(words, says):
    """What does not fit is said in one line, before Ray is started."""
    assert says in refusal("task=cartpole", "device=cpu", *words.split())
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


@pytest.mark.matrix
def test_two_ranks_with_two_actors_each_are_one_with_four(tmp_path):
    """In step; ahead they go on, with an evaluation beside them."""
    words = ["task=cartpole", *TINY, "num_envs=64", "iterations=3", "log=none", "save_every=1"]
    words += ["cluster=ray", "cluster.actors=4", "cluster.sync=true"]
    words += ["algo.learning_rate=1e-4", "algo.lr_max=1e-4"]  # rounding grows with the rate
    succeed("train.py", *words, "run_dir=one", cwd=tmp_path)
    torchrun_train(tmp_path, *words, "run_dir=two")
    one, two = (load(Run(tmp_path / name).checkpoints.latest())[0] for name in ("one", "two"))
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in two.items()}
    worst = max((one[k] - two[k]).abs().max().item() for k in one if k.startswith("policy/"))
    print(f"two ranks with two actors each, one with four: weights differ by {worst:.1e}")
    assert worst <= 5e-7
    assert all(torch.allclose(one[k], two[k], atol=1e-4) for k in one if k.startswith("sim/"))
    ahead = ["cluster.sync=false", "iterations=8", "eval_every=4", "stop_at=0.9"]
    torchrun_train(tmp_path, "resume=two", *ahead)
    last = Run(tmp_path / "two").rows()[-1]
    assert last["iteration"] == 8 and last["success"] < 0.9  # of iteration 4, which it waits for
    assert last["cluster/lag_max"] <= 1 and last["cluster/refused"] == 0


@pytest.mark.matrix
def test_gradients_of_actors(tmp_path):
    """docs/examples/a3c.py trains its page's learner with two actors' gradients."""
    for path, text in files("docs/change-the-algorithm.md").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copy(ROOT / "docs" / "examples" / "a3c.py", tmp_path)
    words = ("task=cartpole", *TINY, "algo.hidden=[16]", "iterations=5", "log=none", "run_dir=run")
    done = run_process(sys.executable, "a3c.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *_, last = Run(tmp_path / "run").rows()
    assert last["iteration"] == 5 and last["share/actors"] > 0 and last["steps_per_s"] < 1e6
    assert first["policy_loss"] != last["policy_loss"]  # the actors' gradients differ
    checkpoints = sorted((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    before, after = (load(file)[0] for file in (checkpoints[0], checkpoints[-1]))
    assert after["policy/actor.normalizer.count"] == 10  # two rows for each gradient
    assert not torch.equal(before["policy/log_std"], after["policy/log_std"])


def test_labels_of_a_run_are_read(trained, tmp_path):
    """A run that was trained on machines with a label can be opened again."""
    shutil.copytree(trained, tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text().replace("labels: {}", "labels: {market: spot}")
    file.write_text(text.replace("address: null", "address: 10.0.0.1:6379"))
    assert resume.load_config(Run(tmp_path / "run")).cluster.labels == {"market": "spot"}


def test_what_machines_have_in_common():
    """Packages and the task; the machine and its GPU may differ."""
    words = ("num_envs=8", "device=cpu")
    ours, theirs = (identity(make_config(task, *words)) for task in ("task=cartpole", "task=ant"))
    assert {"torch", "mujoco", "task"} <= {*ours} and not {*ours} & {"gpu", "machine"}
    assert {name for name in ours if ours[name] != theirs[name]} == {"task"}


@pytest.mark.parametrize("later", ["", "os.environ.update(engine.LOOPBACK)"])
def test_ray_that_was_imported_before(monkeypatch, later):
    """It listens on all interfaces: it is not started, whatever the environment says."""
    code = f"import ray, os; from gpusim_rl.cluster import engine\n{later}"
    code += "\ntry: engine.Engine(1, None)\nexcept ValueError as error: print(error)"
    monkeypatch.delenv(*engine.LOOPBACK, raising=False)
    done = run_python(code)
    assert re.fullmatch(r"cluster=ray: .* before `import ray`, or import it later\n", done.stdout)


@pytest.mark.slow
def test_ray_that_was_imported_before_and_listens_here():
    """It has read already that it asks for no token, and is started so."""
    code = "import ray; from gpusim_rl.cluster import engine; engine.Engine(1, None).close()"
    done = run_python(f"{code}; print('started')", **engine.LOOPBACK)
    assert done.stdout.split()[-1:] == ["started"], done.stderr


@pytest.mark.parametrize(
    "errors, starts, says",
    [
        ([], 1, ""),
        ([LATE], 2, ""),
        ([LATE, LATE], 2, f"cluster.address=null: {LATE}"),
        (["no such option", LATE], 1, "cluster.address=null: no such option"),
    ],
)
def test_a_start_that_times_out_is_tried_again(monkeypatch, errors, starts, says):
    """Once, in a folder of its own, as a busy machine may take longer than Ray waits."""
    ray = Mock(**{"is_initialized.return_value": False})
    ray.nodes.return_value = [{"Labels": {}, "Resources": {"CPU": 2}, "Alive": True}]
    ray.init.side_effect = [*map(Exception, errors), None]
    modules = {"ray": ray, engine.CONSTANTS: Mock(ENABLE_RAY_CLUSTER=False)}
    monkeypatch.setattr(engine, "import_module", modules.__getitem__)
    monkeypatch.setattr(engine.os, "environ", {**os.environ})
    if says:
        with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
            engine.Engine(2, None)
    else:
        engine.Engine(2, None).close()
    folders = [call.kwargs["_temp_dir"] for call in ray.init.call_args_list]
    assert len({*folders}) == starts and not any(map(os.path.exists, folders))


def test_the_manifest_of_the_page():
    """It is YAML, asks for a token, and its command is one of train.py."""
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    spec = yaml.safe_load(block)["spec"]
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    words = shlex.split(shlex.split(spec["entrypoint"])[2])
    assert words[:2] == ["python", "train.py"]
    command_line.parse(words[2:])

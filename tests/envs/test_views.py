"""Views that a task adds, `Task.views`: beside the kernels, stored once, seen by an encoder."""

import re

import numpy as np
import onnx
import pytest
import torch

from gpusim_rl.adapters import gymnasium_env
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.sections import Config
from gpusim_rl.core.paths import CONF
from gpusim_rl.core.record import Column
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import command
from tests.worlds import check_words, refusal, write_files

SEEN = '''
import torch

from gpusim_rl.tasks.classic.cartpole import Cartpole


class Seen(Cartpole):
    """The pole in a picture: a column of pixels for each of 16 positions of its tip."""

    def views(self, s):
        columns = torch.linspace(-1.5, 1.5, 16, device=s.qpos.device)
        tip = s.qpos[:, 0] + s.qpos[:, 1].sin()
        bright = torch.exp(-((columns - tip[:, None]) ** 2) / 0.1)
        return dict(image=bright[:, None, None].expand(-1, 1, 12, -1).half())
'''
SHORT = ("task=seen", "num_envs=16", "num_steps=8", "task.episode=0.4", "sim=native")
SHORT += ("sim.threads=1", "threads=1", "device=cpu", "algo.hidden=[16]")
ENCODED = "algo.encoders.image=[4,8]"
IMAGE = Column((1, 12, 16), torch.float16)


@pytest.fixture
def seen(tmp_path, monkeypatch, no_own_tasks):
    """A folder with the task."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, source: str = SEEN) -> None:
    base = (CONF / "task" / "cartpole.yaml").read_text()
    base = re.sub("name: cartpole", "name: seen", base)
    write_files(folder, {"tasks/seen.py": source, "conf/task/seen.yaml": base})


def make(*words):
    cfg = compose_plain("config", [*SHORT, *words])
    return make_iteration(Config.of(cfg | {"task_code": "here"}))


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_picture_is_stored_once_beside_the_kernels(seen, algo):
    """Fused, its column is the picture of the state at each step; the rows are as in torch."""
    sac = ("algo=sac", "algo.replay=64", "algo.warmup=64", "algo.batch_size=32")
    words = (f"algo={algo}", ENCODED, "algo.symmetry=none", *(sac if algo == "sac" else ()))
    fused, plain = (make(*words, f"fuse={x}") for x in ("on", "off"))
    assert {*fused.source.fused.kernels} == {"before", "after", "views"}
    for ppo in (fused, plain):
        assert ppo.spec.views["image"] == IMAGE == ppo.source.record.columns["image"]
        before = [x.clone() for x in ppo.policy.actor.encoders.parameters()]
        env, wanted = ppo.env, []
        for _ in range(10):
            wanted.append(env.task.views(env.current_state())["image"])
            ppo.source.act()
            env.step_physics()
            ppo.source.finish_step()
        rows = ppo.source.record.image[2:8]  # the first rows were written again
        assert torch.equal(rows, torch.stack(wanted[2:8]))
        assert torch.equal(ppo.source.record.image[:2], torch.stack(wanted[8:]))
        ppo.source.row.zero_()
        ppo.iteration()
        ppo.iteration()
        after = [*ppo.policy.actor.encoders.parameters()]
        assert all((a != b).any() for a, b in zip(before, after, strict=True))
    one, other = (x.source.record for x in (fused, plain))
    torch.testing.assert_close(one.image, other.image, atol=2e-3, rtol=0)


@pytest.mark.slow
def test_it_is_trained_exported_and_played(seen):
    """Two iterations, then a controller and a bare network with the picture as one more input."""
    words = (*SHORT, ENCODED, "iterations=2", "episodes=2", "log=none", "report=false")
    done = command("train.py", *words, "run_dir=run", "fuse=show", cwd=seen)
    assert done.returncode == 0 and "policy.onnx" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("operators of torch in") == 3, done.stdout
    policy = Policy(seen / "run" / "policy.onnx")
    names = [x.name for x in policy.session.get_inputs()]
    assert names == [*policy.needs, "image", "restart", *(f"memory.{x}" for x in policy.start)]
    assert policy.views == {"image": ((1, 12, 16), "float16")}
    rows = {name: np.zeros(n) for name, n in policy.needs.items()}
    left, right = (np.zeros((1, 12, 16), np.float16) for _ in range(2))
    left[..., :4], right[..., 12:] = 1, 1
    assert policy.act(rows | {"image": left}) != policy.act(rows | {"image": right})
    with pytest.raises(ValueError, match="view 'image' has shape"):
        policy.act(rows | {"image": left[:, :4]})
    words = ("run=run", "task_code=here", "mode=export", "export=network")
    done = command("play.py", *words, cwd=seen)
    assert done.returncode == 0, done.stdout + done.stderr
    network = onnx.load(seen / "run" / "policy.onnx")
    assert [x.name for x in network.graph.input] == ["obs", "image"]


@pytest.mark.parametrize("fuse", ["on", "off"])
def test_a_teacher_that_sees(seen, fuse):
    """A student without the view is told what a teacher with it would do there, and learns it."""
    words = (*SHORT, ENCODED, "iterations=1", "episodes=2", "log=none", "export=none")
    trainer = Trainer(check_words(*words, "report=false", "run_dir=teacher"))
    trainer.train()
    trainer.close()
    student = make("algo=distill", "teacher=teacher", "algo.num_minibatches=2", f"fuse={fuse}")
    teacher, obs = student.spec.given["teacher"], student.env.observation
    image = torch.rand(obs["image"].shape).half()
    obs["image"].copy_(image)
    wanted = teacher(obs["critic"][:, :5], None, {"image": image})
    student.source.act()
    target = student.source.record.target[0]
    torch.testing.assert_close(target, wanted.clamp(-student.spec.clip, student.spec.clip))
    assert "image" not in student.source.record.columns
    student.source.row.zero_()
    student.iteration()


def test_other_trainers_see_it(seen):
    """Gymnasium gives a dictionary of views, also of the last state, and rsl_rl a group more."""
    keys = {"sim": "native", "device": "cpu", "task.episode": 0.4}
    worlds = gymnasium_env.make("seen", 4, **keys)
    obs, _ = worlds.reset(seed=1)
    assert obs.keys() == {"actor", "image"} and worlds.observation_space.contains(obs)
    info = {}
    while "final_obs" not in info:
        obs, *_, info = worlds.step(np.ones((4, 1), np.float32))
    assert (info["final_obs"][0]["image"] != obs["image"][0]).any()
    world = gymnasium_env.World("seen", **keys)
    assert world.observation_space.contains(world.reset(seed=1)[0])
    rsl = pytest.importorskip("gpusim_rl.adapters.rsl_rl_env", exc_type=ImportError)
    assert rsl.make("seen", 4, **keys).get_observations()["image"].shape == (4, 1, 12, 16)


TWICE = "def privileged(self, s):\n        return self.observe(s)\n\n    def views"
SHAPE = "[:, None, None].expand(-1, 1, 12, -1)"


@pytest.mark.parametrize(
    "words, change, says",
    [
        ("algo.encoders.picture=[8]", (), "'picture' is no view of the task (views: image)"),
        ("algo.encoders.image=[0]", (), "algo.encoders.image=[0]: expected whole numbers from 1"),
        ("algo.encoders.image=8", (), "algo.encoders.image=8: expected a list of channels"),
        (f"{ENCODED} algo.symmetry=net", (), "algo.encoders needs algo.symmetry=none"),
        (ENCODED, (".half()", ".flatten()"), "expected 16 rows: (16, …)"),
        (ENCODED, (SHAPE, ""), "has the shape (16,), and convolutions take (channels, height"),
        (ENCODED, ("image=", "reward="), "Seen.views: 'reward' is the name of a column or"),
        (ENCODED, ("image=", "advantage="), "Seen.views: 'advantage' is the name of a column"),
        (
            ENCODED,
            ("image=", "**{'memory/h': s.qpos}, image="),
            "'memory/h' is no identifier: choose",
        ),
        ("", ("def views", TWICE), "Seen: observe and privileged both have a term 'cart'"),
    ],
)
def test_what_does_not_fit_is_one_line(seen, words, change, says):
    """A view that the task lacks, a wrong shape or name, and settings that cannot be."""
    write(seen, SEEN.replace(*change) if change else SEEN)
    assert says in refusal(*SHORT, *words.split())

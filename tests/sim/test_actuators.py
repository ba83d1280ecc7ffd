"""Actuators: closed forms of each kind, delays, restarts, resume, capture, failures, and files
from strangers."""

import json
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from safetensors.torch import save as to_bytes

from gpusim_rl.assembly.iteration import make_iteration as make_iteration_of
from gpusim_rl.commands import train
from gpusim_rl.config import compose, resume
from gpusim_rl.deploy.describe import describe_targets
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.envs.env import Env
from gpusim_rl.play.replay_failure import FailureReplay
from gpusim_rl.runs.run import Run
from gpusim_rl.sim.actuated import ActuatedSim, make_actuated
from gpusim_rl.sim.actuator_models import KEY, WIDEST, Inputs, Net, load
from gpusim_rl.sim.actuator_spec import KINDS, Actuator
from gpusim_rl.sim.native import Native
from gpusim_rl.training import trainer
from tests.command_lines import EXPORTED, TINY
from tests.envs.test_env import actions
from tests.guard import guard
from tests.worlds import (
    SIMS,
    check_words,
    goes_on,
    make_actuator,
    make_env,
    make_ppo,
    make_sim_of,
    make_task,
    refusal,
    sim_options,
)

HINGE = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast" gravity="0 0 0">
    <flag autoreset="disable"/>
  </option>
  <worldbody><body>
    <joint name="j" axis="0 1 0" armature="0.05"/><geom size="0.1" mass="1" pos="0.1 0 0"/>
  </body></worldbody>
  <actuator><position joint="j" kp="30" kv="0.5" forcerange="-12 12"/></actuator>
  <sensor><jointactuatorfrc joint="j"/></sensor>
</mujoco>
"""
INPUTS = Inputs(dt=0.0025, offsets=(0, 4, 8), error=0.3, speed=5.0, torque=15.0)

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def net() -> Net:
    """A small network of random weights."""
    draw = torch.Generator().manual_seed(0)
    sizes = ((6, 8), (8, 8), (8, 1))
    layers = [(torch.randn(m, n, generator=draw) / n**0.5, torch.zeros(m)) for n, m in sizes]
    return Net(INPUTS, layers)


@pytest.fixture(scope="module")
def file(tmp_path_factory, net) -> str:
    """Its file."""
    path = tmp_path_factory.mktemp("net") / "net.safetensors"
    net.save(path)
    return str(path)


def of(kind: str, file: str, **settings) -> Actuator:
    """An actuator of each kind."""
    own = {"dc": {"no_load": 20.0}, "net": {"file": file}}.get(kind, {})
    return make_actuator(kind=kind, **own, **settings)


def hinge(name: str, num_envs: int, actuator: Actuator, text: str = HINGE):
    """Worlds of one hinge, its torque [N m] as their only sensor."""
    model, about = mujoco.MjModel.from_xml_string(text), sim_options(name) | {"device": "cpu"}
    return make_actuated(name, model, num_envs, actuator=actuator, **about)


def place(sim, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
    """Restart every world of a hinge at angles and speeds (B,)."""
    every = torch.ones(len(qpos), dtype=torch.bool)
    sim.reset(every, qpos[:, None].to(sim.qpos), qvel[:, None].to(sim.qvel))


# -- closed forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIMS)
def test_torque_speed_curve(name):
    """A DC motor gives at every speed at most the torque of its line, peak and strength."""
    speed = torch.linspace(-30, 30, 121)
    sim = hinge(name, 242, make_actuator(kind="dc", stall=16.0, no_load=20.0))
    sim.model("strength")[121:] = 0.5
    for sign in (1, -1):
        place(sim, torch.zeros(242), speed.repeat(2))
        sim.ctrl.fill_(10.0 * sign)
        sim.step(1)
        torque = sim.sensordata[:, 0].double().numpy().reshape(2, 121)
        # Speed along the torque: 12 N m up to 5 rad/s, then 0.8 N m less for each rad/s.
        along = sign * speed.double().numpy()
        line = np.interp(along, [5, 20], [12, 0])
        np.testing.assert_allclose(torque, sign * np.stack([line, line / 2]), atol=1e-5)


@pytest.mark.parametrize("name", SIMS)
def test_pd_is_the_servo(name):
    """The PD law and MuJoCo's servo give the same torques, at their limits too."""
    draw = torch.Generator().manual_seed(0)
    scales = torch.tensor([[0.3], [5.0], [0.3]])
    qpos, qvel, target = (torch.randn(3, 64, generator=draw) * scales).unbind()
    torques = []
    for kind in ("position", "pd"):
        sim = hinge(name, 64, make_actuator(kind=kind))
        place(sim, qpos, qvel)
        sim.ctrl.copy_(target[:, None])
        sim.step(1)
        torques.append(sim.sensordata.double())
    expected = (30 * (target - qpos) - 0.5 * qvel).clamp(-12, 12)[:, None].double()
    for torque in torques:
        torch.testing.assert_close(torque, expected, atol=1e-5, rtol=0)
    assert (expected.abs() == 12).any() and (expected.abs() < 11).any()


@pytest.mark.parametrize("kind", ["position", "pd"])
def test_targets_end_at_the_servos_range(kind):
    """A target beyond ctrlrange asks for no more than its end, whatever makes the torque."""
    text = HINGE.replace("<position ", '<position ctrllimited="true" ctrlrange="-0.1 0.1" ')
    assert text != HINGE
    sim = hinge("native", 1, make_actuator(kind=kind), text=text)
    place(sim, torch.zeros(1), torch.zeros(1))
    sim.ctrl.fill_(0.3)
    sim.step(1)
    assert abs(sim.sensordata.item() - 30 * 0.1) < 1e-5


def test_net_sees_its_past(net, file):
    """Its torque is that of errors and speeds of now, 10 and 20 ms ago; before, all stood."""
    sim = hinge("native", 5, of("net", file))
    assert isinstance(sim, ActuatedSim)
    qpos, qvel = torch.linspace(-1, 1, 5), torch.linspace(2, -2, 5)
    place(sim, qpos, qvel)
    errors, speeds = [torch.zeros(5)] * 8, [qvel] * 8
    for i in range(12):
        sim.ctrl.fill_(0.3 * (-1) ** (i // 3))
        errors.append((sim.ctrl - sim.qpos)[:, 0].float())
        speeds.append(sim.qvel[:, 0].float())
        sim.step(1)
        e, v = (torch.stack([past[-1], past[-3], past[-5]], -1) for past in (errors, speeds))
        torque = sim.sensordata[:, 0].float()
        torch.testing.assert_close(torque, net(e, v).clamp(-12, 12), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_delay_is_exact(name, kind, file):
    """With a delay of 55 ms targets act 11 timesteps later, bit for bit."""
    late = hinge(name, 3, of(kind, file, delay=0.055))
    prompt = hinge(name, 3, of(kind, file))
    start = torch.tensor([0.1, 0.2, 0.3])
    for sim in (late, prompt):
        place(sim, start, torch.ones(3))
    plan = [torch.full((3, 1), 0.5 * (-1) ** i) for i in range(8)]
    due = [start[:, None]] * 11 + [target for target in plan for _ in range(4)]
    for i, target in enumerate(plan):
        late.ctrl.copy_(target)
        late.step(4)
        for k in range(4):
            prompt.ctrl.copy_(due[4 * i + k])
            prompt.step(1)
        assert torch.equal(late.qpos, prompt.qpos)
        assert torch.equal(late.sensordata, prompt.sensordata)


@pytest.mark.parametrize("name", SIMS)
def test_a_delay_within_a_timestep(name):
    """Each world has its own; where a target changes within a timestep, the mean acts."""
    delays = [0.00125, 0.0075, 0.0125]
    late = hinge(name, 3, make_actuator(delay=[0.0, 0.0125]))
    prompt = hinge(name, 3, make_actuator())
    late.model("delay").copy_(torch.tensor(delays)[:, None])
    for sim in (late, prompt):
        place(sim, torch.zeros(3), torch.zeros(3))
    plan = [0.5 * (-1) ** i for i in range(12)]
    for t in range(12):
        late.ctrl.fill_(plan[t])
        late.step(1)
        for i, delay in enumerate(delays):
            fine = [t * 4 + k - round(delay / 0.00125) for k in range(4)]  # quarters of a timestep
            mean = np.mean([plan[k // 4] if k >= 0 else 0.0 for k in fine])
            prompt.ctrl[i] = mean
        prompt.step(1)
        torch.testing.assert_close(late.qpos, prompt.qpos, atol=1e-7, rtol=1e-6)


def test_delays_are_drawn(file):
    """Each world draws its delay of the range, whatever other worlds there are."""
    delay = worlds("position", file).sim.model("delay")
    assert ((delay >= 0.004) & (delay <= 0.012)).all() and len(delay.unique()) == 8
    assert torch.equal(worlds("position", file, num_envs=3).sim.model("delay"), delay[:3])


def test_friction():
    """A torque below dry friction hardly moves a joint; above it the rest accelerates."""
    for kind in ("position", "pd"):
        sim = hinge("native", 2, make_actuator(kind=kind, friction=3.0))
        place(sim, torch.zeros(2), torch.zeros(2))
        sim.ctrl.copy_(torch.tensor([[0.05], [0.3]]))  # 1.5 and 9 N m
        sim.step(1)
        inertia = 0.05 + 0.4 * 0.1**2 + 0.1**2  # kg m²: armature, sphere, its lever
        free = 0.005 * torch.tensor([1.5, 9.0 - 3.0]) / inertia  # rad/s
        assert sim.qvel[0, 0] < 0.15 * free[0] and abs(sim.qvel[1, 0] - free[1]) < 0.05 * free[1]


def test_the_default_is_free():
    """Without actuators model and Sim are the task's own; what is exported keeps its servos."""
    task = make_task()
    assert task.actuator.plant(task.mjm) is task.mjm and type(make_env(num_envs=2).sim) is Native
    other = make_task(actuator=make_actuator(kind="dc", no_load=20.0))
    assert (other.mjm.actuator_gainprm == task.mjm.actuator_gainprm).all()
    assert other.mjcf_text() == task.mjcf_text()
    assert describe_targets(other.mjm)["kp"] == [40.0] * 12
    assert other.evaluation().actuator == other.actuator


# -- in an Env -------------------------------------------------------------------------------------


def worlds(kind: str, file: str, sim: str = "native", num_envs: int = 8, **settings) -> Env:
    """Quadrupeds with a network or another kind, and a delay that each world draws."""
    late = of(kind, file, delay=[0.004, 0.012])
    return make_env(num_envs=num_envs, sim=sim, actuator=late, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_gains_are_drawn(kind, file):
    """Drawn Kp and Kd reach what acts, but a network has its own; `strength` is reached by mask."""
    env = worlds(kind, file)
    if kind == "net":
        assert "kp" not in env.task.fields and (env.sim.model("kp") == 40).all()
        return
    if kind == "position":
        kp = env.sim.model("actuator_gainprm")[:, :, 0]
    else:
        kp = env.sim.model("kp")
        half = torch.full((8, 12), 0.5)
        env.write({"strength": half}, torch.arange(8) < 3)
        assert torch.equal(env.sim.model("strength")[:, 0] == 0.5, torch.arange(8) < 3)
    share = (kp / 40).double()
    assert (share > 0.9).all() and (share < 1.1).all() and len(share[:, 0].unique()) == 8


@pytest.mark.parametrize("sim", SIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_short_training(kind, sim, file):
    """Of each kind, over restarts: no host read but the engine's, no fault, and exact resume."""
    ppo, twin = (make_ppo(worlds(kind, file, sim, episode=0.1), num_steps=8) for _ in range(2))
    ppo.iteration()
    inner = ppo.env.sim.inner  # pyright: ignore[reportAttributeAccessIssue]
    with guard(*([] if inner.capturable else [(inner, "step"), (inner, "reset")])) as switch:
        ppo.iteration()
    assert switch.seen > 1000 and ppo.source.record.truncated.any()
    assert ppo.report()()["fault"] == 0
    state = goes_on(ppo, twin)
    assert all(torch.isfinite(x).all() for x in state.values() if x.is_floating_point())
    assert any(name.startswith("sim/actuator/targets") for name in state)


@pytest.mark.parametrize("kind", ("position", "dc", "net"))
def test_quarantine(kind, file):
    """NaN in one world's memory is its fault alone; it begins anew."""
    env, twin, plan = worlds(kind, file), worlds(kind, file), actions(5, 8)
    for e in (env, twin):
        for action in plan[:2]:
            e.step(action)
    name = "errors" if kind == "net" else "targets"
    env.sim.memory[name][3] = torch.nan
    others = torch.arange(8) != 3
    for i, action in enumerate(plan[2:]):
        step, clean = env.step(action), twin.step(action)
        assert step.fault.tolist() == [i == 0 and w == 3 for w in range(8)]
        assert torch.equal(step.observation["critic"][others], clean.observation["critic"][others])
    assert all(torch.isfinite(x).all() for x in env.state().values() if x.is_floating_point())


@pytest.mark.parametrize("kind", ("position", "dc", "net"))
def test_a_failure_is_stepped_again(kind, file, tmp_path):
    """The record of the worst step leads play.py repro= to where that step led."""
    env, plan = worlds(kind, file, stagger=False), actions(4, 8)
    for action in plan[:3]:
        env.step(action)
    env.worst_step.clear()
    ends = []
    env.step(plan[3], on_step=lambda s: ends.append(s.qpos.clone()))
    worst = env.worst_step.read(env.worst_step.row.clone())
    about = {"world": worst.world, "why": worst.why, "terms": {}}
    cfg = compose.compose_plain("config", ["task.training=exact"])
    shutil.copy(file, tmp_path / "net.safetensors")
    own = {"dc": {"no_load": 20.0}, "net": {"file": "net.safetensors"}}.get(kind, {})
    cfg["robot"]["actuator"] |= {"kind": kind, "delay": [0.004, 0.012]} | own
    note = json.dumps(about | {key: cfg[key] for key in ("task", "robot")})
    for spoilt in (False, True):
        tensors, path = dict(worst.tensors), tmp_path / "repro.safetensors"
        tensors["memory/targets"] = tensors["memory/targets"] + 0.1 * spoilt
        path.write_bytes(to_bytes(tensors, metadata={"gpusim_rl": note}))
        again = FailureReplay(path)
        assert len(list(again.steps())) == env.task.substeps + 3
        off = (again.sim.qpos[0] - ends[0][worst.world]).abs().max()
        assert off > 1e-4 if spoilt else off < 1e-5  # but for the solver's warm start


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, says",
    [
        (["kind=servo"], "robot.actuator.kind=servo: choose one of position, pd, dc, net"),
        (["kind=dc"], "robot.actuator.kind=dc needs robot.actuator.no_load"),
        (["kind=net"], "robot.actuator.kind=net needs robot.actuator.file"),
        (["kind=pd", "no_load=3"], "belongs to robot.actuator.kind=dc, not pd"),
        (["kind=dc", "no_load=0"], "robot.actuator.no_load=0: expected a number above 0"),
        (["kind=dc", "no_load=fast"], "robot.actuator.no_load='fast': expected a number above 0"),
        (["delay=1"], "robot.actuator.delay=1: expected a number from 0 to below 1, or null"),
        (["delay=[0.02,0.01]"], "robot.actuator.delay=[0.02, 0.01]: expected the least and the"),
        (["friction=-1"], "robot.actuator.friction=-1: expected a number from 0 to"),
        (["friction=[]"], "robot.actuator.friction=[]: expected a number"),
    ],
)
def test_mistakes(words, says):
    """Each is answered by one line, before there is a model."""
    assert says in refusal(*(f"robot.actuator.{word}" for word in words))


@pytest.mark.parametrize(
    "old, new, kind, says",
    [
        ("<position joint", '<motor joint="j"/><position joint', "pd", "is no position servo"),
        ('kv="0.5"', 'kv="0.5" gear="2"', "dc", "is no position servo"),
        ('forcerange="-12 12"', "", "dc", "robot.actuator.stall must be set"),
        ('timestep="0.005"', 'timestep="0.004"', "net", "no timesteps of this model's 0.004 s"),
    ],
)
def test_models_that_do_not_fit(old, new, kind, says, file):
    """Actuators without joint targets, and a timestep that the network does not know."""
    with pytest.raises(ValueError, match=says):
        hinge("native", 1, of(kind, file), text=HINGE.replace(old, new))
    with pytest.raises(ValueError, match="has 2 numbers: expected 1, 3 or 12"):
        make_env(num_envs=1, actuator=make_actuator(friction=[1.0, 2.0]))
    with pytest.raises(ValueError, match="conditional"):
        make_sim_of(make_task(actuator=make_actuator(delay=0.01)), 1, "warp", conditional=True)


def net_tensors(net: Net) -> dict[str, torch.Tensor]:
    """The tensors of a network's file."""
    layers = enumerate(net.layers)
    return {f"{i}.{name}": x for i, layer in layers for name, x in zip("wb", layer, strict=True)}


def net_file(tensors: dict[str, torch.Tensor], **changes) -> bytes:
    """A network's file with other metadata; `...` leaves a key out."""
    metadata = {"format": 1, "dt": 0.0025, "offsets": [0, 4, 8]}
    metadata |= {"error": 0.3, "speed": 5.0, "torque": 15.0} | changes
    whole = {key: value for key, value in metadata.items() if value is not ...}
    copied = {name: x.clone() for name, x in tensors.items()}
    return to_bytes(copied, metadata={KEY: json.dumps(whole)})


METADATA: dict[str, dict] = {  # what is wrong with it
    "format": {"format": 2},
    "another key": {"code": "import os"},
    "no scale": {"torque": ...},
    "scale": {"error": 0.0},
    "not a number": {"speed": "fast"},
    "infinite": {"dt": float("inf")},
    "offsets": {"offsets": [0, 4]},
    "descending": {"offsets": [0, 8, 4]},
    "far": {"offsets": [0, 4, 10**9]},
    "no offsets": {"offsets": []},
    "bool": {"offsets": [False, 4, 8]},
}


def broken_files(good: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """Files whose bytes, metadata or tensors are wrong, by what is wrong."""
    whole, w, b, wide = net_file(good), good["1.w"], good["1.b"], WIDEST + 1
    too_wide = {"0.w": torch.zeros(wide, 6), "0.b": torch.zeros(wide)}
    too_wide |= {"1.w": torch.zeros(1, wide), "1.b": torch.zeros(1)}
    tensors = {
        "NaN": {"1.w": w * torch.nan},
        "half": {"1.w": w.half()},
        "shape": {"1.w": w[:, :3]},
        "two outputs": {"2.w": w[:2], "2.b": b[:2]},
        "scalar": {"1.w": torch.zeros(())},
        "name": {"x": w, "y": b},
    }
    return {
        "empty": b"",
        "text": b"hello" * 100,
        "cut": whole[:-7],
        "header beyond its end": (1 << 62).to_bytes(8, "little") + whole[8:],
        "no metadata": to_bytes(good),
        "a list for metadata": to_bytes(good, metadata={KEY: "[]"}),
        "nested": to_bytes(good, metadata={KEY: "[" * 100000}),
        "large": whole + bytes(1 << 20),
        "wide": net_file(too_wide),
        **{name: net_file(good, **changes) for name, changes in METADATA.items()},
        **{name: net_file(good | changes) for name, changes in tensors.items()},
    }


def test_hostile_files(net, tmp_path):
    """A file that is no network is refused in one line; a good one comes back as it was written."""
    path = tmp_path / "net.safetensors"
    good = net_tensors(net)
    for name, data in broken_files(good).items():
        path.write_bytes(data)
        with pytest.raises(ValueError) as error:
            load(path)
            pytest.fail(name)
        says = str(error.value)
        assert str(path) in says and "\n" not in says and len(says) < 500, name
    with pytest.raises(OSError, match="no such file"):
        load(tmp_path / "none")
    net.save(path)
    again = load(path)
    assert again.inputs == net.inputs and net_tensors(again).keys() == good.keys()
    assert all(torch.equal(x, good[name]) for name, x in net_tensors(again).items())


@pytest.mark.slow
def test_a_run_keeps_its_network(file, tmp_path, monkeypatch):
    """A run holds its network, goes on without the file it came from, and names no other."""
    shutil.copy(file, "mine.safetensors")
    words = ["task=quadruped", *TINY, EXPORTED, "log=none", "iterations=1", "run_dir=run"]
    words += ["auto_resume=true", "robot.actuator.kind=net", "robot.actuator.delay=0.01"]
    words += ["robot.actuator.file=mine.safetensors"]
    train.train_or_exit(check_words(*words))
    run = Run.open(Path("run"))
    assert run.config["robot"]["actuator"]["file"] == "model/actuator.safetensors"
    assert Policy("run/policy.onnx").description["actuator"]["delay"] == 0.01
    # The same line again: it continues.
    settled = check_words(*words)
    assert settled.resume == "run"
    assert Path(str(settled.robot.actuator.file)) == Path("run/model/actuator.safetensors")
    Path("mine.safetensors").unlink()
    cfg = check_words("resume=run", "iterations=2")
    ppo = make_iteration_of(cfg)
    trainer.open_run(cfg, ppo)
    ppo.iteration()
    assert ppo.iterations == 2
    text = Path("run/config.yaml").read_text()
    for outside in ("../mine.safetensors", "/etc/passwd"):
        Path("run/config.yaml").write_text(text.replace("model/actuator.safetensors", outside))
        with pytest.raises(ValueError, match="lies outside of the run"):
            resume.load_config(Run.open(Path("run")))

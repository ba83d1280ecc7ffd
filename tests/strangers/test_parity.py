"""Cards against the makers' own observation code, which is taken out of their programs."""

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import onnxruntime
import pytest

from gpusim_rl.deploy.adopt import Parts, load_parts, step
from gpusim_rl.deploy.controller import COMMAND, MEMORY, RESTART, TARGETS
from gpusim_rl.deploy.export import session
from tests.strangers.test_adopt import CARDS, of_card, place

STEPS, ASKED = 500, np.array([0.5, 0.0, 0.1])
PLAYED = {"playground_go1": "play_go1_joystick.py", "playground_g1": "play_g1_joystick.py"}
GYM = ("unitree_rl_gym_g1", "unitree_rl_gym_h1")
Sees = Callable[[mujoco.MjModel, mujoco.MjData, np.ndarray], np.ndarray]


def playground(script: str, parts: Parts, network: Path) -> Sees:
    """`OnnxController` of a script of MuJoCo Playground, whose own network and clock run."""
    tree = ast.parse((network.parents[1] / script).read_text())
    (found,) = [x for x in tree.body if isinstance(x, ast.ClassDef)]
    joystick = SimpleNamespace(get_command=lambda: ASKED)
    names: dict[str, Any] = {"np": np, "mujoco": mujoco, "rt": onnxruntime}
    names["Gamepad"] = lambda **_: joystick
    exec(compile(ast.Module([found], []), script, "exec"), names)
    takes = {
        "policy_path": str(network),
        "n_substeps": 1,
        "default_angles": parts.before.pose.numpy(),
    }
    asks = names["OnnxController"].__init__.__code__.co_varnames
    takes |= {"ctrl_dt": parts.card.values["dt"]} if "ctrl_dt" in asks else {}
    controller = names["OnnxController"](**takes)

    def sees(model: mujoco.MjModel, data: mujoco.MjData, last: np.ndarray) -> np.ndarray:
        sensors = {"local_linvel": "velocity"}
        view = SimpleNamespace(
            sensor=lambda name: data.sensor(sensors.get(name.removesuffix("_pelvis"), "gyro")),
            **{"site_xmat": data.site_xmat, "qpos": data.qpos, "qvel": data.qvel},
            ctrl=np.zeros(model.nu),
        )
        controller._last_action = last
        seen = controller.get_obs(model, view)
        controller.get_control(model, view)  # turns its clock
        return seen

    return sees


def gym(parts: Parts, program: Path) -> Sees:
    """The statements of deploy_mujoco.py that fill the observation."""
    tree = ast.parse(program.read_text())
    function = next(x for x in tree.body if isinstance(x, ast.FunctionDef))
    (block,) = [
        x.body
        for x in ast.walk(tree)
        if isinstance(x, ast.If) and ast.unparse(x.test) == "counter % control_decimation == 0"
    ]
    last = next(i for i, x in enumerate(block) if ast.unparse(x).startswith("obs_tensor"))
    code = compile(ast.Module([function, *block[:last]], []), program.name, "exec")
    n, seen = len(parts.card.joints), np.zeros(parts.card.step_width, np.float32)
    names = {"np": np, "obs": seen, "num_actions": n, "cmd": ASKED, "simulation_dt": 0.002}
    names |= {"default_angles": parts.before.pose.numpy(), "cmd_scale": np.array([2.0, 2.0, 0.25])}
    names |= {"ang_vel_scale": 0.25, "dof_pos_scale": 1.0, "dof_vel_scale": 0.05, "counter": 0}

    def sees(model: mujoco.MjModel, data: mujoco.MjData, last: np.ndarray) -> np.ndarray:
        names.update(d=data, action=last, counter=names["counter"] + 10)
        exec(code, names)
        return seen

    return sees


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PLAYED, *GYM])
def test_a_card_sees_what_its_makers_see(name):
    """Over 500 control steps of the walking robot no number differs by more than 1e-6."""
    (card,) = [x for x in CARDS if x.stem == name]
    network, robot = of_card(card)
    parts = load_parts(network, card, robot, trust=True)
    run = session(parts.net.model.SerializeToString()).run
    program = place("unitreerobotics/unitree_rl_gym", "deploy/deploy_mujoco/deploy_mujoco.py")
    sees = playground(PLAYED[name], parts, network) if name in PLAYED else gym(parts, program)
    model, data = parts.model, mujoco.MjData(parts.model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    memory, worst = {k: x.numpy() for k, x in parts.after.start.items()}, 0.0
    for t in range(STEPS):
        mujoco.mj_forward(model, data)
        feed = {x: data.sensor(x).data for x in parts.card.readings if "joint" not in x}
        feed |= {"joint_pos": data.qpos[7:], "joint_vel": data.qvel[6:], COMMAND: ASKED}
        feed = {k: x.astype(np.float32)[None] for k, x in feed.items()}
        feed |= {MEMORY + k: x for k, x in memory.items()} | {RESTART: np.array([t == 0])}
        theirs = sees(model, data, memory["action"][0].copy())
        ours = step(feed, parts, run)
        worst = max(worst, np.abs(ours["observation"][0] - theirs).max())
        memory = {k: ours[k] for k in memory}
        data.ctrl[:] = ours[TARGETS][0]
        mujoco.mj_step(model, data, round(parts.card.values["dt"] / model.opt.timestep))
    print(f"{name}: {worst:.1e}")
    assert worst <= 1e-6 and data.qpos[2] > 0.2

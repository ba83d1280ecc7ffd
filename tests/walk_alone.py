"""Walk an exported policy in MuJoCo C from its file alone, in a process that can import neither
torch nor gpusim_rl.

    python -I tests/walk_alone.py RUNTIME_PY POLICY_ONNX EPISODES_NPZ OUT_NPZ

The episodes are those that `tests.acceptance.deploy.episodes` wrote: start states, worlds, commands
and observation noise. OUT_NPZ holds `success` (B,) by the definition of the quadruped's evaluation,
`velocity` and `yaw` (B,) errors RMSE, `fell` (B,) and `path` (T, B, nq).
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

BANNED = ("torch", "gpusim_rl", "tasks", "warp", "mujoco_warp", "onnx")


class Ban(importlib.abc.MetaPathFinder):
    """Makes the import of what a robot's computer does not have fail."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in BANNED:
            raise ImportError(f"{fullname} is not installed on a robot")
        return None


def load(file: str):
    """The runtime module from its file, without its package."""
    spec = importlib.util.spec_from_file_location("runtime", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def worlds(mjcf: str, given: dict) -> tuple[Any, dict[str, Any]]:
    """(batch, live arrays by name) of the episodes' worlds in their start states, with a converged
    solver."""
    import mujoco
    from mujoco.batch import Batch

    model = mujoco.MjModel.from_xml_string(mjcf)
    model.opt.iterations, model.opt.ls_iterations = 100, 50
    batch = Batch(model, len(given["qpos"]), 0)
    for name in given:
        if name.startswith("model/"):
            batch.expand(name[6:])[:] = given[name]
    batch.set_const()
    live: dict[str, Any] = {
        name: batch.bind(name) for name in ("qpos", "qvel", "ctrl", "sensordata")
    }
    start(batch, live, given, range(len(given["qpos"])))
    live["sensor"] = {
        model.sensor(i).name: live["sensordata"][:, a : a + d]
        for i, (a, d) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True))
    }
    live["joint"] = {model.joint(i).name: i for i in range(model.njnt)}
    live["angle"], live["speed"] = model.jnt_qposadr, model.jnt_dofadr
    return batch, live


def start(batch: Any, live: dict, given: dict, ids: Iterable[int]) -> None:
    """Put the worlds `ids` into their start states, with sensors that show them."""
    import mujoco

    ids = list(ids)
    batch.reset(ids, stage=0)
    for name in ("qpos", "qvel"):
        live[name][ids] = given[name][ids]
    batch.forward(ids, mujoco.mjtStage.mjSTAGE_VEL.value)


def measured(policy: Any, live: dict, given: dict, t: int) -> dict[str, Any]:
    """What the robots' sensors say at control step t: the physics and the sensors' noise."""
    values = {name: live["sensor"][name] for name in policy.needs if name not in policy.reads}
    for source, array, place in (("joint_pos", "qpos", "angle"), ("joint_vel", "qvel", "speed")):
        values[source] = live[array][
            :, [live[place][live["joint"][j]] for j in policy.reads[source]]
        ]
    for name in values:
        if f"noise/{name}" in given:
            values[name] = values[name] + given[f"noise/{name}"][t]
    return values


def walk(policy: Any, batch: Any, live: dict, given: dict) -> dict[str, Any]:
    """Run the episodes with the policy and score them."""
    import numpy as np

    steps, (every, ignored, substeps) = len(given["command"]) - 1, given["timing"]
    count = len(given["qpos"])
    fell, path = np.zeros(count, bool), []
    sums = np.zeros((3, count))  # squared velocity error, squared yaw error, steps that count
    policy.reset(given["phase"])
    for t in range(1, steps + 1):
        live["ctrl"][:] = policy.act(measured(policy, live, given, t - 1), given["command"][t - 1])
        batch.step(None, int(substeps))
        path.append(live["qpos"].copy())
        sensor, command = live["sensor"], given["command"][t]
        settled = t % every >= ignored
        sums[0] += settled * ((sensor["velocity"][:, :2] - command[:, :2]) ** 2).sum(1)
        sums[1] += settled * (sensor["gyro"][:, 2] - command[:, 2]) ** 2
        sums[2] += settled
        # NaN is down, too.
        down = ~((sensor["up"][:, 2] >= 0.3) & (live["qpos"][:, 2] >= given["fallen"]))
        fell |= down
        if down.any():  # it has failed; stand it up, so that its readings stay finite
            start(batch, live, given, np.flatnonzero(down))
    velocity, yaw = np.sqrt(sums[:2] / np.maximum(sums[2], 1))
    success = ~fell & (velocity <= 0.25) & (yaw <= 0.25)
    return {
        "success": success,
        "velocity": velocity,
        "yaw": yaw,
        "fell": fell,
        "path": np.stack(path),
    }


def main() -> None:
    sys.meta_path.insert(0, Ban())
    import numpy as np

    deploy_file, onnx_file, episodes_file, out = sys.argv[1:]
    policy = load(deploy_file).Policy(onnx_file)
    with np.load(episodes_file) as file:
        given = {name: file[name] for name in file.files}
    np.savez(out, **walk(policy, *worlds(policy.mjcf, given), given))
    loaded = [name for name in BANNED if name in sys.modules]
    if loaded:
        raise SystemExit(f"this process has imported {', '.join(loaded)}")


if __name__ == "__main__":
    main()

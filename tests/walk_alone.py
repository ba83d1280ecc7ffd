"""Walk an exported policy in MuJoCo C from its file alone, in two processes.

    python -I tests/walk_alone.py RUNTIME_PY POLICY_ONNX EPISODES_NPZ OUT_NPZ

This process steps MuJoCo C, and can import neither torch nor gpusim_rl. It starts
`tests/robot_computer.py`, which can import neither torch nor mujoco, sends it the readings, and
gets the targets.

The episodes are those that `benchmarks.deploy.episodes` wrote: start states, worlds, commands
and noise of the readings. OUT_NPZ holds `success` (B,) by the definition of the quadruped's
evaluation, `velocity` and `yaw` (B,) errors RMSE, `fell` (B,) and `path` (T, B, nq).
"""

import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COMPUTER = Path(__file__).with_name("robot_computer.py")
BANNED = ("torch", "gpusim_rl", "tasks", "warp", "mujoco_warp", "onnx", "onnxruntime")


class Computer:
    """The process of the robots' computer.

    Attributes:
        needs, reads, mjcf: what the policy says of itself.
    """

    def __init__(self, runtime_file: str, onnx_file: str):
        line = [sys.executable, "-I", str(COMPUTER), runtime_file, onnx_file]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        about = self._hear()
        self.needs, self.reads, self.mjcf = about["needs"], about["reads"], about["mjcf"]

    def begin(self, worlds: int, memory: dict[str, Any]) -> None:
        """The robots begin with this memory, where it differs from the policy's own start."""
        self._say({"worlds": worlds, "memory": memory})

    def act(self, readings: dict[str, Any], command: Any, restart: Any = None) -> Any:
        """(B, nu) targets; restart (B,): the robots that begin again."""
        self._say({"readings": readings, "command": command, "restart": restart})
        return self._hear()

    def end(self) -> None:
        """Close its input; SystemExit unless it ends well."""
        assert self.process.stdin
        self.process.stdin.close()
        if self.process.wait():
            raise SystemExit("the robots' computer failed")

    def _say(self, value: Any) -> None:
        assert self.process.stdin
        pickle.dump(value, self.process.stdin)
        self.process.stdin.flush()

    def _hear(self) -> Any:
        assert self.process.stdout
        try:
            return pickle.load(self.process.stdout)
        except EOFError:
            raise SystemExit("the robots' computer failed") from None


def worlds(mjcf: str, given: dict) -> tuple[Any, dict[str, Any]]:
    """(batch, live arrays by name) of the episodes' start states, with a converged solver."""
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


def measured(robot: Computer, live: dict, given: dict, t: int) -> dict[str, Any]:
    """What the robots' sensors say at control step t: the physics and the sensors' noise."""
    arrays = {"joint_pos": ("qpos", "angle"), "joint_vel": ("qvel", "speed")}
    values = {}
    for name in robot.needs:
        if name in arrays:
            array, place = arrays[name]
            columns = [live[place][live["joint"][joint]] for joint in robot.reads[name]]
            values[name] = live[array][:, columns]
        else:
            values[name] = live["sensor"][name].copy()
        if f"noise/{name}" in given:
            values[name] = values[name] + given[f"noise/{name}"][t]
    return values


def walk(robot: Computer, batch: Any, live: dict, given: dict) -> dict[str, Any]:
    """Run the episodes with the robots' computer and score them."""
    import numpy as np

    steps, (every, ignored, substeps) = len(given["command"]) - 1, given["timing"]
    count = len(given["qpos"])
    fell, path, down = np.zeros(count, bool), [], np.zeros(count, bool)
    sums = np.zeros((3, count))  # squared velocity error, squared yaw error, steps that count
    robot.begin(count, {"phase": given["phase"]})
    for t in range(1, steps + 1):
        readings, command = measured(robot, live, given, t - 1), given["command"]
        live["ctrl"][:] = robot.act(readings, command[t - 1], down)
        batch.step(None, int(substeps))
        path.append(live["qpos"].copy())
        sensor, settled = live["sensor"], t % every >= ignored
        sums[0] += settled * ((sensor["velocity"][:, :2] - command[t][:, :2]) ** 2).sum(1)
        sums[1] += settled * (sensor["gyro"][:, 2] - command[t][:, 2]) ** 2
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
    import importlib.util

    spec = importlib.util.spec_from_file_location("robot_computer", COMPUTER)
    assert spec and spec.loader
    computer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(computer)
    sys.meta_path.insert(0, computer.Ban(BANNED))
    import numpy as np

    runtime_file, onnx_file, episodes_file, out = sys.argv[1:]
    robot = Computer(runtime_file, onnx_file)
    with np.load(episodes_file) as file:
        given = {name: file[name] for name in file.files}
    np.savez(out, **walk(robot, *worlds(robot.mjcf, given), given))
    robot.end()
    loaded = [name for name in BANNED if name in sys.modules]
    if loaded:
        raise SystemExit(f"this process has imported {', '.join(loaded)}")


if __name__ == "__main__":
    main()

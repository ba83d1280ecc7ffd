"""Worlds in which a policy acts, one control step after another: of a run, or of a file.

Videos, the window and the web page step these. Both kinds have:

- `model`: a mujoco.MjModel. `show_world` gives it what a world has of its own.
- `description`: what the policy's description says of its command; empty if it follows none.
- `dt`: control period [s]. `worlds`: their number.
- `command`: (n,) of the last step; None if it was the task's own.
- `terms`, `measures`: of the first world, from the last step that was `watched`: the weighted
  reward terms [1/s], and the task's measures.
- `pose()`: (worlds, nq + 7 m) the state, and where the m mocap bodies are.
- `ghost()`: (nq,) where the task has the first robot be, which pictures show; None if nowhere.
- `followed`: (n,) what the robot did of the command then, in its units; None if nobody knows.
"""

from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpusim_rl.deploy.exported import file_errors, open_onnx
from gpusim_rl.envs.command_columns import Description, place_target
from gpusim_rl.robots.free_bodies import free_base, robot_joint
from gpusim_rl.viewer.pose import join_pose

if TYPE_CHECKING:
    from mujoco import MjData, MjModel

    from gpusim_rl.envs.state import State
    from gpusim_rl.envs.task import Task
    from gpusim_rl.networks.policy import Policy
    from gpusim_rl.sim.base import Sim

Numbers = dict[str, float]  # name → value


def pushed(model: "MjModel", velocity: np.ndarray) -> np.ndarray:
    """(nv,) what a push adds to `qvel`."""
    added, base, first = np.zeros(model.nv), free_base(model), robot_joint(model)
    if base:
        added[base.qvel][:2] = velocity
    elif first is not None:
        added[model.jnt_dofadr[first]] = velocity[0]
    return added


class RunRollout:
    """The policy of a run in worlds of its task, as an evaluation steps them.

    Args:
        policy: acts with its mean action.
        task: as trained. What is stepped is its `evaluation()`.
        weights, noise: of the run's configuration.
        picture: what is shown; the simulated model unless given. `visuals.picture_model` says how
            it may differ.
    """

    def __init__(
        self,
        policy: "Policy",
        task: "Task",
        worlds: int,
        *,
        weights: Numbers,
        noise: Numbers,
        seed: int,
        picture: "MjModel | None" = None,
    ):
        from gpusim_rl.deploy.describe import describe_command
        from gpusim_rl.evaluation.evaluate import evaluation_env
        from gpusim_rl.robots.visuals import simulated_geoms

        self.description: Description = describe_command(task)
        self.env = evaluation_env(task, worlds, weights=weights, noise=noise, seed=seed)
        self.model = self.env.task.mjm if picture is None else picture
        self.geoms = slice(None) if picture is None else simulated_geoms(picture)
        self.dt, self.worlds = self.env.task.dt, worlds
        self.terms, self.measures = dict[str, float](), dict[str, float]()
        self.weights = weights
        self.command: np.ndarray | None = None
        self.followed: np.ndarray | None = None
        self.set_policy(policy)

    def set_policy(self, policy: "Policy") -> None:
        """Let another policy act from now on, which remembers nothing."""
        from gpusim_rl.evaluation.evaluate import MeanAction

        self.act = MeanAction(policy, self.env.num_rows)

    def step(self, command: np.ndarray | None, watched: bool = False) -> None:
        """Act for one control period on a command (n,); None leaves the task's own."""
        self.command = command
        if command is not None:
            self.env.set_memory("command", command)
        self.act.step(self.env, self._watch if watched else None)

    def _watch(self, s: "State") -> None:
        """Keep the reward terms and the measures of the first world in a state."""
        from gpusim_rl.envs.task import reward_terms

        task = self.env.scheduled_task
        terms = {name: x[0] * self.weights[name] for name, x in reward_terms(task, s).items()}
        self.terms = {name: float(x.mean()) for name, x in terms.items()}
        self.measures = {name: float(x[0]) for name, x in task.measure(s).items()}
        self.followed = None if task.drives is None else task.followed(s)[0].numpy()

    def pose(self) -> np.ndarray:
        """(worlds, nq + 7 m) a copy of the state, and of where m mocap bodies are."""
        sim = self.env.sim
        return join_pose(sim.qpos.numpy(), sim.mocap_pos.numpy(), sim.mocap_quat.numpy())

    def ghost(self) -> np.ndarray | None:
        ghost = self.env.task.ghost(self.env.current_state())
        return None if ghost is None else ghost[0].numpy()

    def show_world(self, world: int) -> None:
        """Give the model the fields and the target of a world. In place."""
        show_fields(self.model, self.env.sim, self.env.task.fields, world, self.geoms)
        if self.description:
            place_target(self.model, self.description, self.env.memory["command"][world].numpy())

    def push(self, velocity: np.ndarray) -> None:
        """Add a velocity (2,) [m/s] along x and y of the world to each robot's base.

        A robot without a free base gets its first number at its first joint. No object is pushed.
        """
        kick = self.env.task.tensor(pushed(self.model, velocity))
        self.env.write({"kick": kick.expand(self.worlds, -1)}, None)

    def restart(self) -> None:
        """Begin a new episode in every world."""
        self.env.restart()
        self.act.restart(self.env.task.tensor([True] * self.env.num_rows).bool())


class FileRollout:
    """A world in which a stranger's policy acts. ValueError, in one line, if it cannot."""

    worlds = 1

    def __init__(self, path: Path):
        import mujoco

        self.path, (self.policy, self.model) = path, open_onnx(path)
        self.dt, self.description = self.policy.dt, self.policy.command or {}
        self.terms, self.measures = dict[str, float](), dict[str, float]()
        self.data, self.time = mujoco.MjData(self.model), 0.0
        self.followed: np.ndarray | None = None
        self.restart()

    def step(self, command: np.ndarray | None, watched: bool = False) -> None:
        """As of a run. ValueError, in one line, if a number is not finite."""
        import mujoco

        from gpusim_rl.deploy import runtime

        data = self.data
        with file_errors(self.path):
            self.command = command
            data.ctrl[:] = self.policy.act(runtime.readings(self.policy, data), command)
            at = f"{self.path}: after {self.time:.2f} s"
            if self.policy.fault.any():
                raise ValueError(f"{at} a reading or result is not finite")
            self.show_world(0)
            mujoco.mj_step(self.model, data, round(self.dt / self.model.opt.timestep))
            self.time += self.dt
            if not np.isfinite(data.qpos).all():
                at = f"{self.path}: after {self.time:.2f} s"
                raise ValueError(f"{at} its robot's state is not finite")
        first = robot_joint(self.model)
        if watched and first is not None:
            velocity = data.qvel[self.model.jnt_dofadr[first] :][:2]
            self.measures = {"speed": float(np.linalg.norm(velocity))}
            self.followed = velocity_of_base(self.description, data)

    def pose(self) -> np.ndarray:
        data = self.data
        return join_pose(data.qpos[None], data.mocap_pos[None], data.mocap_quat[None])

    def ghost(self) -> None:
        """None: a file does not say it."""

    def show_world(self, world: int) -> None:
        if self.description and self.command is not None:
            place_target(self.model, self.description, self.command)

    def push(self, velocity: np.ndarray) -> None:
        self.data.qvel[:] += pushed(self.model, velocity)

    def restart(self) -> None:
        import mujoco

        self.command: np.ndarray | None = None
        with file_errors(self.path):
            mujoco.mj_resetData(self.model, self.data)
            if self.model.nkey:
                mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
            mujoco.mj_forward(self.model, self.data)
        self.policy.reset()


Rollout = RunRollout | FileRollout


def velocity_of_base(description: Description, data: "MjData") -> np.ndarray | None:
    """(3,) velocities along x and y [m/s], and about z [rad/s], of a free base in its own frame.

    None unless these are what a command asks for, as `description` says.
    """
    base = free_base(data.model)
    if list(description.get("units", ())) != ["m/s", "m/s", "rad/s"] or not base:
        return None
    linear, angular = data.qvel[base.qvel][:3], data.qvel[base.qvel][3:]  # of the world, of itself
    x, y, _ = data.xmat[base.body].reshape(3, 3).T @ linear
    return np.array([x, y, angular[2]])


def show_fields(
    model: "MjModel",
    sim: "Sim",
    fields: tuple[str, ...],
    world: int,
    geoms: slice | np.ndarray = slice(None),
) -> None:
    """Give a model the fields that a world has of its own, for a picture of it. In place.

    Gains of an actuator that is no MuJoCo servo are no fields of the model. `geoms` are the numbers
    in the model of the geoms that are simulated.
    """
    for name in (name for name in fields if hasattr(model, name.partition(".")[0])):
        field = attrgetter(name)(model)
        rows = geoms if name.startswith("geom_") else slice(None)
        field[rows] = sim.model(name)[world].numpy().reshape(field[rows].shape)

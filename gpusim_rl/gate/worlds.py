"""B copies of a robot that differ as their plans say, and what their sensors say."""

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core import maths
from gpusim_rl.core.provenance import cores_available
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.envs.state import sensor_columns
from gpusim_rl.gate.robot import TOUCHES, Robot, compiled, ground, safe_state
from gpusim_rl.gate.scenarios import UP, Plan, joined
from gpusim_rl.sim.actuated import ActuatedSim, engine
from gpusim_rl.sim.actuator_spec import DELAY, Actuator
from gpusim_rl.sim.base import Sim
from gpusim_rl.sim.factory import make
from gpusim_rl.sim.native import Native

Array = np.ndarray
SLIDING = {"geom_friction": 1, "pair_friction": 2}  # field → how many numbers are of sliding
GROUND = ("geom_pos", "geom_quat")  # fields of the ground, which MJX cannot turn
FIELDS = (*SLIDING, "body_mass", *GROUND)  # with a value of each world
SOLREF = ("geom_solref", "pair_solref")  # the same, of MuJoCo C alone
OPTIONS: dict[str, dict[str, bool]] = {"warp": dict(conditional=False, deterministic=False)}
LEAST_MASS = 0.1  # of the base's mass, that a negative payload leaves


class Worlds:
    """The robots of plans, side by side, each in a world of its own; B are all of them.

    `gate.sim` names the engine that steps them and has their sensors. MuJoCo C says of the states
    that come about who falls, and which forces act.

    Attributes:
        sim: the engine.
        native: `Native`, which is `sim` by default. More threads than the cores that we may use
            would wait for one another.
        qpos, qvel, ctrl: the engine's tensors as arrays (B, …); the last two may be written.
        data: more fields of MjData, name → (B, …).
        sensors: name → (B, width), of the last step.
        joints: reading of joints → qpos or qvel, and its columns of them.
        normal: (B, 3) of the ground.
        pivot: (3,) the point below the robot's start, about which the ground is turned [m].
    """

    def __init__(self, plans: list[Plan]):
        self.robot = robot = plans[0].robot
        model, self.count = robot.model, sum(plan.count for plan in plans)
        self.native = Native(model, self.count, fields=FIELDS + SOLREF, threads=cores_available())
        sim = other_sim(robot, self.count, plans[0].settings["sim"]) or self.native
        self.sim = late_sim(sim, model, joined(plans, "late"))
        self.qpos, self.qvel = self.sim.qpos.numpy(), self.sim.qvel.numpy()
        self.ctrl = self.sim.ctrl.numpy()
        names = ("xpos", "xmat", "actuator_force", "actuator_velocity")
        self.data: dict[str, Array] = {name: self.native.batch.bind(name) for name in names}
        places = sensor_columns(model).items()
        self.sensors = {name: self.sim.sensordata.numpy()[:, x] for name, x in places}
        if engine(self.sim) is not self.native and robot.base:  # the last sensor, which MJX lacks
            self.sensors[TOUCHES] = self.native.batch.bind("sensordata")[:, -1:]
        states = (self.qpos, model.jnt_qposadr), (self.qvel, model.jnt_dofadr)
        self.joints: dict[str, tuple[Array, list[int]]] = {}
        for name, joints in robot.policy.reads.items():
            state, addresses = states[JOINTS.index(name)]
            self.joints[name] = state, [addresses[model.joint(x).id] for x in joints]
        self.pivot = np.array([*safe_state(model).xpos[robot.base][:2], ground(model)])
        slope, towards = (torch.from_numpy(joined(plans, x)) for x in ("slope", "towards"))
        axis = torch.stack([towards.sin(), -towards.cos(), 0 * towards], -1)
        turn = maths.from_axis_angle(axis, slope)  # (B, 4) from level to the slope
        self.normal = maths.rotate(turn, UP.expand_as(axis)).numpy()
        self.write_fields(plans, turn)
        self.start(plans, turn)

    def write_fields(self, plans: list[Plan], turn: Tensor) -> None:
        """Give each world its friction, contacts, payload, and ground: all that is fixed to it."""
        model, base = self.robot.model, self.robot.base
        friction = torch.from_numpy(joined(plans, "friction"))[:, None, None]
        for name, columns in SLIDING.items():
            sliding = self.native.model(name)[..., :columns]
            sliding.copy_(torch.where(friction.isnan(), sliding, friction))
        solref = torch.from_numpy(joined(plans, "solref"))[:, None]
        for name in SOLREF:
            self.native.model(name)[..., 0] *= solref
        # of the whole robot's mass, at the base's center of mass
        added = joined(plans, "payload") * model.body_subtreemass[base]
        mass = np.maximum(model.body_mass[base] + added, LEAST_MASS * model.body_mass[base])
        self.native.model("body_mass")[:, base] = torch.from_numpy(mass)
        fixed = torch.from_numpy(model.geom_bodyid == 0)
        positions, rotations = self.native.model("geom_pos"), self.native.model("geom_quat")
        turns = turn[:, None].expand(-1, int(fixed.sum()), -1)
        positions[:, fixed] = self.about_pivot(turns, positions[:, fixed])
        rotations[:, fixed] = maths.product(turns, rotations[:, fixed])
        self.native.refresh()  # what MuJoCo derives from masses and frames
        if engine(self.sim) is not self.native:
            for name in fields_of(model, plans[0].settings["sim"]):
                self.sim.model(name).copy_(self.native.model(name))
            self.sim.refresh()

    def start(self, plans: list[Plan], turn: Tensor) -> None:
        """Put the robots into their safe pose, with other joint angles and headings, on the ground.

        A base that stands keeps its distance from the ground.
        """
        model, robot, state = self.robot.model, self.robot, safe_state(self.robot.model)
        qpos, qvel = (torch.tensor(x).repeat(self.count, 1) for x in (state.qpos, state.qvel))
        driven = robot.joints >= 0
        columns = torch.from_numpy(model.jnt_qposadr[robot.joints[driven]]).long()
        qpos.index_add_(1, columns, torch.from_numpy(joined(plans, "joints")[:, driven]))
        if robot.free:
            heading = torch.from_numpy(joined(plans, "heading"))
            spin = maths.from_axis_angle(UP.expand(self.count, 3), heading)
            place, rotation = qpos[:, robot.free.qpos].split((3, 4), 1)
            place.copy_(self.about_pivot(turn, place))
            rotation.copy_(maths.product(maths.product(turn, spin), rotation))
        everywhere = torch.ones(self.count, dtype=torch.bool)
        for sim in {self.native, self.sim}:
            sim.reset(everywhere, qpos, qvel)

    def about_pivot(self, turn: Tensor, place: Tensor) -> Tensor:
        """Places (…, 3) after a turn (…, 4) about the pivot."""
        pivot = torch.from_numpy(self.pivot)
        return maths.rotate(turn, place - pivot) + pivot

    # -- what happens ------------------------------------------------------------------------------

    def readings(self) -> dict[str, Array]:
        """(B, width) of each reading that the policy needs, without any error."""
        joints = {name: state[:, columns] for name, (state, columns) in self.joints.items()}
        return {name: (self.sensors | joints)[name] for name in self.robot.policy.needs}

    def step(self, which: Array) -> Array:
        """Advance the worlds of which (B,) bool by a control step; (B,) those that failed."""
        substeps = round(self.robot.policy.dt / self.robot.model.opt.timestep)
        if self.sim is self.native:
            self.native.step(substeps, np.flatnonzero(which))
            return self.native.fault().numpy()
        if engine(self.sim) is self.native:
            self.sim.step(substeps)
            return self.sim.fault().numpy()
        self.sim.step(substeps - 1)
        self.measure(which)  # where MuJoCo C computes forces: at the start of the last timestep
        fault = self.sim.fault().numpy().copy()
        self.sim.step(1)
        return fault | self.sim.fault().numpy()

    def measure(self, which: Array) -> None:
        """Compute `data` of the engine's states, in the worlds of which (B,) bool."""
        for name in ("qpos", "qvel", "ctrl"):
            getattr(self.native, name).copy_(getattr(engine(self.sim), name))
        finite = np.isfinite(self.qpos).all(1) & np.isfinite(self.qvel).all(1)
        self.native.batch.forward(np.flatnonzero(which & finite))

    def fallen(self, tilt: float, height: float) -> Array:
        """(B,) whether the base tilts by more than an angle [rad], is lower than a share of its
        height, or touches anything."""
        if not (base := self.robot.base):
            return np.zeros(self.count, bool)
        axes = self.data["xmat"][:, base].reshape(-1, 3, 3)
        down = axes[:, 2] @ self.robot.up < np.cos(tilt)
        place = self.data["xpos"][:, base] - self.pivot
        low = (place * self.normal).sum(1) < height * self.robot.height
        return down | low | (self.sensors[TOUCHES][:, 0] > 0)


def other_sim(robot: Robot, count: int, name: str) -> Sim | None:
    """The engine `gate.sim` with B copies of a robot; None for native.

    It has no sensor of the base's contacts, which MJX does not know.
    """
    if name == "native":
        return None
    model, options = compiled(robot.policy.mjcf), OPTIONS.get(name, {})
    return make(name, model, count, device="cpu", fields=fields_of(model, name), **options)


def late_sim(sim: Sim, model: mujoco.MjModel, late: Array) -> Sim:
    """A Sim whose targets act late (B,) [s]; itself if none does."""
    if not late.any():
        return sim
    around = ActuatedSim(sim, model, Actuator(kind="position", delay=[0.0, float(late.max())]))
    around.model(DELAY).copy_(torch.from_numpy(late)[:, None])
    return around


def fields_of(model: mujoco.MjModel, name: str) -> tuple[str, ...]:
    """The model fields, none of them empty, of which each world of an engine has a value."""
    fields = [x for x in FIELDS if name != "mjx" or x not in GROUND]
    return tuple(x for x in fields if getattr(model, x).size)

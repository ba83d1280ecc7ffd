"""B copies of a robot in MuJoCo C on all cores, and what their sensors say."""

import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError

from gpusim_rl.core.provenance import cores_available
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.gate.robot import TOUCHES, Robot, ground
from gpusim_rl.sim.native import MIDPHASE, fast

Array = np.ndarray
VELOCITY = mujoco.mjtStage.mjSTAGE_VEL.value
PLACE, SPEED = JOINTS  # the readings of the joints
LEAST_MASS = 0.1  # of the base's mass, that a negative payload leaves


class Worlds:
    """B robots, each in a world of its own.

    Attributes:
        live: MjData fields, name → (B, …); `qvel` and `ctrl` may be written.
        sensors: name → (B, width), of the last call.
    """

    LIVE = ("qpos", "qvel", "ctrl", "sensordata", "xpos", "xmat", "actuator_force")

    def __init__(self, robot: Robot, count: int):
        model = fast(robot.model)
        model.opt.disableflags |= MIDPHASE  # the ground is turned: trees of bounds would not be
        self.robot, self.model, self.count = robot, model, count
        # More threads than the cores that we may use would wait for one another.
        self.batch = Batch(model, count, cores_available())
        names = (*self.LIVE, "actuator_velocity")
        self.live: dict[str, Array] = {name: self.batch.bind(name) for name in names}
        self.sensors = {
            model.sensor(i).name: self.live["sensordata"][:, a : a + d]
            for i, (a, d) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True))
        }
        self.columns = {
            name: [model.joint(joint).id for joint in robot.policy.reads[name]]
            for name in robot.policy.reads
        }
        self.normal = np.tile([0.0, 0.0, 1.0], (count, 1))  # (B, 3) of the ground
        pose = model.key_qpos[0] if model.nkey else model.qpos0
        first = model.jnt_qposadr[model.body_jntadr[robot.base]] if robot.free else 0
        below = pose[first : first + 2] if robot.free else np.zeros(2)
        self.pivot = np.array([*below, ground(model)])  # about which the ground is turned
        self.pose = slice(first, first + 7)  # columns of a free base in qpos

    # -- what differs between the worlds -----------------------------------------------------------

    def set_friction(self, friction: Array) -> None:
        """Give all geoms and pairs of a world the same sliding friction (B,); NaN leaves them."""
        for name in ("geom_friction", "pair_friction")[: 1 + bool(self.model.npair)]:
            field, wanted = self.batch.expand(name), friction[:, None]
            for column in range(1 if name == "geom_friction" else 2):
                field[:, :, column] = np.where(np.isnan(wanted), field[:, :, column], wanted)

    def add_payload(self, share: Array) -> None:
        """Add a share (B,) of the robot's mass to its base, at the base's center of mass."""
        base = self.robot.base
        mass, whole = self.model.body_mass[base], self.model.body_subtreemass[base]
        self.batch.expand("body_mass")[:, base] = np.maximum(
            mass + share * whole, LEAST_MASS * mass
        )

    def turn_ground(self, slope: Array, towards: Array) -> None:
        """Turn all that is fixed to the world by a slope (B,) [rad], upwards in a direction (B,)
        [rad], about the point below the robot's start."""
        fixed = np.flatnonzero(self.model.geom_bodyid == 0)
        places, turns = self.batch.expand("geom_pos"), self.batch.expand("geom_quat")
        for world in np.flatnonzero(slope):
            angle = towards[world]
            turn = rotation([np.sin(angle), -np.cos(angle), 0.0], slope[world])
            mujoco.mju_rotVecQuat(self.normal[world], np.array([0.0, 0.0, 1.0]), turn)
            for geom in fixed:
                places[world, geom] = self.about_pivot(self.model.geom_pos[geom], turn)
                turns[world, geom] = product(turn, self.model.geom_quat[geom])

    def about_pivot(self, place: Array, turn: Array) -> Array:
        """(3,) a place after a turn (w, x, y, z) about the pivot."""
        out = np.zeros(3)
        mujoco.mju_rotVecQuat(out, place - self.pivot, turn)
        return out + self.pivot

    def begin(self, joints: Array, heading: Array) -> None:
        """Put the robots into their safe pose, turned to a heading (B,) [rad], on their ground.

        joints: (B, nu) added to the angles of the driven joints.
        """
        self.batch.set_const()  # also what MuJoCo knows of turned frames
        self.batch.reset(None, 0 if self.model.nkey else -1, stage=0)
        qpos, driven = self.live["qpos"], self.robot.joints
        for i, joint in enumerate(driven):
            if joint >= 0:
                qpos[:, self.model.jnt_qposadr[joint]] += joints[:, i]
        if self.robot.free:
            for world in range(self.count):
                self.turn_base(qpos[world, self.pose], heading[world], self.normal[world])
        self.batch.forward(None, VELOCITY)

    def turn_base(self, pose: Array, heading: float, normal: Array) -> None:
        """Turn a pose (7,) about the world's up axis, then to the normal of its ground. In place.

        A base that stands keeps its distance from the ground.
        """
        spin = rotation([0.0, 0.0, 1.0], heading)
        axis = np.cross([0.0, 0.0, 1.0], normal)
        tilt = rotation(axis, np.arcsin(np.linalg.norm(axis)))
        turn = product(tilt, spin)
        pose[:3] = self.about_pivot(pose[:3], turn)
        pose[3:] = product(turn, pose[3:])

    # -- what happens ------------------------------------------------------------------------------

    def readings(self) -> dict[str, Array]:
        """(B, width) of each reading that the policy needs, without any error."""
        values = {}
        for name in self.robot.policy.needs:
            if name == PLACE:
                values[name] = self.live["qpos"][:, self.model.jnt_qposadr[self.columns[name]]]
            elif name == SPEED:
                values[name] = self.live["qvel"][:, self.model.jnt_dofadr[self.columns[name]]]
            else:
                values[name] = self.sensors[name].copy()
        return values

    def step(self, which: Array) -> Array:
        """Advance the worlds of which (B,) bool by a control step; (B,) those that failed."""
        failed = np.zeros(self.count, bool)
        substeps = round(self.robot.policy.dt / self.model.opt.timestep)
        try:
            self.batch.step(np.flatnonzero(which), substeps)
        except SimulationError as error:
            failed[list(error.ids)] = True
        state = np.abs(self.live["qpos"]).max(1), np.abs(self.live["qvel"]).max(1)
        return failed | ~(np.maximum(*state) < 1e6)  # NaN fails every comparison

    def fallen(self, tilt: float, height: float) -> Array:
        """(B,) whether the base tilts by more than an angle [rad], is lower than a share of its
        height, or touches anything."""
        if not self.robot.base:
            return np.zeros(self.count, bool)
        base = self.robot.base
        turns = self.live["xmat"][:, base].reshape(-1, 3, 3)
        down = turns[:, 2] @ self.robot.up < np.cos(tilt)
        place = self.live["xpos"][:, base] - self.pivot
        low = (place * self.normal).sum(1) < height * self.robot.height
        return down | low | (self.sensors[TOUCHES][:, 0] > 0)


def rotation(axis: list[float] | Array, angle: float) -> Array:
    """(4,) a turn (w, x, y, z) about an axis by an angle [rad]."""
    out, axis = np.zeros(4), np.array(axis, float)
    length = np.linalg.norm(axis)
    mujoco.mju_axisAngle2Quat(out, axis / length if length else axis, angle)
    return out


def product(first: Array, second: Array) -> Array:
    """(4,) the rotation that turns by `second`, then by `first`."""
    out = np.zeros(4)
    mujoco.mju_mulQuat(out, first, np.asarray(second, float))
    return out

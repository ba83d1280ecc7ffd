"""A robot in MuJoCo C for the checks of deployment: what an exported policy's file says it is."""

import mujoco
import numpy as np

from gpusim_rl.deploy import runtime
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.rest_measurements import NOSLIP

NOISE = {"gyro": 0.2, "up": 0.05, "joint_pos": 0.03, "joint_vel": 1.5}  # half widths of training's


class Simulated:
    """One robot with servos whose gain can be lowered, and a clock that only `send` advances.

    Attributes:
        lowest: least height of the base's up axis so far [1]: 1 upright, 0 on its side.
    """

    checked = False  # whether preflight comes first

    def __init__(self, policy: runtime.Policy, noise: dict[str, float] | None = None):
        self.policy, self.noise = policy, noise or {}
        self.model = mujoco.MjModel.from_xml_string(policy.mjcf)
        self.model.opt.noslip_iterations = NOSLIP
        self.data, self.rng = mujoco.MjData(self.model), np.random.default_rng(0)
        self.kp, self.lowest = self.model.actuator_gainprm[:, 0].copy(), 1.0
        self.substeps = round(policy.dt / self.model.opt.timestep)
        self.joints = self.model.actuator_trnid[:, 0]
        mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        mujoco.mj_forward(self.model, self.data)

    def draw(self, seed: int) -> None:
        """Make it another quadruped of those that training draws, with its noise of readings."""
        m, rng = self.model, np.random.default_rng(seed)
        m.geom_friction[:, 0] = rng.uniform(0.5, 1.25)
        masses = rng.uniform(0.9, 1.1, m.nbody)
        m.body_mass *= masses
        m.body_inertia *= masses[:, None]
        m.body_ipos[1] += rng.uniform(-0.03, 0.03, 3)
        kp, kd = rng.uniform(0.9, 1.1, 2)
        m.actuator_gainprm[:, 0] *= kp
        m.actuator_biasprm[:, 1:3] *= [kp, kd]
        self.kp, self.rng = m.actuator_gainprm[:, 0].copy(), rng
        self.noise = NOISE

    def clock(self) -> float:
        """The time [s]."""
        return self.data.time

    def read(self) -> dict[str, np.ndarray]:
        """The readings, joints in the order of the targets."""
        m, data, values = self.model, self.data, {}
        angles, speeds = data.qpos[m.jnt_qposadr[self.joints]], data.qvel[m.jnt_dofadr[self.joints]]
        for name in self.policy.needs:
            joints = {"joint_pos": angles, "joint_vel": speeds}
            x = joints[name] if name in joints else data.sensor(name).data
            half = self.noise.get(name, 0.0)
            values[name] = x + self.rng.uniform(-half, half, x.shape)
        return values

    def send(self, targets: np.ndarray, gain: float = 1.0) -> None:
        """Step the physics for one control period, with kp times gain."""
        self.model.actuator_gainprm[:, 0] = gain * self.kp
        self.model.actuator_biasprm[:, 1] = -gain * self.kp
        self.data.ctrl[:] = targets
        mujoco.mj_step(self.model, self.data, self.substeps)
        self.lowest = min(self.lowest, float(self.data.xmat[1].reshape(3, 3)[2, 2]))

    @property
    def fell(self) -> bool:
        """Whether it was ever tilted by more than 60°."""
        return self.lowest < 0.5

    def lie(self, seconds: float = 2.0) -> None:
        """Let the servos only damp, so that it sinks to the ground."""
        for _ in range(round(seconds / self.policy.dt)):
            self.send(self.data.ctrl.copy(), 0.0)

    def drive(self, guard: Guard, seconds: float, command, read=None, send=None) -> str:
        """Let a guard drive it; returns what it refused with, or why it stopped."""
        read, send = read or self.read, send or self.send
        end = self.data.time + seconds
        while self.data.time < end - 1e-9 and guard.phase != "off":
            try:
                targets = guard.act(read(), command)
            except ValueError as error:
                return str(error)
            send(targets, guard.gain)
        return guard.why

"""The network of a robot that walks, as mjlab exports its own: what other people's tools read.

mjlab (https://github.com/mujocolab/mjlab) writes what a program must know of a network into the
file's metadata; see `get_base_metadata` of its `rl/exporter_utils.py`. Its observations differ
from ours in a sign and an order, and no clock moves its legs.
"""

import copy
import json
import math
from collections.abc import Sequence
from typing import TypeGuard

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from gpusim_rl.deploy.describe import actuated_joints
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.tracing import reads, sample_inputs
from gpusim_rl.robots.servos import actuators
from gpusim_rl.tasks.common.walking import Walking

NAMES = {  # observation term of `Walking` → mjlab's name, and that in a deploy.yaml
    "gyro": ("base_ang_vel", "base_ang_vel"),
    "up": ("projected_gravity", "projected_gravity"),  # is minus up
    "joints": ("joint_pos", "joint_pos_rel"),
    "speeds": ("joint_vel", "joint_vel_rel"),
    "action": ("actions", "last_action"),  # with what the clock adds
    "command": ("command", "velocity_commands"),
    "clock": ("phase", "gait_phase"),  # the sine before the cosine
}
CONTROL = {"action", "phase", "command", "goal"}  # what may decide the targets of a walking robot
COMMAND = "twist"  # mjlab's name of a command of velocities
AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")  # of it, in a deploy.yaml
Terms = dict[str, Tensor]


# Why: docs/decisions/controller.md
class MjlabActor(nn.Module):
    """An actor that takes mjlab's observations (B, no) and gives mjlab's actions (B, nu).

    The targets of the joints are stance + scale · action, so an action includes what the clock adds
    to the targets. The actor gets its last action without that.

    Args:
        actor: our observation (B, no) → mean action (B, nu).
        task: that of the actor, on the CPU, which `fits`.
        widths: observation term → its width.

    Attributes:
        shapes: term that the actor sees → its control steps, oldest first, and its width.
        stance, scale: (nu,) the targets of action 0, and their change by an action of 1 [rad].
        back: (2, 2) turns a clock back by a control step.
    """

    stance: Tensor
    scale: Tensor
    back: Tensor

    def __init__(self, actor: nn.Module, task: Walking, widths: dict[str, int]):
        super().__init__()
        self.actor, self.task = copy.deepcopy(actor).cpu(), task
        steps = {name: task.history.get(name, 1) for name in widths}
        self.shapes = {name: (n, widths[name]) for name, n in steps.items() if n}
        unit, none = torch.ones(1, task.mjm.nu), torch.zeros(1, 3)
        stance = self.targets(0 * unit, none[:, :2], none)
        self.register_buffer("stance", stance[0])
        self.register_buffer("scale", (self.targets(unit, none[:, :2], none) - stance)[0])
        turn = -2 * math.pi * task.dt * task.gait
        cos, sin = math.cos(turn), math.sin(turn)
        self.register_buffer("back", torch.tensor([[cos, sin], [-sin, cos]]))

    def forward(self, obs: Tensor) -> Tensor:
        return self.action(self.actor(self.ours(obs)), self.split(obs))

    def action(self, mean: Tensor, theirs: Terms) -> Tensor:
        """(B, nu) mjlab's action of the actor's (B, nu)."""
        clock, command = theirs["clock"].flip(-1)[:, -1], theirs["command"][:, -1]
        targets = self.targets(mean.clamp(-self.task.clip, self.task.clip), clock, command)
        return (targets - self.stance) / self.scale

    def ours(self, obs: Tensor) -> Tensor:
        """(B, no) our observation of mjlab's."""
        terms = self.split(obs)
        terms |= dict(up=-terms["up"], clock=terms["clock"].flip(-1))
        return self.join(terms | dict(action=terms["action"] - self.added(terms)))

    def theirs(self, obs: Tensor) -> Tensor:
        """(B, no) mjlab's observation of ours."""
        terms = self.split(obs)
        terms |= dict(action=terms["action"] + self.added(terms))
        return self.join(terms | dict(up=-terms["up"], clock=terms["clock"].flip(-1)))

    def added(self, ours: Terms) -> Tensor:
        """(B, steps, nu) what the clock added to the last action; 0 where there was none yet."""
        action, clock = ours["action"], ours["clock"] @ self.back
        flat = [x.flatten(0, 1) for x in (0 * action, clock, ours["command"])]
        added = (self.targets(*flat) - self.stance) / self.scale
        return added.view_as(action) * (action != 0).any(-1, keepdim=True)

    def targets(self, action: Tensor, clock: Tensor, command: Tensor) -> Tensor:
        """(B, nu) the task's targets [rad], for the clock's cosine and sine (B, 2)."""
        cos, sin = clock.unbind(-1)
        cos = torch.where((cos == 0) & (sin == 0), 1.0, cos)  # stands: in ONNX atan2(0, 0) is NaN
        phase = torch.atan2(sin, cos) / (2 * math.pi)
        values = dict(action=action, phase=phase, command=command, goal=command)
        return self.task.control(State(values, {}))

    def split(self, obs: Tensor) -> Terms:
        """The terms (B, steps, width) of an observation (B, no)."""
        parts = obs.split([steps * width for steps, width in self.shapes.values()], 1)
        shapes = self.shapes.items()
        return {name: x.unflatten(1, shape) for (name, shape), x in zip(shapes, parts, strict=True)}

    def join(self, terms: Terms) -> Tensor:
        """(B, no) the observation of its terms."""
        return torch.cat([x.flatten(1) for x in terms.values()], 1)

    # -- what the file says --------------------------------------------------------------------

    def metadata(self, run: str) -> dict[str, str]:
        """The keys of mjlab's files, each a list with commas; numbers with all their digits."""
        facts, joints = actuators(self.task.mjm), actuated_joints(self.task.mjm)
        lists: dict[str, Sequence[object]] = {
            "joint_names": joints,
            "default_joint_pos": self.stance.tolist(),
            "action_scale": self.scale.tolist(),
            "joint_stiffness": facts["kp"],
            "joint_damping": facts["kd"],
            "observation_names": [NAMES[name][0] for name in self.shapes],
            "command_names": [COMMAND],
        }
        return {"run_path": run} | {key: ",".join(map(str, x)) for key, x in lists.items()}

    def deploy_yaml(self) -> str:
        """The text of a deploy.yaml, as JSON: what mjlab's metadata has no key for."""
        task, ranges = self.task, actuators(self.task.mjm)["control_range"]
        terms: Json = {name: {"history_length": n} for name, (n, _) in self.shapes.items()}
        terms["clock"]["params"] = {"period": 1 / task.gait, "stand_threshold": task.least_command}
        ends = zip(task.command.ends(-1), task.command.ends(1), strict=True)
        twist: Json = {"ranges": dict(zip(AXES, ends, strict=True))}
        if task.acceleration:
            twist["acceleration"] = dict(zip(AXES, task.acceleration, strict=True))
        description = {
            "step_dt": task.dt,
            "observations": {NAMES[name][1]: x for name, x in terms.items()},
            "commands": {COMMAND: twist},
            "actions": {"JointPositionAction": {"clip": ranges if all(ranges) else None}},
        }
        return f"{json.dumps(description, indent=1)}\n"


def fits(task: Task, widths: dict[str, int]) -> TypeGuard[Walking]:
    """Whether mjlab's words suffice for a task: servos of joints, a walk by the clock, no scan."""
    needed = {"up", "action", "command", "clock"}
    if not isinstance(task, Walking) or not task.base or not needed <= {*widths} <= {*NAMES}:
        return False
    hidden = [name for name in needed if not task.history.get(name, 1)]
    site = task.mjm.site(int(task.mjm.sensor("gyro").objid[0]))
    level = np.allclose(site.quat, [1, 0, 0, 0]) and site.bodyid[0] == task.base.body
    servos = (task.mjm.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE).all()
    servos &= task.action_width == task.mjm.nu  # an action of each
    control = reads(task, "control", sample_inputs(task))[""]
    return bool(not hidden and level and servos and control <= CONTROL)

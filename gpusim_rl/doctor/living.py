"""Whether living pays in a task, and following its command: what robots earn from rest."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.maths import rotate, yaw_frame
from gpusim_rl.doctor.findings import Finding, remedied
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.observation import Observation
from gpusim_rl.envs.task import Task

SECONDS = 3.0  # of an episode that count
FEWEST = 20  # free robots that live and tell of all; fewer are joined by those that are held
BEST = 4  # the best quarter of the falls: a learner finds them
STANDING = 0.1  # norm of a command that asks to stand
WALKS = ("forward", "left", "turn")  # the names of a command of velocities
FREE, HELD, LED = range(3)  # a third of the worlds each

Act = Callable[[Observation], Tensor]


class Earned(NamedTuple):
    """What B robots earned in their first seconds."""

    reward: Tensor  # (B,) discounted sum
    time: Tensor  # (B,) discounted time [s] in which they earned it
    fell: Tensor  # (B,) bool: the task ended the episode
    part: Tensor  # (B,) whether a robot is FREE, HELD or LED

    @property
    def living(self) -> Tensor:
        """(B,) bool: free robots that do not fall, and held ones if these are few."""
        free = ~self.fell & (self.part == FREE)
        return free if free.sum() >= FEWEST else ~self.fell & (self.part != LED)

    @property
    def following(self) -> Tensor:
        """(B,) bool: robots that move as they are told."""
        return ~self.fell & (self.part == LED)


def walks(task: Task) -> bool:
    """Whether the task commands velocities of a free base."""
    return bool(task.base and task.command and task.command.names == WALKS)


@torch.no_grad()
def earned(env: Env, act: Act, gamma: float) -> Earned:
    """What robots earn from rest, all of which are told to move. In place.

    The base of a robot that is held is put back before each control step, and that of one that is
    led has the velocity of its command, too. Their joints are free.

    Args:
        env: worlds of robots with a free base, without `stagger`.
        act: views → actions (B, nu). gamma: discount of a control step.
    """
    task, sim, base = env.task, env.sim, env.task.base
    assert base
    env.restart()
    part = 3 * torch.arange(env.num_envs, device=env.device) // env.num_envs
    if walks(task):
        command = env.memory["command"]
        stands = command.norm(dim=1, keepdim=True) < STANDING
        env.set_memory("command", torch.where(stands, task.command_limit / 2, command))
    pose, held = sim.qpos[:, base.qpos].clone(), (part >= HELD)[:, None]
    pose[:, 3:] = level = yaw_frame(pose[:, 3:])
    reward = torch.zeros(env.num_envs, device=env.device)
    time, fell, factor = torch.zeros_like(reward), reward > 0, 1.0
    for _ in range(min(round(SECONDS / task.dt), task.horizon - 1)):
        env.apply_action(act(env.observation))
        velocity = torch.zeros_like(sim.qvel[:, base.qvel])
        if walks(task):
            goal = env.memory.get("goal", env.memory["command"]) * (part == LED)[:, None]
            planar = torch.cat([goal[:, :2], 0 * goal[:, :1]], 1)
            velocity[:, :3], velocity[:, 5] = rotate(level, planar.to(level)), goal[:, 2]
        sim.qpos[:, base.qpos] = torch.where(held, pose, sim.qpos[:, base.qpos])
        sim.qvel[:, base.qvel] = torch.where(held, velocity, sim.qvel[:, base.qvel])
        env.step_physics()
        end = env.finish_step()
        reward += torch.where(fell, 0.0, factor * end.reward)
        time += factor * task.dt * ~fell
        fell, factor = fell | end.terminated | end.fault, factor * gamma
    return Earned(reward, time, fell, part)


def living(env: Env, std: float, gamma: float) -> Iterator[Finding]:
    """Findings where falling pays, or standing, before anything is learned. In place.

    A learner finds the cheapest falls. So robots with constant actions are sought that fall, and
    the best of them are compared to the mean of those that live.

    Args:
        env, gamma: as of `earned`. std: standard deviation of the random actions.
    """
    task, generator = env.task, torch.Generator().manual_seed(env.seed)
    kind, shape = type(task).__name__, (env.num_envs, task.action_width)
    constant = (task.clip * (2 * torch.rand(shape, generator=generator) - 1)).to(env.device)

    def random(_: Observation) -> Tensor:
        return (std * torch.randn(shape, generator=generator)).to(env.device)

    thrown = earned(env, lambda _: constant, gamma)
    zero = earned(env, lambda _: 0 * constant, gamma)
    fell = thrown.fell & (thrown.part == FREE)
    if fell.any():
        best = thrown.reward[fell].topk(-(-int(fell.sum()) // BEST))
        fall, time = best.values.mean().item(), thrown.time[fell][best.indices].mean().item()
        for how, x in (("random", earned(env, random, gamma)), ("zero", zero)):
            alive = x.reward[x.living].mean().item()
            if alive <= fall:  # False where none lives
                missing = (fall - alive) / max(x.time[x.living].mean().item() - time, task.dt)
                line = f"a fall earns {fall:.2g} in the first {SECONDS:g} s, discounted"
                line = f"{kind}.reward: falling pays: {line}, and living with {how} actions"
                yield remedied("falling", f"{line} {alive:.2g}, too little by {missing:.2g}/s")
                break
    if walks(task):
        stands, follows = (zero.reward[x].mean().item() for x in (zero.living, zero.following))
        if follows <= stands:
            line = f"in {SECONDS:g} s, discounted, zero actions earn {stands:.2g}"
            line = f"{kind}.reward: standing pays: {line}, the commanded motion {follows:.2g}"
            yield remedied("standing", line)

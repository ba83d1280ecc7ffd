"""Records episodes of a policy or of an exported file, as an evaluation plays them."""

import hashlib
import json
from collections.abc import Callable

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.record import Record, view_columns
from gpusim_rl.core.seeds import EVALUATION_SEEDS
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.core.waiting import counted
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.step import ended
from gpusim_rl.evaluation.evaluate import MeanAction
from gpusim_rl.networks.policy import Policy
from gpusim_rl.runs.demonstrations import Demonstrations, demonstration_columns

SEED = EVALUATION_SEEDS + 2  # of recorded episodes: others than those of evaluations
RUN_EPISODES = 16  # that are recorded of a run, unless a number is given
Act = Callable[[Env], Tensor]  # an Env → actions (B, nu)
# what makes a robot another one, of a compiled model
MODEL = ("body_mass", "body_inertia", "body_pos", "jnt_axis", "jnt_range", "geom_size")
MODEL += ("actuator_gainprm", "actuator_biasprm", "actuator_gear", "dof_armature", "dof_damping")


@torch.no_grad()
@torch_threads(1)
def demonstrate(
    act: Act, env: Env, name: str, progress: Callable[[str], None] | None = None
) -> Demonstrations:
    """The first episode of each row of an Env; those with a fault are left out.

    ValueError if every world failed by a fault.

    Args:
        act: gives the actions, clamped here as Env does; it needs to forget no episode.
        env: fresh, of `evaluation_env`.
        name: of the task.
        progress: takes a line now and then, if there is no terminal.
    """
    columns = demonstration_columns(env.views, env.task.action_width)
    steps, n, clip = env.task.horizon, env.num_rows, env.task.clip
    record = Record.zeros(columns, steps, n, device=env.device)
    alive = torch.ones(n, dtype=torch.bool)
    lived, sound = torch.zeros(steps, n, dtype=torch.bool), alive.clone()
    for t in counted(steps, "recording", progress) if progress else range(steps):
        views = {name: x.clone() for name, x in view_columns(env.observation).items()}
        action = act(env).clamp(-clip, clip)
        step = env.step(action)
        values = views | dict(action=action) | step._asdict()
        record.put(torch.tensor([t]), {name: values[name] for name in columns})
        lived[t] = alive
        sound &= ~(alive & step.fault)
        alive = alive & ~ended(step)
    taken = (lived & sound).T  # (B, T): one episode after another
    rows = {dtype: x.transpose(0, 1)[taken] for dtype, x in record.parts.items()}
    if not taken.any():
        raise ValueError("every recorded episode has a fault")
    record = Record(columns, rows)
    return Demonstrations(record, describe_env(name, env))


def describe_env(name: str, env: Env) -> dict[str, str]:
    """What demonstrations of an Env say of it: see `Demonstrations.description`."""
    columns = demonstration_columns(env.views, env.task.action_width)
    schema = Record.zeros(columns, 0, device=env.device).schema
    terms, model = json.dumps(env.term_widths), model_digest(env.task.mjm)
    return dict(task=name, dt=f"{env.task.dt:g}", terms=terms, model=model, schema=schema)


def model_digest(m: mujoco.MjModel) -> str:
    """A digest of a robot: of its names, masses, shapes, joints and actuators, to six digits."""
    numbers = [np.array2string(getattr(m, x).ravel(), threshold=10**9, precision=6) for x in MODEL]
    return hashlib.sha256("\n".join([repr(m.names), *numbers]).encode()).hexdigest()[:16]


def mean_action(policy: Policy, rows: int) -> Act:
    """Acts with a policy's mean action."""
    act = MeanAction(policy, rows)
    return lambda env: act(env.observation)

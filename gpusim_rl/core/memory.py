"""Refuses what does not fit into memory, before it is built."""

import gc
import sys
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import mujoco
import torch

from gpusim_rl.algorithms.collector import step_widths
from gpusim_rl.algorithms.ppo.samples import sample_widths
from gpusim_rl.core.record import row_width
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.sim.actuator_spec import GAINS


class OutOfMemory(ValueError):
    """What a configuration needs does not fit into memory."""


def check_free(what: str, size: float, device: torch.device) -> None:
    """Check that so many bytes are free on the device. Less than 1 GiB is taken for granted.

    Raises:
        OutOfMemory: names what would take them.
    """
    if size < 2**30:
        return
    free = free_bytes(device)
    if size > free:
        raise OutOfMemory(
            f"{what} takes more than {size / 2**30:,.0f} GiB, and {free / 2**30:.1f} GiB are free"
        )


def free_bytes(device: torch.device) -> int:
    """What is left on a CUDA device, or on the machine within its control group's limit."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    if not Path("/proc/meminfo").exists():
        return sys.maxsize
    info = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, group = int(info["MemAvailable"].split()[0]) * 1024, Path("/sys/fs/cgroup")
    limit, used = ((group / name) for name in ("memory.max", "memory.current"))
    if limit.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


@contextmanager
def out_of_memory_named(worlds: int):
    """Turn the errors of an allocation that failed into OutOfMemory, which names num_envs."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and "alloc" not in str(error):
            raise
        raise OutOfMemory(
            f"out of memory with num_envs={worlds}: plan=true says how many worlds fit"
        ) from None


def check_worlds(task: Task, cfg: dict[str, Any], worlds: int, device: torch.device) -> None:
    """Check, before anything is built, that the worlds and the record of an evaluation fit.

    About what `measure` finds.

    Raises:
        OutOfMemory: they do not.
    """
    m, episodes, steps = task.mjm, cfg["episodes"], cfg["num_steps"]
    state = mujoco.mj_stateSize(m, mujoco.mjtState.mjSTATE_INTEGRATION)
    fields = sum(m.nu if name in GAINS else attrgetter(name)(m).size for name in task.fields)
    # Delayed targets: the live ones, those of the worst step, and a copy while they move.
    delayed = m.nu * (task.actuator.delay * task.substeps + task.actuator.lag)
    world = 1000 + 16 * (state + m.nsensordata + fields) + 24 * delayed  # bytes
    sample = 40 * (m.nq + m.nv + m.nu)  # bytes of a sample of a rollout, at least
    check_free(f"num_envs={worlds} × num_steps={steps}", worlds * (world + steps * sample), device)
    # Five measures, twice while they are stacked.
    evaluation = episodes * (world + 40 * task.horizon)
    what = f"episodes={episodes} of task.episode={task.episode} s"
    check_free(what, evaluation, torch.device("cpu"))


def check_rollout(env: Env, policy: ActorCritic, cfg: dict[str, Any]) -> None:
    """Check that a rollout and its update fit: record, samples and activations.

    Raises:
        OutOfMemory: they do not.
    """
    algo, steps, worlds = cfg["algo"], cfg["num_steps"], env.num_envs
    remembered = sum(x.numel() for x in policy.blank_memory(1).values())
    record = 4 * row_width(step_widths(env, policy))  # bytes of a sample, as all that follow
    samples = sample_widths(policy)
    packed = 3 * 4 * row_width(samples)  # with two copies while it is written
    order = 8 * algo["update_epochs"]
    images = 1 + (algo["symmetry"] in ("augment", "loss"))
    # of a gated recurrent unit: its gates, their sums and its memory
    kept = 16 * images * sum(algo["hidden"]) + 32 * remembered
    activations = kept / algo["num_minibatches"]
    what = (
        f"num_envs={worlds} × num_steps={steps}, with algo.update_epochs={algo['update_epochs']},"
    )
    check_free(what, worlds * steps * (record + packed + order + activations), env.device)

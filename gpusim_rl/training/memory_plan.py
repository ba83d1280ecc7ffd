"""How many worlds a training takes: what fits into memory, printed or chosen."""

import gc
from functools import partial
from typing import Any

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.build import make_iteration
from gpusim_rl.config.recipe import choose_recipe
from gpusim_rl.config.trees import flatten
from gpusim_rl.core import errors
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.memory import OutOfMemory
from gpusim_rl.training import memory


def show_plan(cfg: dict[str, Any]) -> None:
    """Print the memory that a configuration of `configure` needs, and how many worlds fit.

    Raises:
        ValueError: its worlds do not fit.
    """
    cfg, _ = choose_recipe(cfg)
    memory.show(measure(cfg, ProcessGroup.from_environment()), cfg["num_envs"])


def measure(cfg: dict[str, Any], group: ProcessGroup) -> memory.Plan:
    """The memory that a configuration needs, measured with two small numbers of worlds."""
    return memory.measure(partial(make_iteration, cfg, group=group), unit(cfg, group))


def unit(cfg: dict[str, Any], group: ProcessGroup) -> int:
    """What a number of worlds must be a multiple of."""
    algo = cfg["algo"]
    parts = algo["num_minibatches"] if algo["memory"] != "none" else 1  # which take whole worlds
    return group.size * parts


def make_on_device(
    cfg: dict[str, Any], group: ProcessGroup
) -> tuple[Iteration, dict[str, Any], str]:
    """Iteration, its configuration as config.yaml keeps it, and what the section `gpu` gave, in a line.

    Args:
        cfg: of `configure`.
        group: the processes that share the worlds.
    ValueError if it cannot be built.
    """
    cfg, chosen = choose_recipe(cfg)
    ppo, cfg = make_fitting_ppo(cfg, group, chosen)
    values = flatten(cfg)
    shown = " ".join(f"{key}={values[key]}" for key in chosen)
    return ppo, cfg, shown and f"on a GPU: {shown}"


def make_fitting_ppo(
    cfg: dict[str, Any], group: ProcessGroup, chosen: dict[str, Any]
) -> tuple[Iteration, dict[str, Any]]:
    """Iteration, and its configuration, which has fewer worlds if as many cannot be built in the memory.

    Args:
        cfg: the configuration of a training on its device.
        group: of several processes, none takes fewer: they would have to agree first.
        chosen: what the section `gpu` gave. A number of worlds that a user gave is kept.

    Raises:
        OutOfMemory: the number may not be changed, or no world fits.
    """
    try:
        return make_iteration(cfg, group=group), cfg
    except OutOfMemory as error:
        if "num_envs" not in chosen or group.size > 1:
            raise
        wanted = str(error)
    step = unit(cfg, group)
    worlds = measure(cfg, group).largest // step * step
    if not 0 < worlds < cfg["num_envs"]:
        raise OutOfMemory(wanted)
    gc.collect()  # what was measured: an Env refers to itself
    errors.warn(f"warning: {wanted}; so num_envs={worlds}, the most that fit")
    cfg = cfg | {"num_envs": worlds}
    return make_iteration(cfg, group=group), cfg

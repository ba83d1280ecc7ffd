"""Writing what a task's methods return to where it lives: the task's memory, or the Sim."""

import torch
from torch import Tensor

from gpusim_rl.sim.base import Sim


def write_values(
    values: dict[str, Tensor], memory: dict[str, Tensor], sim: Sim, mask: Tensor | None = None
) -> None:
    """Write values (B, …) by name, in the worlds of mask (B,) bool; None means all. In place.

    A name is an entry of the memory or a model field of the Sim. "geom_friction.0" is component 0
    of the last axis of a field. `kick` (B, nv) is added to `qvel`; `force` (B, nv) is the Sim's.
    """
    for name, value in values.items():
        if name in memory:
            target = memory[name]
        elif name == "kick":
            target, value = sim.qvel, sim.qvel + value
        elif name == "force":
            target = sim.force
        else:
            field, _, part = name.rpartition(".") if name[-1].isdigit() else (name, "", "")
            target = sim.model(field)
            target = target[..., int(part)] if part else target
        value = value.to(target.dtype)
        if mask is None:
            target.copy_(value)
        else:
            torch.where(mask.view(-1, *[1] * (target.ndim - 1)), value, target, out=target)

"""The gradient of a minibatch's loss, by the Warp kernels or by autograd alone."""

import torch
from torch import Tensor

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.ppo.loss import asymmetry, loss
from gpusim_rl.algorithms.ppo.loss_kernels import FusedLoss
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import Record
from gpusim_rl.networks.policy import ActorCritic


def fused_gradients(
    fused: FusedLoss,
    policy: ActorCritic,
    optimizer: FlatAdam,
    batch: Record,
    cfg: Settings,
    memory: dict[str, Tensor],
) -> Tensor:
    """Write the gradients, and return the statistics (5,) of `loss.loss`. In place.

    The kernels give the gradients by the outputs of the networks, autograd those by the weights.
    """
    mean, value = policy.outputs(batch, memory)
    with torch.no_grad():
        fused.mean.copy_(mean)
        fused.value.copy_(value)
    fused()
    outputs, slopes = [mean, value], [fused.grad_mean, fused.grad_value]
    if policy.symmetry == "loss":
        outputs.append(cfg.mirror_coef * asymmetry(policy, batch, mean))
        slopes.append(torch.ones_like(outputs[-1]))
    # The kernels have written the gradient of the first parameter, log_std.
    _, *params = optimizer.gradients
    optimizer.write(torch.autograd.grad(outputs, params, slopes), first=1)
    fused.group.all_reduce(optimizer.grads).mul_(fused.share)
    return fused.stats


def autograd_gradients(
    policy: ActorCritic,
    optimizer: FlatAdam,
    batch: Record,
    cfg: Settings,
    memory: dict[str, Tensor],
    *,
    copies: int = 1,
    group: ProcessGroup = SINGLE,
) -> Tensor:
    """The same in torch operations."""
    objective, stats = loss(policy, batch, cfg, memory, copies, group)
    optimizer.write(torch.autograd.grad(objective, list(optimizer.gradients)))
    group.all_reduce(optimizer.grads)
    return stats

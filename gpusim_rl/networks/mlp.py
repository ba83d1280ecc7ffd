"""Multi-layer perceptrons with orthogonal weights."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from gpusim_rl.core import ranges

LAYERS = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
}


def check_hidden(hidden: tuple[int, ...], activation: str) -> None:
    """ValueError for a width or an activation that no layer can have."""
    ranges.check({"hidden": hidden}, "algo")
    if activation not in LAYERS:
        raise ValueError(f"algo.activation={activation!r}: choose one of {', '.join(LAYERS)}")


def mlp(
    width: int,
    hidden: tuple[int, ...],
    out: int,
    activation: str,
    gain: float,
    generator: torch.Generator,
) -> nn.Sequential:
    """Linear layers with orthogonal weights (gain √2, `gain` on the last) and zero biases."""
    check_hidden(hidden, activation)
    sizes, layers = [width, *hidden, out], []
    for i, (a, b) in enumerate(pairwise(sizes)):
        last = i == len(hidden)
        linear = nn.Linear(a, b)
        nn.init.orthogonal_(linear.weight, gain if last else math.sqrt(2), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, LAYERS[activation]()]
    return nn.Sequential(*layers)


def mlp_forward(net: nn.Sequential, x: Tensor) -> Tensor:
    """net(x) for x (n, width), with a faster gradient of the first layer's weight.

    That of nn.Linear is (gᵀ x), which takes MKL 1.7 times as long as xᵀ g where width is no
    multiple of 16. The width of an observation seldom is.
    """
    if not torch.is_grad_enabled():
        return net(x)
    first, *rest = net
    assert isinstance(first, nn.Linear)
    x = torch.addmm(first.bias, x, first.weight.t().contiguous())
    for layer in rest:
        x = layer(x)
    return x

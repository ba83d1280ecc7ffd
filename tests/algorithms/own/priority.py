"""SAC whose windows are drawn by priority (arXiv:1511.05952), world by world."""

from dataclasses import dataclass, replace
from functools import partial

import torch

from gpusim_rl.algorithms.sac import settings, spec
from gpusim_rl.core.ranges import SHARE
from gpusim_rl.core.ring import Draw, RingSpec
from gpusim_rl.core.sections import number

LEAST_ERROR = 1e-3  # that any window counts for which is not cut
FORGET = 1e-3  # of the largest priority, at each update


@dataclass(kw_only=True, frozen=True)
class Settings(settings.Settings):
    exponent: float = number(SHARE)
    beta: float = number(SHARE)


class Prioritized:
    """P = pᵅ / Σ pᵅ of a world's windows, with weights (N P)⁻ᵝ over their mean.

    A window's p is the size of its last error, of a new one the largest seen, of one cut zero.
    """

    def __init__(self, rows, worlds, device, *, exponent, beta):
        self.exponent, self.beta = exponent, beta
        self.mass = torch.zeros(worlds, rows, device=device)  # pᵅ
        self.largest = torch.ones(worlds, device=device)

    def draw(self, ring, unit, length, before):
        allowed = ring.may_begin(length, before).T
        mass = self.mass * allowed
        sums = mass.double().cumsum(1)  # (B, R)
        total = sums[:, -1:].contiguous()
        rows = torch.searchsorted(sums, unit.double() * total, right=True)
        rows = rows.minimum(torch.searchsorted(sums, total))  # no row behind the last with a mass
        share = mass.gather(1, rows) / total.clamp(min=1e-12)
        weights = (allowed.sum(1, keepdim=True) * share).clamp(min=1e-6).pow(-self.beta)
        places = torch.stack([rows, ring.worlds[:, None].expand_as(rows)], -1)
        return Draw(places.flatten(0, 1), (weights / weights.mean()).flatten().float())

    def write(self, rows, worlds, errors):
        first = self.largest[worlds, None] if errors is None else self.priority(errors).T
        self.mass[worlds].scatter_(1, rows.T, first.expand(rows.T.shape))

    def update(self, places, errors):
        rows, worlds = places.T
        new, flat = self.priority(errors.view(-1, len(places)).abs().mean(0)), self.mass.view(-1)
        at = worlds * self.mass.shape[1] + rows
        # of one drawn twice the larger, which no order changes
        flat.index_fill_(0, at, 0.0).scatter_reduce_(0, at, new, "amax")
        self.largest.mul_(1 - FORGET).scatter_reduce_(0, worlds, new, "amax")

    def priority(self, errors):
        size = errors.abs()
        return torch.where(size > 0, (size + LEAST_ERROR).pow(self.exponent), 0.0)

    def tensors(self):
        return {"mass": self.mass, "largest": self.largest}


def make_ring(cfg):
    sampler = partial(Prioritized, exponent=cfg.exponent, beta=cfg.beta)
    return RingSpec(cfg.replay, cfg.save_ring, sampler)


SPEC = replace(spec.SPEC, settings=Settings, ring=make_ring)

"""A fuzz of the kernels: tasks with drawn formulas, stepped with kernels and as torch runs them.

A drawn task is cartpole with other methods. What depends on a rounding is not drawn: comparisons,
whole numbers and steep functions take readings as they are, and what is added is of size 1. So a
kernel and torch may differ by rounding alone, and each step begins with the same rows. Beyond 88.7
torch's own `cosh` is infinite or not, by the number of elements: it is drawn within.
"""

import math
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.fuse.kernel import Kernel
from gpusim_rl.tasks.classic.cartpole import Cartpole
from tests.worlds import make_config

METHODS = ("observe", "reward", "measure", "terminated", "update", "control", "start")
WORLDS = 16
WORDS = ("task=cartpole", f"num_envs={WORLDS}", "num_steps=4", "task.episode=0.6", "fuse=on")
WORDS += ("algo.hidden=[16]", "algo.num_minibatches=1")
WORDS += ("task.observation_delay=[0,2]", "task.dropout.joint_pos=0.2")
RELATIVE, ABSOLUTE = 1e-5, 1e-6  # differences that are rounding
HEAD = """
import math
import torch
TABLE = torch.linspace(-1.0, 1.0, 12, device=device).view(4, 3)
COLUMNS = torch.tensor([1, 0], device=device)
LIVE = torch.tensor([0.3, -0.7], device=device)
"""
# x: (B, 2) readings as they are, n: (B,) int64, b: (B, 2) bool, c: a number of the code
STEEP = """
x.tan(); x.exp(); x.expm1(); x.log(); x.log1p(); x.log2(); x.sqrt(); x.rsqrt()
x.clamp(-88, 88).cosh(); x.reciprocal(); x.asin(); x.acos(); x.abs().sqrt().log()
torch.special.ndtri(x); x ** 2; x ** 3; x ** 0.5; x ** -0.5; x ** -1; x ** -2; x.abs() ** 1.7
2.0 ** x; c / x; x / c; x.square(); torch.atan2(x, x.flip(1)); x.deg2rad(); x.rad2deg(); x.erf()
x.sin(); x.cos(); x.atan(); x.tanh(); x.sigmoid(); torch.addcmul(x, x, x.flip(1), value=c); -x
x.relu(); x * x.flip(1); torch.rsub(x, c); torch.add(x, x.flip(1), alpha=2)
torch.full_like(x, c) * x; torch.lerp(x, x.flip(1), c); torch.lerp(x, x.flip(1), x.abs())
x.cumsum(1); x.new_ones(2) * x; torch.nan_to_num(x)
torch.nan_to_num(x, nan=c, posinf=2.0, neginf=-2.0); x.double().cos().float()
"""
BROKEN = """
x.floor(); x.ceil(); x.round(); x.trunc(); x.frac(); x.sign(); x // c; x % c; c // x
c % x; x.long().float(); x.clamp(-c, c); x.clamp(min=c); x.clamp(max=c); x.maximum(x.flip(1))
b.float(); x.minimum(x.flip(1)); x.clamp(x.flip(1), x.flip(1) + 1); torch.where(b, x, c)
x.masked_fill(b, c); torch.where(b, x.flip(1), x); (n % 5).float()[:, None] + x
(n // 3).float()[:, None] * x; TABLE[n % 4][:, :2] * x; TABLE[n % 4, 1][:, None] - x
(n & 3).float()[:, None] - x; (n << 2).float()[:, None] + x; (n >> 1).float()[:, None] + x
(n ^ 5).float()[:, None] + x; x.gather(1, (n % 2)[:, None]).expand(-1, 2); x[:, COLUMNS] * LIVE
x.index_select(1, COLUMNS); torch.where(n[:, None] > 7, x, -x); (n == 3).float()[:, None] * x
x.remainder(c); x.div(c, rounding_mode="floor"); x.div(c, rounding_mode="trunc")
(~b).float() - x; x.nan_to_num().abs().clamp(max=3).long().float(); n.sigmoid()[:, None] * x
(n | 4).float()[:, None] + x; x.slice_scatter(x[:, :1] * 2, 1, 1, 2); x.index_copy(1, COLUMNS, x)
"""
TRUTHS = """
x > c; x < c; x >= c; x <= c; x == c; x != c; x > x.flip(1); x.isnan(); x.isinf()
x.isfinite(); (x > c) & (x.flip(1) < c); (x > c) | (x < -c); (x > c) ^ (x.flip(1) > c)
~(x > c); torch.logical_and(x > c, x < 4); torch.logical_or(x > c, x < -c)
torch.logical_not(x > c); torch.logical_xor(x > c, x.flip(1) > c); (n[:, None] > 4).expand(-1, 2)
(n[:, None] % 2 == x)
"""
# y: (B, 2) of size 1
SMOOTH = """
y.sin(); y.cos(); y.tanh(); y.sigmoid(); y.atan(); 0.5 * y; y + z; y - z; y * z; y.abs()
torch.lerp(y, z, 0.3); torch.where(b, y, z); y.square(); y.masked_fill(b, 0.5); y.erf(); -y
y.maximum(z); y.minimum(z); y.clamp(-0.5, 0.5); y.flip(1); y.roll(1, 1); (y + 3).sqrt()
torch.stack([y[:, 0], z[:, 1]], 1); torch.cat([y[:, 1:], z[:, :1]], 1); y.exp() / 3
1 / (2 + y.abs()); y.sum(1, keepdim=True) / 2 + z; y.mean(1, keepdim=True) * z
y.amax(1, keepdim=True) - z; y.prod(1, keepdim=True) + z; y.norm(dim=1, keepdim=True) * z
y.amin(1, keepdim=True) + z; y.unsqueeze(2).expand(-1, 2, 2).mean(2); y.repeat(1, 2)[:, 1:3]
torch.stack(y.unbind(1), 1); torch.nn.functional.pad(y, (1, 0))[:, :2]
y.view(-1, 1, 2).transpose(1, 2).flatten(1) + z
torch.linalg.vector_norm(y, math.inf, dim=1)[:, None] - z; torch.cat([*y.split(1, 1)], 1)
torch.linalg.cross(torch.cat([y, z[:, :1]], 1), torch.cat([z, y[:, 1:]], 1))[:, :2]
(b.any(1) | b.all(1)).float()[:, None] + y; torch.zeros_like(y) + y.detach(); y.cumsum(1) / 2
"""
SIZE = "(({}).nan_to_num(nan=0.5, posinf=2.0, neginf=-2.0) / 8).tanh()"


def entries(table: str) -> list[str]:
    """The formulas of a table."""
    split = (part.strip() for line in table.strip().splitlines() for part in line.split(";"))
    return [part for part in split if part]


def renamed(text: str, names: dict[str, str]) -> str:
    """A formula with other names for its letters."""
    return re.sub(r"\b[xyzbc]\b", lambda match: names.get(match[0], match[0]), text)


class Draw:
    """Draws formulas. Each is of the names of a method: `x0`, … (B, 2) and `n` (B,)."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []

    def constant(self) -> str:
        """A number of the code: often a threshold that few readings reach."""
        value = self.random.choice([0.1, 0.5, 1.0, 2.5, 7.0, 40.0, 1e-3, self.random.gauss(0, 1)])
        return f"{value:.4g}" if value > 0 else f"({value:.4g})"

    def name(self, formula: str) -> str:
        """A new variable that holds a formula."""
        self.lines.append(f"v{len(self.lines)} = {formula}")
        return f"v{len(self.lines) - 1}"

    def reading(self) -> str:
        return self.random.choice(["x0", "x1", "x2"])

    def formula(self, table: list[str], **names: str) -> str:
        """One of a table, with other names in it."""
        text = self.random.choice(table)
        names = {"x": self.reading(), "c": self.constant()} | names
        if re.search(r"\bb\b", text):
            names["b"] = self.name(renamed(self.random.choice(entries(TRUTHS)), names))
        return renamed(text, names)

    def value(self, depth: int) -> str:
        """The name of numbers (B, 2) of size 1."""
        if not depth:
            table = entries(self.random.choice([STEEP, BROKEN]))
            return self.name(SIZE.format(self.formula(table)))
        y, z = self.value(depth - 1), self.value(self.random.randrange(depth))
        return self.name(SIZE.format(self.formula(entries(SMOOTH), y=y, z=z)))

    def raw(self) -> str:
        """The name of numbers (B, 2) of any size, NaN and infinities among them."""
        return self.name(self.formula(entries(self.random.choice([STEEP, BROKEN]))))


READ = """    x0 = torch.cat([s.joint_pos, s.pole_angle], 1)
    x1 = torch.cat([s.joint_vel, s.pole_speed], 1)
    x2 = torch.cat([s.previous, s.joint_pos], 1)
    n = s.time
"""


def source(seed: int) -> str:
    """The source of a drawn task's methods."""
    methods = [HEAD]
    results = {
        "observe": "dict(cart={v} + x0, pole={v} + s.kept, speeds={v} + x1)",
        "reward": "dict(upright={v}[:, 0], centred={v}[:, 1], calm={v}.sum(1), control={w}[:, 0])",
        "measure": "dict(cos={w}[:, 0], x={v}[:, 1], control={v}[:, 0])",
        "terminated": "(x1 > 9.0).any(1) | ({v}[:, 0] > 0.9999)",
        "update": "dict(kept=0.5 * s.kept + {v} * s.action)",
        "control": "{v}[:, :1]",
    }
    for number, (method, result) in enumerate(results.items()):
        draw = Draw(1000 * seed + number)
        for kind in ("{v}", "{w}"):
            while kind in result:
                made = draw.value(draw.random.randrange(1, 4)) if kind == "{v}" else draw.raw()
                result = result.replace(kind, made, 1)
        arguments = "self, s, rng" if method == "update" else "self, s"
        lines = "".join(f"    {line}\n" for line in draw.lines)
        methods.append(f"def {method}({arguments}):\n{READ}{lines}    return {result}\n")
    methods.append(
        "def start(self, n, rng):\n"
        "    begin = first(self, n, rng)\n"
        "    return begin | dict(kept=begin['qpos'] * 0)\n"
    )
    return "\n".join(methods)


@contextmanager
def drawn(seed: int, folder: Path, device: str) -> Iterator[None]:
    """Cartpole with drawn methods. A file of the folder holds them, which messages name."""
    file = folder / f"drawn_{seed}.py"
    file.write_text(source(seed))
    names: dict[str, Any] = {"device": device, "first": Cartpole.start}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.MonkeyPatch.context() as patch:
        for method in METHODS:
            patch.setattr(Cartpole, method, names[method], raising=False)
        patch.setattr(Cartpole, "mirror", None)
        yield


def apart(right: Tensor, got: Tensor) -> float:
    """The largest difference, in units of what is rounding; infinite where NaN differ."""
    right = right.reshape(got.shape).to(got.dtype)
    same = (right == got) | (right.isnan() & got.isnan())
    if not got.is_floating_point():
        return 0.0 if same.all() else math.inf
    size = torch.maximum(right.abs(), got.abs())
    error = (right - got).abs() / (RELATIVE * size + ABSOLUTE)
    error = torch.where(same, 0.0, error.nan_to_num(math.inf))
    return error.max().item() if error.numel() else 0.0


def disturb(env: Any, t: int, source: torch.Generator) -> None:
    """What a simulation may have: numbers at an edge, in the tails, NaN and infinities."""
    edges = torch.tensor([0.0, -0.0, 0.1, 0.5, 1.0, -1.0, 2.5, 7.0, 40.0, 1e-3, 100.0, -1e4])
    for x in (env.sim.qpos, env.sim.qvel, env.sim.sensordata):
        edge = edges[torch.randint(len(edges), x.shape, generator=source)].to(x.device)
        chosen = (torch.rand(x.shape, generator=source) < 0.15).to(x.device)
        x.copy_(torch.where(chosen, edge, x))
    if t % 4 == 1:
        env.sim.qvel[t % WORLDS, 0], env.sim.qpos[(t + 5) % WORLDS, 1] = math.inf, math.nan
        env.sim.qvel[(t + 3) % WORLDS, 1] = -math.inf


class Result(NamedTuple):
    """How a drawn task ran."""

    kernels: list[str]  # the parts of its step that are kernels
    apart: float  # the largest difference from torch, in units of what is rounding
    where: str
    restarts: int


def run(seed: int, steps: int, folder: Path, device: str = "cpu") -> Result:
    """Step a drawn task, and compare what each part writes with torch's of the same rows."""
    worst, restarts, draw = (0.0, ""), 0, torch.Generator().manual_seed(seed)
    with drawn(seed, folder, device):
        engine = ("sim=native", "sim.threads=1") if device == "cpu" else ("sim=warp",)
        iteration = make_iteration(make_config(*WORDS, *engine, f"device={device}"))
        env, source, fused = iteration.env, iteration.source, iteration.source.fused

        def check(name: str) -> None:
            nonlocal worst
            kernel = fused.kernels[name]
            rows = {key: x.clone() for key, x in (env.rows() | fused.scratch).items()}
            right = kernel.function(rows)
            kernel()
            for key, place in kernel.places.items():
                wanted, now = right[key], place.now()
                if place.mask_name:
                    wanted, now = wanted[right[place.mask_name]], now[right[place.mask_name]]
                worst = max(worst, (apart(wanted, now), f"{name}: {key}"))

        with torch.no_grad():
            fused.prepare()
            for t in range(steps):
                mean, _ = source.policy.compute(fused.inputs, {}, env.rng)
                fused.scratch["step/head"].copy_(mean.nan_to_num())
                check("before")
                env.begin_step()
                env.step_physics()
                disturb(env, t, draw)
                check("after")
                env.reset(fused.restarted, fused.scratch["start/qpos"], fused.scratch["start/qvel"])
                check("views")
                restarts += int(fused.restarted.sum())
    kernels = [name for name, x in fused.kernels.items() if isinstance(x, Kernel)]
    return Result(kernels, *worst, restarts)

"""Adam on groups of parameters, each group and its gradients kept as one vector."""

# ruff: noqa: UP018 (in a kernel float(0.0) is a variable, 0.0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnnecessaryComparison=false

from functools import partial
from itertools import accumulate
from typing import Any

import torch
import warp as wp
from torch import Tensor, nn

from gpusim_rl.core.streams import as_array, launch, rebind, warp_stream

LINE = 32  # numbers: 128 bytes
CHUNK = 4096  # numbers whose squares one block of threads adds up; a group begins at a multiple
BLOCK = 256  # threads
BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-5  # eps as in CleanRL's PPO
GAIN_1, GAIN_2 = 1 - BETA_1, 1 - BETA_2  # a kernel would subtract in float32
OPTIONS: dict[str, Any] = dict(  # of torch's kernel
    beta1=BETA_1, beta2=BETA_2, eps=EPS, weight_decay=0.0, amsgrad=False, maximize=False
)


def lines(n: int) -> int:
    """n, rounded up to whole lines of memory: a matrix that begins at one is read faster."""
    return -(-n // LINE) * LINE


def length(params: list[nn.Parameter]) -> int:
    """Length of a vector that holds the parameters, each from a multiple of LINE numbers on."""
    return sum(lines(p.numel()) for p in params)


def places(params: list[nn.Parameter], flat: Tensor) -> list[Tensor]:
    """The views of such a vector, of the shapes of the parameters."""
    parts = flat.split([lines(p.numel()) for p in params])
    return [part[: p.numel()].view_as(p) for p, part in zip(params, parts, strict=True)]


def flatten(params: list[nn.Parameter], flat: Tensor) -> None:
    """Move parameters into a vector: they become views of it. In place."""
    for p, place in zip(params, places(params, flat), strict=True):
        place.copy_(p.detach())
        p.data = place


@wp.kernel(enable_backward=False)
def square_sums(grads: wp.array[float], squares: wp.array[float]):
    """The sum of squares of each chunk, by a block of threads in a fixed order."""
    i = wp.tid()
    part = wp.tile_load(grads, shape=CHUNK, offset=i * CHUNK)
    wp.tile_store(squares, wp.tile_sum(wp.tile_map(wp.mul, part, part)), offset=i)


@wp.kernel(enable_backward=False)
def measure(
    stats: wp.array[float],
    squares: wp.array[float],
    firsts: wp.array[int],
    share: wp.array[float],
    max_norm: wp.array[float],  # (1,)
    norms: wp.array[float],
    divisors: wp.array[float],
    bad: wp.array[float],
):
    """Norms of the groups, what to divide their gradients by, and whether a number is no number."""
    total = float(0.0)
    for i in range(stats.shape[0]):
        total += stats[i]
    for group in range(norms.shape[0]):
        square = float(0.0)
        for i in range(firsts[group], firsts[group + 1]):
            square += squares[i]
        norms[group] = share[0] * wp.sqrt(square)
        total += norms[group]
        # 1e-6 as in torch.nn.utils.clip_grad_norm_
        divisors[group] = wp.max((norms[group] + 1e-6) / max_norm[0], 1.0) / share[0]
    bad[0] = wp.where(wp.isfinite(total), 0.0, 1.0)


@wp.func
def count_step(
    group: int,
    bad: wp.array[float],
    rates: wp.array[float],
    divisors: wp.array[float],
    steps: wp.array[float],
    factors: wp.array2d[float],
):
    """Count the step of a group; rows: divisor of gradients, size of a step, √(1 - β₂ᵗ)."""
    steps[group] += 1.0 - bad[0]
    t = wp.float64(steps[group])  # in float32, 1 - 0.999 has four digits
    first = wp.float64(1.0) - wp.pow(wp.float64(BETA_1), t)
    factors[0, group] = divisors[group]
    factors[1, group] = wp.float32(wp.float64(rates[group]) / first)
    factors[2, group] = wp.float32(wp.sqrt(wp.float64(1.0) - wp.pow(wp.float64(BETA_2), t)))
    divisors[group] = 1.0


@wp.kernel(enable_backward=False)
def advance(
    bad: wp.array[float],
    rates: wp.array[float],
    divisors: wp.array[float],
    steps: wp.array[float],
    factors: wp.array2d[float],
):
    """`count_step` of each group."""
    count_step(wp.tid(), bad, rates, divisors, steps, factors)


@wp.kernel(enable_backward=False)
def adam(
    bad: wp.array[float],
    groups: wp.array[int],
    factors: wp.array2d[float],
    grads: wp.array[float],
    means: wp.array[float],
    squares: wp.array[float],
    weights: wp.array[float],
):
    """Adam for one number; `groups` has the group of each chunk."""
    i = wp.tid()
    if bad[0] != 0.0:
        return
    group = groups[i // CHUNK]
    grad = grads[i] / factors[0, group]
    mean = BETA_1 * means[i] + GAIN_1 * grad
    square = BETA_2 * squares[i] + GAIN_2 * grad * grad
    grads[i] = grad
    means[i] = mean
    squares[i] = square
    weights[i] -= factors[1, group] * mean / (wp.sqrt(square) / factors[2, group] + EPS)


# Why: docs/decisions/update-kernels.md
class FlatAdam:
    """Adam (arXiv:1412.6980) on groups of parameters, in few kernels for all of them.

    On CUDA a clipped step is four kernels of Warp. On the CPU torch's own kernels take
    the long vectors, since they use vector instructions and all threads.

    Args:
        groups: name → parameters, which become views of the group's vector, in their order.
        rate: the learning rate of all groups, at first. Those of a tensor (groups,) stay
            where they are.
        max_norm: to which `clip` bounds the norm of each group's gradient; may be a tensor ().
        kernels: whether Warp takes the long vectors too. None: on CUDA.

    Attributes:
        weights: name → the group's vector.
        grads: the gradients of all groups.
        gradients: parameter → where its gradient stands in `grads`, in the order of the groups.
        moments: of each group, the number of steps and the means of gradients and their squares.
        rates: name → () learning rate, of all_rates (groups,), which may be written.
        max_norm: (1,) which may be written at any time.
        norms: (groups,) of the gradients, before they were clipped last.
        share: (1,) what `clip` multiplies gradients by, which may be written at any time.
        bad: () where it is 1, a step changes nothing.
        counting: what `count_step` takes behind the group, for a kernel that does what `step` does
            before `move`.
    """

    def __init__(
        self,
        groups: dict[str, list[nn.Parameter]],
        rate: Tensor | float,
        max_norm: Tensor | float = 1.0,
        kernels: bool | None = None,
    ):
        self.device = device = next(p.device for params in groups.values() for p in params)
        chunks = [-(-length(params) // CHUNK) for params in groups.values()]
        flat = torch.zeros(4, CHUNK * sum(chunks), device=device)
        steps, self.norms, divisors = torch.zeros(3, len(groups), device=device)
        rate = torch.as_tensor(rate, dtype=torch.float32, device=device)
        self.all_rates = rates = rate.expand(len(groups)).contiguous()  # one vector is as it was
        divisors.fill_(1.0)
        self.rates = dict(zip(groups, rates, strict=True))
        self.weights: dict[str, nn.Parameter] = {}
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.moments: dict[str, dict[str, Tensor]] = {}
        parts = zip(*(x.split([CHUNK * n for n in chunks]) for x in flat), strict=True)
        for (name, params), step, part in zip(groups.items(), steps, parts, strict=True):
            weights, grads, mean, square = (x[: length(params)] for x in part)
            flatten(params, weights)
            self.weights[name] = nn.Parameter(weights)
            self.weights[name].grad = grads
            self.gradients |= zip(params, places(params, grads), strict=True)
            self.moments[name] = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
        self.grads, self.bad = flat[1], torch.zeros((), device=device)
        self.share, self.max_norm = torch.ones(1, device=device), as_array(max_norm, device)
        self._kernels = device.type == "cuda" if kernels is None else kernels
        self._record(flat, chunks, rates, steps, divisors)

    def _record(self, flat: Tensor, chunks: list[int], *numbers: Tensor) -> None:
        rates, steps, divisors = numbers
        weights, grads, means, squares = flat
        if not self._kernels:  # torch sums up a whole group at once
            chunks = [1] * len(chunks)
        ints = partial(torch.tensor, dtype=torch.int32, device=self.device)
        self._firsts = ints([0, *accumulate(chunks)])
        self._groups = ints([group for group, n in enumerate(chunks) for _ in range(n)])
        self._squares = torch.zeros(sum(chunks), device=self.device)
        self._factors = torch.zeros(3, len(chunks), device=self.device)
        record, bad = partial(launch, record=True), self.bad.view(1)
        inputs = [self.norms, self._squares, self._firsts, self.share, self.max_norm]
        self._measure = record(measure, 1, inputs, [self.norms, divisors, bad])
        self.counting = [bad, rates, divisors, steps, self._factors]
        self._advance = record(advance, len(self.rates), [], self.counting)
        if self._kernels:
            tiles = {"block": BLOCK, "tiles": True}
            self._sum = record(square_sums, sum(chunks), [grads], [self._squares], **tiles)
            inputs = [bad, self._groups, self._factors]
            self._adam = record(adam, len(grads), inputs, [grads, means, squares, weights])

    def target(self, name: str, copies: list[nn.Parameter]) -> Tensor:
        """Move copies of a group's parameters, in its order, into one vector, and return it.

        So a target network follows by `vector.lerp_(optimizer.weights[name].data, τ)`.
        """
        vector = torch.zeros_like(self.weights[name].data)
        flatten(copies, vector)
        return vector

    def write(self, grads: tuple[Tensor, ...], first: int = 0) -> None:
        """Copy the gradients of all parameters from the first on, in few kernels. In place."""
        views = list(self.gradients.values())[first:]
        torch._foreach_copy_(views, grads)  # pyright: ignore

    @torch.no_grad()
    def clip(self, stats: Tensor) -> Tensor:
        """Let the next step clip each group's gradient times `share` to a norm of `max_norm`.

        `bad` becomes 1 if a norm or an entry of `stats` is not finite, else 0. In place; `norms`.
        """
        stream = warp_stream(self.device)
        rebind(self._measure, 0, stats)
        if self._kernels:
            self._sum.launch(stream)
        else:
            for w, square in zip(self.weights.values(), self._squares, strict=True):
                torch.dot(w.grad, w.grad, out=square)  # pyright: ignore[reportArgumentType]
        self._measure.launch(stream)
        return self.norms

    @torch.no_grad()
    def step(self) -> None:
        """One step of Adam; none where `bad` is 1, which does not count for its bias. In place."""
        self._advance.launch(warp_stream(self.device))
        self.move()

    @torch.no_grad()
    def move(self) -> None:
        """Change weights and moments by a step that is counted. In place."""
        if self._kernels:
            self._adam.launch(warp_stream(self.device))
            return
        # the kernel of torch.optim.Adam(fused=True), a class that loads torch's compiler: seconds
        for (name, w), divisor in zip(self.weights.items(), self._factors[0], strict=True):
            step, mean, square = self.moments[name].values()
            lists = [w.data], [w.grad], [mean], [square], [], [step]
            options = OPTIONS | {"lr": self.rates[name], "grad_scale": divisor}
            torch._fused_adam_(*lists, found_inf=self.bad, **options)  # pyright: ignore

    def tensors(self) -> dict[str, Tensor]:
        """Adam's live tensors, by name."""
        named = self.moments.items()
        return {f"{name}/{key}": x for name, moments in named for key, x in moments.items()}


class GroupChanges:
    """All that changes of a group of `FlatAdam` in an update, which may be taken back."""

    def __init__(self, optimizer: FlatAdam, group: str):
        self.live = [*optimizer.moments[group].values(), optimizer.rates[group]]
        self.live.append(optimizer.weights[group].data)
        self._before = [x.clone() for x in self.live]

    def remember(self) -> None:
        """Copy all as it is. In place."""
        for copy, x in zip(self._before, self.live, strict=True):
            copy.copy_(x)

    def take_back(self, where: Tensor) -> None:
        """Write what was remembered where () is true. In place."""
        for copy, x in zip(self._before, self.live, strict=True):
            x.copy_(torch.where(where, copy, x))

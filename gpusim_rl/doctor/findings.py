"""What is wrong with a task, found in samples of it: each finding is one line with its remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.doctor.samples import Samples
from gpusim_rl.envs.check_methods import check_scores
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task

FAR = 10.0  # standard deviations from the mean, where an observation tells nothing more
FAR_SHARE = 5e-3  # of the numbers of a term
LARGE, SMALL = 100.0, 3e-3  # root mean square and standard deviation of a term in good units
DOMINANT = 0.99  # share of one term in the reward
OFTEN = 0.5  # share of numbers or of episodes
SOON, FEW = 1.0, 20  # s, and control steps: of an episode that is too short to learn from
SOLVED = 0.9  # success
FEWEST_STEPS, LEAST_SHARE, LONGEST_EPISODE = 5.0, 0.03, 3.0  # of a discount, see `discount`
TINY = 1e-8
COMPARED = 10  # control steps
GUARD = "guard divisions, roots and logarithms, as in x / x.clamp(min=1e-6)"
REMEDIES = {  # of findings whose key is or begins with this word
    "physics": "lower the model's timestep or its gains, or raise damping and armature",
    "zero": "look at its formula, its units and its tolerance, or leave it out",
    "reward": "nothing leads the way",
    "negative": "to end soon is then best; add a term that is positive",
    "falling": "raise task.weights.alive, or add such a term to `reward`, as Walking does",
    "standing": "raise the weights of what the command asks for",
    "constant": "it tells the network nothing; leave it out, or read what was meant",
    "large": "give it in SI units, or divide it; networks begin with numbers near 1",
    "small": "multiply it; the normaliser leaves what varies by less than 0.01 small",
    "far": "clamp it, or take its logarithm; the network sees ±5 at most",
    "at once": "look at its condition, and at where `start` begins",
    "early": "begin nearer to where the robot stays up, or end later",
    "never": "if nothing can fail, leave the method out",
    "clip": "raise task.clip and scale the action in `control`, or lower algo.std",
    "ctrl": "scale the action, or mind the units",
    "still": "read s.action in `control`",
    "chance": "there is nothing to learn; make the task harder, or `score` stricter",
    "simulators": "look for stiff contacts, a long timestep, or a feature that MuJoCo Warp lacks",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    key: str  # what it is about, the same in every simulator
    text: str  # a line with method, entry, figure and remedy
    certain: bool = False  # whether no training can succeed with it

    def __str__(self) -> str:
        return f"{'error' if self.certain else 'warning'}: {self.text}"


def remedied(word: str, problem: str, *, of: str = "", certain: bool = False) -> Finding:
    """A finding with its remedy; `of` is what else its key has."""
    return Finding(f"{word} {of}".strip(), f"{problem}: {REMEDIES[word]}", certain)


def percent(share: float) -> str:
    """A share in words, never rounded to all or nothing."""
    shown = f"{100 * share:.0f} %"
    return {"100 %": "over 99 %", "0 %": "under 1 %"}.get(shown, shown) if 0 < share < 1 else shown


def not_finite(task: Task, x: Samples) -> Iterator[Finding]:
    """Numbers that are not finite, and faults of the physics."""
    kind = type(task).__name__
    for wrong in x.wrong:
        at = f"from step {wrong.step} on" if wrong.step else "at the start"
        line = f"{kind}.{wrong.where} is NaN or infinite {at}"
        worlds = f"in {percent(wrong.share)} of the worlds"
        yield Finding(wrong.where, f"{line}, {worlds}: {GUARD}", certain=True)
    share = x.numbers["physics"].float().mean().item()
    if share and not x.wrong:
        line = f"physics: the simulation failed in {percent(share)} of the steps"
        yield remedied("physics", line, certain=share > OFTEN)


def rewards(
    task: Task, x: Samples, bonus: set[str], weights: dict[str, float]
) -> Iterator[Finding]:
    """Reward terms that are always zero or dwarf the others, and a reward that never changes."""
    kind, valid = type(task).__name__, x.valid
    values = {name: rate[valid] for name, rate in x.terms.items() if weights[name]}
    zero = [name for name, rate in values.items() if not (rate.abs() > TINY).any()]
    for name in zero:
        if name not in bonus:
            line = f"{kind}.reward: the term {name!r} is zero in every step"
            yield remedied("zero", line, of=name)
    sizes = {name: rate.abs().mean().item() for name, rate in values.items() if name not in zero}
    total, largest = sum(sizes.values()), max(sizes, key=lambda name: sizes[name], default="")
    if len(sizes) > 1 and sizes[largest] > DOMINANT * total:
        others = total - sizes[largest]
        yield Finding(
            f"dwarf {largest}",
            f"{kind}.reward: the term {largest!r} is {percent(sizes[largest] / total)} of the "
            f"reward ({sizes[largest]:.3g} against {others:.3g} of all others together, weighted): "
            f"lower task.weights.{largest}={weights[largest]:g}, or scale its formula",
        )
    reward = x.numbers["reward"][valid]
    if len(reward) and (reward - reward[0]).abs().max() < TINY:
        line = f"{kind}.reward: the reward is {reward[0]:.3g} in every step, whatever is done"
        yield remedied("reward", line)
    ends = x.numbers["terminated"].any()
    if ends and len(reward) and not (reward > 0).any():
        line = f"{kind}.reward: the reward is never above 0 (mean {reward.mean():.3g} a step)"
        yield remedied("negative", f"{line}, and episodes can end early")


def observations(task: Task, x: Samples) -> Iterator[Finding]:
    """Terms that are constant, badly scaled, or far outside of what a network sees."""
    kind, valid = type(task).__name__, x.valid
    methods = [("observe", x.observed), ("privileged", x.privileged)]
    for method, name, term in [(m, k, v) for m, terms in methods for k, v in terms.items()]:
        rows, where = term[valid].double().flatten(1), f"{kind}.{method}: the term {name!r}"
        key = f"{method} {name}"
        if len(rows) < 2 or not rows.isfinite().all():
            continue
        std, rms = rows.std(0), rows.square().mean(0).sqrt()
        if (rows == rows[0]).all():
            yield remedied("constant", f"{where} is constant, {rows[0, 0]:.3g}", of=key)
            continue
        if (size := rms.max().item()) > LARGE:
            yield remedied("large", f"{where} is large, {size:.3g} (root mean square)", of=key)
        elif (size := std.max().item()) < SMALL:
            yield remedied("small", f"{where} varies by {size:.2g} only", of=key)
        far = (((rows - rows.mean(0)) / (std.square() + 1e-4).sqrt()).abs() > FAR).float()
        if (share := far.mean().item()) > FAR_SHARE:
            numbers = f"{100 * share:.2g} % of its numbers"
            line = f"{where} is beyond ±{FAR:.0f} after normalising in {numbers}"
            yield remedied("far", line, of=key)


def first_ends(x: Samples) -> tuple[Tensor, Tensor]:
    """(B,) the step [from 1 on] at which the first episode of a world ended, and how.

    0 where it did not end in these samples; how: 1 terminated, 2 truncated.
    """
    ending = x.numbers["terminated"].long() + 2 * x.numbers["truncated"].long()
    over = ending > 0
    first = over.float().argmax(0)
    ended = over.any(0)
    return torch.where(ended, first + 1, 0), ending.gather(0, first[None])[0] * ended


def endings(task: Task, x: Samples) -> Iterator[Finding]:
    """Episodes that end at once, soon, or never by the task."""
    kind, half = type(task).__name__, x.numbers["reward"].shape[1] // 2
    step, ending = first_ends(x)
    early = (ending == 1) & (step * task.dt <= SOON) & (step <= FEW)
    at_once = ((ending == 1) & (step == 1)).float().mean().item()
    shares = [early[:half].float().mean().item(), early[half:].float().mean().item()]
    if at_once > SOLVED:
        line = f"{kind}.terminated: {percent(at_once)} of the episodes end at their first step"
        yield remedied("at once", line, certain=True)
    elif min(shares) > OFTEN:
        zero, random = map(percent, shares)
        ends = f"{zero} of the episodes end with zero actions, {random} with random ones"
        line = f"{kind}.terminated: within the first second, and {FEW} steps, {ends}"
        yield remedied("early", line)
    judged = len(x.numbers["time"]) >= task.horizon
    owns = type(task).terminated is not Task.terminated
    if judged and owns and not x.numbers["terminated"].any():
        line = f"{kind}.terminated: no episode was ended by the task, zero or random actions"
        yield remedied("never", line)


def actions(task: Task, x: Samples, s: State) -> Iterator[Finding]:
    """Actions that are clamped, controls beyond their range, and actuators that nothing moves.

    s: a state of B worlds, for `control`.
    """
    kind, half, model = type(task).__name__, x.action.shape[1] // 2, task.mjm
    hit = (x.action[:, half:].abs() > task.clip).float().mean().item()
    if hit > OFTEN:
        line = f"task.clip={task.clip:g} clamps {percent(hit)} of the actions"
        yield remedied("clip", f"{line} of an untrained policy")
    low, high = (torch.as_tensor(y, dtype=torch.float32) for y in model.actuator_ctrlrange.T)
    limited = torch.as_tensor(model.actuator_ctrllimited).bool()
    ctrl = x.ctrl[:, half:]
    beyond = ((ctrl < low) | (ctrl > high)) & limited
    share = beyond[x.valid[:, half:]].float().mean(0)
    for i in (share > OFTEN).nonzero()[:, 0].tolist():
        name = model.actuator(i).name or f"number {i}"
        controls = f"{percent(share[i].item())} of the controls of the actuator {name!r}"
        where = f"are beyond its ctrlrange {low[i]:g} to {high[i]:g}, with random actions"
        yield remedied("ctrl", f"{kind}.control: {controls} {where}", of=name)
    moved = torch.zeros(model.nu, dtype=torch.bool)
    zero = torch.zeros_like(s.action)
    still = task.control(s.with_(action=zero, previous=zero))
    for change in (0.5 * task.clip, -0.5 * task.clip):
        other = task.control(s.with_(action=zero + change, previous=zero + change))
        moved |= (other != still).any(0).cpu()
    for i in (~moved).nonzero()[:, 0].tolist():
        name = model.actuator(i).name or f"number {i}"
        line = f"{kind}.control: no action changes the actuator {name!r}"
        yield remedied("still", line, of=name)


def discount(task: Task, gamma: float | None) -> Iterator[Finding]:
    """A discount that sees too little of an episode, or far beyond it."""
    if gamma is None or not 0 <= gamma < 1:
        return
    steps, horizon = 1 / (1 - gamma), task.horizon
    sees = f"algo.gamma={gamma:g} counts the next {steps * task.dt:.2g} s ({steps:.3g} steps)"
    if horizon > 1 and steps < min(max(FEWEST_STEPS, LEAST_SHARE * horizon), horizon):
        wise = f"try algo.gamma={1 - 1 / max(FEWEST_STEPS, horizon / 10):.3g}"
        line = f"{sees} of an episode of {task.episode:g} s: later rewards do not count"
        yield Finding("discount", f"{line}; {wise}")
    elif steps > LONGEST_EPISODE * horizon:
        wise = f"raise task.episode, or try algo.gamma={1 - 1 / max(2, horizon):.3g}"
        yield Finding("discount", f"{sees}, and an episode has {task.episode:g} s: {wise}")


@dataclass(frozen=True)
class Chance:
    """What half of the worlds score that are stepped by chance."""

    success: float | None  # None of samples shorter than an episode, or if nothing is known of it
    value: float  # mean return of the first episodes
    ended: float  # share of the first episodes
    length: float  # mean of these [s]
    timed_out: float  # share of the first episodes

    def __str__(self) -> str:
        success = "unknown" if self.success is None else f"{self.success:.2f}"
        after = f" after {self.length:.2g} s on average" if self.ended else ""
        return (
            f"success {success}, return {self.value:.3g}; the task ends {percent(self.ended)} of "
            f"the first episodes{after}, the time limit {percent(self.timed_out)}"
        )


def by_chance(task: Task, x: Samples, worlds: slice) -> tuple[Chance, str]:
    """What some of the worlds score, and what is wrong with `score`, or ""."""
    T, whole = min(len(x.numbers["time"]), task.horizon), len(x.numbers["time"]) >= task.horizon
    step, ending = (value[worlds] for value in first_ends(x))
    reward = x.numbers["reward"][:T, worlds]
    alive = (torch.arange(T)[:, None] < step) | (step == 0)
    ended, timed_out = ((ending == i).float().mean().item() for i in (1, 2))
    length = step[ending == 1].float().mean().item() * task.dt
    record = {name: value[:T, worlds] for name, value in x.measures.items()}
    failed = x.numbers["terminated"] | x.numbers["fault"]
    record |= {"terminated": failed[:T, worlds], "reward": reward}
    scores: Any = task.score(record) if whole else {"success": None}
    value = (reward * alive).sum(0).mean().item()
    try:
        check_scores(task, scores)
    except ValueError as error:
        return Chance(None, value, ended, length, timed_out), str(error)
    return Chance(scores["success"], value, ended, length, timed_out), ""


def chance(zero: Chance, random: Chance) -> Iterator[Finding]:
    """A task that is solved by chance."""
    for name, x in (("zero", zero), ("random", random)):
        if x.success is not None and x.success >= SOLVED:
            yield remedied("chance", f"score: {name} actions have success {x.success:.2f}")
            return


def disagreement(task: Task, native: Samples, warp: Samples) -> Iterator[Finding]:
    """Simulators that move the same worlds differently, zero actions in both.

    The first worlds of both have the same numbers, so their starts are the same.
    """
    n = min(native.qpos.shape[1], warp.qpos.shape[1]) // 2
    step, _ = first_ends(native)
    T = min(COMPARED, len(native.qpos), len(warp.qpos))
    a, b = native.qpos[:T, :n], warp.qpos[:T, :n]
    alive = (step[:n] == 0) | (step[:n] > T)  # none began anew
    if T < 2 or not alive.any():
        return
    apart = (a[-1] - b[-1]).abs().amax(1)[alive]
    path = (a - a[:1]).abs().amax((0, 2))[alive] + 1e-2
    share = (apart / path).median().item()
    if share > OFTEN:
        far = percent(share) if share < 1 else f"{share:.1f} times"
        line = f"physics: after {T} steps from the same start, sim=native and sim=warp are {far}"
        yield remedied("simulators", f"{line} of the way apart")


def of_samples(
    task: Task, x: Samples, s: State, bonus: set[str], weights: dict[str, float]
) -> list[Finding]:
    """All findings in the samples of one simulator."""
    broken = [*not_finite(task, x)]
    if not x.valid.any():
        return broken
    return [
        *broken,
        *rewards(task, x, bonus, weights),
        *endings(task, x),
        *observations(task, x),
        *actions(task, x, s),
    ]

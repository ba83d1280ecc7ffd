"""Adversarial motion priors: reward and loss against NumPy, and what a training asks of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.rewards.amp.amp import AMP, term_columns
from gpusim_rl.algorithms.rewards.amp.settings import Settings
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import Record, vector
from gpusim_rl.evaluation.demonstrate import describe_env
from gpusim_rl.runs.demonstrations import Demonstrations, demonstration_columns
from tests.algorithms.test_rnd import halves_are_one
from tests.guard import reads_nothing
from tests.worlds import TASKS, goes_on, make_config

T, B, N, DT = 3, 4, 40, 0.05
VIEWS = dict(actor=vector(2), critic=vector(5))
NUMBERS: dict[str, Any] = dict(demos="", weight=2.0, terms=["b", "a"], learning_rate=1e-3, steps=2)
NUMBERS |= dict(batch=8, gradient_penalty=3.0, hidden=[6])


def shown() -> Demonstrations:
    """Random transitions, one long episode of a view with the terms a (2 columns) and b (1)."""
    g = torch.Generator().manual_seed(5)
    record = Record.zeros(demonstration_columns(VIEWS, 1), N, device=torch.device("cpu"))
    for name in ("critic", "end"):
        record.column(name).copy_(1 + 2 * torch.randn(N, 5, generator=g))
    record.column("truncated")[-1] = 1.0
    return Demonstrations(record, {"terms": json.dumps({"a": 2, "b": 1})})


def make(worlds: slice = slice(0, B), group: ProcessGroup = SINGLE, **numbers: Any) -> AMP:
    """A small model of some of the worlds."""
    ids = torch.arange(B)[worlds]
    about = dict(views=VIEWS, action_width=1, num_rows=len(ids), num_steps=T, horizon=10, dt=DT)
    about |= dict(clip=1.0, worlds=ids)
    count, given = torch.zeros((), dtype=torch.int64), {"reward.demos": shown()}
    spec = Spec(**about, iteration=count, seed=1, threads=1, group=group, given=given)  # type: ignore
    return AMP(spec, Settings(**NUMBERS | numbers))


def rollout(seed: int, worlds: slice = slice(0, B)) -> Record:
    """Random steps of all worlds, of which this process has some; a faulty one holds NaN."""
    g = torch.Generator().manual_seed(seed)
    record = Record.zeros(make().columns, T, B, device=torch.device("cpu"))
    for name in ("critic", "end"):
        record.column(name).copy_(torch.randn(T, B, 5, generator=g))
    record.column("fault")[1, 2] = 1.0
    record.end[1, 2] = torch.nan
    return Record(record.columns, {k: x[:, worlds].clone() for k, x in record.parts.items()})


def judge(x: np.ndarray, w: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """D (n,) of a perceptron of two layers with elu, and its slope (n, 2k)."""
    first = x @ w[0].T + w[1]
    hidden = np.where(first > 0, first, np.expm1(first))
    inner = np.where(first > 0, 1.0, np.exp(first)) * w[2]
    return (hidden @ w[2].T + w[3])[:, 0], inner @ w[0]


def loss(w: list[np.ndarray], real: np.ndarray, fake: np.ndarray, valid: np.ndarray) -> float:
    """Equation 8, with λ = 3."""
    (on_real, slope), (on_fake, _) = judge(real, w), judge(fake, w)
    own = ((on_fake + 1) ** 2 * valid).sum() / valid.sum()
    return ((on_real - 1) ** 2).mean() + own + 1.5 * (slope**2).sum(1).mean()


def test_reward_and_loss_against_numpy():
    """The reward of the style, and the gradient of the loss by differences of a reference."""
    model, record = make(), rollout(0)
    weights = [p.detach().double().numpy().copy() for p in model.network.parameters()]
    picked = [2, 0, 1]  # the term b is the third column
    both = [shown().record, record]
    x, y = (np.concatenate([r.critic[..., picked], r.end[..., picked]], -1) for r in both)
    x, y = ((v - x.mean(0)) / x.std(0, ddof=1) for v in (x, np.nan_to_num(y)))
    x, y = x.clip(-5, 5), y.clip(-5, 5)
    assert model.shown.numpy() == pytest.approx(x, rel=1e-4, abs=1e-5)
    valid = ~record.fault.numpy()
    style = (1 - 0.25 * (judge(y.reshape(-1, 6), weights)[0] - 1) ** 2).clip(0).reshape(T, B)
    model.add_reward(record)
    assert record.reward.numpy() == pytest.approx(2.0 * DT * style * valid, rel=1e-3, abs=1e-5)
    assert model.measures()[0].item() == pytest.approx(2 * style[valid].mean(), rel=1e-3)
    real, fake, mask = x[:8], y.reshape(-1, 6), valid.reshape(-1).astype(float)
    tensors = (torch.tensor(v, dtype=torch.float32) for v in (real, fake, mask))
    model.step(*tensors)
    clipped = max(model.optimizer.norms.item(), 1.0)
    for number, grad in enumerate(model.optimizer.gradients.values()):
        flat = weights[number].reshape(-1)
        for i in (0, len(flat) - 1):
            ends = []
            for h in (1e-4, -1e-4):
                flat[i] += h
                ends.append(loss(weights, real, fake, mask))
                flat[i] -= h
            slope = clipped * grad.reshape(-1)[i].item()
            assert slope == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=0.01, abs=1e-3)


def test_it_learns_to_tell_them_apart():
    """What was shown is judged near 1, own steps near -1, and a step like it is paid more."""
    model = make(learning_rate=1e-2, gradient_penalty=0.1, steps=4)
    for k in range(60):
        record = rollout(k)
        model.update(record)
        model.spec.iteration.add_(1)
    _, real, own = model.measures().tolist()
    assert real > 0.4 and own < -0.4
    like = rollout(0)
    for name in ("critic", "end"):
        like.column(name).copy_(getattr(shown().record, name)[: T * B].view(T, B, -1))
    like.reward.zero_()
    record.reward.zero_()
    for steps in (like, record):
        model.add_reward(steps)
    assert like.reward.mean() > 2 * record.reward.mean()


def test_unknown_terms_are_named():
    """In one line, with those that there are."""
    with pytest.raises(ValueError, match=r"reward\.terms: no term 'c': choose of a, b$"):
        term_columns(shown(), ["c"])


def test_two_processes_are_one():
    """Each has half of the worlds: rewards and networks are those of one with all of them."""
    halves_are_one(make, rollout, B)


def style(folder: Path, *about: str) -> list[str]:
    """The words of a small training with a style, of random demonstrations that fit its worlds."""
    words = [*about, "num_envs=8", "num_steps=4", "algo.num_minibatches=2", "algo.hidden=[16]"]
    words += ["device=cpu", "sim.threads=1", "fuse=off", "task.episode=0.2", "reward.batch=16"]
    env = make_iteration(make_config(*words[:-1])).env
    terms = f"reward.terms=[{next(iter(env.term_widths))}]"
    columns = demonstration_columns(env.views, env.task.action_width)
    record = Record.zeros(columns, 20, device=torch.device("cpu"))
    record.rows.copy_(torch.randn(record.rows.shape, generator=torch.Generator().manual_seed(1)))
    record.action.clamp_(-env.task.clip, env.task.clip)
    for name in ("terminated", "truncated"):
        record.column(name).zero_()
    record.column("truncated")[-1] = 1.0
    file = folder / "style.safetensors"
    Demonstrations(record, describe_env(about[0][5:], env)).write(file)
    return [*words, "reward=amp", f"reward.demos={file}", terms]


@pytest.mark.parametrize(
    "task", [pytest.param(x, marks=[pytest.mark.matrix] * (x != "cartpole")) for x in TASKS]
)
def test_a_training_with_a_style(tmp_path, task):
    """No host read, finite networks, an exact continuation, and its numbers in the report."""
    words = style(tmp_path, f"task={task}")
    first, second = (make_iteration(make_config(*words)) for _ in range(2))
    first.iteration()
    reads_nothing(first, 3)
    assert {"style", "shown", "own"} <= first.report()().keys()
    state = goes_on(first, second, 2)
    assert all(x.isfinite().all() for name, x in state.items() if name[:4] == "amp/")


def test_a_style_must_be_given():
    """In one line."""
    with pytest.raises(ValueError, match=r"^reward=amp needs reward\.demos=FILE, or a run"):
        make_config("task=quadruped", "reward=amp")

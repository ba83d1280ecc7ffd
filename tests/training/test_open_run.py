"""Numbers that `resume=` changes: each acts, or is refused, as docs/determinism.md says."""

import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.assembly.learners import load_learner
from gpusim_rl.config import compose, numbers, resume
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.runs.run import Run
from gpusim_rl.training.open_run import load_checkpoint
from gpusim_rl.training.trainer import Trainer
from tests import graphs
from tests.command_lines import TINY
from tests.worlds import ROOT, check_words, differing

# in the table
NAMES = {"ppo": "PPO", "sac": "SAC", "distill": "distillation", "dream": "dreams"}
SHAPE = ("task=cartpole", "iterations=2", "log=none")
WORDS = {
    "ppo": (),
    "sac": (
        *("algo=sac", "algo.memory=gru", "algo.burn_in=0", "algo.sequence=2"),
        *("algo.warmup=16", "algo.batch_size=32", "algo.replay=32"),
    ),
    "distill": ("algo=distill", "teacher=ppo", "algo.num_minibatches=2"),
    "dream": (
        *("algo=dream", "algo.members=2", "algo.batch_size=32", "algo.model_batch=32"),
        *("algo.warmup=16", "algo.replay=32", "algo.steps=2"),
    ),
}
CAPTURED = (*(x for x in TINY if not x.startswith("sim")), "sim=warp", "graph=parts")
DRAW = {"sac": {"algo.draw": "prioritized"}, "dream": {}}
MOVING = ("learning_rate", "share")  # what learning itself changes
# other values than those of the runs
LOOP = {"threads": 2, "num_steps": 8, "iterations": 5, "rollbacks": 2, "stop_at": 0.9}
LOOP |= {"eval_every": 7, "episodes": 3, "save_every": 3, "log_every": 2, "film_every": 50}
LOOP |= {"cluster.actors": 3, "cluster.max_lag": 2, "cluster.spread": 1.5}
TASK = {"task.weights.upright": 0.7, "task.noise.pole_angle": 0.3}
ALL = {"learning_rate": 2e-4, "max_grad_norm": 0.3}
PARTS = {"update_epochs": 3, "num_minibatches": 4}
ALGO: dict[str, dict[str, Any]] = {
    "ppo": ALL | PARTS | {"gamma": 0.9, "lr_min": 2e-5, "lr_max": 3e-3, "lr_factor": 1.3}
    | {"target_kl": 0.03, "max_std": 0.4, "gae_lambda": 0.9, "clip_coef": 0.1, "clip_value": 0.5}
    | {"ent_coef": 0.01},
    "sac": ALL | {"gamma": 0.9, "alpha_rate": 1e-3, "target_std": 0.3, "tau": 0.1}
    | {"bound": 0.8, "warmup": 32, "updates": 1, "policy_delay": 1, "batch_size": 64, "window": 2}
    | {"priority_exponent": 0.5, "importance_exponent": 0.6, "sequence": 2, "burn_in": 4},
    "dream": ALL | {"gamma": 0.9, "alpha_rate": 1e-3, "target_std": 0.3, "tau": 0.1, "bound": 0.8}
    | {"warmup": 32, "updates": 2, "batch_size": 64, "lam": 0.8, "steps": 3}
    | {"model_rate": 2e-3, "model_updates": 1, "model_batch": 64},
    "distill": ALL | PARTS | {"share": 0.8, "share_iterations": 7, "lr_decay": 0.9},
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def read_back(kind: str, key: str, iteration: Iteration, plain: dict[str, Any]) -> list[Any]:
    """What a changed number is now: the tensors that kernels read, or else what is read of it."""
    learner: Any = iteration.learner
    section, _, name = key.partition(".")
    if section == "task":
        return [iteration.env.scheduled_number(key).flatten()[0]]
    if section != "algo":
        held = {"threads": iteration.spec.threads, "num_steps": iteration.spec.num_steps}
        return [held.get(key, flatten(plain).get(key))]
    if kind in ("sac", "dream"):
        critic, actor, temperature = (learner.critics.rates | learner.actor.rates).values()
        places = {"learning_rate": [critic, actor], "alpha_rate": [temperature]}
        places |= {"target_std": [learner.target_std]}
        places |= {"max_grad_norm": [learner.critics.max_norm, learner.actor.max_norm]}
        places |= {"bound": [learner.policy.bound, learner.policy.head.bound]}
        if kind == "dream":
            places |= {"model_rate": [*learner.model_adam.all_rates]}
            places["max_grad_norm"].append(learner.model_adam.max_norm)
        return places.get(name, [getattr(learner.cfg, name)])
    places = {"learning_rate": [*learner.optimizer.rates.values()]}
    places |= {"max_grad_norm": [learner.optimizer.max_norm]}
    if kind == "distill":
        return places.get(name, [getattr(learner.cfg, name)])
    kernels = learner.numbers | learner.fused.numbers
    return places.get(name, [kernels.get(name, getattr(learner.cfg, name))])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[..., None]:
    """Copies a run `kind` of two iterations here, with its teacher; each is trained once."""
    folders: dict[tuple[str, ...], Path] = {}

    def copy(kind: str, words: tuple[str, ...] = TINY) -> None:
        if (kind, *words) not in folders:
            folders[kind, *words] = folder = tmp_path_factory.mktemp(kind)
            with chdir(folder):
                if kind == "distill":
                    copy("ppo", words)
                Trainer(check_words(*SHAPE, *words, *WORDS[kind], f"run_dir={kind}")).train()
        shutil.copytree(folders[kind, *words], ".", dirs_exist_ok=True)

    return copy


def resumed(kind: str, changed: dict[str, Any]) -> Trainer:
    """The training that goes on with other values of some keys."""
    return Trainer(check_words(f"resume={kind}", *(f"{key}={x}" for key, x in changed.items())))


def changes(kind: str) -> dict[str, Any]:
    """Key → another value, of each key that acts."""
    return LOOP | TASK | {f"algo.{name}": x for name, x in ALGO[kind].items()}


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=[pytest.mark.slow] * (x != "ppo")) for x in NAMES]
)
def test_what_is_changed_is_used(kind, trained):
    """Each changed number is what the kernels read, also when iterations are replayed."""
    trained(kind, CAPTURED)
    trainer, changed = resumed(kind, changes(kind)), changes(kind)
    iteration: Any = trainer.loop.iteration
    for key, value in changed.items():
        for now in read_back(kind, key, iteration, trainer.cfg.plain):
            assert float(now) == pytest.approx(value, rel=1e-6), key
    for _ in range(graphs.CALLS):
        iteration.iteration()
    assert graphs.replays(iteration)
    for key in changed.keys() - {f"algo.{name}" for name in MOVING}:
        for now in read_back(kind, key, iteration, trainer.cfg.plain):
            assert float(now) == pytest.approx(changed[key], rel=1e-6), key
    if kind == "distill":
        left = 1 - iteration.iterations / ALGO[kind]["share_iterations"]
        assert iteration.learner.share.item() == pytest.approx(ALGO[kind]["share"] * max(left, 0))
    trainer.close()


@pytest.mark.parametrize("kind", NAMES)
def test_live_numbers_are_read(kind, trained):
    """What a population or a curriculum writes while it learns is what the kernels read."""
    if kind == "distill":
        trained("ppo")
    cfg = check_words(*SHAPE, *TINY, *WORDS[kind])
    keys = [f"algo.{name}" for name in load_learner(kind).changeable]
    iteration = make_iteration(cfg, changeable=keys)
    assert "algo.learning_rate" in keys
    for key in keys:
        number = iteration.numbers[key].mul_(0.5).flatten()
        for now in read_back(kind, key, iteration, cfg.plain):
            assert float(now) == number[0].item() == number[-1].item(), key


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_not_changed_goes_on(kind, trained):
    """Every learned tensor is the checkpoint's, also a rate that has moved."""
    trained(kind)
    state, _, _ = Run(Path(kind)).checkpoints.restore(print)
    trainer = resumed(kind, {"iterations": 3, "algo.max_grad_norm": 0.4})
    learner, state = trainer.loop.iteration.learner, dict(state)
    changeable = {name: x.tensor.detach() for name, x in learner.tensors().items()}
    assert differing(changeable, {name: state[name] for name in changeable}) == []
    first = learner.log_alpha.exp() if kind in ("sac", "dream") else learner.optimizer.all_rates[0]
    assert first != (learner.cfg.alpha if kind in ("sac", "dream") else learner.cfg.learning_rate)
    trainer.close()


def test_a_roll_back_halves_the_new_rate(trained):
    """Also to a checkpoint of before the change; earlier roll-backs do not lower it."""
    trained("ppo")
    Run(Path("ppo")).json("rollbacks.json", 2)
    trainer = resumed("ppo", {"iterations": 9, "algo.learning_rate": 2e-4})
    loop, rate = trainer.loop, trainer.loop.iteration.learner.rates["learning_rate"][1]
    assert rate.item() == pytest.approx(2e-4)
    loop.iteration.iteration()
    loop.roll_back({"iteration": 3.0}, loop.iteration.env.worst_step.worst())
    assert rate.item() == pytest.approx(1e-4) and loop.rollbacks == 3
    loop.save()
    loop.checkpoint_writer.wait()
    state, metadata, _ = Run(Path("ppo")).checkpoints.restore(print)
    assert state["ppo/critic_rate"] == rate and metadata["rollbacks"] == "3"
    trainer.close()


def test_a_learner_without_rates(trained):
    """Another learning rate is refused in one line, and other numbers are not."""
    trained("ppo")
    trainer = resumed("ppo", {"algo.ent_coef": 0.02})
    run, iteration = trainer.run, trainer.loop.iteration
    trainer.close()
    iteration.learner.rates.clear()
    cfg, line = trainer.cfg.replace({"algo.learning_rate": 2e-4}), "rates of PPO are none"
    with pytest.raises(ValueError, match=f"algo.learning_rate 0.002 → 0.0002: the {line}"):
        load_checkpoint(iteration, cfg, run.checkpoints.restore(print), before=0, now=0)


def table(kind: str) -> dict[str, str]:
    """Key or `section.*` → what docs/determinism.md says of it for a learner."""
    text = (ROOT / "docs" / "determinism.md").read_text()
    rows = re.findall(r"^\| (`.*) \| (.*) \| ((?:acts|refused).*) \|$", text, re.MULTILINE)
    ours = [row for row in rows if row[1] == "any" or NAMES[kind] in row[1].split(", ")]
    return {key: end for keys, _, end in ours for key in re.findall("`(.*?)`", keys)}


@pytest.mark.parametrize("kind", NAMES)
def test_the_table(kind):
    """Every key of --help numbers is in the table of the docs, which says what the code does."""
    said = table(kind)
    cfg = compose.compose_plain("config", ["task=cartpole", f"algo={kind}"])
    acting = set()
    for line in numbers.lines("config", cfg)[1:]:
        key = line.split()[0]
        below = [x for x in said if x == key or (x.endswith("*") and key.startswith(x[:-1]))]
        end = said[max(below, key=len)]
        # train.py takes jobs= with -m alone
        assert end.startswith("refused") == (resume.is_fixed(key, cfg) or key == "jobs"), key
        acting |= {key} if end == "acts" else set()
    sections = "sim.", "task.weights.", "task.noise."
    tried = {key for key in changes(kind) if not key.startswith(sections)}
    assert {key for key in acting if not key.startswith(sections)} == tried
    assert not [key for key in said if not key.endswith("*") and key not in flatten(cfg)]


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_refused(kind, trained):
    """One line names all of the keys that resume= cannot change."""
    trained(kind)
    fixed = {"seed": 7, "num_envs": 32, "task.sigma": 0.9, "task.dt": 0.04, "algo.hidden": [8]}
    fixed |= {"cloning.epochs": 3, "cloning.count": 5, "cloning.std": 0.2}
    fixed |= (
        {"algo.replay": 64, "algo.alpha": 0.1} | DRAW[kind]
        if kind in ("sac", "dream")
        else {"algo.std": 0.3, "algo.min_std": 0.01}
    )
    with pytest.raises(ValueError) as refusal:
        resumed(kind, fixed)
    assert str(refusal.value).count("\n") == 0
    assert not [key for key in fixed if f"{key} " not in str(refusal.value)]

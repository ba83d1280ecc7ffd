"""Acceptance: NaN and Inf put into physics, observations, rewards and gradients of a whole
training, which goes on and learns.

    python -m tests.acceptance.inject [--count 1000] [--draw 0] [--expect 0.996] [KEY=VALUE …]

Trains as train.py does, with `count` injections at random moments, a quarter of each kind, never
two into the same world and step or the same minibatch. Every one must be counted, as a fault or as
a skipped minibatch, and the success must be that of a training without, within 0.03 (`--expect`).
Exits with 1 otherwise.
"""

import argparse
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.build import iteration
from gpusim_rl.commands import train
from gpusim_rl.runs.run import Run
from tests.worlds import make_config

VALUES = (float("nan"), float("inf"), float("-inf"))
KINDS = ("physics", "observation", "reward", "gradient")


class Injections:
    """Puts what is no number into a PPO's tensors at drawn moments."""

    def __init__(self, ppo: PPO, count: int, iterations: int, draw: int):
        self.ppo, self.rng, self.done = ppo, random.Random(draw), Counter[str]()
        steps, worlds = iterations * len(ppo.source.record.rows), ppo.env.num_envs
        moments = self.rng.sample(range(steps * worlds), 3 * count // 4)
        self.at: dict[int, list[tuple[str, int]]] = {}
        for i, moment in enumerate(moments):
            self.at.setdefault(moment // worlds, []).append((KINDS[i % 3], moment % worlds))
        self.minibatches = set(
            self.rng.sample(range(iterations * ppo.learner.minibatches.count), count - len(moments))
        )
        self.step = self.minibatch = -1
        env, fused = ppo.env, ppo.learner.fused
        assert fused is not None
        parts: dict[str, Any] = ppo.source.parts
        self._judge, minibatch = env.outcome, fused.__call__
        parts["act"] = self.wrap(self.begin, parts["act"])
        parts["physics"] = self.wrap(self.physics, parts["physics"])
        env.outcome = self.judged
        ppo.learner.fused = Poisoned(self, minibatch, fused)  # type: ignore[assignment]

    def value(self, kind: str) -> float:
        self.done[kind] += 1
        return self.rng.choice(VALUES)

    def wrap(self, before: Any, then: Any) -> Any:
        def call() -> None:
            before()
            then()

        return call

    def worlds(self, kind: str) -> list[int]:
        return [world for what, world in self.at.get(self.step, []) if what == kind]

    def begin(self) -> None:
        """Before the policy looks."""
        self.step += 1
        for world in self.worlds("observation"):
            obs = self.ppo.env.observation.actor
            obs[world, self.rng.randrange(obs.shape[1])] = self.value("observation")

    def physics(self) -> None:
        """Before the engine steps."""
        for world in self.worlds("physics"):
            x = self.rng.choice((self.ppo.env.sim.qpos, self.ppo.env.sim.qvel))
            x[world, self.rng.randrange(x.shape[1])] = self.value("physics")

    def judged(self, s: Any) -> tuple[torch.Tensor, ...]:
        """Reward terms and their sum, spoilt."""
        terms, reward, end, failed = self._judge(s)
        for world in self.worlds("reward"):
            terms[world, self.rng.randrange(terms.shape[1])] = self.value("reward")
            reward[world] = self.ppo.env.task.dt * terms[world].sum()
        return terms, reward, end, failed


class Poisoned:
    """The fused loss, with a gradient spoilt now and then."""

    def __init__(self, injections: Injections, call: Any, fused: Any):
        self._injections, self._call, self._fused = injections, call, fused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fused, name)

    def __call__(self) -> None:
        self._call()
        ours = self._injections
        ours.minibatch += 1
        if ours.minibatch in ours.minibatches:
            grad = ours.rng.choice((self._fused.grad_mean, self._fused.grad_value))
            grad[ours.rng.randrange(len(grad)), ours.rng.randrange(grad.shape[1])] = ours.value(
                "gradient"
            )


def main() -> None:
    """Train, count, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--draw", type=int, default=0, help="seed of the moments")
    parser.add_argument("--expect", type=float, default=0.996)
    args, words = parser.parse_known_args()
    path = Path(tempfile.mkdtemp(prefix="accept-inject-")) / "run"
    cfg = make_config("task=quadruped", "log=none", f"run_dir={path}", *words)
    make, made = iteration.make_iteration, []

    def make_iteration(*a: Any, **k: Any) -> Iteration:
        ppo = make(*a, **k)
        made.append(Injections(ppo, args.count, cfg.iterations, args.draw))
        return ppo

    iteration.make_iteration = make_iteration
    train.train_or_exit(cfg)
    rows, done = Run(path).rows(), made[0].done
    faults, skipped = sum(row["fault"] for row in rows), sum(row["skipped"] for row in rows)
    success = json.loads((path / "eval.json").read_text())["success"]
    print(
        f"injected: {dict(done)}, {sum(done.values())} in all; counted: {faults:.0f} faults, "
        f"{skipped:.0f} skipped minibatches"
    )
    print(
        f"success {success:.3f}, without injections {args.expect}; roll-backs "
        f"{rows[-1]['rollbacks']:.0f}"
    )
    counted = faults >= sum(done.values()) - done["gradient"] and skipped == done["gradient"]
    raise SystemExit(not (counted and success >= args.expect - 0.03))


if __name__ == "__main__":
    main()

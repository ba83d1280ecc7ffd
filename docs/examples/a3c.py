"""A3C (Mnih et al., arXiv:1602.01783): actors send gradients, and the first to come is the next."""

import sys
from functools import partial

import torch

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.assembly.iteration import join_learner, make_iteration
from gpusim_rl.cluster.engine import Engine
from gpusim_rl.cluster.packing import host, tensor
from gpusim_rl.commands.train import configure
from gpusim_rl.config.sections import Config
from gpusim_rl.core.errors import one_line_errors
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.training.trainer import Trainer

ACTORS = 2


class Actor:
    """Worlds and a copy of the learner, in a process of its own. It sends no steps."""

    cores = 1  # of Ray's

    def __init__(self, plain, *, actor):
        torch.set_num_threads(1)
        cfg = Config.of(plain)
        worlds = cfg.num_envs // ACTORS
        self.iteration = make_iteration(cfg, worlds, first=actor * worlds)

    def identity(self):
        """Nothing has to be in common, since all run on this machine."""
        return {}

    def gradient(self, networks):
        """The gradient for one rollout, its losses, numbers for the log, and two rows of views."""
        it, learner = self.iteration, self.iteration.learner
        it.policy.load({name: tensor(x) for name, x in networks.items()}, "the learner")
        it.collect()
        record = it.source.record
        learner.gradient(record)
        numbers = learner.optimizer.grads, learner.losses, it.env.report()[1]
        return [host(x) for x in (*numbers, spread(record.obs), spread(record.critic))]


def spread(views):
    """Two rows (2, width) with the mean and the variance of views (T, B, width)."""
    mean, std = views.mean((0, 1)), views.flatten(0, 1).std(0, correction=0)
    return torch.stack([mean - std, mean + std])


class Gradients:
    """The source of an iteration: the gradient of one rollout of one actor."""

    def __init__(self, plain, env, learner, record):
        self.env, self.learner, self.record, self.engine = (
            env,
            learner,
            record,
            Engine(ACTORS, None),
        )
        starts = [self.engine.start(Actor, {"actor": i}, plain) for i in range(ACTORS)]
        for _, begin in starts:
            self.engine.get(begin)  # wait until it has begun
        self.idle, self.requests = [process for process, _ in starts], {}

    def collect(self, steps):
        """Let idle actors begin with the weights of now, and wait for the first gradient."""
        state = self.learner.policy.state_dict()
        networks = {f"policy/{name}": host(x) for name, x in state.items()}
        for process in self.idle:
            self.requests[self.engine.call(process, "gradient", networks)] = process
        first = self.engine.ready([*self.requests])[0]
        self.idle = [self.requests.pop(first)]
        grads, losses, sums, *views = map(tensor, self.engine.get(first))
        self.learner.optimizer.grads.copy_(grads)
        self.learner.losses.copy_(losses)
        self.learner.policy.update_normalizers(views, torch.ones(2, dtype=torch.bool))
        totals = self.env.statistics.totals
        totals += sums[: len(totals)]
        self.measures = sums[len(totals) :]

    def tensors(self):
        """Nothing of the actors is saved: after resume= they begin new episodes."""
        return {}


class A3C(Iteration):
    """An iteration whose update is one step with such a gradient."""

    def collect(self):
        self.timer.start("wait")
        super().collect()

    def update(self):
        self.timer.start("update")
        self.learner.step()
        self._count()
        self.timer.start("")

    def sums(self):
        names, values = super().sums()
        values[len(self.env.statistics.totals) :] = self.source.measures
        return names, values

    def close(self):
        self.source.engine.close()


def make(cfg, **how):
    """The learner without worlds, and its actors. ValueError if they cannot learn this."""
    if cfg.curriculum or cfg.num_envs % ACTORS:
        raise ValueError(f"a3c.py needs curriculum=null, and num_envs that divides by {ACTORS}")
    return join_learner(
        cfg,
        build_env(cfg, 1, Curriculum(None), **how),
        make_source=partial(Gradients, cfg.plain),
        num_envs=cfg.num_envs // ACTORS,
        iteration=A3C,
    )


if __name__ == "__main__":
    with one_line_errors():
        trainer = Trainer(configure("algo=a2c", *sys.argv[1:]), make)
    trainer.train()
    print(f"success {trainer.evaluate()['success']:.3f} in {trainer.run.path}")
    trainer.close()

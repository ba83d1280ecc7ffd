"""Time to the return that PPO of Stable-Baselines3 has after its steps.

    python -m benchmarks.against_sb3 [task=hopper] [seeds=[1,2,3]] [steps=1000000]
        [limit=SECONDS] [every=10] [episodes=20] [out=FILE] [KEY=VALUE …]

For every seed in turn, each in a process of its own on the same cores:

1. Stable-Baselines3's PPO learns `steps` steps in eight processes of Gymnasium's package, with
   the settings of RL Zoo. Its return is that of the last policy. After `limit` seconds it stops
   early; `env_steps` says how far it came.
2. `train.py task=… seed=…` learns, with the other words. Every n-th actor is kept, and judged
   after the training in order, until one has at least that return, and again on other episodes.
   Its time is that of training until then.

Both are judged alike: `episodes` episodes of the package's environment with the mean action.
Times are wall times of training alone; start-up is listed beside them, and judging is in neither.
Processor times of all processes stand beside them, for a machine that others use as well. FILE gets
everything as JSON, after each seed. The cores are those that the process may use. Linux only.
"""

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks import program
from benchmarks.time_to_success import Clock, keep_actors, warm_up
from gpusim_rl.core.provenance import processor, versions

PROCESSES = 8
JUDGED = 10_000  # seed of the first episode that judges
AGAIN = 20_000  # and of those that confirm: the first of many actors to pass was lucky, too
PACKAGE = {"hopper": "Hopper-v5", "ant": "Ant-v5"}
# RL Zoo's hyperparams/ppo.yml of commit 208b6fd (github.com/DLR-RM/rl-baselines3-zoo), Hopper-v4
# and Ant-v4, but for n_envs, which is 1 there. `normalize: true` is VecNormalize for both. Ant's
# are Stable-Baselines3's own defaults.
ZOO: dict[str, dict[str, Any]] = {
    "hopper": dict(
        batch_size=32,
        n_steps=512,
        gamma=0.999,
        learning_rate=9.80828e-05,
        ent_coef=0.00229519,
        clip_range=0.2,
        n_epochs=5,
        gae_lambda=0.99,
        max_grad_norm=0.7,
        vf_coef=0.835671,
        policy_kwargs=dict(
            log_std_init=-2,
            ortho_init=False,
            activation_fn="ReLU",
            net_arch=dict(pi=[256, 256], vf=[256, 256]),
        ),
    ),
    "ant": {},
}

Act = Callable[[np.ndarray], np.ndarray]  # observations (B, no) → actions (B, nu)


def returns(name: str, act: Act, episodes: int, first: int) -> np.ndarray:
    """(episodes,) what a policy earns in the package's environment, each until its episode ends.

    first: seed of the first episode; each further one has the next number.
    """
    import gymnasium

    worlds = [gymnasium.make(name) for _ in range(episodes)]
    seen = np.array([world.reset(seed=first + i)[0] for i, world in enumerate(worlds)])
    total, runs = np.zeros(episodes), list(range(episodes))
    while runs:
        actions = act(seen[runs])
        for i, action in zip(tuple(runs), actions, strict=True):
            seen[i], reward, terminated, truncated, _ = worlds[i].step(action)
            total[i] += float(reward)
            if terminated or truncated:
                runs.remove(i)
    return total


def judged(name: str, act: Act, episodes: int, first: int = JUDGED) -> dict[str, float]:
    """Mean and standard deviation of `returns`."""
    total = returns(name, act, episodes, first)
    return {"return": total.mean().item(), "return_std": total.std().item()}


def processor_seconds(processes: list[Any]) -> float:
    """Processor time so far [s] of other processes, with all threads."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def make_sb3(own: SimpleNamespace, seed: int) -> Any:
    """A learner of Stable-Baselines3 with the settings of RL Zoo, whose processes have started."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

    settings = dict(ZOO[own.task])
    inner = make_vec_env(PACKAGE[own.task], PROCESSES, seed=seed, vec_env_cls=SubprocVecEnv)
    worlds = VecNormalize(inner, gamma=settings.get("gamma", 0.99))
    if net := settings.pop("policy_kwargs", None):
        net = net | {"activation_fn": getattr(torch.nn, net["activation_fn"])}
    worlds.reset()
    return PPO("MlpPolicy", worlds, seed=seed, device="cpu", policy_kwargs=net, **settings)


def learn_sb3(own: SimpleNamespace, seed: int) -> dict[str, Any]:
    """Stable-Baselines3's training, judged ten times; the last is what counts."""
    begun = time.perf_counter()
    model = make_sb3(own, seed)
    worlds = model.get_env()
    others = worlds.venv.processes
    start_s, cpu, clock = time.perf_counter() - begun, processor_seconds(others), Clock()
    rows: list[dict[str, Any]] = []

    def act(obs: np.ndarray) -> np.ndarray:
        return model.predict(worlds.normalize_obs(obs), deterministic=True)[0]

    def judge(*_: Any) -> bool:
        if model.num_timesteps >= own.steps * (len(rows) + 1) / 10:
            wall, cpu_s = clock.read()
            row = {"env_steps": model.num_timesteps, "train_s": wall}
            row["cpu_s"] = cpu_s + processor_seconds(others) - cpu
            with clock.paused():
                rows.append(row | judged(PACKAGE[own.task], act, own.episodes))
            print(f"  SB3: {rows[-1]}", flush=True)
        return clock.read()[0] < own.limit

    model.learn(own.steps, callback=judge)
    wall, cpu_s = clock.read()
    done = {"env_steps": model.num_timesteps, "train_s": wall}
    done["cpu_s"] = cpu_s + processor_seconds(others) - cpu
    done |= judged(PACKAGE[own.task], act, own.episodes)
    worlds.close()
    return {"seed": seed, "start_s": start_s, **done, "curve": rows}


def learn_ours(own: SimpleNamespace, words: list[str], seed: int, target: float) -> dict[str, Any]:
    """Our training, and its actors until one has the return `target`."""
    from gpusim_rl.commands.train import configure
    from gpusim_rl.training.trainer import Trainer

    begun = time.perf_counter()
    own_words = [f"task={own.task}", f"seed={seed}", f"run_dir={tempfile.mkdtemp()}/run"]
    own_words += ["log=none", "export=none", "report=false", "episodes=1"]
    trainer = Trainer(configure(*own_words, *words))
    learner = trainer.loop.iteration
    warm_up(learner)
    start_s, clock = time.perf_counter() - begun, Clock()
    actors = keep_actors(trainer.loop, clock, own.every)
    trainer.train()

    @torch.no_grad()
    def act(obs: np.ndarray) -> np.ndarray:
        seen = torch.as_tensor(obs, dtype=torch.float32)
        action = learner.policy.act({"actor": seen}, learner.policy.blank_memory(len(seen)))[0]
        return action.clamp(-learner.env.task.clip, learner.env.task.clip).numpy()

    rows: list[dict[str, Any]] = []
    reached = None
    for i, actor in enumerate(actors):
        if reached and i < len(actors) - 1:
            continue
        learner.policy.load_state_dict(actor.weights)
        row = {key: x for key, x in actor._asdict().items() if key != "weights"}
        row |= judged(PACKAGE[own.task], act, own.episodes)
        if not reached and row["return"] >= target:
            row["again"] = judged(PACKAGE[own.task], act, own.episodes, AGAIN)["return"]
            reached = row if row["again"] >= target else None
        rows.append(row)
    when = {"seed": seed, "start_s": start_s, "train_s": actors[-1].time_s}
    return when | {"reached": reached, "actors": rows}


def middle(rows: list[dict[str, Any]], key: str) -> dict[str, float | None]:
    """Medians over seeds of a time of both, and their ratio; None for a time never reached."""
    theirs = statistics.median(row["sb3"]["train_s" if key == "time_s" else key] for row in rows)
    first = [row["ours"]["reached"] for row in rows]
    ours = statistics.median(row[key] if row else float("inf") for row in first)
    never = ours == float("inf")
    return {
        "sb3": theirs,
        "ours": None if never else ours,
        "ratio": None if never else ours / theirs,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over seeds; a time that was never reached is longer than any."""
    reached = sum(row["ours"]["reached"] is not None for row in rows)
    sb3_return = statistics.median(row["sb3"]["return"] for row in rows)
    own = {key: middle(rows, key) for key in ("time_s", "cpu_s", "env_steps")}
    return {"sb3_return": sb3_return, "reached": reached, "seeds": len(rows)} | own


def main(words: list[str]) -> None:
    """Train both with each seed, judge and print."""
    keys = dict(task="hopper", seeds=[1, 2, 3], steps=1_000_000, limit=math.inf)
    keys |= dict(every=10, episodes=20, out=None)
    own, words = program.split_words(__doc__, words, **keys)
    program.choose([own.task], PACKAGE)
    machine = {"cpu": processor(), "cores": len(os.sched_getaffinity(0))}
    report = {"command": program.command_line("against_sb3"), "machine": machine}
    report |= {"versions": versions(), "zoo": ZOO[own.task]}
    rows: list[dict[str, Any]] = []
    for seed in own.seeds:
        theirs = program.apart(learn_sb3, own, seed)
        print(f"seed {seed}: SB3 {theirs['return']:.0f} in {theirs['train_s']:.0f} s", flush=True)
        ours = program.apart(learn_ours, own, words, seed, theirs["return"])
        first = ours["reached"]
        when = f"{first['return']:.0f} in {first['time_s']:.0f} s" if first else "not reached"
        print(f"seed {seed}: ours {when}, in all {ours['train_s']:.0f} s", flush=True)
        rows.append({"sb3": theirs, "ours": ours})
        if own.out:
            program.write_json(own.out, report | {"summary": summary(rows), "trials": rows})
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])

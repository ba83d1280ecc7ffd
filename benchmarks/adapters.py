"""Stable-Baselines3 learns cartpole, and rsl_rl trains the quadruped, through our adapters.

    python -m benchmarks.adapters [sb3] [rsl] [num_envs=128]

sb3: its PPO on 256 worlds, judged as our policies are, every 51,200 steps until all of 128 episodes
succeed; at most 409,600.
rsl: its OnPolicyRunner for 20 iterations of 24 steps, MuJoCo C; the mean reward per second of the
first five and the last. Exits with 1 if cartpole was not learned, or the quadruped's reward did not
rise.
"""

import sys
from time import perf_counter
from typing import Any

import torch

from benchmarks import program
from gpusim_rl.evaluation.evaluate import STOP_SEED, evaluate
from tests.worlds import Stateless

# PPO's numbers for cartpole, those of conf/task/cartpole.yaml where Stable-Baselines3 knows them
CARTPOLE: dict[str, Any] = dict(
    n_steps=20,
    batch_size=1280,
    n_epochs=5,
    learning_rate=2e-3,
    gamma=0.98,
    ent_coef=0.01,
    target_kl=0.04,
)


def judge(model: Any, worlds: Any, episodes: int = 64) -> dict[str, Any]:
    """A Stable-Baselines3 policy for `gymnasium_env.Worlds`, judged as ours are."""
    task = worlds.cfg.task

    def act(obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(model.predict(obs.numpy(), deterministic=True)[0])

    made = dict(weights=task.weights, noise=task.noise, seed=STOP_SEED)
    policy: Any = Stateless(act)
    return evaluate(policy, worlds.env.task, episodes=episodes, **made)


def rsl_config(num_steps: int = 24) -> dict:
    """rsl_rl's own configuration of PPO: networks and γ as ours, the rest its defaults."""
    net = {
        "class_name": "MLPModel",
        "hidden_dims": [128, 128],
        "activation": "elu",
        "obs_normalization": True,
    }
    gauss = {"class_name": "GaussianDistribution", "init_std": 0.5}
    return {
        "num_steps_per_env": num_steps,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": net | {"distribution_cfg": gauss},
        "critic": dict(net),
        "algorithm": {
            "class_name": "PPO",
            "learning_rate": 1e-3,
            "gamma": 0.97,
            "entropy_coef": 0.0,
        },
    }


def sb3() -> bool:
    """Whether its PPO learns cartpole."""
    from stable_baselines3 import PPO

    import gpusim_rl.adapters.sb3_env

    env = gpusim_rl.adapters.sb3_env.make("cartpole", 256, sim="native", seed=1)
    model = PPO(
        "MlpPolicy", env, policy_kwargs=dict(net_arch=[64, 64]), seed=1, device="cpu", **CARTPOLE
    )
    spent, scores = 0.0, judge(model, env.worlds, 128)
    while True:
        print(
            f"sb3: {model.num_timesteps} steps, {spent:.1f} s: success {scores['success']:.3f}, "
            f"return {scores['return']:.2f}"
        )
        if scores["success"] == 1 or model.num_timesteps >= 400_000:
            return scores["success"] >= 0.9
        start = perf_counter()
        model.learn(50_000, reset_num_timesteps=False)
        spent += perf_counter() - start
        scores = judge(model, env.worlds, 128)


def rsl(num_envs: int) -> bool:
    """Whether 20 iterations of its runner raise the reward."""
    from rsl_rl.runners import OnPolicyRunner

    import gpusim_rl.adapters.rsl_rl_env

    worlds = gpusim_rl.adapters.rsl_rl_env.make("quadruped", num_envs, sim="native", seed=1)
    torch.manual_seed(1)
    runner = OnPolicyRunner(worlds, rsl_config(), device="cpu")
    start, rewards = perf_counter(), []
    for i in range(4):
        runner.learn(5, init_at_random_ep_len=i == 0)
        metrics = worlds.env.metrics()
        rewards.append(sum(value for name, value in metrics.items() if name.startswith("reward/")))
        spent = perf_counter() - start
        print(
            f"rsl: {5 * (i + 1)} iterations, {spent:.1f} s: reward {rewards[-1]:.3f} 1/s, "
            f"episodes of {metrics['length']:.2f} s"
        )
    return rewards[-1] > rewards[0]


def main(overrides: list[str]) -> None:
    """Train, print."""
    own, which = program.split_words(__doc__, overrides, num_envs=128)
    chosen = program.choose(which, ["sb3", "rsl"])
    torch.set_num_threads(1)
    good = [sb3() if name == "sb3" else rsl(own.num_envs) for name in chosen]
    raise SystemExit(not all(good))


if __name__ == "__main__":
    main(sys.argv[1:])

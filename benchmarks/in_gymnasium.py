"""Exported ants run in Gymnasium's own environment, and return what they return here.

    python -m benchmarks.in_gymnasium RUN …

Each run's policy.onnx acts for 20 episodes of `Ant-v5`. It prints mean and standard deviation of
the returns. Exits with 1 if a mean is below `solved` of conf/task/ant.yaml.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

from benchmarks import program
from gpusim_rl.deploy.runtime import Policy
from tests.worlds import numbers

EPISODES = 20


def readings(observation: np.ndarray) -> dict[str, np.ndarray]:
    """The readings of a controller in the package's observation (105,)."""
    base, joints, velocity, speeds, contact = np.split(observation, [5, 13, 19, 27])
    ours = dict(joint_pos=np.roll(joints, 2), joint_vel=np.roll(speeds, 2))  # leg 4 comes first
    return ours | dict(base=base, base_velocity=velocity, contact=contact)


def play(policy: Policy, seed: int) -> float:
    """The return of an episode."""
    env = gymnasium.make("Ant-v5")
    observation, _ = env.reset(seed=seed)
    policy.reset()
    total, ended = 0.0, False
    while not ended:
        action = policy.act(readings(observation))
        observation, reward, terminated, truncated, _ = env.step(np.clip(action, -1, 1))
        total, ended = total + float(reward), terminated or truncated
    return total


def main(runs: list[str]) -> int:
    """0 if each run's policy is at least as good as a success."""
    _, runs = program.split_words(__doc__, runs)
    worst = np.inf
    for run in runs:
        policy = Policy(Path(run) / "policy.onnx")
        returns = [play(policy, seed) for seed in range(EPISODES)]
        print(f"{run}: return {np.mean(returns):.0f} ± {np.std(returns):.0f}", flush=True)
        worst = min(worst, np.mean(returns))
    return int(worst < numbers("ant")["solved"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

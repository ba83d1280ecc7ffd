"""Policies on worlds that they never saw.

    python -m tests.acceptance.grid RUN RUN … [episodes=64]

Each run's last policy is evaluated, as training evaluates it (MuJoCo C, converged, no pushes), on
each point of a grid of friction × payload on the trunk; all else is as in the first run's
configuration. Prints successes in a table, and their mean.
"""

import argparse
from pathlib import Path

from gpusim_rl.build.environment import make_task
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.evaluation.evaluate import evaluate
from gpusim_rl.play.player import load_run
from gpusim_rl.runs.run import Run

FRICTION = (0.2, 0.55, 0.9, 1.25, 1.6)
PAYLOAD = (0.0, 1.0, 2.0, 3.0, 4.0)  # kg


def success(policy, cfg: Config, friction: float, payload: float, episodes: int) -> float:
    """Of a policy, at one point of the grid."""
    values = {}
    for name, value in (("friction", friction), ("payload", payload)):
        key = f"task.randomise.{name}"
        values |= {f"{key}.kind": "uniform", f"{key}.low": value, f"{key}.high": value}
    task = make_task(cfg.replace(values), "cpu")
    keys = {"weights": cfg.task.weights, "noise": cfg.task.noise}
    return evaluate(policy, task, **keys, episodes=episodes)["success"]


def main() -> None:
    """Evaluate every run on the grid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="+", metavar="RUN", help="run directories; episodes=N")
    words = parser.parse_args().words
    episodes = next((int(word[9:]) for word in words if word.startswith("episodes=")), 64)
    paths = [Path(word) for word in words if not word.startswith("episodes=")]
    settings = {"episodes": episodes, "checkpoint": None, "task_code": None}
    with errors.one_line_errors():
        loaded = [load_run(Run.open(path), settings) for path in paths]
    conditions = loaded[0][1]
    for path, (ppo, _) in zip(paths, loaded, strict=True):
        print(f"{path}\n  friction " + "".join(f"{kg:>6g} kg" for kg in PAYLOAD))
        rows = []
        for friction in FRICTION:
            rows.append(
                [
                    success(ppo.policy, conditions, friction, payload, episodes)
                    for payload in PAYLOAD
                ]
            )
            print(f"  {friction:8g} " + "".join(f"{x:9.3f}" for x in rows[-1]), flush=True)
        print(f"  mean success {sum(map(sum, rows)) / len(FRICTION) / len(PAYLOAD):.3f}")


if __name__ == "__main__":
    main()

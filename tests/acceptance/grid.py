"""Policies on worlds that they never saw: `python -m tests.accept_grid RUN RUN … [episodes=64]`.

Each run's last policy is evaluated, as training evaluates it (MuJoCo C, converged, no pushes), on each point of a grid of
friction × payload on the trunk; all else is as in the first run's configuration. Prints successes in a table, and their mean.
"""

import copy
import sys
from pathlib import Path

from gpusim_rl import config
from gpusim_rl.assemble import make_task
from gpusim_rl.evaluate import evaluate
from gpusim_rl.run import Run
from play import load_run

FRICTION = (0.2, 0.55, 0.9, 1.25, 1.6)
PAYLOAD = (0.0, 1.0, 2.0, 3.0, 4.0)  # kg


def success(act, cfg: dict, friction: float, payload: float, episodes: int) -> float:
    """Of a policy, at one point of the grid."""
    cfg = copy.deepcopy(cfg)
    for name, value in (("friction", friction), ("payload", payload)):
        cfg["task"]["randomise"][name] |= {"kind": "uniform", "low": value, "high": value}
    task = make_task(cfg, "cpu")
    return evaluate(act, task, weights=cfg["task"]["weights"], noise=cfg["task"]["noise"], episodes=episodes)["success"]


def main(words: list[str]) -> None:
    """Evaluate every run on the grid."""
    episodes = next((int(word[9:]) for word in words if word.startswith("episodes=")), 64)
    paths = [Path(word) for word in words if not word.startswith("episodes=")]
    if not paths:
        raise SystemExit(__doc__)
    with config.one_line():
        loaded = [load_run(Run.open(path), {"episodes": episodes, "checkpoint": None}) for path in paths]
    conditions = loaded[0][1]
    for path, (ppo, _) in zip(paths, loaded, strict=True):
        print(f"{path}\n  friction " + "".join(f"{kg:>6g} kg" for kg in PAYLOAD))
        rows = []
        for friction in FRICTION:
            rows.append([success(ppo.act, conditions, friction, payload, episodes) for payload in PAYLOAD])
            print(f"  {friction:8g} " + "".join(f"{x:9.3f}" for x in rows[-1]), flush=True)
        print(f"  mean success {sum(map(sum, rows)) / len(FRICTION) / len(PAYLOAD):.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Acceptance: saving at each iteration costs less than 2 % of the throughput.

    python -m tests.accept_save [--pairs 6] [--num-envs 2048]

Blocks of five iterations with a checkpoint after each, its writing included, and of five without, in turn, in one process.
Prints the ratio of their speeds for each pair and the median; exits with 1 if that is below 0.98.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from gpusim_rl import config
from gpusim_rl.assemble import make_ppo
from gpusim_rl.run import Run
from gpusim_rl.saver import Saver


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--num-envs", type=int, default=2048)
    args = parser.parse_args()
    words = ["task=quadruped", "sim=native", "device=cpu", f"num_envs={args.num_envs}"]
    cfg = config.compose_plain("config", words)
    ppo = make_ppo(cfg)
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Run.create(Path(folder) / "run", cfg), print)

        def block(saves: bool) -> float:
            start = perf_counter()
            for _ in range(5):
                ppo.iteration()
                if saves:
                    saver.save(ppo.iterations, ppo.state(), {})
            saver.wait()
            return perf_counter() - start

        block(True)
        ratios = []
        for i in range(args.pairs):
            times = {saves: block(saves) for saves in ((True, False) if i % 2 else (False, True))}
            ratios.append(times[False] / times[True])
            print(f"pair {i + 1}: speed with saves / without {ratios[-1]:.3f}", flush=True)
        size = saver.run.checkpoints.latest().stat().st_size / 1e6
        saver.close()
    print(f"median {median(ratios):.3f}, lowest {min(ratios):.3f}, highest {max(ratios):.3f}; a checkpoint is {size:.1f} MB")
    raise SystemExit(median(ratios) < 0.98)


if __name__ == "__main__":
    main()

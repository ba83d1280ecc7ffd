"""Acceptance: saving at each iteration costs less than 2 % of the throughput.

    python -m tests.accept_save [--pairs 40] [--num-envs 2048]

An iteration with a checkpoint after it, whose writing is waited for, and one without, in turn, in one process. In a training
the next iteration hides the writing: here the whole of it counts. Prints the medians, and the ratio of speeds; exits with 1
if that is below 0.98. One pair says little on a shared machine: the parts of a save are printed too.
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

        def iteration(saves: bool) -> tuple[float, float, float]:
            """Seconds: the whole, what a save keeps the training for, what the writing takes."""
            start = perf_counter()
            ppo.iteration()
            done = perf_counter()
            if saves:
                saver.save(ppo.iterations, ppo.state(), {})
            kept = perf_counter()
            saver.wait()
            return perf_counter() - start, kept - done, perf_counter() - kept

        iteration(True)
        found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
        for i in range(args.pairs):
            for saves in (True, False) if i % 2 else (False, True):
                found[saves].append(iteration(saves))
            if not (i + 1) % 10:
                print(f"{i + 1} pairs of {args.pairs}", flush=True)
        size = saver.run.checkpoints.latest().stat().st_size / 1e6
        saver.close()
    bare, (whole, kept, written) = median(x[0] for x in found[False]), (median(part) for part in zip(*found[True], strict=True))
    print(f"an iteration {bare:.3f} s, with a save {whole:.3f} s: ratio of speeds {bare / whole:.3f}")
    print(f"a save of {size:.1f} MB: the training waits {1e3 * kept:.1f} ms, {1e3 * written:.1f} ms are written beside it")
    print(f"both against an iteration: ratio {bare / (bare + kept + written):.3f}")
    raise SystemExit(bare / whole < 0.98)


if __name__ == "__main__":
    main()

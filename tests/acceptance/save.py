"""Acceptance: saving at each iteration costs less than 2 % of the throughput.

    python -m tests.acceptance.save [--pairs 40] [--num-envs 2048]

An iteration with a checkpoint after it, whose writing is waited for, and one without, in turn, in
one process. In a training the next iteration hides the writing: here the whole of it counts. Prints
the medians, and the ratio of speeds; exits with 1 if that is below 0.98. One pair says little on a
shared machine: the parts of a save are printed too.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from gpusim_rl.build import make_iteration
from gpusim_rl.config import compose
from gpusim_rl.config.sections import Config
from gpusim_rl.runs.run import Run
from gpusim_rl.runs.writer import CheckpointWriter

Times = dict[bool, list[tuple[float, float, float]]]  # with a save, and without


def measure(pairs: int, num_envs: int) -> tuple[Times, float]:
    """(seconds of each iteration: the whole, what a save keeps the training for, what the writing
    takes; megabytes of a save)."""
    words = ["task=quadruped", "sim=native", "device=cpu", f"num_envs={num_envs}"]
    cfg = Config.of(compose.compose_plain("config", words))
    ppo = make_iteration(cfg)
    with tempfile.TemporaryDirectory() as folder:
        writer = CheckpointWriter(Run.create(Path(folder) / "run", cfg.plain), print)

        def iteration(saves: bool) -> tuple[float, float, float]:
            """An iteration, and all that belongs to it."""
            start = perf_counter()
            ppo.iteration()
            done = perf_counter()
            if saves:
                writer.save(ppo.iterations, ppo.state(), {})
            kept = perf_counter()
            writer.wait()
            return perf_counter() - start, kept - done, perf_counter() - kept

        iteration(True)
        times: Times = {True: [], False: []}
        for i in range(pairs):
            for saves in (True, False) if i % 2 else (False, True):
                times[saves].append(iteration(saves))
            if not (i + 1) % 10:
                print(f"{i + 1} pairs of {pairs}", flush=True)
        size = writer.run.checkpoints.latest().stat().st_size / 1e6
        writer.close()
    return times, size


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--num-envs", type=int, default=2048)
    args = parser.parse_args()
    times, size = measure(args.pairs, args.num_envs)
    bare, (whole, kept, written) = (
        median(x[0] for x in times[False]),
        (median(part) for part in zip(*times[True], strict=True)),
    )
    print(
        f"an iteration {bare:.3f} s, with a save {whole:.3f} s: ratio of speeds {bare / whole:.3f}"
    )
    print(
        f"a save of {size:.1f} MB: the training waits {1e3 * kept:.1f} ms, {1e3 * written:.1f} ms "
        f"are written beside it"
    )
    print(f"both against an iteration: ratio {bare / (bare + kept + written):.3f}")
    raise SystemExit(bare / whole < 0.98)


if __name__ == "__main__":
    main()

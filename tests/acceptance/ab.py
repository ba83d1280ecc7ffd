"""Acceptance: how often an A/B comparison is wrong or misses a worse policy, of recorded outcomes.

    python -m tests.acceptance.ab same [pairs=2000] [draws=200]
    python -m tests.acceptance.ab worse [pairs=2000] [draws=20] [loss=0.05] [scale=0.17]
    python -m tests.acceptance.ab int8 [pairs=1000]

The policy is the demo. `same` drives it twice on the same robots, the second time with other noise
of all readings, and records who succeeds. Comparisons then draw rounds of these pairs, and look
after each. At most 5 % may say that the two differ. `worse` compares the demo with one whose
weights have noise, diluted by pairs that both win until its success is lower by `loss`. 90 % of the
comparisons must say so. `int8` compares the file with its variant in bytes, which must be proved
not worse by 0.02. Exits with 1 if a limit is missed.
"""

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gpusim_rl.commands.play_mode import DEMO
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.waiting import print_now
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.gate import compare, variants
from gpusim_rl.gate.drive import drive
from gpusim_rl.gate.judge import succeeded
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import Plan

# so that some robots fail, as the demo hardly does by the usual limits
WORDS = ("gate.seconds=5", "gate.limits.velocity=0.2", "gate.limits.turn=0.2")
ROUND = 192  # pairs
SCALE = 0.17  # of the noise of the weights, as a share of their deviation


def configuration(*words: str) -> dict[str, Any]:
    """The sections `gate` and `ab`."""
    return compose_plain("play", ["mode=ab", *WORDS, *words])


def noisy(scale: float, folder: Path) -> Robot:
    """The demo with noise of its weights, which is a share of the deviation of each layer's."""
    model, rng = onnx.load(DEMO), np.random.default_rng(0)
    for tensor in variants.network(model, DEMO):
        (weights,) = [x for x in model.graph.initializer if x.name == tensor.input[1]]
        values = numpy_helper.to_array(weights)
        values = values + scale * values.std() * rng.standard_normal(values.shape)
        weights.CopyFrom(numpy_helper.from_array(values.astype(np.float32), weights.name))
    plain = variants.without_checksums(model)
    (folder / "noisy.onnx").write_bytes(sealed(plain))
    return make_robot(Policy(folder / "noisy.onnx"))


def record(a: Robot, b: Robot, count: int, cfg: dict[str, Any], noise: bool) -> np.ndarray:
    """(n,) entries of CELLS of at least `count` pairs; with noise the readings of b have another.

    Scenarios and rounds alternate as in a comparison.
    """
    names, robots, cells = compare.scenarios(a, cfg["gate"]), 32, []
    for number in range(1, -(-count // (robots * len(names))) + 1):
        for name in names:
            plan = Plan(a, name, robots, cfg["gate"]["seconds"], cfg["gate"], number << 32)
            other = copy.copy(plan)
            other.robot = b
            if noise:
                plan.noise = other.noise = 1.0
                other.seed = plan.seed + 1  # of what is drawn from now on: errors of readings
            x, y = (succeeded(p, drive([p])[0]) for p in (plan, other))
            cells.append(np.where(x, np.where(y, 0, 1), np.where(y, 2, 3)))
        n = np.bincount(np.concatenate(cells), minlength=4)
        print_now(f"recorded {n.sum()} pairs: {dict(zip(compare.CELLS, n.tolist(), strict=True))}")
    return np.concatenate(cells)


def verdicts(cells: np.ndarray, draws: int, pairs: int) -> list[tuple[str, int]]:
    """What comparisons of pairs drawn from recorded ones say, and after how many pairs."""
    rng, result = np.random.default_rng(0), []
    for _ in range(draws):
        evidence, verdict = compare.Evidence(0.02), "undecided"
        for _ in range(pairs // ROUND):
            evidence.add(rng.choice(cells, ROUND))
            verdict = evidence.verdict(0.05)
            if compare.finished(verdict, "better"):
                break
        result.append((verdict, int(evidence.counts.sum())))
    return result


def main(words: list[str]) -> None:
    """Record, draw and say."""
    if not words or {"-h", "--help"} & {*words}:
        print(__doc__)
        raise SystemExit
    mode, keys = words[0], dict(word.split("=", 1) for word in words[1:])
    cfg, a = configuration(), make_robot(Policy(DEMO))
    count, folder = int(keys.get("pairs", 2000)), Path(tempfile.mkdtemp())
    if mode == "same":
        cells = record(a, make_robot(Policy(DEMO)), count, cfg, noise=True)
        said = [x for x, _ in verdicts(cells, int(keys.get("draws", 200)), 4000)]
        wrong = sum(x in ("better", "worse") for x in said)
        print(f"{wrong} of {len(said)} comparisons of a file with itself say that it differs")
        raise SystemExit(wrong > 0.05 * len(said))
    if mode == "worse":
        loss, scale = float(keys.get("loss", 0.05)), float(keys.get("scale", SCALE))
        cells = record(a, noisy(scale, folder), count, cfg, noise=False)
        n = np.bincount(cells, minlength=4)
        print(f"noise {scale} of the weights: success lower by {(n[1] - n[2]) / n.sum():.4f}")
        # pairs that both win make up what the measured loss has more than the one that is asked
        extra = int((n[1] - n[2]) / loss - n.sum())
        cells = np.concatenate([cells, np.zeros(max(0, extra), int)])
        result = verdicts(cells, int(keys.get("draws", 20)), 4000)
        right = sum(verdict == "worse" for verdict, _ in result)
        after = np.median([n for _, n in result])
        print(f"{right} of {len(result)} comparisons find it worse, half by {after:g} pairs")
        raise SystemExit(right < 0.9 * len(result))
    model, cfg = onnx.load(DEMO), compose_plain("play", ["mode=ab", "gate.seconds=10"])
    feeds = variants.recorded(Policy(DEMO), cfg["gate"], 0)
    model = variants.bytes_of(model, variants.network(model, DEMO), feeds)
    (folder / "int8.onnx").write_bytes(sealed(model))
    how = cfg["ab"] | {"prove": "not_worse", "pairs": count}
    policies = [Policy(DEMO), Policy(folder / "int8.onnx")]
    report = compare.compare(policies, cfg["gate"], how, 0, ["float32", "int8"], print_now)
    print(report["text"])
    raise SystemExit(not report["proved"])


if __name__ == "__main__":
    main(sys.argv[1:])

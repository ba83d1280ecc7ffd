"""Train a policy: `python train.py task=quadruped`. See `python train.py --help`."""

import math
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from gpusim_rl import config


def train(cfg: dict[str, Any]) -> None:
    """Train, evaluate and export as cfg says, or only plan the memory it takes."""
    from gpusim_rl import board
    from gpusim_rl.assemble import export_policy, make_ppo
    from gpusim_rl.evaluate import SEED, STOP_SEED, evaluate
    from gpusim_rl.plan import measure, show
    from gpusim_rl.run import Stopwatch

    with config.one_line():
        if cfg["plan"]:
            build = partial(make_ppo, cfg)
            return show(measure(build, cfg["num_steps"], cfg["algo"]["num_minibatches"]), cfg["num_envs"])
        ppo = make_ppo(cfg)
        run, before = begin(cfg, ppo)
        write, close = board.sink(cfg["log"]["name"], cfg["log"]["project"], run.path, cfg)
    name, task_cfg = cfg["task"]["name"], cfg["task"]

    def judge(seed: int, episodes: int) -> dict[str, float]:
        weights, noise = task_cfg["weights"], task_cfg["noise"]
        return evaluate(ppo.act, ppo.env.task, weights=weights, noise=noise, seed=seed, episodes=episodes)

    begun, watch = ppo.iterations, Stopwatch(before)
    pending: list[tuple[int, Callable[[], dict[str, float]], dict[str, float]]] = []

    def flush() -> None:
        """Log what was begun to be read: waits for the device to have done that iteration, and for no later one."""
        while pending:
            i, read, success = pending.pop(0)
            row = read()
            row = {"iteration": i, "env_steps": i * ppo.size, "time_s": watch.seconds} | row | success
            run.log(row)
            write(row)
            table.show(row, watch.seconds - before)
            if not math.isfinite(row["policy_loss"] + row["value_loss"] + row["approx_kl"]):
                kept = f"the last checkpoint is {run.saved()[-1]}" if run.saved() else "nothing was saved"
                config.fail(f"iteration {i}: the loss is not finite any more: train with a lower algo.lr_max; {kept}")

    with board.Board(f"{name} · {ppo.env.num_envs} worlds · {run.path}", cfg["iterations"], begun) as table:
        table.say(f"run: {run.path}")
        for i in range(begun + 1, cfg["iterations"] + 1):
            ppo.iteration()
            flush()  # the row of an earlier iteration, now that the device has this one to do
            last, success = i == cfg["iterations"], {}
            if cfg["stop_at"] and i % cfg["eval_every"] == 0:
                success = {"success": judge(STOP_SEED, 128)["success"]}
                last |= success["success"] >= cfg["stop_at"]
            save = last or i % cfg["save_every"] == 0
            if i % cfg["log_every"] == 0 or success or save:
                pending.append((i, ppo.report(), success))
            if save or ppo.env.device.type == "cpu":
                flush()
            if save:
                run.save(i, ppo.state(), {"task": name, "time_s": str(watch.seconds)})
            if last:
                break
    close()
    spent = watch.seconds
    scores = judge(SEED, cfg["episodes"]) | {"time_s": spent}
    run.json("eval.json", scores)
    with config.one_line():
        export_policy(ppo, cfg, run.path / "policy.onnx")
    table.say("  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    table.say(f"wrote {run.path}/eval.json and {run.path}/policy.onnx; see it: python play.py run={run.path}")


def begin(cfg: dict[str, Any], ppo: Any) -> tuple[Any, float]:
    """(run, seconds trained before): a new run, or the one that resume= names, with ppo as its last checkpoint left it."""
    from gpusim_rl.run import Run, load

    if not cfg["resume"]:
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        own = Path(f"runs/{cfg['task']['name']}/{stamp}-s{cfg['seed']}")
        paths = chain([own], (own.with_name(f"{own.name}-{i}") for i in count(2)))  # of a multirun, in the same second
        return Run.create(Path(cfg["run_dir"] or next(p for p in paths if not p.exists())), cfg), 0.0
    run = Run.open(Path(cfg["resume"]))
    state, note = load(run.latest())
    ppo.load(state, str(run.latest()))
    if ppo.iterations > cfg["iterations"]:
        raise ValueError(f"iterations={cfg['iterations']}: {run.path} has done {ppo.iterations} already")
    run.rewind(ppo.iterations)
    run.configure(cfg | {"resume": None})
    return run, float(note.get("time_s", 0.0))


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    with config.one_line():
        settled = config.settled(plain, list(HydraConfig.get().overrides.task))
    train(settled)


if __name__ == "__main__":
    sys.argv[1:] = config.check("config", sys.argv[1:])
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted: resume=<run directory> continues from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from None

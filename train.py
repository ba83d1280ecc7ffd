"""Train a policy: `python train.py task=quadruped`. See `python train.py --help`."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from gpusim_rl import config


def train(cfg: dict[str, Any]) -> Path:
    """Train, evaluate and export as cfg says; the run's directory."""

    from gpusim_rl import board
    from gpusim_rl.evaluate import EPISODES, SEED, STOP_SEED, evaluate
    from gpusim_rl.run import Run, Stopwatch, load

    with config.one_line():
        config.settle(cfg)
        ppo = config.make_ppo(cfg)
        name, task_cfg = cfg["task"]["name"], cfg["task"]
        if cfg["resume"]:
            run = Run.open(Path(cfg["resume"]))
            state, _ = load(run.latest())
            ppo.load(state, str(run.latest()))
            rows = [row for row in run.rows() if row["iteration"] <= ppo.iterations]
        else:
            stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            path = Path(cfg["run_dir"] or f"runs/{name}/{stamp}-s{cfg['seed']}")
            run, rows = Run.create(path, cfg), []
        write, close = board.sink(cfg["log"]["name"], cfg["log"]["project"], run.path, cfg)

    def judge(seed: int, episodes: int) -> dict[str, float]:
        weights, noise = task_cfg["weights"], task_cfg["noise"]
        return evaluate(ppo.act, ppo.env.task, weights=weights, noise=noise, seed=seed, episodes=episodes)

    begun = ppo.iterations
    before = rows[-1]["time_s"] if rows else 0.0
    watch, success = Stopwatch(before), {}
    with board.Board(f"{name} · {ppo.env.num_envs} worlds · {run.path}", cfg["iterations"]) as table:
        table.done = begun
        table.say(f"run: {run.path}")
        for i in range(begun + 1, cfg["iterations"] + 1):
            ppo.iteration()
            stop = False
            if cfg["stop_at"] and i % cfg["eval_every"] == 0:
                success = {"success": judge(STOP_SEED, 128)["success"]}
                stop = success["success"] >= cfg["stop_at"]
            if i % cfg["log_every"] == 0 or stop or i == cfg["iterations"]:
                row = {"iteration": i, "env_steps": i * ppo.size, "time_s": watch.seconds} | ppo.metrics() | success
                run.log(row)
                write(row)
                table.show(row, watch.seconds - before)
            if i % cfg["save_every"] == 0 or stop or i == cfg["iterations"]:
                run.save(i, ppo.state(), {"task": name})
            if stop:
                table.say(f"success {success['success']:.3f} ≥ stop_at={cfg['stop_at']}")
                break
    close()
    spent = watch.seconds
    scores = judge(SEED, EPISODES) | {"time_s": spent}
    run.json("eval.json", scores)
    config.export_policy(ppo, cfg, run.path / "policy.onnx")
    table.say("  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    table.say(f"wrote {run.path}/eval.json and {run.path}/policy.onnx; see it: python play.py run={run.path}")
    return run.path


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    train(OmegaConf.to_container(cfg, resolve=True))  # type: ignore[arg-type]


if __name__ == "__main__":
    config.check("config", sys.argv[1:])
    main()

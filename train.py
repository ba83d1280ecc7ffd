"""Train a policy: `python train.py task=quadruped`. See `python train.py --help`."""

import sys
from datetime import datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from gpusim_rl import command, config, resume


def train(cfg: dict[str, Any]) -> None:
    """Train, evaluate and export as cfg says, or only plan the memory it takes.

    Exits with 0 when done, 1 if it gave up or the results cannot be written, 2 for a mistake of the user's, and 128 + the
    signal's number when SIGTERM, SIGINT or SIGHUP ended it.
    """
    from gpusim_rl import board
    from gpusim_rl.assemble import export_policy, make_ppo
    from gpusim_rl.evaluate import SEED, STOP_SEED, evaluate
    from gpusim_rl.loop import GaveUp, Training
    from gpusim_rl.plan import measure, show
    from gpusim_rl.ranks import leave, rank

    with config.one_line():
        if cfg["plan"]:
            build = partial(make_ppo, cfg)
            return show(measure(build), cfg["num_envs"])
        ppo = make_ppo(cfg)
        run, note, cfg = begin(cfg, ppo)
        sink = cfg["log"]["name"] if rank() == 0 else "none"
        write, close = board.sink(sink, cfg["log"]["project"], run.path, cfg)
    name, task_cfg = cfg["task"]["name"], cfg["task"]

    def judge(ppo: Any, seed: int, episodes: int) -> dict[str, float]:
        weights, noise = task_cfg["weights"], task_cfg["noise"]
        return evaluate(ppo.act, ppo.env.task, weights=weights, noise=noise, seed=seed, episodes=episodes)

    title = f"{name} · {cfg['num_envs']} worlds · {run.path}"
    with board.Board(title, cfg["iterations"], ppo.iterations, quiet=rank() > 0) as table:
        table.say(f"run: {run.path}")
        success = lambda ppo: judge(ppo, STOP_SEED, 128)["success"]  # noqa: E731
        training = Training(cfg, ppo, run, note=note, build=make_ppo, judge=success, write=write, table=table)
        try:
            number = training()
        except GaveUp as error:
            close()
            config.fail(str(error), 1)
        close()
    if number:
        wrong = f", but its checkpoint could not be written: {training.saver.failed}" if training.saver.failed else ""
        table.say(f"stopped after iteration {training.ppo.iterations}; python train.py resume={run.path} continues{wrong}")
        raise SystemExit(128 + number)
    if rank() > 0:
        return leave()
    ppo, spent = training.ppo, training.watch.seconds
    scores = judge(ppo, SEED, cfg["episodes"]) | {"time_s": spent}
    table.say("  ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    with config.one_line(1):
        run.mend()
        run.json("eval.json", scores)
        export_policy(ppo, cfg, run.path / "policy.onnx")
        if training.saver.failed:
            raise OSError(f"the last checkpoint of {run.path} could not be written: {training.saver.failed}")
    leave()
    table.say(f"wrote {run.path}/eval.json and {run.path}/policy.onnx; see it: python play.py run={run.path}")


def begin(cfg: dict[str, Any], ppo: Any) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """(run, note of its checkpoint, cfg): a new run, or that of resume=, with ppo as its last checkpoint left it.

    A new run keeps the models that are not ours, and cfg names them there.
    """
    from gpusim_rl.assemble import keep_models
    from gpusim_rl.loop import number
    from gpusim_rl.ranks import agreed, rank
    from gpusim_rl.run import Run

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if not cfg["resume"]:
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        own = Path(f"runs/{cfg['task']['name']}/{stamp}-s{cfg['seed']}")
        paths = chain([own], (own.with_name(f"{own.name}-{i}") for i in count(2)))  # of a multirun, in the same second
        path = Path(agreed(cfg["run_dir"] or str(next(p for p in paths if not p.exists()))))
        if rank() > 0:
            return Run(path), {}, cfg
        run = Run.create(path, cfg, again=cfg["auto_resume"])
        kept = keep_models(cfg, run.path)
        run.configure(kept)
        return run, {}, kept
    run = Run.open(Path(cfg["resume"]))
    if rank() == 0:
        run.lock()
    state, note, path = run.checkpoints.restore(say)
    ppo.load(state, str(path))
    if ppo.iterations > cfg["iterations"]:
        raise ValueError(f"iterations={cfg['iterations']}: {run.path} has done {ppo.iterations} already")
    lowered = run.rollbacks() - int(number(note.get("rollbacks")))
    for rate in ppo.vectors.rates if lowered > 0 else ():
        rate.mul_(0.5**lowered)  # rolled back, and ended before the next checkpoint
    note["rollbacks"] = str(run.rollbacks())
    agreed(0)  # all have read
    if rank() > 0:
        return run, note, cfg
    changed = resume.changes(resume.trained(run), cfg)
    changed = {key: says for key, says in changed.items() if key not in resume.ALIKE}
    if changed:
        say(f"warning: {', '.join(changed.values())}: from iteration {ppo.iterations} on this is not the run that was begun")
    run.checkpoints.forget(path)
    run.configure(cfg | {"resume": None})
    for row in run.rewind(ppo.iterations)[-1:]:
        ppo.env.tally.recall(row)
    if changed:
        run.log({"iteration": ppo.iterations, "changed": ", ".join(changed)}, "hashes.jsonl")
    return run, note, cfg


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    with config.one_line():
        settled = resume.settled(plain, list(HydraConfig.get().overrides.task))
    train(settled)


if __name__ == "__main__":
    sys.argv[1:] = command.check("config", sys.argv[1:])
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted: resume=<run directory> continues from the last checkpoint", file=sys.stderr)
        raise SystemExit(130) from None

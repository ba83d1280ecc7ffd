"""The command `gpusim-train`, which is train.py in a checkout, and `train`, the same from Python.

    from gpusim_rl.commands.train import configure, train

    result = train(configure("task=cartpole", "iterations=20"))
    print(result.path, result.scores["success"])

The words are those of train.py's command line. Torch is imported inside functions: mistakes in the
command line are answered before.
"""

import sys
from itertools import chain, count
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from gpusim_rl.config import command_line
from gpusim_rl.core import errors
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import CONF, program

if TYPE_CHECKING:
    from gpusim_rl.config.sections import Config
    from gpusim_rl.envs.task import Scores
    from gpusim_rl.training.trainer import Result, Trainer

REFUSED: list[str] = []  # policies of a multirun that fail gate=true


def configure(*words: str) -> "Config":
    """The configuration of a training, from the words of train.py's command line.

    Raises:
        ValueError, OSError: they are wrong, in one line.
    """
    from gpusim_rl.config import resume
    from gpusim_rl.config.compose import compose_plain

    return resume.check_training(compose_plain("config", list(words)), list(words))


def train(cfg: "Config") -> "Result":
    """Train, evaluate, export, report and judge, as a configuration of `configure` says.

    Raises:
        ValueError: a value of the configuration does not fit the task or the machine.
        OSError: the results cannot be written.
        TrainingFailed: training went wrong too often.
    """
    trainer = make_trainer(cfg)
    result = iterate(trainer)
    return result if result.signal else write_results(trainer, trainer.evaluate())


def make_trainer(cfg: "Config") -> "Trainer":
    """The trainer of a configuration; ValueError or OSError in one line if it cannot be made."""
    from gpusim_rl.training.trainer import Trainer

    if cfg.film_every:
        from gpusim_rl.viewer.offscreen import choose_backend

        choose_backend()  # a mistake now, not a line at each film
    return Trainer(cfg)


def iterate(trainer: "Trainer") -> "Result":
    """Train until it is over or a signal comes. A training that fails has its report, too."""
    from gpusim_rl.training.signals import Signals

    try:
        with Signals(trainer.loop.stopwatch.skip) as signals:
            return trainer.train(lambda: signals.caught)
    except Exception:
        # before the error is told: its page shows what went wrong
        write_report(trainer)
        raise


# Why: docs/decisions/0060-rooms-and-seams.md
def write_results(trainer: "Trainer", scores: "Scores") -> "Result":
    """Write the files of a training's end: scores, policy, films, report and verdict.

    Raises:
        ValueError, OSError: one cannot be written.
    """
    if trainer.group.rank > 0:
        trainer.group.leave()
        return trainer.result()
    failed, refused = True, ""
    try:
        trainer.write_files(scores)
        write_report(trainer)
        if trainer.cfg.gate:  # it writes into the file, which the loggers get
            from gpusim_rl.gate.command import gate_trained

            refused = gate_trained(trainer.run.path / "policy.onnx")
        trainer.log_files()
        failed = False
    finally:
        trainer.close(failed)
    trainer.group.leave()
    return trainer.result(scores=scores, refused=refused)


def write_report(trainer: "Trainer") -> None:
    """Write report.html, if the configuration wants one; one line if it cannot be written."""
    from gpusim_rl.report import command as report

    if trainer.group.rank == 0 and trainer.cfg.report:
        report.write_or_warn([trainer.run.path], trainer.run.path / "report.html")


def train_or_exit(cfg: "Config", refused: list[str] | None = None) -> None:
    """Train, evaluate and export as a configuration says, or only print the memory it needs.

    Returns when done. Exits with 1 if training gave up, if the connection to other processes
    failed, if its results cannot be written, or if the policy fails gate=true; `refused`, if given,
    gets that policy instead. Exits with 2 for a mistake of the user, and with 128 + n if signal n
    ended it.
    """
    # torch is loaded here, after mistakes in the command line are answered; a robot.mjcf loads it
    from gpusim_rl.core.distributed import PeerLost

    try:
        train_and_evaluate(cfg, refused)
    except PeerLost as error:
        errors.exit_with_error(str(error), 1)


def train_and_evaluate(cfg: "Config", refused: list[str] | None) -> None:
    """What `train_or_exit` does; PeerLost if the connection to other processes failed."""
    from gpusim_rl.training.loop import TrainingFailed
    from gpusim_rl.training.memory import show_plan

    with errors.one_line_errors():
        if cfg.plan:
            return show_plan(cfg)
        trainer = make_trainer(cfg)
    try:
        result = iterate(trainer)
    except TrainingFailed as error:
        errors.exit_with_error(str(error), 1)
    if result.signal:
        failure = result.failure and f", but its checkpoint could not be written: {result.failure}"
        trainer.table.say(
            f"stopped after iteration {result.iterations}; "
            f"{program('train')} resume={result.path} continues{failure}"
        )
        raise SystemExit(128 + result.signal)
    scores = trainer.evaluate()  # an error in a task's own code keeps its traceback
    with errors.one_line_errors(1):
        result = write_results(trainer, scores)
    trainer.table.say(f"wrote {files_of(trainer)}; see it: {program('play')} run={result.path}")
    if not result.refused:
        return
    if refused is None:
        errors.exit_with_error(result.refused, 1)
    errors.warn(f"error: {result.refused}")
    refused.append(f"{result.path}/policy.onnx")


def files_of(trainer: "Trainer") -> str:
    """The files that the end of a training has written, as a list in words."""
    cfg, path = trainer.cfg, trainer.run.path
    asked = {"policy.onnx": cfg.export != "none", "report.html": cfg.report}
    files = [name for name, wanted in asked.items() if wanted and (path / name).exists()]
    *others, last = [f"{path}/{name}" for name in ("eval.json", *files)]
    return f"{', '.join(others)} and {last}" if others else last


def in_multirun(values: dict[str, Any], job: Any) -> dict[str, Any]:
    """The configuration of a run of a multirun, with its directory, which says what is swept.

    multirun.yaml in the directory of all says what they are. Runs that are continued, or have a
    run_dir, stay where they are.

    Args:
        values: of this run.
        job: what Hydra says of it.
    """
    words, _ = command_line.split(sys.argv[1:])
    home = Path(job.sweep.dir)
    about = {"words": words, "swept": command_line.swept(words)}
    write_whole(home / "multirun.yaml", OmegaConf.to_yaml(about).encode())
    log = values["log"] | {"group": values["log"]["group"] or home.name}
    values = values | {"log": log}
    if values["run_dir"] or values["resume"] or values["auto_resume"]:
        return values
    own = home / command_line.run_name(list(job.overrides.task), about["swept"])
    names = chain([own], (own.with_name(f"{own.name}-{i}") for i in count(2)))
    return values | {"run_dir": str(next(path for path in names if not path.exists()))}


def compare_runs(job: Any) -> None:
    """After the last run of a multirun, write the report of all that lie in its directory.

    job: what Hydra says of the run.
    """
    from gpusim_rl.core.distributed import ProcessGroup
    from gpusim_rl.report import command as report

    home, (words, _) = Path(job.sweep.dir), command_line.split(sys.argv[1:])
    asked = prod(map(len, command_line.swept(words).values()))
    runs = [file.parent for file in sorted(home.glob("*/config.yaml"))]
    if job.job.num + 1 < asked or len(runs) < 2 or ProcessGroup.from_environment().rank > 0:
        return
    if report.write_or_warn(runs, home / "report.html"):
        print(f"wrote {home}/report.html, which compares {len(runs)} runs")


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def run(cfg: DictConfig) -> None:
    """One training of a multirun, as Hydra composed it."""
    from gpusim_rl.config import compose, resume  # not for --help

    words = list(HydraConfig.get().overrides.task)
    with errors.one_line_errors():
        values = in_multirun(compose.build("config", words), HydraConfig.get())
        config = resume.check_training(values, words)
    train_or_exit(config, REFUSED)
    if config.report:
        compare_runs(HydraConfig.get())


def main() -> None:
    """Check the command line and train, once or for each value of a multirun."""
    sys.argv[1:], cfg = command_line.check("config", sys.argv[1:])
    REFUSED.clear()
    try:
        train_or_exit(cfg) if cfg else run()
        if REFUSED:
            errors.exit_with_error(f"refused by the gate: {', '.join(REFUSED)}", 1)
    except KeyboardInterrupt:
        print(
            "interrupted: resume=<run directory> continues from the last checkpoint",
            file=sys.stderr,
        )
        raise SystemExit(130) from None

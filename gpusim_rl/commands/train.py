"""`gpusim train`, which is train.py in a checkout, and `train`, the same from Python.

Torch is imported inside functions: mistakes in the command line are answered before.
"""

import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from gpusim_rl.config import command_line
from gpusim_rl.config.recipe import unlearned
from gpusim_rl.config.validate import code_words
from gpusim_rl.core import errors
from gpusim_rl.core.paths import program

if TYPE_CHECKING:
    from gpusim_rl.config.sections import Config
    from gpusim_rl.envs.task import Scores
    from gpusim_rl.training.trainer import Result, Trainer


def configure(*overrides: str, **keys: Any) -> "Config":
    """The configuration of a training.

    Args:
        overrides: KEY=VALUE of train.py's command line.
        keys: the same as Python values, which win.

    ValueError or OSError in one line if they are wrong.
    """
    from gpusim_rl.config import resume
    from gpusim_rl.config.compose import compose_plain, words_of

    words = [*overrides, *words_of(keys)]
    return resume.check_training(compose_plain("config", words), words)


def train(*overrides: str, **keys: Any) -> "Result":
    """Train, evaluate, export, report and judge. The arguments are those of `configure`.

    Raises:
        ValueError: one is wrong, or does not fit the task or the machine.
        OSError: the results cannot be written.
        TrainingFailed: training went wrong too often.
        KeyboardInterrupt: at Ctrl-C, after a checkpoint; a line says how it continues.
        SystemExit: at another signal, likewise.
    """
    trainer = make_trainer(configure(*overrides, **keys))
    result = iterate(trainer)
    if result.signal == signal.SIGINT:
        say_stopped(trainer, result)
        raise KeyboardInterrupt
    if result.signal:
        exit_stopped(trainer, result)
    return write_results(trainer, trainer.evaluate())


def make_trainer(cfg: "Config") -> "Trainer":
    """The trainer of a configuration; ValueError or OSError in one line if it cannot be made."""
    from gpusim_rl.training.trainer import Trainer

    if cfg.film_every:
        from gpusim_rl.viewer.offscreen import choose_backend

        choose_backend()  # a mistake now, not a line at each film
    if cfg.cluster.name == "none":
        return Trainer(cfg)
    from gpusim_rl.cluster.iteration import make_iteration

    return Trainer(cfg, make_iteration)


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


# Why: docs/decisions/code.md
def write_results(trainer: "Trainer", scores: "Scores") -> "Result":
    """Write the files of a training's end: scores, policy, films, report and verdict.

    ValueError or OSError if one cannot be written.
    """
    if trainer.group.rank > 0:
        trainer.group.leave()
        return trainer.result()
    from gpusim_rl.report.scores import sentences

    failed, refused = True, ""
    try:
        for line in sentences(scores, trainer.cfg.task.name, len(trainer.drives)):
            trainer.table.say(line)
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


def train_or_exit(cfg: "Config") -> None:
    """Train, evaluate and export as a configuration says, or only print the memory it needs.

    Returns when done. Exits with 1 if training gave up, if the connection to other processes
    failed, if its results cannot be written, or if the policy fails gate=true. Exits with 2 for a
    mistake of the user, and with 128 + n if signal n ended it.
    """
    # torch is loaded here, after mistakes in the command line are answered; a robot.mjcf loads it
    from gpusim_rl.core.distributed import PeerLost
    from gpusim_rl.training.loop import TrainingFailed
    from gpusim_rl.training.memory import show_plan

    try:
        with errors.one_line_errors():
            if cfg.plan:
                return show_plan(cfg)
            trainer = make_trainer(cfg)
        result = iterate(trainer)
        if result.signal:
            exit_stopped(trainer, result)
        scores = trainer.evaluate()  # an error in a task's own code keeps its traceback
        with errors.one_line_errors(1):
            result = write_results(trainer, scores)
    except (PeerLost, TrainingFailed) as error:
        errors.exit_with_error(str(error), 1)
    see = " ".join([program("play"), f"run={result.path}", *code_words(trainer.cfg.plain)])
    trainer.table.say(f"wrote {files_of(trainer)}")
    trainer.table.say(trainer.cost())
    trainer.table.say(f"see it: {see}", copied=True)
    if line := unlearned(cfg.recipe, cfg.plain):
        trainer.table.say(line)
    if result.refused:
        errors.exit_with_error(result.refused, 1)


def exit_stopped(trainer: "Trainer", result: "Result") -> NoReturn:
    """Say how a training continues that a signal has ended, and exit."""
    say_stopped(trainer, result)
    raise SystemExit(128 + result.signal)


def say_stopped(trainer: "Trainer", result: "Result") -> None:
    """Say how a training continues that a signal has ended."""
    failure = result.failure and f", but its checkpoint could not be written: {result.failure}"
    overrides = [program("train"), f"resume={result.path}", *code_words(trainer.cfg.plain)]
    stop = f"stopped after iteration {result.iterations}; {' '.join(overrides)} continues{failure}"
    trainer.table.say(stop, copied=True)


def files_of(trainer: "Trainer") -> str:
    """The files that the end of a training has written, as a list in words."""
    cfg, path = trainer.cfg, trainer.run.path
    optional = {"policy.onnx": cfg.export != "none", "report.html": cfg.report}
    # one of an earlier training of the run may be there still
    new = {x.name for x in path.iterdir() if x.stat().st_mtime >= trainer.begun}
    files = [name for name, due in optional.items() if due and name in new]
    *others, last = [f"{path}/{name}" for name in ("eval.json", *files)]
    return f"{', '.join(others)} and {last}" if others else last


def main(overrides: list[str]) -> None:
    """Check the command line and train, once, for each value of a multirun, or in a search."""
    try:
        if command_line.is_multirun(overrides):
            from gpusim_rl.population import start  # a single training starts without it

            start.run(command_line.check_multirun(overrides))
        elif command_line.is_search(overrides):
            from gpusim_rl.population import search, start

            sweep, found = search.check_search(overrides)
            start.run_search(sweep, found) if found else start.run(sweep)
        else:
            train_or_exit(command_line.check("config", overrides))
    except KeyboardInterrupt:
        errors.warn("interrupted: resume=<run directory> continues from the last checkpoint")
        raise SystemExit(130) from None


if __name__ == "__main__":  # so a multirun starts each of its trainings
    main(sys.argv[1:])

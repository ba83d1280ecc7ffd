"""Policies as play.py shows them: the policy of a run, or an exported file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim_rl.config import resume
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.play.rollouts import Rollout, RunRollout
from gpusim_rl.runs.run import Run
from gpusim_rl.viewer.film import Frames
from gpusim_rl.viewer.window import Command

if TYPE_CHECKING:
    from gpusim_rl.algorithms.iteration import Player
    from gpusim_rl.envs.task import Task

Settings = dict[str, Any]  # of conf/play.yaml, as a command line changes them


def load_run(run: Run, cfg: Settings) -> tuple["Player", Config]:
    """The policy of a run in one world, on the CPU, and the run's configuration.

    checkpoint= names another checkpoint than the last.
    """
    from gpusim_rl.runs.checkpoints import load

    config = resume.load_config(run, cfg["task_code"]).replace({"episodes": cfg["episodes"]})
    if cfg["checkpoint"]:
        path = Path(cfg["checkpoint"])
        state, metadata = load(path)
    else:
        state, metadata, path = run.checkpoints.restore(errors.warn)
    edited = resume.edits(metadata, config.plain, path)
    from gpusim_rl.assembly.earlier_runs import make_player  # loads torch, after mistakes

    player = make_player(config)
    player.policy.load(state, str(path))
    if edited:
        said = ", ".join(sorted(edited.values()))
        errors.warn(f"warning: {path} was not trained with {run.path}/config.yaml: {said}")
    player.iterations = iterations_of(state)
    if not cfg["checkpoint"]:
        calibrate(run, player)
    return player, config


def load_checkpoint(run: Run, player: "Player", name: str | None) -> None:
    """Load the policy of a checkpoint of a run into its player, the last one if name is None.

    ValueError or OSError, in one line, if it is not whole.
    """
    from gpusim_rl.runs.checkpoints import load

    if name is None:
        state, _, path = run.checkpoints.restore(errors.warn)
    else:
        path = run.checkpoints.path / f"{name}.safetensors"
        run.checkpoints.check(path, run.checkpoints.manifest())
        state, _ = load(path)
    player.policy.load(state, str(path))
    player.iterations = iterations_of(state)
    calibrate(run, player)


def calibrate(run: Run, player: "Player") -> None:
    """Give the policy of a run the calibration of its iteration, if there is one."""
    from gpusim_rl.evaluation import calibrate

    calibrate.read(run.path / calibrate.FILE, player.policy.actor, player.iterations)


def iterations_of(state: dict[str, Any]) -> int:
    """How many iterations a checkpoint was trained; 0 if it does not say."""
    done = state.get("iteration")
    return int(done) if done is not None and done.numel() == 1 else 0


def evaluation_options(config: Config, cfg: Settings) -> dict[str, Any]:
    """The keyword arguments of an evaluation, of a run's configuration and of play.py's."""
    task = {"weights": config.task.weights, "noise": config.task.noise}
    return task | dict(episodes=cfg["episodes"], progress=errors.warn)


def check_rough(run: Run, task: "Task", words: str) -> None:
    """ValueError, which begins with words of the command line, unless a task is on rough ground."""
    if not task.takes_terrain:
        raise ValueError(f"{words}: the task of {run.path} is on flat ground")


def task_on_ground(run: Run, task: "Task", kind: str | None, level: int | None) -> "Task":
    """The task of a run on one kind or level of its rough ground, if it has any; None is all."""
    only: dict[str, Any] = {} if level is None else {"level": level}
    words = [f"level={level}"] * len(only)
    if kind is not None:
        only, words = only | {"kinds": (kind,)}, [*words, f"kind={kind}"]
    if not only:
        return task
    check_rough(run, task, " ".join(words))
    return replace(task, terrain=task.terrain | only)


def frames_of(rollout: Rollout, command: Command | None, several: bool = False) -> Frames:
    """Frames of the first world, or of several side by side; without a command, by the task's."""
    t = 0.0
    while True:
        rollout.step(command(t) if command else None)
        t += rollout.dt
        rollout.show_world(0)
        yield t, rollout.pose() if several else rollout.pose()[0]


def run_rollout(run: Run, player: "Player", config: Config, cfg: Settings) -> RunRollout:
    """Worlds of a run's task in which its policy acts: worlds= of them, or one."""
    task, n = task_on_ground(run, player.env.task, cfg["kind"], cfg["level"]), cfg["worlds"] or 1
    from gpusim_rl.assembly.models import make_picture_model  # loads torch, after mistakes

    options: dict[str, Any] = dict(weights=config.task.weights, noise=config.task.noise)
    options |= dict(seed=cfg["seed"], picture=make_picture_model(config))
    return RunRollout(player.policy, task, n, **options)

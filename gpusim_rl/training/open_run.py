"""The run directory of a training: a new one, or that of an earlier training that goes on."""

from datetime import datetime
from pathlib import Path

from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.earlier_runs import load_last
from gpusim_rl.assembly.learners import ACTOR, own_files
from gpusim_rl.assembly.models import keep_files
from gpusim_rl.config import resume
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.config.run_files import describe_files
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.core.files import new_directory, write_whole
from gpusim_rl.core.states import copy_state, layout
from gpusim_rl.runs.run import Run
from gpusim_rl.training.progress import is_over, number

START = "start.safetensors"  # of a run: the weights that it began with, by start=
# what tells how a training ended, until it goes on
ENDINGS = ("drives.json", "calibration.json", "report.json")
Opened = tuple[Run, dict[str, str], Config]


def open_run(cfg: Config, iteration: Iteration) -> Opened:
    """The run directory of a training, a new one or that of resume=; the metadata of the checkpoint
    that it continues; and the configuration, which names the copies of models in the run."""
    if cfg.resume:
        opened = continue_run(cfg, iteration)
        iteration.open(opened[0].path)
        return opened
    weights = begin_with(Path(cfg.start), iteration, cfg.algo.name) if cfg.start else {}
    iteration.begin(errors.warn if iteration.group.rank == 0 else lambda line: None)
    run, cfg = create_run(cfg, iteration)
    iteration.open(run.path)
    if weights and iteration.group.rank == 0:
        write_whole(run.path / START, to_bytes(weights))
    return run, {}, cfg


def begin_with(path: Path, iteration: Iteration, algo: str) -> dict[str, Tensor]:
    """Take the weights and normalizers of another run's last checkpoint, and return them. In place.

    Of a run of another algorithm than `algo`, the actor is taken, which must fit, and what else
    does.

    Raises:
        OSError, ValueError: there is none, or its networks are of other shapes.
    """
    state, _, file = load_last(path, iteration.group)
    weights, said = policy_of(state), ""
    if flatten(Run.open(path).config).get("algo.name") != algo:
        weights, said = join_networks(weights, iteration, path)
    iteration.policy.load(weights, str(file))
    if said and iteration.group.rank == 0:
        errors.warn(said)
    return weights


def policy_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights and normalizers of a checkpoint."""
    return {name: x.contiguous() for name, x in state.items() if name.startswith("policy/")}


def join_networks(
    weights: dict[str, Tensor], iteration: Iteration, path: Path
) -> tuple[dict[str, Tensor], str]:
    """The networks of an iteration, with those of another algorithm's run in their place that fit.

    Its actor is among them, whether it fits or not; ValueError if it has none. The line says what
    was taken.
    """
    learned = copy_state(iteration.learned())
    policy_tensors = {name: x for name, x in learned.items() if name.startswith("policy/")}
    fit = {name for name, _ in layout(policy_tensors).items() & layout(weights).items()}
    actor = {name for name in weights if name.startswith(ACTOR)}
    if not actor:
        raise ValueError(f"start={path}: its policy has no actor, and is of another algorithm")
    fit |= actor
    taken, new = (
        ", ".join(sorted({name.removeprefix("policy/").split(".")[0] for name in names}))
        for names in (fit, policy_tensors.keys() - fit)
    )
    joined = policy_tensors | {name: weights[name] for name in fit}
    return joined, f"start={path}: it gives {taken}" + (f"; {new} begin anew" if new else "")


def create_run(cfg: Config, iteration: Iteration) -> tuple[Run, Config]:
    """A new run directory, with copies of the files that it needs, and the configuration that
    names these copies."""
    path, group = cfg.run_dir, iteration.group
    if not path and group.rank == 0:
        name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}-s{cfg.seed}"
        path = new_directory(Path("runs") / cfg.task.name / name)
    path = Path(group.broadcast(path))
    if group.rank > 0:
        return Run(path), cfg
    run = Run.create(path, cfg.plain, again=cfg.auto_resume)
    own = own_files(cfg)
    files = {"files": describe_files(own, cfg.plain)} if own else {}
    copies = keep_files(cfg, path, iteration.spec.given, own)
    cfg = Config.of(cfg.plain | files).replace(copies)
    run.configure(cfg.plain)
    return run, cfg


def continue_run(cfg: Config, iteration: Iteration) -> Opened:
    """The run of resume=, with its last checkpoint loaded into iteration.

    ValueError if more iterations are done than the configuration wants, or a file key of a learner
    of the user's own is set that the run had not: it was null, or was not declared.
    """
    values, kept = flatten(cfg.plain), cfg.plain.get("files", {})
    for key in (file.key for file in own_files(cfg) if file.key not in kept):
        if values[key] is not None:
            new = f"{key} null → {values[key]}"
            raise ValueError(f"resume= continues a run as it was, which cannot change: {new}")
    run, group = Run.open(Path(str(cfg.resume))), iteration.group
    if group.rank == 0:
        run.lock()
    state, metadata, path = run.checkpoints.restore(errors.warn)
    before = resume.load_config(run, "here").plain
    changed = resume.check_edits(metadata, before, run, path) | resume.changes(before, cfg.plain)
    # it may have gone back to a checkpoint, and ended before it wrote the next one
    rollbacks = max(run.rollbacks(), int(number(metadata.get("rollbacks"))))
    load_checkpoint(iteration, cfg, (state, metadata, path), before=rollbacks, now=rollbacks)
    if iteration.ring and not iteration.ring.spec.saved:
        errors.warn("the checkpoint holds no ring of steps: it is filled anew before more updates")
    if iteration.iterations > cfg.iterations:
        done = f"{run.path} has done {iteration.iterations} already"
        raise ValueError(f"iterations={cfg.iterations}: {done}")
    if "done" in metadata and iteration.iterations < cfg.iterations:
        errors.warn(f"{run.path}: its learner was done at iteration {iteration.iterations}")
    metadata["rollbacks"] = str(rollbacks)
    group.barrier()  # all have read
    if group.rank == 0:
        rewrite_run(run, cfg, iteration, path, changed)
        if not is_over(cfg, metadata, iteration.iterations):
            # a run that goes on has not ended: a report would read the old scores
            run.keep_scores(iteration.iterations)
            for name in ENDINGS:
                (run.path / name).unlink(missing_ok=True)
    return run, metadata, cfg


def load_checkpoint(
    iteration: Iteration,
    cfg: Config,
    checkpoint: tuple[dict[str, Tensor], dict[str, str], Path],
    *,
    before: int,
    now: int,
) -> None:
    """Load a checkpoint, and halve the learning rates for each roll-back since. In place.

    Learning rates that were changed since it was trained are written over its own. ValueError if it
    does not fit, or the learner does not say where a changed rate is.

    Args:
        before: roll-backs before this program trained, which lower no rate that was changed.
        now: roll-backs so far.
    """
    state, metadata, path = checkpoint
    changed, rates = resume.edits(metadata, cfg.plain, path), iteration.learner.rates
    if (line := changed.get("algo.learning_rate")) and "learning_rate" not in rates:
        kind = type(iteration.learner).__name__
        raise ValueError(f"{line}: the rates of {kind} are {', '.join(rates) or 'none'}")
    iteration.load(state, str(path))
    saved = int(number(metadata.get("rollbacks")))
    before = max(before, saved)
    iteration.slow_down(0.5 ** (before - saved))
    for name, rate in rates.items():
        if f"algo.{name}" in changed:
            rate.fill_(cfg.plain["algo"][name])
    iteration.slow_down(0.5 ** (now - before))


def rewrite_run(
    run: Run, cfg: Config, iteration: Iteration, checkpoint: Path, changed: dict[str, str]
) -> None:
    """Drop what came after the checkpoint, and write the configuration that it continues with.

    changed: key → how the configuration differs from what the checkpoint was trained with.
    """
    changes = {key: change for key, change in changed.items() if key not in resume.HARMLESS}
    if changes:
        since = f"from iteration {iteration.iterations} on this is not the run that was begun"
        errors.warn(f"warning: {', '.join(changes.values())}: {since}")
    run.checkpoints.forget(checkpoint)
    run.configure(cfg.plain | {"resume": None})
    for row in run.rewind(iteration.iterations)[-1:]:
        iteration.env.statistics.restore_means(row)
    for name, damaged in run.damaged().items():
        errors.warn(f"warning: {run.path / name}: damaged rows dropped: {damaged}")
    if changes:
        run.log({"iteration": iteration.iterations, "changed": ", ".join(changes)}, "hashes.jsonl")

"""From a trained policy to the ONNX file beside it: the whole controller, or the network alone."""

import copy
import json
from pathlib import Path

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.algorithms.iteration import Player
from gpusim_rl.config.sections import Config
from gpusim_rl.core.files import read_text, write_whole
from gpusim_rl.core.waiting import waiting
from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.export import export, export_network
from gpusim_rl.deploy.mjlab import NAMES, MjlabActor, fits
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.deploy.record import Trace, percentiles, record
from gpusim_rl.deploy.rest_measurements import standing
from gpusim_rl.envs.observation import Observation
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.evaluate import SEED, MeanAction, evaluation_env, observe
from gpusim_rl.robots.models import compile_spec
from gpusim_rl.runs.labels import Labels

WORLDS = 32  # of the final evaluation, that a file is compared on
STEPS = 64  # control steps of them
# Why: docs/decisions/controller.md
READINGS = "readings.json"  # of a run: what its final evaluation showed the policy


def evaluated(player: Player, success: float | None, ranges: Json) -> Json:
    """The content of a run's readings.json: ranges of the inputs in its final evaluation."""
    return {"iteration": player.iterations, "success": success, "ranges": ranges}


def export_policy(player: Player, cfg: Config, run: Path, path: Path | None = None) -> float:
    """Export a run's controller, checked against the Env. Returns the largest difference.

    The ranges of the inputs are those of the final evaluation, if the run has them of this policy.
    Otherwise they are of whole episodes in 32 of its worlds, which are stepped for it. The file is
    policy.onnx in the run unless `path` names one.
    """
    name, weights, noise = cfg.task.name, cfg.task.weights, cfg.task.noise
    env = evaluation_env(player.env.task, WORLDS, weights=weights, noise=noise, seed=SEED)
    # What ONNX is compared with runs on the CPU: a GPU may multiply matrices in TF32.
    policy = copy.deepcopy(player.policy).cpu()
    actor = policy.actor
    controller = Controller(env.task, actor, actor.blank_memory(env.agents), actor.views)
    mean, saved = MeanAction(policy, env.num_rows), read_evaluated(run, player, controller)

    def act(views: Observation, began: Tensor) -> Tensor:
        mean.restart(began)
        return mean(views)

    steps = STEPS if saved else max(STEPS, env.task.horizon)
    path = path or run / "policy.onnx"
    with waiting(f"exporting {path}"):
        recorded: Trace = record(env, act, controller, steps)
        return export(
            controller,
            path,
            name=name,
            recorded=recorded,
            ranges=saved.get("ranges") or percentiles(recorded.readings),
            lineage=lineage(run, player) | {"success": saved.get("success")},
            rest=rest(env.task, controller),
        )


def rest(task: Task, controller: Controller) -> Json:
    """How the robot of a file stands, on flat ground."""
    model = compile_spec(mujoco.MjSpec.from_string(task.mjcf_text()))
    return standing(model, controller.needs.readings, task.dt)


def lineage(run: Path, player: Player) -> Json:
    """Where a policy comes from, for the file's description."""
    rounds = [x for x in Labels(run).learned.read() if x["iteration"] <= player.iterations]
    answers = {"labels": rounds[-1]["sha256"][:16]} if rounds else {}  # that it learned from
    return {"run": run.name, "iteration": player.iterations} | answers


def read_evaluated(run: Path, player: Player, controller: Controller) -> Json:
    """The content of a run's readings.json; empty unless it is of this policy."""
    try:
        saved = json.loads(read_text(run / READINGS))
        shapes, success = controller.shapes(), np.array(saved["success"] or 0.0, float)
        names = [x for x in controller.readings if x not in controller.views]
        ranges = [(x, np.array(saved["ranges"][x], float)) for x in names]
        fits = all(x.shape == (4, *shapes[name]) for name, x in ranges)
        finite = all(np.isfinite(x).all() for x in (success, *(x for _, x in ranges)))
        if fits and finite and saved["iteration"] == player.iterations:
            return saved
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {}


def export_bare_network(player: Player, cfg: Config, run: Path, path: Path) -> float:
    """Export an actor alone: observation in, action out. Returns the largest difference.

    That of a robot that walks has mjlab's observations, actions and metadata, and a file beside it
    says the rest: for walk.onnx it is walk.deploy.yaml.

    ValueError if the actor remembers: only the controller has inputs for its memory.
    """
    if player.policy.blank_memory(1):
        raise ValueError("export=network needs algo.memory=none: use export=controller")
    name, weights, noise = cfg.task.name, cfg.task.weights, cfg.task.noise
    env, actor = player.env, player.policy.actor
    seen = observe(player.policy, env.task, weights=weights, noise=noise)
    observations, views = seen["actor"], {name: seen[name] for name in actor.views}
    options: Json = dict(terms=env.term_widths, history=env.task.history)
    options |= dict(name=name, mjcf=env.task.mjcf_text(), lineage=lineage(run, player))
    task = env.task.evaluation()  # on the CPU
    if views or not fits(task, env.term_widths):
        return export_network(actor, path, observations=observations, views=views, **options)
    actor = MjlabActor(actor, task, env.term_widths)
    options |= dict(terms={NAMES[x][0]: n for x, n in env.term_widths.items()})
    options |= dict(history={NAMES[x][0]: n for x, n in env.task.history.items()})
    with torch.no_grad():
        observations = actor.theirs(observations)
    error = export_network(
        actor, path, observations=observations, further=actor.metadata(run.name), **options
    )
    write_whole(path.with_suffix(".deploy.yaml"), actor.deploy_yaml().encode())
    return error

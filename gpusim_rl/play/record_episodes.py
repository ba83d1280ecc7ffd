"""mode=record: episodes of a run or of an exported file, as demonstrations."""

from pathlib import Path

from torch import Tensor

from gpusim_rl.assembly.earlier_runs import demonstration_env, make_player, record_run
from gpusim_rl.config import compose, resume, validate
from gpusim_rl.config.sections import Config
from gpusim_rl.deploy import exported, runtime
from gpusim_rl.deploy.record import seen_by
from gpusim_rl.envs.agents import folded
from gpusim_rl.envs.env import Env
from gpusim_rl.evaluation.demonstrate import SEED, Act, demonstrate, model_digest
from gpusim_rl.play import player
from gpusim_rl.runs.demonstrations import Demonstrations
from gpusim_rl.runs.run import find_run


def record_episodes(cfg: player.Settings) -> Demonstrations:
    """Whole episodes as play.py's configuration asks for them, on the model's own physics.

    An exported file acts in the worlds of run=, or else in those of its task as it comes.
    ValueError if it is for other robots, or does not tell which action it took.
    """
    episodes, seed = cfg["episodes"], SEED + cfg["seed"]
    if cfg["run"] or not cfg["onnx"]:
        trained, config = player.load_run(find_run(cfg), cfg)
        if not cfg["onnx"]:
            return record_run(config, trained, episodes, seed)
    path = Path(cfg["onnx"])
    policy, model = exported.open_onnx(path, views=True)
    if not cfg["run"]:
        config = task_config(policy, cfg)
        trained = make_player(config)
    task = trained.env.task
    same_robot = model_digest(model) == model_digest(task.mjm)
    if policy.description["task"] != config.task.name or not same_robot:
        raise ValueError(f"{path} does not fit task={config.task.name}, or is for another robot")
    env = demonstration_env(config, task, episodes, seed)
    return demonstrate(file_action(path, policy, env), env, config.task.name)


def task_config(policy: runtime.Policy, cfg: player.Settings) -> Config:
    """The configuration of the task of an exported file, as it comes.

    ValueError if there is no such task, or if its code may not be imported.
    """
    name = str(policy.description["task"])
    validate.saved_code("task", name, None, cfg["task_code"])
    words = [f"task={validate.check_name('task', name)}"]
    return resume.check_training(compose.compose_plain("config", words), words)


def summary(demos: Demonstrations) -> str:
    """What demonstrations hold, for people."""
    r, episodes = demos.record, demos.episodes
    failed, reward = int(r.terminated.sum()), float(r.reward.sum()) / episodes
    return f"{episodes} episodes, {len(r)} steps, return {reward:.4g}, {failed} ended by the task"


def file_action(path: Path, policy: runtime.Policy, env: Env) -> Act:
    """Acts as an exported file does on the readings and views of the robots of an Env.

    ValueError if these lack one, or the file does not tell which action it took.
    """
    policy.reset(env.num_envs)
    inputs = (*policy.needs, *policy.views)
    lacks = [name for name in inputs if name not in seen_by(env)]
    if lacks or "action" not in policy.memory:
        why = f"reads {lacks[0]!r}, which it lacks" if lacks else "does not remember its action"
        raise ValueError(f"{path} does not fit this task: the controller {why}")
    # an episode of the Env begins at random, such as the clock of a gait
    begun = {name: env.memory[name].numpy() for name in policy.memory if name in env.memory}
    policy.memory |= {name: x.copy() for name, x in begun.items()}

    def act(env: Env) -> Tensor:
        values = seen_by(env)
        command = values["command"].numpy() if policy.command else None
        policy.act({name: values[name].numpy() for name in inputs}, command)
        return folded(env.task.tensor(policy.memory["action"]), env.agents)

    return act

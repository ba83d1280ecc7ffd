"""Policies as play.py shows them: the policy of a run, or an exported file."""

import sys
from pathlib import Path
from typing import Any

from gpusim_rl.config import resume
from gpusim_rl.viewer.film import Frames
from gpusim_rl.viewer.window import Choose


def find_run(cfg: dict[str, Any]) -> Any:
    """The run that run= names, else the newest."""
    from gpusim_rl.runs.run import Run, newest

    return Run.open(Path(cfg["run"]) if cfg["run"] else newest())


def load_run(run: Any, cfg: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Load the policy of a run on the CPU.

    Returns:
        A PPO of one world with the policy, and the run's configuration. checkpoint= names another
        checkpoint than the last.
    """
    from gpusim_rl.runs.checkpoints import load

    config = resume.load_config(run, cfg["task_code"]) | {"episodes": cfg["episodes"]}
    if cfg["checkpoint"]:
        path = Path(cfg["checkpoint"])
        state, _ = load(path)
    else:
        state, _, path = run.checkpoints.restore(lambda line: print(line, file=sys.stderr))
    from gpusim_rl.build import make_ppo  # loads torch, after mistakes are answered

    on_cpu = {
        "sim": {"name": "native", "threads": 1},
        "device": "cpu",
        "num_steps": 1,
        "algo": config["algo"] | {"num_minibatches": 1},
    }
    ppo = make_ppo(config | on_cpu, num_envs=1)
    ppo.policy.load(state, str(path))
    done = state.get("ppo/iteration")
    ppo.iterations = int(done) if done is not None and done.numel() == 1 else 0
    return ppo, config


def play_run(ppo: Any, config: dict[str, Any], seed: int, choose: Choose) -> tuple[Any, Frames]:
    """The model and the frames of one world, as an evaluation steps it."""
    from gpusim_rl.envs.step import ended
    from gpusim_rl.training.evaluation import MeanAction, evaluation_env

    weights, noise, asks = config["task"]["weights"], config["task"]["noise"], ppo.env.task.command
    command = choose(asks.names, asks.low, asks.high) if asks else None
    env = evaluation_env(ppo.env.task, 1, weights=weights, noise=noise, seed=seed)

    def frames() -> Frames:
        t, act = 0.0, MeanAction(ppo.policy, 1)
        while True:
            if command:
                env.set_memory("command", command(t))
            act.restart(ended(env.step(act(env.observation.actor))))
            t += env.task.dt
            yield t, env.sim.qpos[0].numpy().copy()

    return env.task.mjm, frames()


def play_onnx(path: Path, choose: Choose) -> tuple[Any, Frames]:
    """The model and the frames of an exported policy, from its file alone."""
    import mujoco

    from gpusim_rl.deploy import runtime
    from gpusim_rl.robots.model_files import check_confined

    policy = runtime.Policy(path)
    check_confined(policy.mjcf, None, str(path))
    asks, trained = policy.command, (policy.command or {}).get("trained")
    command = choose(asks["names"], trained["low"], trained["high"]) if asks and trained else None
    model = mujoco.MjModel.from_xml_string(policy.mjcf)
    data = mujoco.MjData(model)

    def frames() -> Frames:
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_forward(model, data)
        t = 0.0
        while True:
            asked = command(t) if command else None
            data.ctrl[:] = policy.act(runtime.readings(policy, data), asked)
            for _ in range(round(policy.dt / model.opt.timestep)):
                mujoco.mj_step(model, data)
            t += policy.dt
            yield t, data.qpos.copy()

    return model, frames()

"""A control step in three kernels: what it computes is what `Env` computes with torch."""

import json
import math
import re

import pytest
import torch

from gpusim_rl.algorithms.collector import Collector, step_columns
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.record import Record
from gpusim_rl.fuse.kernel import Kernel, largest_difference, trial_rows
from gpusim_rl.networks.policy import ActorCritic
from tests.worlds import TASKS, make_config, make_env, numbers

SMALL = ("sim=native", "sim.threads=1", "device=cpu", "algo.hidden=[16]", "fuse=on")
FREE = ("quadruped", "quadruped_rough", "humanoid", "getup", "ant")  # with a base to push
RAMP = {"by": "iteration", "start": 0, "stop": 3}
NAMES = ("before", "after", "views")


def words(task: str, num_envs: int = 12) -> list[str]:
    """A task with short episodes, late and lost readings, histories, pushes, and a curriculum."""
    yaml = numbers(task)
    reading, weight = next(iter(yaml["noise"])), next(iter(yaml["weights"]))
    value = yaml["weights"][weight]
    plan = {f"task.weights.{weight}": {"from": value, "to": 2 * value} | RAMP}
    pushes = ("push.kind=uniform", "push.every=0.2", "force.kind=uniform", "force.every=0.2")
    extra = [f"task.randomise.{x}" for x in pushes] if task in FREE else []
    plan_word = "curriculum=" + json.dumps(plan).replace('"', "").replace(" ", "")
    about = [f"task={task}", f"num_envs={num_envs}", "num_steps=8", "task.episode=0.6", *SMALL]
    about += ["algo.num_minibatches=1"]
    if task == "quadruped":  # a memory of the command, which is drawn anew
        about += ["task.acceleration=[3,2,4]", "task.redraw=0.1"]
    about += ["task.observation_delay=[0,2]", f"task.dropout.{reading}=0.2", plan_word, *extra]
    about += [f"task.history.{next(iter(make_env(task, 2).term_widths))}=3"]
    return about + (["task.randomise.friction.kind=uniform"] if task in FREE else [])


def check_part(fused, name: str) -> None:
    """Launch a part, and compare what it writes with what torch makes of the same rows."""
    kernel = fused.kernels[name]
    assert isinstance(kernel, Kernel), kernel.description
    rows = {key: x.clone() for key, x in (fused.env.rows() | fused.scratch).items()}
    right = kernel.function(rows)
    kernel()
    for key, place in kernel.places.items():
        apart = largest_difference(right[key], place.now(), right.get(place.mask_name))
        assert apart <= 1e-5, (name, key, apart)


def run(ppo: Iteration, steps: int = 100) -> None:
    """Steps of a task, part by part, with faults of every kind on the way."""
    env, source, fused = ppo.env, ppo.source, ppo.source.fused
    restarts = faults = 0
    fused.prepare()
    with torch.no_grad():
        for t in range(steps):
            if t % 25 == 12:  # a curriculum writes to tensors that the kernels read
                ppo.schedule.write(ppo.numbers, env.success, t // 25)
            mean, _ = source.policy.compute(fused.inputs, {}, env.rng)
            mean[t % 7] = math.nan if t % 20 == 5 else mean[t % 7]
            fused.scratch["step/head"].copy_(mean)
            check_part(fused, "before")
            env.begin_step()
            env.step_physics()
            if t % 20 == 10:
                env.sim.qvel[3, 0], env.sim.qpos[5, 0] = math.inf, math.nan
                env.sim.sensordata[7] = math.nan
            env.sim.overflow[2] = t % 20 == 15
            check_part(fused, "after")
            env.reset(fused.restarted, fused.scratch["start/qpos"], fused.scratch["start/qvel"])
            check_part(fused, "views")
            restarts += int(fused.restarted.sum())
            faults += int((source.record.column("fault")[0] > 0).sum())
    assert restarts > 5 and faults > 5


@pytest.mark.parametrize("task", ["quadruped", "cartpole", "drone"])
def test_a_step_is_that_of_torch(task):
    """Over 100 steps floats agree to 1e-5; the trial rows reach both answers of each comparison."""
    ppo = make_iteration(make_config(*words(task)))
    fused = ppo.source.fused
    rows = fused.env.rows() | fused.scratch
    for kernel in fused.kernels.values():
        _, one_sided = kernel.run_again(trial_rows(kernel, rows))
        one_sided = [x for x in one_sided if not re.search(r"worst\.row|< self\.chances", x)]
        assert one_sided == []
    run(ppo)


@pytest.mark.matrix
@pytest.mark.parametrize("task", sorted({*TASKS} - {"quadruped", "cartpole", "drone"}))
def test_a_step_of_every_task_is_that_of_torch(task):
    """The same steps of the other tasks, whose kernels take longer to compile."""
    run(make_iteration(make_config(*words(task))))


def test_a_world_does_not_depend_on_its_neighbors():
    """Kernels make the same bits among 16, 256 and 4096 worlds, and of the second half alone."""
    ppo = make_iteration(make_config("task=quadruped", "num_envs=16", "num_steps=4", *SMALL))
    ppo.iteration()
    fused = ppo.source.fused
    for name in NAMES:
        kernel = fused.kernels[name]
        rows = {key: x.clone() for key, x in (fused.env.rows() | fused.scratch).items()}
        few = kernel.results(rows)
        for worlds in (256, 4096):
            many = {k: x.repeat(worlds // 16, *[1] * (x.ndim - 1)) for k, x in rows.items()}
            for key, x in kernel.results(many).items():
                assert same_bits(x[:16], few[key]) and same_bits(x[-16:], few[key]), key
        for key, x in kernel.results({k: x[8:].contiguous() for k, x in rows.items()}).items():
            assert same_bits(x, few[key][8:]), key


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal, where NaN is NaN."""
    return a.numpy().tobytes() == b.contiguous().numpy().tobytes()


def test_two_trainings_agree():
    """Rewards and observations of an iteration with kernels and without are those of torch."""
    records = []
    for fuse in ("on", "off"):
        about = ("task=quadruped", "num_envs=32", "num_steps=8", "task.episode=1")
        ppo = make_iteration(make_config(*about, *SMALL, f"fuse={fuse}"))
        ppo.source.collect(8)
        records.append(ppo.source.record.rows.clone())
    apart = (records[0] - records[1]).abs() / (1 + records[1].abs())
    assert apart[:3].max() < 1e-4
    assert apart.median() < 1e-5


def test_fuse_shows_what_it_writes(capsys):
    """Each part's operators, and the file of its source, which says the same."""
    make_iteration(make_config("task=cartpole", "num_envs=4", "num_steps=4", *SMALL, "fuse=show"))
    said = capsys.readouterr().out.splitlines()
    assert [re.search("part '(.*)'", line)[1] for line in said] == list(NAMES)
    for line in said:
        assert re.search(r"\d+ operators of torch in \d+ lines: ", line)
        with open(line.rpartition(": ")[2]) as file:
            assert "def kernel(" in file.read()


class Drifting(ActorCritic):
    """Its noise drifts, the last action is an input, and the network draws numbers of its own."""

    def blank_memory(self, worlds):
        names = ("drift", "last")
        return super().blank_memory(worlds) | {x: torch.zeros(worlds, 1) for x in names}

    def compute(self, inputs, memory, rng):
        own = {name: x for name, x in memory.items() if name in ("actor", "critic")}
        mean, after = super().compute(inputs, own, rng)
        latent = rng.normal("policy/latent", 1)
        return mean + 0.1 * latent - 0.5 * memory["last"], memory | after

    def choose(self, mean, memory, rng):
        drift = 0.9 * memory["drift"] + rng.normal("policy/action", 1)
        action = mean + drift
        columns = self.describe(self.distribution(mean), action)
        return columns, memory | {"drift": drift, "last": action}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_choosing_changes_the_memory(memory):
    """As in torch, without a kernel more; restarts make it zero."""
    collectors = []
    for fuse in ("on", "off"):
        about = ("task=cartpole", "num_envs=16", "num_steps=40", "task.episode=0.5")
        config = make_config(*about, *SMALL, f"algo.memory={memory}")
        env = make_iteration(config).env
        network = config.algo.settings
        policy = Drifting(env.views, env.task.action_width, network, seed=1)
        record = Record.zeros(step_columns(env, policy), 40, 16, device=env.device)
        timer = PartTimer(env.device)
        collectors.append(Collector(env, policy, record, graph="off", fuse=fuse, timer=timer))
        collectors[-1].collect(40)
    fused, plain = collectors
    assert (fused.record.rows - plain.record.rows).abs().max() < 1e-4
    assert all((fused.memory[name] - x).abs().max() < 1e-4 for name, x in plain.memory.items())
    began = fused.fused.restarted
    assert 0 < plain.record.truncated.sum() and not began.all()
    last = torch.where(began[:, None], 0.0, fused.record.action[-1])
    assert torch.equal(fused.memory["last"], last)
    changed = [x for x in fused.fused.kernels["before"].places if "memory" in x]
    assert changed == ["policy/memory/drift", "policy/memory/last"]
    assert all(isinstance(x, Kernel) for x in fused.fused.kernels.values())

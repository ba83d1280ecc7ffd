"""A control step without its physics: for learners that dream through a model of their own."""

import torch
from torch import Tensor

from gpusim_rl.core.record import Column, Columns, Record, view_columns
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows
from gpusim_rl.envs.env import End, Env
from gpusim_rl.envs.mirror import Affine, Reflector

PHYSICS = ("ctrl", "qpos", "qvel", "sensordata")  # what a step of the Sim reads and writes
VIEWS = {"view/actor": "obs", "view/critic": "critic"}  # rows that are columns anyway → their names
# begin the names of rows on which no step that is dreamed depends
UNUSED = ("rng/", "model/", "before/", "memory/", "sim/fault", "sim/overflow")
UNUSED += ("env/lived", "env/episode_return", "env/invalid")
FIRST = 2**31  # number of the first dreamed world: no simulated one draws the same numbers


def row_columns(env: Env) -> Columns:
    """The columns that hold rows of an Env: `rows/…` before an action, `after/…` after physics.

    None in worlds of several agents: a row of the record is then one of an agent.
    """
    if env.agents > 1:
        return {}
    rows = {k: x for k, x in env.rows().items() if not k.startswith(UNUSED) and k not in VIEWS}
    after = {f"after/{name}": rows[name] for name in PHYSICS}
    columns = {f"rows/{name}": x for name, x in rows.items()} | after
    kinds = {k: torch.float32 if x.is_floating_point() else x.dtype for k, x in columns.items()}
    return {name: Column(tuple(x.shape[1:]), kinds[name]) for name, x in columns.items()}


class Dreams:
    """The parts of a control step as pure functions of n rows, with the task's numbers of now.

    The reward is the task's: a reward model is paid of records alone. One step, which a gradient
    may go through, where a learner gives `qpos`, `qvel` and `sensordata`:

        rows = dreams.act(rows, action)
        rows |= model(rows)
        end = dreams.end(rows, rng)  # end.step.reward, …
        rows = dreams.observe(end, rng)  # view/actor, view/critic

    Attributes:
        columns: of a record that `begin` takes, and the physics after each step as `after/…`.
        model: the robot's MjModel.
        terms: names of the columns of `End.terms`; weights: (R,) of them, live.
    """

    def __init__(self, env: Env):
        self._env, self.model, self.terms, self.weights = env, env.task.mjm, env.terms, env.weights
        self.columns: Columns = view_columns(env.views) | row_columns(env)

    def rows(self) -> Rows:
        """The live rows (B, …) of the worlds, by name."""
        return self._env.rows()

    def begin(self, steps: Record) -> Rows:
        """The rows (n, …) before the actions of recorded steps (n, …)."""
        live, n = self._env.rows(), len(steps)
        unused = {k: x.new_zeros(n, *x.shape[1:]) for k, x in live.items() if k.startswith(UNUSED)}
        given = {name: VIEWS.get(name, f"rows/{name}") for name in live if name not in unused}
        return unused | {name: getattr(steps, column) for name, column in given.items()}

    def act(self, rows: Rows, action: Tensor) -> Rows:
        """The rows with the controls of actions (n, nu)."""
        return rows | self._env.act(rows, action)

    def end(self, rows: Rows, rng: Rng) -> End:
        """How a step ends, of the rows after the physics: without restarts."""
        return self._env.end(rows, rng)

    def observe(self, end: End, rng: Rng) -> Rows:
        """The rows with the views of the next step."""
        goes_on = torch.zeros_like(end.step.fault)
        observe = self._env.observer.observe
        return end.rows | observe(end.state, end.rows, rng, goes_on, critic=end.step.end)

    def images(self) -> dict[str, Affine] | None:
        """What makes the mirror images of the rows of `PHYSICS`; None unless all are known."""
        task = self._env.task
        if not task.mirror:
            return None
        reflector = Reflector(task.mjm, task.mirror.axis, task.mirror.joints, task.device)
        positions, speeds = (reflector.coordinates(positions=x) for x in (True, False))
        controls = reflector.driven_joints(targets=True)
        made = controls, positions, speeds, reflector.sensors()
        images: dict[str, Affine] = dict(zip(PHYSICS, made, strict=True))
        known = all(not x.signs.isnan().any() for x in images.values())
        return images if known else None

    def rng(self, n: int, life: Tensor | int) -> Rng:
        """Random numbers for n rows of this process. They are drawn by a count of the learner's.

        life: as `Rng` has it.
        """
        env = self._env
        worlds = torch.arange(n, device=env.device) + (FIRST + n * env.group.rank)
        return Rng(env.seed, worlds, life)

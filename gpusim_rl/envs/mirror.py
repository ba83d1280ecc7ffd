"""The mirror image of a task, derived from its methods and its model.

A term is computed of random states and of their images (`envs/reflection.py`). Its columns are
compared: each column of the image is a column of the term, perhaps with the other sign.
"""

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.core.symmetry import Flip
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.envs.reflection import Reflector
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task

STATES = 64  # that are compared
TOLERANCE = 1e-4  # of a column of an image, relative to its largest entry
EVEN = 0.02  # of the controls of the image, because a robot's two sides may differ a little


def derive_flips(task: Task) -> dict[str, Flip]:
    """How a reflection changes each term of `observe` and `privileged`, and the `action`.

    Raises:
        ValueError: the task has no mirror, a term's image is no permutation of its columns with
            signs, or `control` does not do the mirrored thing; in one line, with the name.
    """
    reflection, name = task.mirror, type(task).__name__
    if reflection is None:
        raise ValueError(f"{name} defines no mirror image")
    reflector = Reflector(task.mjm, reflection.axis, reflection.joints, task.device)
    values = random_values(task)
    s = State(values, task.sensor_columns, task.joint_columns)
    image = s.with_(**images(task, reflection, reflector, values, s))
    own, other = ({**task.observe(x), **task.privileged(x)} for x in (s, image))
    flips = {term: match(f"{name}: {term!r}", own[term], other[term]) for term in own}
    flips["action"] = match(f"{name}: 'action'", s.action, image.action)
    check_control(task, reflector, s, image)
    return flips


def images(
    task: Task, reflection: Reflection, reflector: Reflector, values: dict[str, Tensor], s: State
) -> dict[str, Tensor]:
    """The images of values of a state; those of memory that the task does not declare are NaN."""
    act, other = (
        reflector.driven_joints(targets=False),
        {
            name: torch.full_like(x, torch.nan)
            for name, x in values.items()
            if x.is_floating_point()
        },
    )
    other |= {
        "qpos": reflector.coordinates(positions=True)(s.qpos),
        "qvel": reflector.coordinates(positions=False)(s.qvel),
        "sensordata": reflector.sensors()(s.sensordata),
        "ctrl": reflector.driven_joints(targets=True)(s.ctrl),
        "action": act(s.action),
        "previous": act(s.previous),
    }
    if task.command:
        mirrored = [-1.0 if n in task.command.mirrored else 1.0 for n in task.command.names]
        other["command"] = s.command * task.tensor(mirrored)
    return other | reflection.images(s)


def random_values(task: Task) -> dict[str, Tensor]:
    """Random values of everything that the task's methods can read, near those of a start."""
    m, rng = task.mjm, Rng(0, torch.arange(STATES, device=task.device))
    generator = torch.Generator().manual_seed(0)

    def noise(width: int) -> Tensor:
        return torch.randn(STATES, width, generator=generator).to(task.device)

    values = task.begin(STATES, rng)
    for name, x in values.items():
        if x.is_floating_point():
            values[name] = x + noise(x[0].numel()).view_as(x)
    sizes = {"sensordata": m.nsensordata, "ctrl": m.nu, "action": m.nu, "previous": m.nu}
    values |= {name: noise(width) for name, width in sizes.items()}
    s = State(values, task.sensor_columns, task.joint_columns)
    values |= {name: noise(f(s)[0].numel()).view_as(f(s)) for name, f in task.derived.items()}
    return values | {"time": torch.arange(STATES, device=task.device)}


def match(what: str, x: Tensor, image: Tensor) -> Flip:
    """The columns and signs that make the image (B, n) of a term of the term (B, n)."""
    order: list[int] = []
    signs: list[float] = []
    for i in range(x.shape[1]):
        limit = TOLERANCE * (1 + x[:, i].abs().max().item())
        places = [i, *(j for j in range(x.shape[1]) if j != i)]  # a constant stays where it is
        for j, sign in ((j, sign) for j in places if j not in order for sign in (1.0, -1.0)):
            if (image[:, i] - sign * x[:, j]).abs().max().item() <= limit:
                order.append(j)
                signs.append(sign)
                break
        else:
            raise ValueError(
                f"algo.symmetry: {what} has no mirror image: column {i} of its image is none of "
                "its columns, with either sign: `mirror` declares what no sensor type tells"
            )
    return Flip(tuple(order), tuple(signs))


def check_control(task: Task, reflector: Reflector, s: State, image: State) -> None:
    """ValueError if the controls of the image are not the image of the controls."""
    controls = task.control(s)
    want, got = reflector.driven_joints(targets=True)(controls), task.control(image)
    spread = (want - want.mean(0)).abs().amax(0)
    wrong = ~((got - want).abs().amax(0) <= EVEN * spread + 1e-3)
    if wrong.any():
        name = task.mjm.actuator(int(wrong.long().argmax())).name
        raise ValueError(
            f"algo.symmetry: {type(task).__name__}: control is not even: {name!r} does otherwise "
            "than its image in the mirrored state"
        )

"""Left and right: how views and actions look in a mirror, networks that commute with it, and which joints mirror how."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

SIDES = np.array([3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8])  # joint → the one on the other side; legs FL, FR, RL, RR
GUESSED, SAID = 0.01, 0.1  # of a leg's length: how far a foot may be from its image, for guessed signs and for given ones
MASS = 0.03  # likewise the centre of mass at least: batteries and cables lie where there is room


class Flip(NamedTuple):
    """Column i of the image is signs[i] times column order[i]. Done twice it is the identity."""

    order: tuple[int, ...]
    signs: tuple[float, ...]


class Mirrors(NamedTuple):
    """How the actor's view, the critic's view and the action look in a mirror."""

    obs: Flip
    critic: Flip
    action: Flip


def keep(*signs: float) -> Flip:
    """Columns that stay where they are, with these signs."""
    return Flip(tuple(range(len(signs))), signs)


def join(flips: Iterable[Flip]) -> Flip:
    """Flips of adjacent columns as one."""
    order, signs = [], []
    for flip in flips:
        order += [len(signs) + i for i in flip.order]
        signs += flip.signs
    return Flip(tuple(order), tuple(signs))


def mirrors(flips: dict[str, Flip], observed: Iterable[str], history: dict[str, int]) -> Mirrors:
    """Of the whole views, from `Task.mirror`: a term's steps of history mirror alike."""
    observed = list(observed)
    privileged = [flip for term, flip in flips.items() if term not in observed and term != "action"]
    obs = [flips[term] for term in observed for _ in range(history.get(term, 1))]
    return Mirrors(join(obs), join([*(flips[term] for term in observed), *privileged]), flips["action"])


class Mirror(nn.Module):
    """x (…, n) → its image (…, n). The tensors are no parameters, and no checkpoint holds them."""

    order: Tensor
    signs: Tensor

    def __init__(self, flip: Flip):
        super().__init__()
        if any(flip.order[j] != i or flip.signs[j] != flip.signs[i] for i, j in enumerate(flip.order)):
            raise ValueError(f"a mirror's mirror is no identity: {flip}")
        self.register_buffer("order", torch.tensor(flip.order), persistent=False)
        self.register_buffer("signs", torch.tensor(flip.signs), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.order) * self.signs

    def even(self, x: Tensor) -> Tensor:
        """½ (x + its image): its own image, to the last bit."""
        return 0.5 * (x + self(x))

    def even_sizes(self, x: Tensor) -> Tensor:
        """The same of what has no sign, such as a variance."""
        return 0.5 * (x + x.index_select(-1, self.order))


def average(net: Callable[[Tensor], Tensor], x: Tensor, view: Mirror | None, out: Mirror | None = None) -> Tensor:
    """½ (f(x) + A f(M x)), M the view's mirror and A that of the result (the identity for None); f(x) if there is no M.

    It commutes with the mirror exactly, in floating point too: M M x = x, and a sum of two is rounded once. That takes two
    calls: in one, of twice as many rows, a matrix product may add the second half in another order than the first.
    """
    y = net(x)
    if view is None:
        return y
    image = net(view(x))
    return 0.5 * (y + (out(image) if out else image))


# -- a quadruped's joints ------------------------------------------------------------------------------------------------


def hinge_signs(m: Any, base: str, feet: tuple[str, ...], given: tuple[float, ...] = ()) -> tuple[float, ...]:
    """(12,) signs s of joints in the order of ctrl: if a quadruped leans by δ from its stance, its image by s_i δ_SIDES[i].

    Guessed from the joints' axes, unless given: a reflection in the x-z plane turns the axis a into (-a_x, a_y, -a_z). The
    signs are checked by kinematics: feet and centre of mass of mirrored poses are images of one another.

    Args:
        m: the model, its stance the first keyframe, its actuators legs of three in the order FL, FR, RL, RR.
        base: body; its x is forward, its z up.
        feet: four geoms.

    Raises:
        ValueError: the robot is not its own mirror image.
    """
    if len(m.actuator_trnid) != 12:
        raise ValueError(f"robot.mirror: legs of three joints are mirrored, this model has {m.nu} actuators")
    joints, d = m.actuator_trnid[:, 0], mujoco.MjData(m)
    stance = m.key_qpos[0][m.jnt_qposadr[joints]]
    spots = places(m, d, base, feet, stance)
    length = float(np.linalg.norm(d.xanchor[joints[1::3]] - spots[:4], axis=1).mean())  # from a hip to its foot
    along = (d.xaxis[joints][SIDES] * d.xaxis[joints] * [-1, 1, -1]).sum(1)  # ±1 where axes are images of one another
    signs, near = (np.array(given), SAID) if given else (np.sign(along) + 0.0, GUESSED)
    most = length * np.array([near] * 4 + [max(near, MASS)])
    lean = 0.3 * np.random.default_rng(0).uniform(-1, 1, (8, 12))  # rad
    image = [places(m, d, base, feet, stance + signs * x[SIDES])[[1, 0, 3, 2, 4]] * [1, -1, 1] for x in lean]
    miss = np.linalg.norm(np.array(image) - [places(m, d, base, feet, stance + x) for x in lean], axis=2).max(0)
    if (signs != signs[SIDES]).any() or not (miss <= most).all():
        worst = int((miss / most).argmax())
        says = f"in mirrored poses its {[*feet, 'centre of mass'][worst]} is {1e3 * miss[worst]:.0f} mm from where it should be"
        says += f", of {1e3 * most[worst]:.0f} allowed"
        raise ValueError(f"robot.mirror: this robot is not its own mirror image: {says}")
    servos = {"kp": m.actuator_gainprm[:, 0], "kd": m.actuator_biasprm[:, 2], "torque": m.actuator_forcerange[:, 1]}
    servos["armature"] = m.dof_armature[m.jnt_dofadr[joints]]
    for key, value in servos.items():
        if not np.allclose(value, value[SIDES], rtol=0.01):
            raise ValueError(f"robot.mirror: robot.{key} differs between left and right: {value.tolist()}")
    return tuple(float(s) for s in signs)


def places(m: Any, d: Any, base: str, feet: tuple[str, ...], angles: np.ndarray) -> np.ndarray:
    """(5, 3) feet and centre of mass [m] with these joint angles, the base upright at the origin."""
    d.qpos[:] = m.key_qpos[0]
    d.qpos[:7], d.qpos[m.jnt_qposadr[m.actuator_trnid[:, 0]]] = [0, 0, 0, 1, 0, 0, 0], angles
    mujoco.mj_kinematics(m, d)
    mujoco.mj_comPos(m, d)
    return np.array([*(d.geom(foot).xpos for foot in feet), d.subtree_com[m.body(base).id]])

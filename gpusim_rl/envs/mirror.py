"""The mirror image of a task, derived from its methods and its model.

`Reflector` tells what a mirror makes of a model's joints and sensors. Sensors are mirrored by
their MuJoCo types. Joints are mirrored by their places and axes, or as the task says. The base is
upright in the keyframe.

A term is computed of random states and of their images. Its columns are compared: each column of
the image is a column of the term, perhaps with the other sign.
"""

import re
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.core.symmetry import Flip, MirrorModule
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.robots.servos import driven_joints, driven_things
from gpusim_rl.sim.data_sensors import sensor_types

STATES = 64  # that are compared
TOLERANCE = 1e-4  # of a column of an image, relative to its largest entry
EVEN = 0.02  # of the controls of the image, because a robot's two sides may differ a little

# How the three components of a sensor look in a mirror whose normal is axis k.
POLAR = sensor_types(  # component k changes its sign
    *("ACCELEROMETER", "VELOCIMETER", "FORCE", "FRAMEPOS", "FRAMELINVEL", "FRAMELINACC"),
    *("SUBTREECOM", "SUBTREELINVEL"),
)
AXIAL = sensor_types(  # the other two change it: what turns, and magnetic fields
    *("GYRO", "TORQUE", "MAGNETOMETER", "FRAMEANGVEL", "FRAMEANGACC", "SUBTREEANGMOM"),
)
AXES = [sensor_types(f"FRAME{axis}AXIS") for axis in "XYZ"]  # polar, but for the axis k itself
QUATERNIONS = sensor_types("FRAMEQUAT", "BALLQUAT")
SCALARS = sensor_types("TOUCH", "RANGEFINDER", "CLOCK", "E_POTENTIAL", "E_KINETIC")
POSITIONS = sensor_types("JOINTPOS", "ACTUATORPOS")  # about the pose of the keyframe
OF_JOINTS = POSITIONS | sensor_types("JOINTVEL", "JOINTACTFRC", "ACTUATORVEL", "ACTUATORFRC")


class Affine(NamedTuple):
    """Column i of the image of x is offsets[i] + signs[i] · x[order[i]]; a NaN is unknown."""

    order: Tensor
    signs: Tensor
    offsets: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.offsets + x.index_select(1, self.order) * self.signs


def keyframe(m: mujoco.MjModel, axis: int) -> tuple[mujoco.MjData, np.ndarray]:
    """The model in its first keyframe, and (3,) how a mirror changes a place."""
    d = mujoco.MjData(m)
    if m.nkey:
        mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_kinematics(m, d)
    return d, np.where(np.arange(3) == axis, -1.0, 1.0)


def pairs(m: mujoco.MjModel, axis: int) -> dict[int, tuple[int, float]]:
    """Joint → its image and its sign, from the places and axes of hinges and slides.

    The image of a joint is the joint of its type that is nearest to the mirrored place, with an
    axis that is parallel to the mirrored one. Joints without such an image are left out.
    """
    d, mirror = keyframe(m, axis)
    joint_images: dict[int, tuple[int, float]] = {}
    for i in (j for j in range(m.njnt) if m.jnt_type[j] in (2, 3)):
        slide = m.jnt_type[i] == mujoco.mjtJoint.mjJNT_SLIDE
        image = d.xaxis[i] * mirror * (1 if slide else -1)
        same = [j for j in range(m.njnt) if m.jnt_type[j] == m.jnt_type[i]]
        same = [j for j in same if abs(d.xaxis[j] @ image) > 0.9]
        if same:
            far = [float(np.linalg.norm(d.xanchor[j] - d.xanchor[i] * mirror)) for j in same]
            j = same[int(np.argmin(far))]
            joint_images[i] = (j, float(np.sign(d.xaxis[j] @ image)))
    return joint_images


def wrench_images(m: mujoco.MjModel, axis: int) -> dict[int, tuple[int, float]]:
    """Actuator on a site → its image and its sign, from places, forces and torques.

    The image of an actuator acts at the mirrored place, with the mirrored force and torque, or with
    both turned round. The mirror goes through the world's origin in the first keyframe. Actuators
    without such an image are left out, and those whose force is relative to another site.
    """
    d, mirror = keyframe(m, axis)
    kinds = m.actuator_trntype == mujoco.mjtTrn.mjTRN_SITE
    on_site = np.flatnonzero(kinds & (m.actuator_trnid[:, 1] < 0)).tolist()
    sites = m.actuator_trnid[on_site, 0]
    places, frames = d.site_xpos[sites], d.site_xmat[sites].reshape(-1, 3, 3)
    gears = m.actuator_gear[on_site].reshape(-1, 2, 3)  # force and torque, in the site's frame
    wrenches = np.einsum("sij,skj->ski", frames, gears)
    images = wrenches * np.stack([mirror, -mirror])
    near = 1e-2 * np.abs(wrenches).max((0, 2), initial=0)[:, None] + 1e-9
    actuator_images: dict[int, tuple[int, float]] = {}
    for i, actuator in enumerate(on_site):
        far = np.linalg.norm(places - places[i] * mirror, axis=1)
        for sign in (1.0, -1.0):
            same = (np.abs(wrenches - sign * images[i]) <= near).all((1, 2)) & (far < 1e-3)
            if same.any():
                actuator_images[actuator] = (on_site[int(np.flatnonzero(same)[0])], sign)
                break
    return actuator_images


class Reflector:
    """The images of `qpos`, `qvel`, `sensordata`, `ctrl` and the action of a model.

    axis: of the mirror's normal, 0 to 2. joints: (nu,) how the positions of the actuated joints
    look; None for `pairs`.
    """

    def __init__(self, m: mujoco.MjModel, axis: int, joints: Flip | None, device: str):
        self.m, self.device = m, device
        # the signs of the components of vectors and of quaternions
        self.polar = [-1.0 if i == axis else 1.0 for i in range(3)]
        self.axial = [-x for x in self.polar]
        self.quaternion = [1.0, *self.axial]
        self.signs = [(POLAR, self.polar), (AXIAL, self.axial), (QUATERNIONS, self.quaternion)]
        # the image of a frame has the mirror's axis turned round
        frame = (self.axial if i == axis else self.polar for i in range(3))
        self.signs += zip(AXES, frame, strict=True)
        self.driven = driven_joints(m)
        self.wrenches = wrench_images(m, axis)
        for i, joint in enumerate(self.driven):
            if joint < 0 and i not in self.wrenches:
                name, what = m.actuator(i).name, driven_things(m)[i]
                raise ValueError(
                    f"the actuator {name!r} drives the {what}, which has no mirror image"
                )
        self.pairs = pairs(m, axis)
        if joints:
            order, signs = joints
            named = zip(self.driven, order, signs, strict=True)
            self.pairs |= {i: (self.driven[j], float(sign)) for i, j, sign in named}
        rest = m.key_qpos[0] if m.nkey else m.qpos0
        self.center = {j: float(rest[m.jnt_qposadr[j]]) for j in range(m.njnt)}
        self.actuator = {j: i for i, j in enumerate(self.driven) if j >= 0}

    def affine(self, columns: list[tuple[int, float, float]]) -> Affine:
        """The affine map of (column, sign, offset) for each column of the image."""
        order, signs, offsets = zip(*columns, strict=True) if columns else ((), (), ())
        return Affine(
            torch.tensor(order, dtype=torch.int64, device=self.device),
            torch.tensor(signs, dtype=torch.float32, device=self.device),
            torch.tensor(offsets, dtype=torch.float32, device=self.device),
        )

    def joint(self, j: int, positions: bool) -> tuple[int, float, float]:
        """The image of a joint's angle or speed: its joint, sign and offset."""
        other, sign = self.pairs.get(j, (j, torch.nan))
        offset = self.center[j] - sign * self.center[other] if positions else 0 * sign
        return other, sign, offset

    def coordinates(self, positions: bool) -> Affine:
        """The images of `qpos`, or of `qvel`."""
        m = self.m
        place = m.jnt_qposadr if positions else m.jnt_dofadr
        columns: list[tuple[int, float, float]] = []
        for j in range(m.njnt):
            at, kind = int(place[j]), m.jnt_type[j]
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                signs = [*self.polar, *(self.quaternion if positions else self.axial)]
                columns += [(at + i, sign, 0.0) for i, sign in enumerate(signs)]
            elif kind == mujoco.mjtJoint.mjJNT_BALL:
                columns += [(at + i, torch.nan, 0.0) for i in range(4 if positions else 3)]
            else:
                other, sign, offset = self.joint(j, positions)
                columns.append((int(place[other]), sign, offset))
        return self.affine(columns)

    def sensors(self) -> Affine:
        """The images of `sensordata`."""
        m = self.m
        places = {self.key(i): int(m.sensor_adr[i]) for i in range(m.nsensor)}
        columns: list[tuple[int, float, float]] = []
        for i in range(m.nsensor):
            kind, width = int(m.sensor_type[i]), int(m.sensor_dim[i])
            if kind in OF_JOINTS:
                columns.append(self.joint_sensor(i, places))
                continue
            at = places.get(self.key(i, mirrored=True), int(m.sensor_adr[i]))
            other = [1.0 if kind in SCALARS else torch.nan] * width
            signs = next((signs for kinds, signs in self.signs if kind in kinds), other)
            columns += [(at + c, sign, 0.0) for c, sign in enumerate(signs)]
        return self.affine(columns)

    def joint_sensor(self, i: int, places: dict[tuple, int]) -> tuple[int, float, float]:
        """The image of a sensor of a joint or of an actuator: its column, sign and offset."""
        m, of = self.m, int(self.m.sensor_objid[i])
        by_joint = m.sensor_objtype[i] == mujoco.mjtObj.mjOBJ_JOINT
        if not by_joint and self.driven[of] < 0:
            (image, sign), offset = self.wrenches[of], 0.0
        else:
            joint = of if by_joint else self.driven[of]
            other, sign, offset = self.joint(joint, int(m.sensor_type[i]) in POSITIONS)
            image = other if by_joint else self.actuator.get(other, -1)
        at = places.get((*self.key(i)[:2], image, *self.key(i)[3:]))
        return (int(m.sensor_adr[i]), torch.nan, 0.0) if at is None else (at, sign, offset)

    def key(self, i: int, mirrored: bool = False) -> tuple:
        """Type, object and frame of a sensor, which no other has, or those of its image."""
        m = self.m
        of, ref = (int(x[i]) for x in (m.sensor_objid, m.sensor_refid))
        kinds = [int(x[i]) for x in (m.sensor_objtype, m.sensor_reftype)]
        if mirrored:
            of, ref = self.other(kinds[0], of), self.other(kinds[1], ref)
        return (int(m.sensor_type[i]), kinds[0], of, kinds[1], ref)

    def other(self, kind: int, i: int) -> int:
        """The body, site or geom on the other side, by its name; the same if it has no side."""
        name = mujoco.mj_id2name(self.m, kind, i) if i >= 0 else None
        other = mujoco.mj_name2id(self.m, kind, other_side(name)) if name else -1
        return i if other < 0 else other

    def driven_joints(self, targets: bool) -> Affine:
        """The images of actions; with `targets` of `ctrl`, which may be targets of servos."""
        columns = []
        for i, j in enumerate(self.driven):
            if j < 0:
                columns.append((*self.wrenches[i], 0.0))
                continue
            other, sign, offset = self.joint(j, targets and bool(self.m.actuator_biasprm[i, 1]))
            columns.append((self.actuator.get(other, i), sign, offset))
        return self.affine(columns)


def other_side(name: str) -> str:
    """A name with left and right exchanged: FL_foot to FR_foot, hip_l to hip_r."""
    swap = {"L": "R", "l": "r", "Left": "Right", "left": "right", "LEFT": "RIGHT"}
    swap |= {"FL": "FR", "RL": "RR", "HL": "HR", "LF": "RF", "LH": "RH"}
    swap |= {y: x for x, y in swap.items()}
    return "".join(swap.get(word, word) for word in re.split(r"([^A-Za-z]+)", name))


# -- the task's terms ------------------------------------------------------------------------------


# Why: docs/decisions/symmetry.md
def derive_flips(task: Task) -> dict[str, Flip]:
    """How a reflection changes each term of `observe` and `privileged`, and the `action`.

    ValueError, in one line with the name, if the task has no mirror, a term's image is no
    permutation of its columns with signs, or `control` does not do the mirrored thing.
    """
    reflection, name = task.mirror, type(task).__name__
    if reflection is None:
        raise ValueError(f"{name} defines no mirror image")
    if task.agents > 1:
        raise ValueError(f"{name} has {task.agents} agents: `mirror` is for one")
    reflector = Reflector(task.mjm, reflection.axis, reflection.joints, task.device)
    values = random_values(task)
    s = State(values, task.sensor_columns, task.joint_columns)
    image = s.with_(**images(task, reflection, reflector, values, s))
    terms, image_terms = ({**task.observe(x), **task.privileged(x)} for x in (s, image))
    flips = {term: match(f"{name}: {term!r}", terms[term], image_terms[term]) for term in terms}
    flips["action"] = match(f"{name}: 'action'", s.action, image.action)
    check_control(task, reflector, s, image)
    return flips


def images(
    task: Task, reflection: Reflection, reflector: Reflector, values: dict[str, Tensor], s: State
) -> dict[str, Tensor]:
    """The images of values of a state; those of memory that the task does not declare are NaN."""
    if reflection.action is None and task.action_width != task.mjm.nu:
        raise ValueError(
            f"{type(task).__name__}: `mirror` says no `action`, which has {task.action_width} "
            f"numbers for {task.mjm.nu} actuators"
        )
    act = reflector.driven_joints(targets=False)
    if reflection.action:
        act = MirrorModule(reflection.action).to(task.device)
    other = {
        name: torch.full_like(x, torch.nan) for name, x in values.items() if x.is_floating_point()
    }
    other |= {
        "qpos": reflector.coordinates(positions=True)(s.qpos),
        "qvel": reflector.coordinates(positions=False)(s.qvel),
        "sensordata": reflector.sensors()(s.sensordata),
        "ctrl": reflector.driven_joints(targets=True)(s.ctrl),
        "action": act(s.action),
        "previous": act(s.previous),
    }
    if task.command:
        other["command"] = s.command * task.tensor(task.command.signs(reflection.axis))
    return other | reflection.images(s)


def random_values(task: Task) -> dict[str, Tensor]:
    """Random values of everything that the task's methods can read, near those of a start."""
    m, rng = task.mjm, Rng(0, torch.arange(STATES, device=task.device))
    # fixed: a task has the same mirror in every process and run
    generator = torch.Generator().manual_seed(0)

    def noise(width: int) -> Tensor:
        return torch.randn(STATES, width, generator=generator).to(task.device)

    values = task.begin(STATES, rng)
    for name, x in values.items():
        if x.is_floating_point():
            values[name] = x + noise(x[0].numel()).view_as(x)
    sizes = {"sensordata": m.nsensordata, "ctrl": m.nu}
    sizes |= {name: task.action_width for name in ("action", "previous")}
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

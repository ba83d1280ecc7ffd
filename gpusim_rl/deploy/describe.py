"""The description of an exported controller: JSON in the metadata of its ONNX file.

`docs/policy.schema.json` is its schema.
"""

import mujoco
from torch import Tensor

from gpusim_rl.core.provenance import versions
from gpusim_rl.deploy.controller import COMMAND, FAULT, MEMORY, NEXT, RESTART, TARGETS, Controller
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.deploy.record import Ranges
from gpusim_rl.envs.declarations import Command, Rotation
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.envs.task import Task
from gpusim_rl.robots.servos import actuators, driven_joints, driven_things, gear
from gpusim_rl.sim.actuator_spec import Actuator

FORMAT = 4
UNITS = {  # → kinds of sensors, by the name of their MuJoCo type; the unit of any other is 1
    "rad/s": ("GYRO", "FRAMEANGVEL", "BALLANGVEL"),
    "m/s²": ("ACCELEROMETER",),
    "m": ("RANGEFINDER", "TENDONPOS"),
    "m/s": ("TENDONVEL",),
    "N": ("TOUCH", "FORCE", "TENDONACTFRC", "ACTUATORFRC"),
    "N m": ("TORQUE",),
    "s": ("CLOCK",),
    "pixel": ("CAMPROJECTION",),
}
OF_A_JOINT = {"JOINTPOS": "{}", "JOINTVEL": "{}/s", "JOINTACTFRC": "{force}"}
ENDS = ("least", "low", "high", "greatest")  # of the numbers that an input had
UP = "the world's up axis, so minus projected gravity: (0, 0, 1) when the frame is upright"
AXES = {"FRAMEXAXIS": "x axis", "FRAMEYAXIS": "y axis", "FRAMEZAXIS": "z axis"}


def describe(controller: Controller, *, name: str, ranges: Ranges, lineage: Json) -> Json:
    """The description of a controller for a robot's program. JSON keeps every bit of its floats.

    The arguments are those of `export.export`.
    """
    task, start, actor = controller.task, controller.start, controller.actor_memory
    inputs = describe_inputs(controller, ranges)
    memory = [describe_memory(k, x, "actor" if k in actor else "task") for k, x in start.items()]
    return whole(name, task.mjm, task.dt, inputs, memory, task.actuator, lineage)


def whole(
    name: str,
    m: mujoco.MjModel,
    dt: float,
    inputs: list[Json],
    memory: list[Json],
    actuator: Actuator,
    lineage: Json,
) -> Json:
    """The description of a controller whose inputs, without the restart, and memory have theirs."""
    built = versions()
    return {
        "format": FORMAT,
        "kind": "controller",
        "task": name,
        "robot": m.names.split(b"\0", 1)[0].decode(),  # as `model_name` gives it
        "dt": dt,
        "inputs": [*inputs, {"name": RESTART, "kind": RESTART, "type": "bool", "shape": []}],
        "memory": memory,
        "outputs": [describe_targets(m), {"name": FAULT, "type": "bool", "shape": []}],
        "actuator": actuator.description(),
        "lineage": lineage | {"commit": built["commit"], "versions": built},
    }


def describe_memory(name: str, start: Tensor, of: str) -> Json:
    """What a controller remembers, by its value (1, …) at the start of an episode."""
    return {
        "name": name,
        "input": MEMORY + name,
        "output": NEXT + name,
        "type": str(start.dtype).removeprefix("torch."),
        "shape": list(start.shape[1:]),
        "start": start[0].tolist(),  # at an export, outside the iteration
        "of": of,
    }


def describe_inputs(controller: Controller, ranges: Ranges) -> list[Json]:
    """The readings, the command and the views: names, units, frames, joints, ranges."""
    task, shapes, entries = controller.task, controller.shapes(), []
    for name in controller.readings:
        entry: Json = {"name": name, "kind": "reading", "type": "float32"}
        entry |= {"shape": list(shapes[name])}
        if name in controller.views:
            kind = str(controller.views[name].dtype).removeprefix("torch.")
            entries.append(entry | {"kind": "view", "type": kind})
            continue
        if name == COMMAND:
            entry |= {"kind": COMMAND} | describe_command(task)
        elif name in JOINTS:
            entry |= describe_joints(task.mjm, name)
        elif name in task.estimated:
            entry |= {"source": "estimator"} | task.estimated[name]
        else:
            entry |= describe_sensor(task.mjm, name)
        entries.append(entry | {"seen": dict(zip(ENDS, ranges[name], strict=True))})
    return entries


def describe_command(task: Task) -> Json:
    """The numbers of the command, and the ranges that it was trained for."""
    c = task.command
    if c is None:
        return {}
    trained = {"low": list(c.ends(-1)), "high": list(c.ends(1))}
    description = {"names": list(c.names), "units": list(c.units), "trained": trained}
    description |= {"center": list(c.center)} if c.center else {}
    description |= describe_rotations(c)
    return description | ({"shown_by": c.shown_by} if c.shown_by else {})


def describe_rotations(c: Command) -> Json:
    """The rotations of a command: `lean` and `spin` of one that is last, else a list."""
    turns = [
        {"first": columns.start, "lean": part.lean, "spin": part.spin}
        for part, columns in zip(c.parts, c.columns, strict=True)
        if isinstance(part, Rotation)
    ]
    if len(turns) == 1 and turns[0]["first"] == len(c.names) - 4:
        return {key: turns[0][key] for key in ("lean", "spin")}
    return {"rotations": turns} if turns else {}


def describe_targets(m: mujoco.MjModel) -> Json:
    """The output that goes to the actuators: joints, units, gains, limits and a safe pose."""
    description = actuators(m)
    description["safe_pose"] = description.pop("default_pose")
    if None in actuated_joints(m):
        description["drives"] = driven_things(m)
    return {
        "name": TARGETS,
        "type": "float32",
        "shape": [m.nu],
        "actuators": [m.actuator(i).name for i in range(m.nu)],
        "joints": actuated_joints(m),
        "units": [control_unit(m, i) for i in range(m.nu)],
        **description,
    }


# -- units and frames ------------------------------------------------------------------------------


def actuated_joints(m: mujoco.MjModel) -> list[str | None]:
    """The names of the joints that the actuators drive, in the order of ctrl; None for none."""
    return [m.joint(j).name if j >= 0 else None for j in driven_joints(m)]


def joint_unit(m: mujoco.MjModel, joint: int) -> str:
    """The unit of a joint's position."""
    return "m" if m.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE else "rad"


def control_unit(m: mujoco.MjModel, i: int) -> str:
    """The unit of actuator i's control: of a position, of a speed, or a multiple of a torque.

    Tendons and bodies have lengths and forces; a site turns if its gear has torques alone.
    """
    joint = driven_joints(m)[i]
    turns = m.actuator_trntype[i] == mujoco.mjtTrn.mjTRN_SITE and not m.actuator_gear[i, :3].any()
    unit = joint_unit(m, joint) if joint >= 0 else "rad" if turns else "m"
    if m.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_AFFINE:
        return unit if m.actuator_biasprm[i, 1] else f"{unit}/s"
    scale = gear(m, i) * float(m.actuator_gainprm[i, 0])
    force = "N m" if unit == "rad" else "N"
    return force if scale == 1 else f"{scale:g} {force}"


def describe_joints(m: mujoco.MjModel, name: str) -> Json:
    """The joints of a reading of `JOINTS`, in the order of ctrl, and their units."""
    speed = "/s" if name == JOINTS[1] else ""
    units = [joint_unit(m, j) + speed for j in driven_joints(m)]
    return {"joints": actuated_joints(m), "units": units}


def describe_sensor(m: mujoco.MjModel, name: str) -> Json:
    """The type, unit and frame of a sensor of the model."""
    i = m.sensor(name).id
    kind = mujoco.mjtSensor(m.sensor_type[i]).name.removeprefix("mjSENS_")
    thing = object_name(m, m.sensor_objtype[i], m.sensor_objid[i])
    units = [sensor_unit(m, i, kind)] * int(m.sensor_dim[i])
    description: Json = {"sensor": kind.lower(), "units": units}
    frame = object_name(m, m.sensor_reftype[i], m.sensor_refid[i])
    if kind in AXES:
        sign = {"sign": UP} if (kind, thing) == ("FRAMEZAXIS", "world") else {}
        return description | {"frame": frame, "meaning": f"{AXES[kind]} of {thing}"} | sign
    if kind in OF_A_JOINT or thing.startswith(("actuator", "tendon")):
        return description | {"of": thing}
    if kind in ("FRAMEQUAT", "FRAMEANGVEL"):
        what = "orientation" if kind == "FRAMEQUAT" else "angular velocity"
        return description | {"frame": frame, "meaning": f"{what} of {thing}"}
    return description | {"frame": thing}


def sensor_unit(m: mujoco.MjModel, i: int, kind: str) -> str:
    if kind in OF_A_JOINT:
        unit = joint_unit(m, int(m.sensor_objid[i]))
        return OF_A_JOINT[kind].format(unit, force="N m" if unit == "rad" else "N")
    return next((unit for unit, kinds in UNITS.items() if kind in kinds), "1")


def object_name(m: mujoco.MjModel, kind: int, number: int) -> str:
    """An object of the model by its kind and name: `site imu`; `world` for none."""
    if number < 0:
        return "world"
    kind = mujoco.mjtObj(kind)
    name = mujoco.mj_id2name(m, kind, int(number))
    short = kind.name.removeprefix("mjOBJ_").lower().replace("xbody", "body")
    return "world" if short == "body" and number == 0 else f"{short} {name}"

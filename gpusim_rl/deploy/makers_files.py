"""Files that other programs write beside their networks, read as cards: Unitree's and rl_sar's."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from gpusim_rl.core.errors import warn_once
from gpusim_rl.core.files import Plain, read_whole
from gpusim_rl.deploy.exported import parse_onnx
from gpusim_rl.deploy.runtime import MAX_BYTES
from gpusim_rl.runs.config_file import Untagged, read_plain

UNKNOWN = {"repository": "unknown", "licence": "unknown"}
TIMESTEP_S = 0.005  # with which unitree_rl_lab and unitree_rl_mjlab train
UNITREE = {  # name of a term there → here
    "base_ang_vel": "gyro",
    "projected_gravity": "gravity",
    "velocity_commands": "command",
    "joint_pos_rel": "joint_pos_rel",
    "joint_vel_rel": "joint_vel",
    "last_action": "action",
}
RL_SAR = {  # name of a term there → here, and the key of its scale
    "lin_vel": ("velocity", "lin_vel_scale"),
    "ang_vel": ("gyro", "ang_vel_scale"),
    "gravity_vec": ("gravity", ""),
    "commands": ("command", "commands_scale"),
    "dof_pos": ("joint_pos_rel", "dof_pos_scale"),
    "dof_vel": ("joint_vel", "dof_vel_scale"),
    "actions": ("action", ""),
}
METADATA = {  # key of a network's metadata, by mjlab or holosoma → what a card calls it
    **{"joint_names": "joints", "dof_names": "joints", "default_joint_pos": "pose"},
    **{"joint_stiffness": "kp", "joint_damping": "kd", "kp": "kp", "kd": "kd"},
    **{"action_scale": "scale", "command_ranges": "command"},
}
ASIDE = ("pose", "kp", "kd", "history", "clock")  # that many cards need, beside the required ones
SPEEDS = {"forward": "lin_vel_x", "left": "lin_vel_y", "turn": "ang_vel_z"}


def unitree(path: Path, values: Plain, names: list[str]) -> Plain | None:
    """The card of a deploy.yaml of unitree_rl_lab or unitree_rl_mjlab; None of another file.

    It has two orders: gains are in the robot's, all else in the network's.
    """
    if "joint_ids_map" not in values:
        return None
    places = values["joint_ids_map"]
    if sorted(places) != [*range(len(names))]:
        raise ValueError(
            f"joint_ids_map: {len(places)} joints, the robot's file drives {len(names)}"
        )
    action = values["actions"]["JointPositionAction"]
    terms = values["observations"]
    steps = {x["history_length"] for x in terms.values()}
    if len(steps) > 1 or action["clip"] or any(x["clip"] for x in terms.values()):
        raise ValueError("clips, or histories of several lengths: write a card by hand")
    ranges = values["commands"]["base_velocity"]["ranges"]
    card = {
        **{"name": path.resolve().parent.name, "source": UNKNOWN, "dt": values["step_dt"]},
        "joints": [names[i] for i in places],
        **assume(path, timestep=TIMESTEP_S, integrator="implicitfast", cone="pyramidal"),
        "pose": action["offset"],
        "scale": action["scale"],
        "kp": [values["stiffness"][i] for i in places],
        "kd": [values["damping"][i] for i in places],
        "observe": [{term_here(name, UNITREE): x["scale"]} for name, x in terms.items()],
        "command": {name: ranges[key] for name, key in SPEEDS.items()},
    }
    history = {"steps": max(steps), "by": "term", "first": "oldest", "begin": "repeat"}
    return card | ({"history": history} if max(steps) > 1 else {})


def rl_sar(path: Path, values: Plain, names: list[str]) -> Plain | None:
    """The card of a config.yaml of rl_sar, with the base.yaml above it; None of another file.

    Lists are in the network's order, but for `joint_names`, which `joint_mapping` sorts. Commands
    are those of its joystick: up to 1.
    """
    key, own = next(iter(values.items()), ("", None))
    if len(values) > 1 or not isinstance(own, dict) or "observations" not in own:
        return None
    base = path.resolve().parents[key.count("/")] / "base.yaml"
    if not base.is_file():
        raise ValueError(f"there is no {base}, which belongs to it")
    (shared,) = read_plain(base, Untagged).values()
    own = shared | own
    if own["wheel_indices"]:
        raise ValueError("it drives wheels by speed, which no card describes")
    steps = own["observations_history"]
    terms = [term_here(x, RL_SAR) for x in own["observations"]]
    card = {
        **{"name": key, "source": UNKNOWN, "dt": float(own["dt"]) * own["decimation"]},
        **{"timestep": own["dt"], "joints": [own["joint_names"][i] for i in own["joint_mapping"]]},
        **assume(path, integrator="implicitfast", cone="pyramidal"),
        "pose": own["default_dof_pos"],
        "scale": own["action_scale"],
        "clip_action": [own["clip_actions_lower"], own["clip_actions_upper"]],
        **{"kp": own["rl_kp"], "kd": own["rl_kd"], "torque": own["torque_limits"]},
        "observe": [{name: own[scale] if scale else 1.0} for name, scale in terms],
        "clip": own["clip_obs"],
        "command": {name: [-1.0, 1.0] for name in SPEEDS},
    }
    if len(steps or ()) < 2:
        return card
    newest = steps == [*range(len(steps))]
    if not newest and steps != [*range(len(steps))][::-1]:
        raise ValueError(f"observations_history={steps}: write a card by hand")
    history = {"steps": len(steps), "by": own["observations_history_priority"]}
    return card | {
        "history": history | {"first": "newest" if newest else "oldest", "begin": "repeat"}
    }


def assume(path: Path, **physics: Any) -> Plain:
    """What a file does not say of the simulation, as its makers train; a line says so."""
    words = ", ".join(f"{key}={x}" for key, x in physics.items())
    warn_once(f"warning: {path} does not say {words}, which are assumed")
    return physics


def lacks(network: Path, required: Iterable[str]) -> str:
    """What the metadata of a network has of a card, and what it lacks, in words."""
    model = None if is_zipfile(network) else parse_onnx(read_whole(network, MAX_BYTES), network)
    metadata = [x.key for x in model.metadata_props] if model else []
    has = dict.fromkeys(METADATA[x] for x in metadata if x in METADATA)
    missing = [x for x in (*required, *ASIDE) if x not in has]
    known = f"the metadata has {', '.join(has)} alone" if has else "nothing describes the network"
    return f"{network}: {known}: write a card with {', '.join(missing)}: docs/adopt.md"


def term_here(name: str, names: Mapping[str, Any]) -> Any:
    """What a term of others is called here; ValueError for one that no card describes."""
    if name not in names:
        raise ValueError(f"the term {name!r} is none of {', '.join(names)}")
    return names[name]


READERS = unitree, rl_sar

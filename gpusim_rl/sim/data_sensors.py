"""Sensors that hold a field of MjData: what Gymnasium reads of it after a step.

MuJoCo's own sensors are computed at the beginning of a timestep. The integrator RK4 computes the
dynamics three times more, and what MjData then holds belongs to the last of these stages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mujoco
import numpy as np

# Why: docs/decisions/sims.md
# Fields (nbody, width) of MjData: positions, and external forces in the order torque, force. The
# stage at which MuJoCo computes each, and its width.
FIELDS = {"xpos": (mujoco.mjtStage.mjSTAGE_POS, 3), "cfrc_ext": (mujoco.mjtStage.mjSTAGE_ACC, 6)}


def sensor_types(*names: str) -> set[int]:
    """The sensor types of these names, such as GYRO."""
    return {int(getattr(mujoco.mjtSensor, f"mjSENS_{name}")) for name in names}


# Sensors for which mj_step computes cfrc_ext, at the beginning of a timestep.
COMPUTED_FOR = sensor_types("ACCELEROMETER", "FORCE", "TORQUE", "FRAMELINACC", "FRAMEANGACC")


class DataSensor(NamedTuple):
    """A `user` sensor with the name of a field: it has a body's row, or those of all bodies."""

    field: str
    rows: slice  # of the field
    columns: slice  # of sensordata
    late: bool  # it needs forces, which a restarted world does not have yet


def data_sensors(mjm: mujoco.MjModel) -> list[DataSensor]:
    """The sensors of a model that hold a field; other `user` sensors are left to who made them.

    ValueError if one has a wrong number of values, is of something else than a body, or is computed
    at another stage than its field.
    """
    sensors = []
    for i in np.flatnonzero(mjm.sensor_type == mujoco.mjtSensor.mjSENS_USER).tolist():
        name, first, width = mjm.sensor(i).name, int(mjm.sensor_adr[i]), int(mjm.sensor_dim[i])
        if name not in FIELDS:
            continue
        body, kind = int(mjm.sensor_objid[i]), mujoco.mjtObj(int(mjm.sensor_objtype[i]))
        if kind not in (mujoco.mjtObj.mjOBJ_UNKNOWN, mujoco.mjtObj.mjOBJ_BODY):
            raise ValueError(f"the sensor {name!r} is of a {kind.name[6:].lower()}: name a body")
        stage, numbers = FIELDS[name]
        if mjm.sensor_needstage[i] != stage:
            expected = stage.name.removeprefix("mjSTAGE_").lower()
            raise ValueError(f"the sensor {name!r} needs needstage={expected!r}")
        rows = slice(0, mjm.nbody) if body < 0 else slice(body, body + 1)
        size = (rows.stop - rows.start) * numbers
        if width != size:
            raise ValueError(f"the sensor {name!r} has dim={width}: expected {size}")
        late = stage == mujoco.mjtStage.mjSTAGE_ACC
        sensors.append(DataSensor(name, rows, slice(first, first + width), late))
    return sensors


def computed_by_step(mjm: mujoco.MjModel, sensors: list[DataSensor]) -> bool:
    """Whether mj_step leaves the forces of its last stage, so that nothing is to be computed."""
    if all(sensor.field != "cfrc_ext" for sensor in sensors):
        return True
    one_stage = mjm.opt.integrator != mujoco.mjtIntegrator.mjINT_RK4
    return one_stage and bool(COMPUTED_FOR & set(mjm.sensor_type.tolist()))


def write(sensors: list[DataSensor], fields: Callable[[str], Any], sensordata: Any) -> None:
    """Write what `fields` returns by name, (B, nbody, …), to sensordata (B, ns). In place."""
    for field, rows, columns, _ in sensors:
        sensordata[:, columns] = fields(field)[:, rows].reshape(len(sensordata), -1)

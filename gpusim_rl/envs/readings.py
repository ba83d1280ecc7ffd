"""Readings: what a robot measures. Noise, biases and delays belong to them."""

import mujoco

from gpusim_rl.sim.data_sensors import sensor_types

# Joints by their actuators, in the order of ctrl: what servos report.
JOINTS = ("joint_pos", "joint_vel")
# Sensors that a robot can carry, by their MuJoCo type. The others need the simulator: velocimeter,
# framepos, framelinvel, centers of mass, energies, distances between geoms.
CARRIED = sensor_types(
    *("GYRO", "ACCELEROMETER", "MAGNETOMETER", "CLOCK"),
    *("FRAMEQUAT", "FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS", "FRAMEANGVEL"),  # of an IMU
    *("TOUCH", "TACTILE", "FORCE", "TORQUE", "RANGEFINDER", "CAMPROJECTION"),
    *("JOINTPOS", "JOINTVEL", "JOINTACTFRC", "BALLQUAT", "BALLANGVEL"),
    *("ACTUATORPOS", "ACTUATORVEL", "ACTUATORFRC"),
    *("TENDONPOS", "TENDONVEL", "TENDONACTFRC"),
)


def measured(model: mujoco.MjModel) -> dict[str, int]:
    """Readings that a robot of this model can measure: name → width.

    These are the sensors of a type that a robot can carry, in the model's order, and the angles and
    speeds of the actuated joints.
    """
    sensors = {
        model.sensor(i).name: int(model.sensor_dim[i])
        for i in range(model.nsensor)
        if model.sensor_type[i] in CARRIED
    }
    return sensors | {name: int(model.nu) for name in JOINTS}

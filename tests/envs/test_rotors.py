"""Actuators on sites, motors of unequal gain, and wind: what a flying robot needs."""

import mujoco
import pytest
import torch

from gpusim_rl.core.rng import Rng
from gpusim_rl.deploy.describe import actuated_joints, control_unit
from gpusim_rl.envs.mirror import Reflector, wrench_images
from gpusim_rl.envs.randomization.randomization import Randomization
from gpusim_rl.envs.readings import measured
from gpusim_rl.robots.servos import actuators
from tests.worlds import SIMS, make_actuator, make_sim

# Rotors at the corners of a square; those on a diagonal turn the same way.
CORNERS = dict(FL=(1, 1, 1), FR=(1, -1, -1), RL=(-1, 1, -1), RR=(-1, -1, 1))
B = 4


def mjcf(air: str = 'density="1.2"', gear: str = "0 0 1 0 0 {}") -> str:
    """A body of 1 kg with a rotor at each corner, 0.1 m from its middle along x and y."""
    sites, motors = "", ""
    for name, (x, y, turn) in CORNERS.items():
        sites += f'<site name="{name}" pos="{0.1 * x} {0.1 * y} 0"/>'
        motors += f'<motor name="{name}" site="{name}" gear="{gear.format(0.02 * turn)}"/>'
    return f"""<mujoco><option timestep="0.01" {air}><flag autoreset="disable"/></option>
      <worldbody><body name="base" pos="0 0 5"><freejoint/>
        <inertial pos="0 0 0" mass="1" diaginertia="0.01 0.01 0.015"/>{sites}
      </body></worldbody><actuator>{motors}</actuator></mujoco>"""


def model(**keys: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(mjcf(**keys))


def randomization(m: mujoco.MjModel, **entries: dict) -> Randomization:
    return Randomization(
        m, entries, actuator=make_actuator(), dt=0.02, readings=measured(m), device="cpu"
    )


def test_a_rotor_is_mirrored_to_the_other_side():
    """Rotors swap sides and keep their sign; thrust and torques at one site keep their place."""
    m = model()
    left_right = {0: (1, 1.0), 1: (0, 1.0), 2: (3, 1.0), 3: (2, 1.0)}
    assert wrench_images(m, 1) == left_right
    assert wrench_images(m, 0) == {0: (2, 1.0), 1: (3, 1.0), 2: (0, 1.0), 3: (1, 1.0)}
    image = Reflector(m, 1, None, "cpu").driven_joints(targets=True)
    assert image(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).tolist() == [[2.0, 1.0, 4.0, 3.0]]
    spec = mujoco.MjSpec.from_string(mjcf())
    for rotor in spec.actuators:
        rotor.target = "FL"
    spec.site("FL").pos = 0, 0, 0
    for rotor, part in zip(spec.actuators, (2, 3, 4, 5), strict=True):
        rotor.gear = [float(i == part) for i in range(6)]
    # thrust stays, roll and yaw turn round, pitch stays: a torque is a pseudovector
    assert wrench_images(spec.compile(), 1) == {0: (0, 1), 1: (1, -1), 2: (2, 1), 3: (3, -1)}


def test_rotors_that_all_turn_one_way_have_no_image():
    """Where a mirrored rotor would have to turn the other way, the line names it."""
    m = model(gear="0 0 1 0 0 0.02")
    assert wrench_images(m, 1) == {}
    with pytest.raises(ValueError, match="actuator 'FL' drives the site FL, which has no mirror"):
        Reflector(m, 1, None, "cpu")


def test_a_model_without_joint_actuators_is_described():
    """Each actuator has its unit and no joint."""
    m = model()
    assert actuated_joints(m) == [None] * 4 and actuators(m)["default_pose"] == [None] * 4
    assert [control_unit(m, i) for i in range(4)] == ["N"] * 4


@pytest.mark.parametrize("name", SIMS)
def test_wind_and_gain_reach_the_physics(name):
    """Each world has its own wind, which carries the body along, and thrusts of its own gains."""
    m = model()
    fields = ("opt.wind", "actuator_gainprm")
    sim = make_sim(name, m, B, fields=fields)
    wind, gain = (sim.model(field) for field in fields)
    wind.copy_(torch.tensor([[0.0, 0, 0], [3.0, 0, 0], [0, -3.0, 0], [0, 0, 0]]))
    gain[3, :, 0] *= 1.1
    start = torch.tensor(m.qpos0, dtype=sim.qpos.dtype).expand(B, -1)
    sim.reset(torch.ones(B, dtype=torch.bool), start, torch.zeros_like(sim.qvel))
    sim.ctrl.fill_(9.81 / 4)
    sim.step(50)
    still, east, south, strong = sim.qvel.double()
    assert still.abs().max() < 1e-5
    assert east[0] > 0.01 and east[1].abs() < 1e-5
    assert south[1].item() == pytest.approx(-east[0].item(), rel=1e-4)
    # a tenth more than its weight lifts it at 0.981 m/s², for half a second; drag is below 1 %
    assert strong[2].item() == pytest.approx(0.4905, rel=0.01)


def test_wind_blows_from_anywhere():
    """The speed is uniform between its ends, the direction uniform around; it is level."""
    random = randomization(model(), wind=dict(kind="uniform", low=1.0, high=3.0))
    rng = Rng(1, torch.arange(4096))
    wind = random.restart({"qpos": torch.zeros(4096, 7)}, rng)["opt.wind"]
    speed, angle = wind.norm(dim=1), torch.atan2(wind[:, 1], wind[:, 0])
    assert wind.shape == (4096, 3) and not wind[:, 2].any()
    assert 1 <= speed.min() < 1.01 and 2.99 < speed.max() <= 3
    assert speed.mean().item() == pytest.approx(2.0, abs=0.03)
    for quarter in range(4):  # 1,024 of 4,096 with a standard deviation of 28
        share = (angle >= (quarter - 2) * torch.pi / 2) & (angle < (quarter - 1) * torch.pi / 2)
        assert share.sum().item() == pytest.approx(1024, abs=112)


def test_what_does_not_fit_is_refused():
    """Wind without air, and the gain of a servo, are one line each."""
    with pytest.raises(ValueError, match="this model has no air"):
        randomization(model(air=""), wind=dict(kind="uniform", low=0.0, high=3.0))
    spec = mujoco.MjSpec.from_string(mjcf())
    spec.actuators[1].set_to_position(1.0)
    entry = dict(kind="uniform", low=0.9, high=1.1, each=True, only=None)
    with pytest.raises(ValueError, match="gain: actuator 'FR' is no motor"):
        randomization(spec.compile(), gain=entry)

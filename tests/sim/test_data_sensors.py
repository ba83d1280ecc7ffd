"""Sensors that hold a field of MjData, in each Sim, against MuJoCo C."""

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.sim.data_sensors import data_sensors
from tests.worlds import SIMS, make_sim, make_task

RK4, EULER, FAST = (
    int(getattr(mujoco.mjtIntegrator, f"mjINT_{name}")) for name in ("RK4", "EULER", "IMPLICITFAST")
)
# largest differences: a float64 engine is the reference, a float32 one is close
CLOSE = {"native": 1e-6, "warp": 2e-3}


def make_model(integrator: int, computed: bool = True) -> mujoco.MjModel:
    """The ant's model with an integrator; `computed`: a sensor has MuJoCo compute forces."""
    text = make_task("ant").mjcf_text()
    if not computed:
        text = text.replace('<accelerometer name="accelerometer" site="imu"/>', "")
    model = mujoco.MjModel.from_xml_string(text)
    model.opt.integrator = integrator
    # with pyramids, the engines differ: friction depends on how a contact's frame is turned
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    return model


@pytest.mark.parametrize("sim", SIMS)
@pytest.mark.parametrize(
    "integrator, computed", [(RK4, True), (EULER, True), (FAST, True), (RK4, False)]
)
def test_fields_are_those_after_a_step(sim, integrator, computed):
    """They are MjData's after mj_step and mj_rnePostConstraint, while the ant falls."""
    model = make_model(integrator, computed)
    data, engine = mujoco.MjData(model), make_sim(sim, model, 2)
    columns = {x.field: x.columns for x in data_sensors(model)}
    random, touched = np.random.default_rng(0), 0
    for _ in range(40):
        qpos, qvel = (torch.as_tensor(x.copy())[None].repeat(2, 1) for x in (data.qpos, data.qvel))
        engine.reset(torch.ones(2, dtype=torch.bool), qpos, qvel)
        data.ctrl[:] = 0.3 * random.uniform(-1, 1, model.nu)
        engine.ctrl[:] = torch.as_tensor(data.ctrl)
        data.qacc_warmstart[:] = 0  # as after a restart
        mujoco.mj_step(model, data)
        mujoco.mj_rnePostConstraint(model, data)
        engine.step(1)
        touched += data.ncon > 0
        got = engine.sensordata[1].double()
        for name, want in dict(xpos=data.xpos[1], cfrc_ext=data.cfrc_ext).items():
            scale = 1 + np.abs(want).max()
            wrong = np.abs(got[columns[name]].numpy() - want.ravel()).max() / scale
            assert wrong <= CLOSE[sim], name
    assert touched >= 5


@pytest.mark.parametrize("sim", SIMS)
def test_a_restarted_world_has_places_and_no_forces(sim):
    """After a reset the places are current, and the forces zero; other worlds keep theirs."""
    model = make_model(RK4)
    engine = make_sim(sim, model, 2)
    place, forces = (x.columns for x in data_sensors(model))
    while not engine.sensordata[:, forces].abs().amax() > 1:  # until the ant has fallen
        engine.step(1)
    before = engine.sensordata.clone()
    assert before[:, forces].abs().amax() > 1
    qpos = engine.qpos.clone()
    qpos[:, :3] = torch.tensor([1.0, 2.0, 3.0])
    engine.reset(torch.tensor([True, False]), qpos, 0 * engine.qvel)
    assert engine.sensordata[0, place].tolist() == [1.0, 2.0, 3.0]
    assert not engine.sensordata[0, forces].any()
    assert torch.equal(engine.sensordata[1], before[1])


def test_a_wrong_width_is_refused():
    """A sensor with too few numbers is an error that names it; others of its type are ignored."""
    text = make_task("ant").mjcf_text()
    with pytest.raises(ValueError, match=r"'cfrc_ext' has dim=80: expected 84"):
        data_sensors(mujoco.MjModel.from_xml_string(text.replace('dim="84"', 'dim="80"')))
    other = text.replace('name="cfrc_ext" dim="84"', 'name="own" dim="5"')
    assert [x.field for x in data_sensors(mujoco.MjModel.from_xml_string(other))] == ["xpos"]

"""Forward kinematics of a chain against MuJoCo's."""

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.robots.chain import Chain
from gpusim_rl.robots.models import find_mjcf

CROOKED = """<mujoco>
  <worldbody><body pos="0.1 0.2 0.3" quat="1 2 3 4"><joint axis="1 1 0" pos="0.1 0 0.2"/>
    <geom size="0.1"/>
    <body pos="0 0.3 0" quat="1 0 1 0"><geom size="0.1"/>
      <body pos="0.2 0 0" euler="10 20 30"><joint axis="0 0 -1" pos="0 0.1 0"/><geom size="0.1"/>
        <site name="tool" pos="0.1 0.2 0.3" quat="4 3 2 1"/>
      </body></body></body></worldbody>
</mujoco>"""


def models() -> dict[str, mujoco.MjModel]:
    """The arm, and a chain with a fixed body, anchors off the bodies, and any axes."""
    arm = mujoco.MjModel.from_xml_path(str(find_mjcf("arm.xml")))
    return {"arm": arm, "crooked": mujoco.MjModel.from_xml_string(CROOKED)}


@pytest.mark.parametrize("name", ["arm", "crooked"])
def test_pose_as_mujoco(name):
    """The position and axes of the tool are mj_kinematics's, to float64's rounding."""
    m = models()[name]
    d, chain = mujoco.MjData(m), Chain(m, "tool")
    angles = np.random.default_rng(0).uniform(-3, 3, (50, m.nq))
    position, axes = chain.pose(torch.from_numpy(angles))
    assert chain.joints == [*range(m.njnt)]
    for i, d.qpos in enumerate(angles):
        mujoco.mj_kinematics(m, d)
        np.testing.assert_allclose(position[i], d.site("tool").xpos, atol=1e-10)
        np.testing.assert_allclose(axes[i], d.site("tool").xmat.reshape(3, 3), atol=1e-10)


def test_a_row_is_for_itself():
    """The tool's pose has the same bits whatever the other rows are."""
    chain = Chain(models()["arm"], "tool")
    angles = torch.rand(37, 7, generator=torch.Generator().manual_seed(0))
    for all_of_them, alone in zip(chain.pose(angles), chain.pose(angles[5:6]), strict=True):
        assert torch.equal(all_of_them[5:6], alone)


def test_published_lengths():
    """Stretched upwards, the arm is as high as the published lengths add up to.

    0.333 + 0.316 + 0.384 m to the wrist, and 0.088 m forward; with joint 6 at 0 the flange points
    down again, 0.107 m, and the hand's fingertips are 0.1034 m beyond it.
    """
    position, axes = Chain(models()["arm"], "tool").pose(torch.zeros(1, 7))
    want = torch.tensor([[0.088, 0.0, 0.333 + 0.316 + 0.384 - 0.107 - 0.1034]])
    torch.testing.assert_close(position, want, rtol=0, atol=1e-6)
    torch.testing.assert_close(axes[0], torch.diag(torch.tensor([1.0, -1.0, -1.0])))


@pytest.mark.parametrize("joints", ['<joint type="slide"/>', "<joint/><joint axis='1 0 0'/>"])
def test_other_joints_are_refused(joints):
    """A slide, or two hinges of one body, are refused with the body's name."""
    text = f"""<mujoco><worldbody><body name="rail">{joints}<geom size="0.1"/>
    <site name="tool"/></body></worldbody></mujoco>"""
    with pytest.raises(ValueError, match="'rail' moves otherwise"):
        Chain(mujoco.MjModel.from_xml_string(text), "tool")

"""A task that places bodies: a ball jumps about, and each world has its own."""

import contextlib
from dataclasses import dataclass

import pytest
import torch

from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.tracing import needs
from gpusim_rl.envs.worst_step import step_tensors
from gpusim_rl.play.rollouts import RunRollout
from gpusim_rl.viewer.offscreen import Camera
from tests.worlds import Stateless, copies, differing, make_sim_of, make_task

ARM = """
<mujoco>
  <option timestep="0.01" integrator="implicitfast" iterations="6" ls_iterations="10">
    <flag autoreset="disable"/>
  </option>
  <worldbody>
    <body name="ball" mocap="true"><geom size="0.05" contype="0" conaffinity="0"/></body>
    <body><joint name="turn" axis="0 0 1" damping="0.5"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator><position joint="turn" kp="5" kv="0.5"/></actuator>
  <sensor><framepos name="seen" objtype="xbody" objname="ball"/></sensor>
</mujoco>
"""
EVERY = 5  # control steps between two jumps


@dataclass(kw_only=True)
class Ball(Task):
    """An arm that points at a ball, which jumps."""

    peeks: bool = False  # the actor reads where the ball was placed, which no robot measures
    balls: int = 1  # that are placed
    placed: bool = True

    def jumped(self, rng):
        ends = self.tensor([[-1.0, -1.0, 0.0]]), self.tensor([[1.0, 1.0, 0.5]])
        return rng.uniform("ball", *ends)

    def start(self, n, rng):
        zero = torch.zeros(n, 1, device=self.device)
        turn = self.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(n, 1, 4)
        placed = dict(mocap_pos=self.jumped(rng).expand(n, self.balls, 3), mocap_quat=turn)
        return dict(qpos=zero, qvel=zero) | (placed if self.placed else {})

    def update(self, s, rng):
        again = (s.time % EVERY == 0)[:, None, None]
        return dict(mocap_pos=torch.where(again, self.jumped(rng), s.mocap_pos))

    def observe(self, s):
        return dict(joint=s.joint_pos, **({"shown": s.mocap_pos.flatten(1)} if self.peeks else {}))

    def privileged(self, s):
        return dict(ball=s.mocap_pos.flatten(1), seen=s.seen)

    def reward(self, s):
        return dict(near=-((s.mocap_pos[:, 0] - s.seen) ** 2).sum(1))

    def score(self, record):
        return dict(success=1.0)


@pytest.fixture
def make(tmp_path):
    """Makes an Env of the task."""
    (file := tmp_path / "arm.xml").write_text(ARM)

    def env(sim: str = "native", worlds: int = 4, **settings) -> Env:
        numbers = dict(mjcf=str(file), dt=0.02, episode=0.4, history={}, randomise={})
        task = Ball(
            **numbers
            | dict(clip=1.0, observation_delay=(0, 0), share_at_ends=0.0)
            | dict(actuator=make_task("cartpole").actuator)
            | settings
        )
        weights = {"near": 1.0}
        return Env(task, make_sim_of(task, worlds, sim), seed=1, weights=weights, noise={})

    return env


@pytest.mark.parametrize("sim", ["native", "warp"])
def test_a_ball_jumps(make, sim):
    """It is where the task put it, anew with each episode and each jump; a world has its own."""
    env, places = make(sim), []
    for _ in range(25):
        env.step(torch.zeros(4, 1))
        places.append(env.sim.mocap_pos[:, 0].float().clone())
        assert torch.equal(env.current_state().mocap_pos[:, 0], places[-1])
    moved = (torch.stack(places[1:]) != torch.stack(places[:-1])).any(2)
    assert (moved.sum(0) >= 4).all() and not moved.all(1).all()
    assert len(torch.stack(places).view(-1, 3).unique(dim=0)) > 16
    assert "mocap_pos" in step_tensors(env.sim, (), False)


def test_sensors_know_it_after_a_restart(make):
    """At the first observation of an episode the ball's own sensor is where it was placed."""
    env = make()
    env.restart()
    s = env.current_state()
    torch.testing.assert_close(s.seen, s.mocap_pos[:, 0])


@pytest.mark.parametrize("sim", ["native", "warp"])
def test_it_goes_on_exactly(make, sim):
    """A state that is loaded continues bit by bit."""
    first, second = make(sim), make(sim)
    for _ in range(7):
        first.step(torch.ones(4, 1))
    second.load(first.state())
    for env in (first, second):
        env.step(torch.ones(4, 1))
    assert differing(copies(first.state()), second.state()) == []


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(peeks=True), "the term 'shown' reads 'mocap_pos', which no robot measures"),
        (dict(balls=2), r"'mocap_pos' has shape \(4, 2, 3\), expected \(4, 1, 3\): of each mocap"),
        (dict(placed=False), "'mocap_pos' is no entry of the memory"),
    ],
)
def test_a_mistake_is_one_line(make, settings, says):
    """The actor reads it; the model has fewer bodies; `start` does not place what moves."""
    with pytest.raises(ValueError, match=says) as caught:
        make(**settings)
    assert "\n" not in str(caught.value)


def test_pictures_show_it(make):
    """Two worlds whose arms are alike look as different as their balls are."""
    still = Stateless(lambda obs: torch.zeros(len(obs), 1))
    numbers = dict(weights={"near": 1.0}, noise={}, seed=1)
    rollout = RunRollout(still, make().task, 2, **numbers)  # type: ignore[arg-type]
    rollout.step(None)
    first, second = rollout.pose()
    torch.testing.assert_close(
        torch.from_numpy(first[1:4]).float(), rollout.env.sim.mocap_pos[0, 0].float()
    )
    assert first[0] == pytest.approx(second[0], abs=1e-6)
    with contextlib.closing(Camera(rollout.model, 64, 64, "above")) as camera:
        pictures = [camera(pose).astype(int) for pose in (first, second)]
        assert camera.data.mocap_pos[0] == pytest.approx(second[1:4])
        assert camera.data.mocap_quat[0].tolist() == [1, 0, 0, 0]
    assert (abs(pictures[0] - pictures[1]).sum(2) > 20).sum() > 10


def test_it_is_no_memory_of_the_robot(make):
    """An exported controller does not carry it."""
    assert needs(make().task).memory == ()

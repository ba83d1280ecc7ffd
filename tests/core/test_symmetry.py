"""Symmetry: mirrored physics, networks that commute, the update over images, and what a robot must
be for it."""

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.ppo.loss import APPROX_KL, loss
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.assembly.environment import robot_arguments
from gpusim_rl.assembly.iteration import make_iteration as build_iteration
from gpusim_rl.assembly.joining import RunSpec, make_spec
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.sections import Config
from gpusim_rl.core.record import Record
from gpusim_rl.core.symmetry import (
    Flip,
    MirrorModule,
    ViewMirrors,
    concatenated,
    unmoved,
    view_mirrors,
)
from gpusim_rl.deploy.export import export_network, session
from gpusim_rl.envs.declarations import Reflection
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.mirror import derive_flips
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.networks.symmetric import EvenOddMerge, EvenOddSplit, SymmetricMLP
from gpusim_rl.robots.quadruped.symmetry import hinge_signs
from gpusim_rl.sim.actuator_spec import Actuator
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests import robot_files, worlds
from tests.exported import record_observations
from tests.guard import reads_nothing
from tests.worlds import (
    TASKS,
    goes_on,
    make_actuator,
    make_config,
    make_env,
    make_policy,
    make_robot,
    make_task,
    widths,
)

KINDS = ("augment", "net")
STILL = dict(randomise={}, redraw=100.0)  # no randomization
MIRRORED = [name for name in TASKS if name not in ("hopper", "imitate")]
HISTORY = {"joints": 3, "action": 2}


@pytest.fixture(scope="module")
def hund(tmp_path_factory) -> str:
    """A stranger's robot; its front knees turn opposite ways."""
    return robot_files.write(tmp_path_factory.mktemp("hund"), robot_files.mjcf())


def settings(mjcf: str) -> dict:
    return robot_arguments(Quadruped, make_config("task=quadruped", f"robot.mjcf={mjcf}").robot)


def images_of(env: Env) -> ViewMirrors:
    return view_mirrors(derive_flips(env.task), env.term_widths, env.task.history)


def make_ppo(kind: str, env: Env | None = None, **cfg) -> Iteration:
    return worlds.make_ppo(env or make_env(episode=0.3, history=HISTORY), symmetry=kind, **cfg)


def shaken(policy: ActorCritic, scale: float = 0.3) -> ActorCritic:
    """With random weights and biases everywhere."""
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(scale * torch.randn(p.shape, generator=g))
    return policy


def error(policy: ActorCritic, images: ViewMirrors) -> float:
    """Largest |π(M o) - A π(o)| of the exported actor, and |V(M s) - V(s)|, over 1,000 views."""
    g = torch.Generator().manual_seed(0)
    view, wide, out = map(MirrorModule, images)
    o, s = (3 * torch.randn(1000, len(flip.order), generator=g) for flip in images[:2])
    with torch.no_grad():
        acted = policy.actor(view(o)) - out(policy.actor(o))
        trained, there = (policy.mean(policy.actor.normalizer(x)) for x in (view(o), o))
        valued = policy.value(policy.critic_normalizer(wide(s))) - policy.value(
            policy.critic_normalizer(s)
        )
    return max(x.abs().max().item() for x in (acted, trained - out(there), valued))


def reflect(env: Env, qpos: Tensor, qvel: Tensor) -> None:
    """Restart the second half of an Env's worlds in these states, the image of the first half."""
    n = env.num_envs // 2
    pos, vel = env.sim.qpos.clone(), env.sim.qvel.clone()
    pos[n:], vel[n:] = qpos, qvel
    env.sim.reset(torch.ones(2 * n, dtype=torch.bool), pos, vel)


# -- the task in a mirror --------------------------------------------------------------------------


def turn(env: Env, qpos: Tensor, qvel: Tensor) -> tuple[Tensor, Tensor]:
    """qpos, qvel of a quadruped, reflected in the x-z plane of the world."""
    joints = MirrorModule(derive_flips(env.task)["joints"]).double()
    angles, speeds = env.task.joint_columns[:2]
    q, v = qpos.clone(), qvel.clone()
    q[:, [1, 4, 6]] *= -1  # y; x and z of the quaternion
    v[:, [1, 3, 5]] *= -1
    stance = env.task.stance.double()
    q[:, angles] = stance + joints(qpos[:, angles] - stance)
    v[:, speeds] = joints(qvel[:, speeds])
    return q, v


def mirrored(env: Env, steps: int, *, noise: float, far: float, paid: float) -> tuple[int, Tensor]:
    """Step worlds, of which the second half are the images of the first: mirrored actions give
    mirrored views and equal rewards.

    Args:
        noise: deviation of what each action adds to 0.8 of the one before.
        far: tolerance of views; paid: of rewards.
    Returns:
        steps before a world or its image fell, and the largest number of each column of the view.
    """
    images, g = images_of(env), torch.Generator().manual_seed(0)
    _, wide, out = map(MirrorModule, images)
    n, lived, largest = env.num_envs // 2, 0, torch.zeros(len(images.critic.order))
    action, live = torch.zeros(n, env.task.action_width), torch.ones(n, dtype=torch.bool)
    for _ in range(steps):
        action = 0.8 * action + noise * torch.randn(action.shape, generator=g)
        step = env.step(torch.cat([action, out(action)]))
        close = dict(rtol=0, atol=far)
        torch.testing.assert_close(wide(step.end[:n])[live], step.end[n:][live], **close)
        torch.testing.assert_close(step.reward[:n][live], step.reward[n:][live], rtol=0, atol=paid)
        assert torch.equal(step.terminated[:n][live], step.terminated[n:][live])
        live &= ~step.terminated[:n]  # a world that falls is restarted elsewhere than its image
        lived += int(live.sum())
        largest = torch.maximum(largest, step.end[:n][live].abs().amax(0))
    return lived, largest


@pytest.mark.parametrize("brought", [False, True])
def test_the_mirrored_quadruped_does_the_mirrored_thing(brought, hund):
    """Real physics, 50 control steps. The tolerance is that of speeds of 10 rad/s."""
    env = make_env(num_envs=16, stagger=False, **STILL, **(settings(hund) if brought else {}))
    reflect(env, *turn(env, env.sim.qpos[:8], env.sim.qvel[:8]))
    env.memory["command"][8:] = env.memory["command"][:8] * torch.tensor([1.0, -1.0, -1.0])
    env.memory["phase"][8:] = (env.memory["phase"][:8] + 0.5) % 1
    env.update_observations()
    lived, largest = mirrored(env, 50, noise=0.2, far=5e-4, paid=1e-6)
    assert lived > 300 and (largest > 0.01).all()  # a wrong sign in any column would have shown


def test_the_mirrored_cartpole_does_the_mirrored_thing():
    """100 control steps of the cart."""
    env = make_env("cartpole", 8, stagger=False, randomise={})
    reflect(env, -env.sim.qpos[:4], -env.sim.qvel[:4])  # hanging at π: -π is the same
    lived, largest = mirrored(env, 100, noise=0.4, far=1e-5, paid=1e-6)
    assert lived == 400 and largest[0] > 0.1


def test_the_mirrored_ant_does_the_mirrored_thing():
    """20 control steps of the ant, which falls onto its feet: contact forces are in its view."""
    env = make_env("ant", 16, stagger=False)
    legs = MirrorModule(GOLDEN["ant"]["joints"]).double()
    qpos, qvel = env.sim.qpos[:8].clone(), env.sim.qvel[:8].clone()
    qpos[:, 7:], qvel[:, 6:] = legs(qpos[:, 7:]), legs(qvel[:, 6:])
    qpos[:, :7] *= torch.tensor([1, -1, 1, 1, -1, 1, -1])
    qvel[:, :6] *= torch.tensor([1, -1, 1, -1, 1, -1])
    reflect(env, qpos, qvel)
    env.memory["x"][8:] = env.memory["x"][:8]
    lived, largest = mirrored(env, 20, noise=0.15, far=1e-3, paid=1e-4)
    assert lived == 160 and largest[27:105].max() > 0.5


SWAPPED = Flip((3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8), (-1.0, 1.0, 1.0) * 4)
# Written by hand, before the images of terms were derived.
# Pitch, roll, yaw of the hip, knee, pitch and roll of the ankle: the legs change sides
LEGS = Flip((*range(6, 12), *range(6)), (1, -1, -1, 1, 1, -1) * 2)
PAIRS = Flip((1, 0, 3, 2), (1, 1, 1, 1))
WALKER = dict(
    gyro=unmoved(-1, 1, -1),  # a pseudovector
    up=unmoved(1, -1, 1),
    velocity=unmoved(1, -1, 1),
    height=unmoved(1),
    command=unmoved(1, -1, -1),
    mean_error=unmoved(1, -1, -1),
    clock=unmoved(-1, -1),  # legs change sides: half a turn
)
GOLDEN = {
    "quadruped": WALKER | {x: SWAPPED for x in ("joints", "speeds", "action")} | dict(feet=PAIRS),
    "humanoid": WALKER
    | {x: LEGS for x in ("joints", "speeds", "action")}
    | dict(feet=Flip((1, 0), (1, 1))),
    "drone": dict(
        **{name: unmoved(1, -1, 1) for name in ("up", "velocity", "goal", "drift")},
        **{name: PAIRS for name in ("action", "thrusts")},
        gyro=unmoved(-1, 1, -1),
        distance=unmoved(1),
    ),
    "cartpole": dict(
        cart=unmoved(-1), pole=unmoved(1, -1), speeds=unmoved(-1, -1), action=unmoved(-1)
    ),
}

# what turns about the vertical, or along the arm, turns round
ARM = unmoved(-1, 1, -1, 1, -1, 1, -1)
POINT, COLUMN = (1, -1, 1), (-1, 1, -1)  # R' = MRM: its second column also changes sign
GOLDEN["reach"] = {x: ARM for x in ("joints", "speeds", "lag", "rate", "torques", "action")}
GOLDEN["reach"] |= dict(command=unmoved(*POINT), error=unmoved(*POINT), since=unmoved(1))
GOLDEN["reach_pose"] = GOLDEN["reach"] | dict(
    command=unmoved(*POINT, *POINT, *COLUMN), turn=unmoved(*POINT, *COLUMN)
)
# Six rows of the height scan, each from right to left
SCAN = Flip(tuple(4 * i + j for i in range(6) for j in (3, 2, 1, 0)), (1.0,) * 24)
WALKING = ("command", "clock", "mean_error")  # what a robot that gets up does not have
GOLDEN["getup"] = {k: x for k, x in GOLDEN["quadruped"].items() if k not in WALKING}
GOLDEN["getup"] |= dict(torques=SWAPPED, lag=SWAPPED)
GOLDEN["quadruped_rough"] = GOLDEN["quadruped"] | dict(scan=SCAN)
# Hips turn about the vertical. Legs 1 and 4 change places, and legs 2 and 3.
HIPS = (-1.0, 1.0) * 4
BODIES = (0, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3)  # the torso, then three of each leg
GOLDEN["ant"] = dict(
    base=unmoved(1, 1, -1, 1, -1),  # height and quaternion
    velocity=unmoved(1, -1, 1, -1, 1, -1),
    joints=Flip((6, 7, 4, 5, 2, 3, 0, 1), HIPS),
    speeds=Flip((6, 7, 4, 5, 2, 3, 0, 1), HIPS),
    action=Flip((2, 3, 0, 1, 6, 7, 4, 5), HIPS),  # the motors of leg 4 come first
    contact=Flip(  # a torque, then a force
        tuple(6 * body + i for body in BODIES for i in range(6)),
        (-1.0, 1.0, -1.0, 1.0, -1.0, 1.0) * 13,
    ),
    progress=unmoved(1),
)


def test_which_tasks_have_a_mirror_image():
    """All but the hopper, whose body is flat."""
    assert [name for name in TASKS if make_task(name).mirror] == MIRRORED


@pytest.fixture(scope="module", params=MIRRORED)
def env(request) -> Env:
    """Worlds of a task, one of whose terms is shown three times."""
    return make_env(request.param, 2, history={next(iter(GOLDEN[request.param])): 3})


def test_every_term_has_its_image(env, request):
    """The images that follow from the model are those by hand; done twice they are nothing."""
    assert derive_flips(env.task) == GOLDEN[request.node.callspec.params["env"]]
    for flip in images_of(env):
        x = torch.randn(5, len(flip.order))
        assert torch.equal(MirrorModule(flip)(MirrorModule(flip)(x)), x)


def with_methods(**methods) -> Quadruped:
    """The quadruped with other methods."""
    task = make_task()
    task.__class__ = type("Walker", (Quadruped,), methods)  # pyright: ignore
    assert isinstance(task, Quadruped)
    return task


NO_IMAGE = {  # by what is said of each
    "Walker: 'odd' has no mirror image: column 0": dict(
        observe=lambda self, s: dict(odd=s.joint_pos[:, :1] + s.gyro[:, :1])
    ),
    "Walker: 'half' has no mirror image": dict(
        observe=lambda self, s: dict(half=s.joint_pos[:, :3] - self.stance[:3])
    ),
    "Walker: 'clock' has no mirror image: .* `mirror` declares what no sensor type tells": dict(
        mirror=property(lambda self: Reflection(axis=1))
    ),
    "is not even: '": dict(control=lambda self, s: self.stance + 0.3 * s.action.cumsum(1)),
    "Walker defines no mirror image": dict(mirror=None),
}


@pytest.mark.parametrize("says", NO_IMAGE)
def test_what_has_no_image_is_refused(says):
    """A term without an image, undeclared memory and an uneven control are one line."""
    with pytest.raises(ValueError, match=says) as error:
        derive_flips(with_methods(**NO_IMAGE[says]))
    assert "\n" not in str(error.value)


# -- networks --------------------------------------------------------------------------------------


def test_net_commutes_exactly(env):
    """With any weights and statistics, actor, critic and deviations commute to the last bit."""
    images = images_of(env)
    policies = [
        shaken(make_policy(*widths(env), hidden=(32, 32), symmetry=kind, mirrors=images, seed=1))
        for kind in ("net", "augment")
    ]
    policy = policies[0]
    for normalizer, width in zip(
        (policy.actor.normalizer, policy.critic_normalizer), widths(env)[:2], strict=True
    ):
        for seed in range(3):
            x = 1 + 2 * torch.randn(100, width, generator=torch.Generator().manual_seed(seed))
            normalizer.update(x, torch.ones(100, dtype=torch.bool))
    assert error(policy, images) == 0.0 and error(policies[1], images) > 0.1


@pytest.mark.parametrize("fused", [True, False])
def test_net_commutes_after_training(fused):
    """After three iterations it commutes still, deviations are even, and the policy has moved."""
    ppo = make_ppo("net", fused=fused, num_minibatches=2, update_epochs=2)
    images, before = images_of(ppo.env), ppo.policy.log_std.detach().clone()
    for _ in range(3):
        ppo.iteration()
    std = ppo.policy.std.detach()
    assert error(ppo.policy, images) == 0.0
    assert torch.equal(std, std[list(images.action.order)]) and (ppo.policy.log_std != before).all()
    assert len(std.unique()) == 6 and ppo.report()()["skipped"] == 0


def test_net_is_a_plain_network_of_pairs(env):
    """It is an ordinary network of pairs with weights [P+Q, P-Q; P-Q, P+Q], of half the numbers."""
    images = images_of(env)
    net = shaken(make_policy(*widths(env), hidden=(8, 6), symmetry="net", mirrors=images)).actor.net
    assert isinstance(net, SymmetricMLP)
    x = torch.randn(50, len(images.obs.order))
    parts = EvenOddSplit(images.obs)
    even, odd = parts(x).split(parts.widths, 1)
    p, q = net.even[0](even), net.odd[0](odd)
    h = net.activation(torch.cat([p + q, p - q], 1))  # (n, 8): u, then v
    p, q, bias = net.even[1].weight, net.odd[1].weight, net.even[1].bias
    weight = torch.cat([torch.cat([p + q, p - q], 1), torch.cat([p - q, p + q], 1)])
    h = net.activation(h @ weight.T + torch.cat([bias, bias]))
    u, v = h.chunk(2, 1)
    last = [layer[2](y) for layer, y in ((net.even, u + v), (net.odd, u - v)) if len(layer) > 2]
    torch.testing.assert_close(net(parts(x)), net.whole(torch.cat(last, 1)))
    torch.testing.assert_close(EvenOddMerge(parts)(parts(x)), x)
    plain = make_policy(*widths(env), hidden=(8, 6)).actor.net
    sizes = [sum(w.numel() for w in n.parameters()) for n in (net, plain)]
    assert sizes[0] <= 0.6 * sizes[1]


def test_statistics_of_views_and_their_images():
    """A mirrored normalizer absorbs a batch as a plain one absorbs the batch and its image."""
    flip = concatenated([unmoved(1, -1), Flip((1, 0, 2), (-1, -1, 1))])
    mirror = MirrorModule(flip)
    policy = make_policy(
        5, 5, 5, hidden=(4,), symmetry="net", mirrors=ViewMirrors(flip, flip, flip)
    )
    ours, plain = policy.actor.normalizer, make_policy(5, 5, 5, hidden=(4,)).actor.normalizer
    for seed in range(3):
        x = 3 + torch.randn(50, 5, generator=torch.Generator().manual_seed(seed)) * torch.arange(
            1, 6
        )
        valid = torch.arange(50) % 7 != 0
        ours.update(x, valid)
        plain.update(torch.cat([x, mirror(x)]), torch.cat([valid, valid]))
    torch.testing.assert_close(ours.mean, plain.mean)
    torch.testing.assert_close(ours.var, plain.var)
    signs = torch.tensor([1.0] * ours.parts.widths[0] + [-1.0] * ours.parts.widths[1])
    assert torch.equal(signs * ours(x), ours(mirror(x)))


def test_a_mirror_is_its_own_inverse():
    """Columns that do not come back, or come back with another sign, are refused."""
    for flip in (Flip((1, 2, 0), (1, 1, 1)), Flip((1, 0), (1, -1))):
        with pytest.raises(ValueError, match="is not the original"):
            MirrorModule(flip)


# -- the update ------------------------------------------------------------------------------------


def gradients(ppo: PPO) -> Tensor:
    """The gradients of the next minibatch, before they are clipped."""
    ppo.learner.optimizer.max_norm.fill_(1e9)
    ppo.learner.minibatch()
    return torch.cat([place.flatten() for place in ppo.learner.optimizer.gradients.values()])


@pytest.mark.parametrize("kind", KINDS)
def test_fused_is_plain(kind):
    """The kernels give the gradients and statistics of torch's formulas under autograd."""
    results = []
    for fused in (True, False):
        ppo = make_ppo(kind, fused=fused, ent_coef=0.01)
        ppo.iteration()
        ppo.collect()
        ppo.learner.pack_samples(ppo.source.record)
        shaken(ppo.policy, 0.02)
        results.append((gradients(ppo), ppo.learner.stats.clone()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-5)
    assert results[0][0].abs().max() > 1e-2


def test_augment_is_twice_the_samples():
    """A minibatch holds samples and their images, which share log-probability and targets."""
    ppo = make_ppo("augment", num_minibatches=2)
    ppo.iteration()
    ppo.collect()
    ppo.learner.pack_samples(ppo.source.record)
    ppo.learner.minibatch()
    taken, images = ppo.learner.minibatches, images_of(ppo.env)
    rows, n = taken.batch.rows, len(taken.order[0])
    a, b = (Record(taken.batch.columns, {torch.float32: part}) for part in (rows[:n], rows[n:]))
    assert len(rows) == 2 * n and torch.equal(rows[:n], taken.samples.rows[taken.order[0]])
    both = zip((*images, images.action), ("obs", "critic", "action", "mean"), strict=True)
    for flip, x, y in ((flip, getattr(a, name), getattr(b, name)) for flip, name in both):
        assert torch.equal(x[:, list(flip.order)] * torch.tensor(flip.signs), y)
    for name in ("logp", "advantage", "target", "value", "valid"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    # the KL that steers the learning rate is that of what acted: the images have none of their own
    with torch.no_grad():
        whole, alone = (
            loss(ppo.policy, batch, ppo.learner.cfg, copies=copies)[1][APPROX_KL]
            for batch, copies in ((taken.batch, 2), (a, 1))
        )
    torch.testing.assert_close(whole, alone)


@pytest.mark.parametrize("kind", KINDS)
def test_resume_and_capture(kind):
    """With history and delay an iteration reads nothing, and a state goes on bit by bit."""
    past = dict(episode=0.1, history=HISTORY, observation_delay=(0, 2))
    first, second = (make_ppo(kind, make_env("quadruped", 8, **past)) for _ in range(2))
    first.iteration()
    reads_nothing(first)
    assert first.source.record.truncated.any()
    goes_on(first, second)


# -- the file --------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_exported_network_commutes(tmp_path):
    """With history and symmetry=net the network in the file commutes with mirrors to 1e-6."""
    env, path = make_env(num_envs=64, history=HISTORY), tmp_path / "network.onnx"
    images = images_of(env)
    actor = shaken(
        make_policy(*widths(env), hidden=(32, 32), symmetry="net", mirrors=images, seed=1), 0.1
    ).actor
    seen = record_observations(env, actor, 20)
    about = {"name": "quadruped", "terms": env.term_widths, "history": HISTORY}
    export_network(actor, path, **about, observations=seen, mjcf="", lineage={})
    run = session(path.read_bytes()).run
    view, _, out = map(MirrorModule, images)
    a, b = (torch.as_tensor(run(["action"], {"obs": x.numpy()})[0]) for x in (seen, view(seen)))
    assert (out(a) - b).abs().max() <= 1e-6 and a.abs().max() > 0.3


# -- robots ----------------------------------------------------------------------------------------


def test_signs_are_found_in_the_model(hund):
    """A joint whose axis is turned round mirrors with the other sign."""
    own = make_task()
    assert hinge_signs(own.mjm, "trunk", own.foot_geoms) == (-1.0, 1.0, 1.0) * 4
    signs = make_robot(mjcf=hund).robot.mirror
    assert signs == [-1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0]
    assert make_robot(mjcf=hund, mirror=signs).robot.mirror == signs


def test_wrong_signs_are_refused(hund):
    """Signs that do not mirror the feet, or are none, are one line."""
    says = "robot.mirror: this robot is not its own mirror image: in mirrored poses its"
    with pytest.raises(ValueError, match=says):
        make_robot(mjcf=hund, mirror=[-1, 1, 1])
    with pytest.raises(ValueError, match=r"robot.mirror=2: expected signs, 1 or -1"):
        make_robot(mjcf=hund, mirror=2)
    own = make_task()
    for i in range(3):
        wrong = np.array([-1.0, 1.0, 1.0] * 4)
        wrong[i::3] *= -1
        with pytest.raises(ValueError, match="mirror image"):
            hinge_signs(own.mjm, "trunk", own.foot_geoms, tuple(wrong))


def braked(first: int) -> Actuator:
    """Servos of which the first have half of the others' friction."""
    return make_actuator(friction=[0.1] * first + [0.2] * (12 - first))


def lopsided(what: str) -> mujoco.MjModel:
    """The own robot with something on one side alone."""
    m = make_task().mjm.__copy__()
    if what == "hip":
        m.body_pos[m.body("FL_hip").id, 1] += 0.02
    elif what in ("load", "cable"):
        m.body_ipos[m.body("trunk").id, 1] += 0.05 if what == "load" else 0.005
    else:
        m.actuator_gainprm[0, 0] *= 1.5
    return m


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"gait_pose": (0.2, 0.3, -0.6)}, "control is not even: 'FL_abduction'"),
        ({"scale": tuple(0.2 + 0.01 * i for i in range(12))}, "control is not even"),
        ({"actuator": braked(first=3)}, "robot.actuator.friction differs"),
        ({"mjm": lopsided("hip")}, "robot.mirror: .*its FL is 20 mm"),
        ({"mjm": lopsided("load")}, "robot.mirror: .*center of mass is"),
        ({"mjm": lopsided("gain")}, "robot.mirror: .*robot.kp differs"),
    ],
)
def test_one_side_must_be_as_the_other(settings, says):
    """What one side has otherwise than the other is one line, when symmetry is asked for."""
    with pytest.raises(ValueError, match=says):
        derive_flips(make_task(**settings))


def test_what_may_differ():
    """Front and rear, and a center of mass by millimeters, as the A1's."""
    assert derive_flips(make_task(actuator=braked(first=6)))
    assert derive_flips(make_task(mjm=lopsided("cable")))


def test_a_lopsided_robot_trains_without(capsys):
    """By default a robot that is not its own image has plain networks, and one line says why."""
    env = make_env(num_envs=2)
    env.task.mjm = lopsided("hip")
    spec = make_spec(env, RunSpec(num_steps=4, graph="off", threads=0))
    assert spec.choose_symmetry("auto", (8,)) == ("none", None)
    said = capsys.readouterr().err
    assert said.startswith("warning: robot.mirror: ") and said.count("\n") == 1
    with pytest.raises(ValueError, match="its FL is 20 mm"):
        spec.choose_symmetry("net", (8,))


def test_configuration():
    """algo.symmetry builds what it says; a task that knows no mirror gets one line."""
    words = "task=cartpole num_envs=4 num_steps=4 sim=native sim.threads=1 device=cpu".split()
    words += ["algo.hidden=[8]"]
    ppo = build_iteration(make_config(*words, "algo.symmetry=net", "task.history.pole=3"))
    assert ppo.policy.symmetry == "net" and widths(ppo.env) == (9, 5, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ppo.env.task), "mirror", None)
        says = "algo.symmetry=augment: this task defines no mirror image"
        with pytest.raises(ValueError, match=says):
            build_iteration(make_config(*words, "algo.symmetry=augment"))
        assert build_iteration(make_config(*words)).policy.symmetry == "none"
    assert build_iteration(make_config(*words)).policy.symmetry == "net"
    for word in ("algo.hidden=[7]", "algo.memory=gru"):  # what cannot commute
        cfg = make_config(*words[:-1], word)
        assert build_iteration(cfg).policy.symmetry == "none"
    with pytest.raises(ValueError, match=r"algo\.hidden=\[8, 5\]: expected even numbers"):
        build_iteration(make_config(*words, "algo.symmetry=net", "algo.hidden=[8,5]"))
    with pytest.raises(ValueError, match="=loss: choose one of auto, none, augment, net"):
        Config.of(compose_plain("config", [*words, "algo.symmetry=loss"]))

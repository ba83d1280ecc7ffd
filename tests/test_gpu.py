"""What needs CUDA: `pytest -m gpu`. Each has a twin on the CPU elsewhere in tests/."""

import ctypes
import json
from importlib.util import find_spec

import mujoco
import pytest
import torch
import warp as wp

from benchmarks.levels import launches
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core.graphs import capture, record
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.streams import one_stream, warp_stream
from gpusim_rl.fuse.kernel import Kernel
from gpusim_rl.robots.models import converged
from gpusim_rl.sim.factory import choose
from tests import graphs
from tests.algorithms import test_loss_kernels
from tests.benchmarks import test_levels
from tests.command_lines import succeed
from tests.fuse import test_fuse
from tests.worlds import TASKS, differing, make_config, make_sim, make_task

pytestmark = pytest.mark.gpu


def test_auto_is_warp_on_cuda():
    """With a GPU `auto` means MuJoCo Warp on it."""
    assert choose("auto", "auto") == ("warp", "cuda")


def test_noise_is_that_of_the_cpu():
    """Uniforms are bit-equal on both devices, normals to 1e-6."""
    draws = {}
    for device in ("cpu", "cuda"):
        rng = Rng(5, torch.arange(100, 1100, device=device))
        rng.uniform("u", 0.0, 1.0)
        rng.normal("n", 5)
        rng.draw(torch.tensor(2**33 + 1, device=device))
        draws[device] = rng.uniform("u", 0.0, 1.0).cpu(), rng.normal("n", 5).cpu()
    assert torch.equal(draws["cpu"][0], draws["cuda"][0])
    assert (draws["cpu"][1] - draws["cuda"][1]).abs().max() < 1e-6


def test_a_control_step_is_that_of_mujoco_c():
    """Of 100 quadrupeds, converged: |Δqpos| ≤ 1e-5, |Δqvel| ≤ 1e-3."""
    mjm: mujoco.MjModel = converged(make_task("quadruped").mjm)
    native, warp = make_sim("native", mjm, 100), make_sim("warp", mjm, 100, device="cuda")
    generator = torch.Generator().manual_seed(0)
    stance, everyone = torch.from_numpy(mjm.key_ctrl[0]), torch.ones(100, dtype=torch.bool)
    qpos = torch.from_numpy(mjm.key_qpos[0]).expand(100, -1)
    native.reset(everyone, qpos, torch.zeros(100, mjm.nv, dtype=torch.float64))
    for _ in range(25):  # onto the ground, and about
        noise = torch.randn(100, mjm.nu, generator=generator, dtype=torch.float64)
        native.ctrl.copy_(stance + 0.3 * noise)
        native.step(4)
    qpos, qvel, ctrl = native.qpos.clone(), native.qvel.clone(), native.ctrl.clone()
    for sim in (native, warp):
        device, dtype = sim.qpos.device, sim.qpos.dtype
        sim.reset(everyone.to(device), qpos.to(device, dtype), qvel.to(device, dtype))
        sim.ctrl.copy_(ctrl)
        sim.step(4)
    assert (warp.qpos.cpu() - native.qpos).abs().max() <= 1e-5
    assert (warp.qvel.cpu() - native.qvel).abs().max() <= 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_an_iteration_reads_nothing(task):
    """It is enqueued in 50 ms while the device sleeps; torch raises where it waits."""
    ppo = graphs.build("cuda", task)
    for _ in range(graphs.CALLS):
        ppo.iteration()
    graphs.an_iteration_reads_nothing(ppo)


def test_a_hundred_iterations_read_nothing():
    """torch raises at no call of a hundred iterations."""
    ppo = graphs.build("cuda")
    for _ in range(graphs.CALLS):
        ppo.iteration()
    with graphs.waiting_raises():
        for _ in range(100):
            ppo.iteration()
    assert ppo.report()()["fault"] == 0


def test_the_profiler_sees_graphs_alone():
    """No synchronizing call, no copy to the host, a kernel for each scheduled number."""
    ppo = graphs.build("cuda")
    for _ in range(graphs.CALLS):
        ppo.iteration()
    seen = launches(ppo)
    assert seen["synchronisations"] == seen["copies_to_host"] == 0
    # before the steps, samples, normalizers, count
    launched = 3 * len(ppo.source.record.rows) + ppo.learner.minibatches.count + 4
    assert seen["graph_launches"] == launched
    assert seen["kernel_launches"] == len(ppo.schedule.plan) and seen["kernels"] > 1000


PLAN = "curriculum={task.sigma:{from:1.0,to:0.8,by:iteration,start:0,stop:9},"
PLAN += "algo.ent_coef:{from:0.1,to:0,by:iteration,start:0,stop:9},"
PLAN += "algo.gamma:{from:0.9,to:0.97,by:iteration,start:0,stop:9}}"


WORDS = [[], ["graph=whole"], ["sim.conditional=true"], [PLAN], ["algo.memory=gru"]]
WORDS += [["algo.memory=attention"]]


@pytest.mark.parametrize("words", [[], ["algo.tf32=false"], ["fuse=off"]], ids=str)
def test_eager_is_eager(words):
    """What runs twice gives the same bits; the drone has no contacts, whose order is free."""
    words = ("sim.deterministic=true", "graph=off", *words)
    one, other = (graphs.build("cuda", "drone", 8, *words) for _ in range(2))
    for k in range(4):
        one.iteration()
        other.iteration()
        assert differing(one.state(), other.state()) == [], f"iteration {k + 1}"


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_captured_is_eager(words):
    """Ten captured iterations leave the state of ten eager ones, bit by bit."""
    graphs.captured_is_eager("cuda", "drone", *words)


def test_graphs():
    """Recording, capturing anew, fetching."""
    graphs.a_graph_is_replayed("cuda")
    graphs.another_shape_is_captured_anew("cuda")
    graphs.a_fetch_is_of_its_moment("cuda")


@pytest.mark.skipif(find_spec("mjlab") is None, reason="mjlab is not installed")
def test_three_times_mjlab(tmp_path):
    """On mjlab's Go1 with its sizes training is three times as fast as mjlab's own."""
    ppo = graphs.trains_their_robot("cuda", "robot=go1")
    assert ppo.env.task.substeps == 4
    words = ("algo.hidden=[512,256,128]", "algo.activation=elu", "algo.update_epochs=5")
    words += ("robot=go1", "robot.collide=all", "num_envs=4096", "num_steps=24", "out=bench.json")
    print(succeed("-m benchmarks.mjlab", *words, cwd=tmp_path))
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["steps_per_s"]["training"]["median"] >= 3 * report["mjlab"]["steps_per_s"]


def test_a_second_start_is_warm(tmp_path):
    """Kernels are compiled once on a machine; `pytest -s` prints the times."""
    words = "task=cartpole sim=warp num_envs=4 num_steps=4 repeats=1 warmup=1 seconds=1e-3".split()
    words += ["device=cuda", "out=bench.json"]
    cache, built = tmp_path / "cache", []
    for start in ("cold", "warm"):
        succeed("-m benchmarks.levels", *words, cwd=tmp_path, WARP_CACHE_PATH=str(cache))
        took = json.loads((tmp_path / "bench.json").read_text())["start_s"]
        print(f"{start} start [s]: {took}")
        built.append({x: x.stat().st_mtime_ns for x in cache.rglob("*") if x.is_file()})
    assert built[0] and built[0] == built[1]


def test_warp_gives_no_memory_back_to_the_driver():
    """It would not wait for our non-blocking stream before it takes it."""
    one_stream("cuda")
    stream = torch.cuda.current_stream()
    flags = ctypes.c_uint()
    runtime = ctypes.CDLL(None)
    assert runtime.cudaStreamGetFlags(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(flags)) == 0
    assert flags.value == 1 and wp.get_mempool_release_threshold("cuda") >= 2**63


def test_conditional_nodes_inside_a_graph_of_torch():
    """`wp.capture_while` loops on the device, in order with torch."""
    one_stream("cuda")
    left, done = (wp.zeros(1, dtype=int, device="cuda") for _ in range(2))
    twice, room = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (1, 1000))

    def fn() -> None:
        with wp.ScopedStream(warp_stream(twice.device), sync_enter=False):
            wp.capture_while(
                left, lambda: wp.launch(graphs.count_down, 1, inputs=[left, done], device="cuda")
            )
        # These are temporaries after the loop.
        torch.mul((room + wp.to_torch(done)).amax(0, keepdim=True), 2, out=twice)

    wp.launch(graphs.count_down, 1, inputs=[left, done], device="cuda")  # builds the kernel
    replay = record(fn, torch.device("cuda"))
    # They lie where a stray temporary would be.
    others = [torch.full((1000,), 5, dtype=torch.int32, device="cuda") for _ in range(20)]
    for n in (7, 3, 0):
        left.fill_(n)
        done.zero_()
        replay()
        assert done.numpy()[0] == n and twice.item() == 2 * n
    assert all((x == 5).all() for x in others)


def test_a_broken_capture_leaves_the_device_usable(capsys):
    """It says so and runs, and the next function is captured."""
    x = torch.ones(3, device="cuda")
    bad, good = capture(lambda: x.mul_(x[0].item()), "cuda"), capture(lambda: x.add_(1), "cuda")
    for _ in range(graphs.CALLS):
        bad()
    assert bad.reason and "runs without a graph" in capsys.readouterr().err
    for _ in range(graphs.CALLS):
        good()
    assert good.graph is not None and x.tolist() == [1 + graphs.CALLS] * 3


@pytest.mark.parametrize("seed", [0, 1])
def test_the_fused_loss_is_that_of_the_cpu(seed, monkeypatch):
    """Where it is checked against autograd."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)  # of another test's config
    results = {}
    for device in ("cpu", "cuda"):
        policy, rows = test_loss_kernels.minibatch(seed)
        ours, grad, _ = test_loss_kernels.fused(policy.to(device), rows.to(device))
        ours()
        outputs = (ours.stats, ours.share, ours.grad_mean, ours.grad_value, grad)
        results[device] = [x.cpu() for x in outputs]
    for a, b in zip(results["cpu"], results["cuda"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [test_fuse.elements, test_fuse.shapes])
def test_each_operator_of_a_kernel_is_torchs(function, monkeypatch):
    """As on the CPU: floats to 1e-5 of their size, all else exactly."""
    for name in ("TABLE", "LARGE", "COLUMNS"):
        monkeypatch.setattr(test_fuse, name, getattr(test_fuse, name).cuda())
    rows = {name: x.cuda() for name, x in test_fuse.rows().items()}
    with torch.device("cuda"):
        kernel = Kernel("operators", function, rows, test_fuse.places(function, rows))
        apart = test_fuse.difference(kernel, rows)
    assert {key: x for key, x in apart.items() if not x <= 1e-5} == {}


@pytest.mark.parametrize("task", TASKS)
def test_training_stays_finite(task):
    """Ten iterations on CUDA change every weight, keep them finite and quarantine no world."""
    ppo = make_iteration(make_config(f"task={task}", "num_envs=256", "device=cuda"))
    ppo.iteration()
    before = {name: value.clone() for name, value in ppo.policy.named_parameters()}
    for _ in range(9):
        ppo.iteration()
    for name, value in ppo.policy.named_parameters():
        assert torch.isfinite(value).all() and not torch.equal(value, before[name]), name
    assert ppo.report()()["fault"] == 0


@pytest.mark.parametrize("num_envs", [4096, 16384])
def test_training_is_near_the_bare_engine(tmp_path, num_envs):
    """At least 0.7 of a captured mujoco_warp.step of the same model, where rollouts are long."""
    out = tmp_path / "bench.json"
    words = "task=quadruped device=cuda num_steps=24 repeats=3 seconds=1 warmup=8".split()
    done = test_levels.run(tmp_path, *words, f"num_envs={num_envs}", f"out={out}")
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["ratios"]["training/physics_only"]["median"] >= 0.7


def test_a_quadruped_walks_within_a_minute(tmp_path):
    """Success 0.95 in less than 60 s of training after compilation."""
    words = ("task=quadruped", "device=cuda", "log=none", "save_every=1000")
    # From here on the kernels are in the cache.
    succeed("train.py", *words, "iterations=4", "run_dir=compiled", cwd=tmp_path)
    succeed("train.py", *words, "run_dir=run", cwd=tmp_path)
    scores = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert scores["success"] >= 0.95 and scores["time_s"] < 60

"""Several processes train what one does."""

import subprocess
import sys

import torch

from gpusim_rl.checkpoint import load
from gpusim_rl.run import Run
from tests.commands import TINY, environment, succeed
from tests.worlds import ROOT


def test_two_ranks_are_one(tmp_path):
    """Two gloo ranks of 32 worlds leave the weights of one process with 64 after 5 iterations, to 1e-5; both go on."""
    words = ["task=quadruped", *TINY, "num_envs=64", "num_steps=8", "iterations=5", "log=none"]
    # at the default rate of 1e-3 rounding alone, of sums in another order, came to 7.6e-6: too near to the bound
    words += ["algo.learning_rate=1e-4", "algo.lr_max=1e-4"]
    succeed("train.py", *words, "run_dir=one", cwd=tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(ROOT / "train.py")]
    for more in ([*words, "run_dir=two"], ["resume=two", "iterations=6"]):
        env = environment(tmp_path / "home")
        done = subprocess.run([*launch, *more], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("run: ") == 1 and "wrote two/policy.onnx" in done.stdout.replace("two/eval.json and ", "")
    succeed("train.py", "resume=one", "iterations=6", cwd=tmp_path)
    pole = ["task=cartpole", "num_envs=8", "num_steps=4", "iterations=1", "episodes=2", "sim=native", "device=cpu", "log=none"]
    done = subprocess.run([*launch, *pole, "run_dir=pole"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for iteration in (5, 6):
        one, two = (load(Run(tmp_path / name).checkpoints.path / f"{iteration:06d}.safetensors")[0] for name in ("one", "two"))
        assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in two.items()}
        worst = max((one[k] - two[k]).abs().max().item() for k in one if k.startswith("policy/"))
        print(f"two ranks against one process, iteration {iteration}: weights differ by at most {worst:.1e}")
        assert worst <= 1e-5 and torch.equal(one["env/step_count"], two["env/step_count"])

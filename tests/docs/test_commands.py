"""Every command in README.md and docs/ runs, cut short, or is listed and composes."""

import os
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import yaml

from gpusim_rl.commands import registry
from gpusim_rl.config import compose
from gpusim_rl.core.arguments import parse
from gpusim_rl.identify import main as identify
from tests import arm_files, humanoid_files, robot_files
from tests.command_lines import command, run_here, run_process
from tests.docs.examples import PAGES, commands, files
from tests.shared import shared
from tests.worlds import ROOT

SHORT = {"iterations": 2, "num_envs": 8, "episodes": 4, "seconds": 1, "size": "[96,64]"}
SHORT |= {"task.episode": 0.2}
GPU, NETWORK, LONG, SHELL = "a GPU", "a network", "more than a minute", "a shell of its own"
ENDLESS = "someone who ends it"
PEOPLE = "a run, and people who answer; tests/algorithms/test_preference.py has them"
ROBOT = "the log of a robot; tests/identify has one"
WHEEL = "an environment of its own; tests/test_wheel.py builds and installs the wheel"
REGISTRY, IDENTIFY = "gpusim registry", "gpusim identify"
# Commands that are not run, and what each needs. Their configuration is composed instead.
LISTED = {
    "git clone … gpusim-rl": NETWORK,
    "cd gpusim-rl": SHELL,
    "make test": LONG,
    "make web": ENDLESS,
    "python play.py 'run=runs/quadruped/…' mode=web": ENDLESS,
    "python play.py onnx=policy.onnx mode=serve": ENDLESS,
    "python play.py mode=serve registry=registry alias=released": ENDLESS,
    "python play.py onnx=policy.onnx mode=serve serve.host=0.0.0.0 serve.token_file=token": ENDLESS,
    "python train.py task=quadruped reward=preference start=runs/walk "
    "task.training=exact run_dir=low": PEOPLE,
    "python play.py run=low mode=label": PEOPLE,
    "make gpu-test": GPU,
    "make gpu-check": GPU,
    "make dist": WHEEL,
    "torchrun --standalone --nproc-per-node=2 --max-restarts=3 train.py auto_resume=true "
    "run_dir=runs/two": LONG,
    "python play.py onnx=policy.onnx mode=gate": LONG,
    "python play.py mode=adopt onnx=net.onnx card=card.yaml robot=robot.xml out=policy.onnx": (
        "a network of others"
    ),
    "python play.py mode=check task=cartpole": LONG,
    "python play.py mode=check task=cartpole sim=native": LONG,
    "python play.py onnx=policy.onnx mode=gate 'variants=[fp16,int8]'": LONG,
    "python train.py task=quadruped gate=true": LONG,
    "python play.py mode=ab 'onnx=[a.onnx,b.onnx]'": LONG,
    "python play.py mode=log mcap=walk.mcap onnx=policy.onnx report=walk.png": ROBOT,
    f"{REGISTRY} promote quadruped candidate released 'why=first release'": LONG,
    f"{REGISTRY} rollback quadruped released 'why=slips on tiles'": LONG,
    f"{REGISTRY} compare quadruped released candidate": LONG,
    f"{REGISTRY} page": ENDLESS,
    f"{REGISTRY} promote quadruped candidate released better_than=released": LONG,
    f"{REGISTRY} promote quadruped candidate released not_worse_than=released": LONG,
    "python train.py task=quadruped recipe=robot gate=true": LONG,
    "python -m pip install 'dist/gpusim_rl-*.whl'": WHEEL,
    ". .venv/bin/activate": SHELL,
    "python train.py task=quadruped device=cuda": GPU,
    "python -m benchmarks.mjlab": GPU,
    "python -m benchmarks.levels task=quadruped out=bench.json": LONG,
    "python -m benchmarks.tasks device=cpu out=tasks.json": LONG,
    "python -m benchmarks.reference_ppo device=cpu": LONG,
    "python -m benchmarks.chance": LONG,
    "python -m benchmarks.time_to_success task=quadruped 'seeds=[1,2,3]' out=time.json": LONG,
    "python -m benchmarks.time_to_success "
    '\'settings=["algo.symmetry=none","algo.symmetry=net"]\'': LONG,
    "python -m pip install -e '.[ray]'": WHEEL,
    "python a3c.py task=cartpole iterations=1500": LONG,
    "python train.py task=quadruped cluster=ray cluster.actors=4": LONG,
    "python train.py task=cartpole cluster=ray cluster.inference=central": LONG,
    "torchrun --standalone --nproc-per-node=2 train.py task=quadruped cluster=ray "
    "cluster.actors=4": LONG,
    "python -m pytest tests/test_my_arm.py": "a test's time; tests/commands/test_new_task.py",
    "export RAY_AUTH_MODE=token 'RAY_AUTH_TOKEN=$(openssl' rand -hex '32)'": SHELL,
    "ray start --head --port=6379": SHELL,
    "ray start --address=10.0.0.1:6379": SHELL,
    "python train.py task=quadruped cluster=ray cluster.actors=16 cluster.address=10.0.0.1:6379": (
        NETWORK
    ),
    f"{IDENTIFY} simulate policy.onnx hang.mcap walk.mcap seed=3": LONG,
    f"{IDENTIFY} hang.mcap walk.mcap policy=policy.onnx": LONG,
    f"{IDENTIFY} walk.mcap policy=policy.onnx against=runs/walk metrics=drift.prom": LONG,
    "python train.py robot=go1": NETWORK,
    "python train.py task=humanoid robot=g1": NETWORK,
    "python -m benchmarks.clips humanoid=g1 folder=.": NETWORK,
    "python train.py task=imitate robot=g1 recipe=humanoid task.clip_file=squat.npz": NETWORK,
    "python train.py robot=go1 robot.actuator.kind=net robot.actuator.file=go1.safetensors": (
        NETWORK
    ),
    "python train.py robot.mjcf=menagerie:anybotics_anymal_c": NETWORK,
    "python train.py log=wandb log.group=friction 'log.tags=[baseline]'": NETWORK,
    "python train.py log=mlflow": NETWORK,
}
CONFIG = {"train.py": "config", "play.py": "play", "benchmarks.profile": "config"}


def log_csv(path: Path) -> None:
    """Write a log of two joints under a PD law, as docs/actuators.md describes it."""
    rows = ["time,joint,target,position,velocity,torque"]
    for joint in ("FL_knee", "FR_knee"):
        angle = speed = 0.0
        for i in range(400):
            target = 0.5 if (i // 20) % 2 else -0.5
            torque = 20 * (target - angle) - 0.5 * speed
            rows.append(f"{i * 0.005:.3f},{joint},{target},{angle:.6f},{speed:.6f},{torque:.6f}")
            speed += 0.005 * torque
            angle += 0.005 * speed
    path.write_text("\n".join(rows))


def program(line: str) -> tuple[str, list[str]]:
    """(train.py, play.py, a module or another program; its words) of a command.

    Of `make TARGET`, these are what make runs last.
    """
    words = shlex.split(line)
    if words[0] == "make":
        # `make test` hands its flags and ARGS on, and an inner make also prints its directory.
        inherited = ("MAKE", "ARGS")
        env = {key: x for key, x in os.environ.items() if not key.startswith(inherited)}
        dry = run_process("make", "-n", *words[1:], env=env)
        first, *words = shlex.split(dry.stdout.splitlines()[-1])
        words = [Path(first).name, *words]
    if words[0] == "gpusim":
        verb = words[1]
        return f"{verb}.py" if verb in ("train", "play") else f"gpusim_rl {verb}", words[2:]
    if words[0] == "python":
        return (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    return words[0], words[1:]


def shortened(script: str, words: list[str]) -> list[str]:
    """The words with those of SHORT that the program has keys for."""
    name = "train.py" if script == "torchrun" else script
    if script == "gpusim_rl identify" and words[0] == "actuator":  # any number shows that it runs
        return [*(word for word in words if not word.startswith("steps=")), "steps=100"]
    if name not in CONFIG:
        return words
    config = CONFIG[name]
    keys = compose.flatten(compose.compose_plain(config, []))
    resumes = any(word.startswith("resume=") for word in words)
    kept = ("num_envs", "task.episode") if resumes else ()  # a run keeps these
    if any(word.startswith(("mode=", "repro=")) and word != "mode=video" for word in words):
        kept += ("size",)  # it is of a video
    quick = {"export": "none", "report": "false", "threads": 1, "fuse": "off"}  # `trained` exports
    if "sim=warp" not in words:
        quick["sim.threads"] = 1
    short = SHORT | (quick if config == "config" else {})
    if "task=quadruped_rough" in words:
        words = [*words, "terrain.variants=1"]  # patches of each kind and level
    words = [*words, "seconds=1"] if script == "benchmarks.profile" else words
    return words + [f"{k}={v}" for k, v in short.items() if k in keys and k not in kept]


def run(script: str, words: list[str], cwd: Path) -> tuple[int, str]:
    """(exit code, output) of a command; torchrun starts processes of its own."""
    if fresh := script == "torchrun":
        words = [str(ROOT / word) if word == "train.py" else word for word in words]
        script = "torch.distributed.run"
    script = script if script.endswith(".py") else f"-m {script}"
    done = command(script, *words, cwd=cwd, fresh=fresh)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def base(tmp_path_factory, trained) -> Path:
    """A directory with what the pages assume: the run of `make train`, and a user's files."""
    return shared(tmp_path_factory, "base", partial(make_base, trained / "policy.onnx"))


def make_base(policy: Path, here: Path) -> None:
    """Write what `base` has into a directory."""
    script, words = program("make train")
    assert (script, words) == ("train.py", ["task=quadruped"])
    status, said = run(script, shortened(script, words), here)
    assert status == 0, said
    (made,) = (here / "runs" / "quadruped").iterdir()
    shutil.copy(policy, here)
    broken = ["algo.learning_rate=1e30", "algo.lr_max=1e30", "rollbacks=0", "log=none"]
    words = [*shortened("train.py", broken), "num_steps=8", "iterations=40", "run_dir=broken"]
    assert run("train.py", words, here)[0] == 1
    shutil.move(here / "broken" / "repro.safetensors", made)
    shutil.rmtree(here / "broken")
    (here / "go1.xml").write_text(robot_files.mjcf())
    (here / "g1.xml").write_text(humanoid_files.mjcf())
    (here / "yam.xml").write_text(arm_files.mjcf())
    log_csv(here / "log.csv")


def in_place(words: list[str], here: Path) -> list[str]:
    """The words, with the run that the page leaves open as `…`."""
    (made,) = (here / "runs" / "quadruped").iterdir() if "…" in " ".join(words) else (Path(),)
    return [word.replace("…", made.name) for word in words]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_run(page, base, tmp_path):
    """Each command of a page ends well, in the page's order."""
    here, lines = tmp_path / "here", commands(page)
    earlier = [line for other in PAGES[: PAGES.index(page)] for line in commands(other)]
    for i, line in enumerate(lines):
        if line in LISTED or line == "make train":
            continue
        films = any("play" in x and "mode=robot" not in x for x in lines[i:])
        if "train.py" in line and line in earlier and not films:  # it was trained there
            continue
        if not here.exists():
            shutil.copytree(base, here)
            for path, text in files(page).items():
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                (here / path).write_text(text)
        script, words = program(line)
        if script == "mkdir":
            subprocess.run([script, *words], cwd=here, check=True)
            continue
        known = script in (*CONFIG, "torchrun") or script.startswith("gpusim_rl ")
        assert known, f"{page}: {line}: no rule for this command"
        words = in_place(shortened(script, words), here)
        status, said = run(script, words, here)
        assert status == 0, f"{page}: {line}\n{said}"


@pytest.mark.parametrize("line", LISTED)
def test_a_listed_command_composes(line, elsewhere, monkeypatch, capsys):
    """A command that is not run stands in the docs, and its configuration is composed."""
    assert any(line in commands(page) for page in PAGES), f"{line} is in no page"
    if LISTED[line] == SHELL or line.startswith("git "):
        assert "VENV   ?= .venv" in (ROOT / "Makefile").read_text()
        return
    script, words = program(line)
    if script == "torchrun":
        script, words = "train.py", words[words.index("train.py") + 1 :]
    if script == "a3c.py":
        script = "train.py"
    if script == "pytest" or "pytest" in words or script.startswith("benchmarks."):
        return
    if LISTED[line] == PEOPLE:
        return
    if LISTED[line] == WHEEL:
        assert (script, words[0]) in (("build", "--outdir"), ("pip", "install"))
        return
    if script == "gpusim_rl registry":
        assert registry.parse(words)[0] == words[0]
        return
    if script == "gpusim_rl identify":
        assert parse(words, {**identify.DEFAULTS, "seconds": "", "seed": ""}, "")[0]
        return
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    words = [word.replace("…", "any") for word in words]
    code, said, _ = run_here(script, *words, "--cfg", "job", capsys=capsys)
    shown = script == "play.py" and "mode=check" not in words
    assert code == 0 and yaml.safe_load(said)["mode" if shown else "task"], said

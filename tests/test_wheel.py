"""The wheel, installed where the repository is not: its commands, and a task of the user's own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from functools import partial
from pathlib import Path

import onnx
import pytest

from tests import own_algorithms
from tests.command_lines import command, environment, run_process
from tests.worlds import ROOT

pytestmark = pytest.mark.slow

SMALL = ("num_envs=16", "num_steps=4", "episodes=4", "sim.threads=1", "device=cpu", "log=none")
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "conf", "tasks", "gpusim_rl")
TASK = '''
"""A cart that keeps its pole hanging."""

from dataclasses import dataclass
from pathlib import Path

from gpusim_rl.tasks.classic.cartpole import Cartpole

Path("imported").touch()


@dataclass(kw_only=True)
class Hang(Cartpole):
    """Cartpole with another reward."""

    def reward(self, s):
        return {name: -value for name, value in super().reward(s).items()}
'''


class Installed:
    """An environment with the wheel, and an empty directory to work in.

    Args:
        python: the interpreter of the environment.
        cwd: the directory.
    """

    def __init__(self, python: Path, cwd: Path):
        self.python, self.cwd = python, cwd
        self.env = environment(cwd.parent / "home")
        del self.env["PYTHONPATH"]
        self.env["PATH"] = f"{python.parent}{os.pathsep}{self.env['PATH']}"

    def run(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in the directory."""
        program, *verb = command.split()
        line = [str(self.python.parent / program), *verb, *words]
        return run_process(*line, cwd=self.cwd, env=self.env)

    def succeed(self, command: str, *words: str, stderr: str = "") -> str:
        """What a command printed, after it ended well."""
        done = self.run(command, *words)
        assert (done.returncode, done.stderr) == (0, stderr), done.stdout + done.stderr
        return done.stdout

    def refused(self, command: str, *words: str) -> str:
        """The one line in which a command answered a mistake; no task was imported."""
        (self.cwd / "imported").unlink(missing_ok=True)
        done = self.run(command, *words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        assert not (self.cwd / "imported").exists()
        return done.stderr


def copy_source(source: Path) -> None:
    """Copy what a wheel is built from, links as links."""
    for name in BUILT_FROM:
        copy_tree(name, source)


def copy_tree(name: str, folder: Path) -> None:
    """Copy a file or a folder of the repository, links as links."""
    if (ROOT / name).is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    else:
        shutil.copy(ROOT / name, folder / name)


def build_wheel(source: Path) -> subprocess.CompletedProcess[str]:
    """Build the wheel of a copy of this repository, into its folder dist/."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    build += ["--disable-pip-version-check", "--no-index", "-w", "dist", "."]
    return subprocess.run(build, cwd=source, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this repository."""
    source = tmp_path_factory.mktemp("source")
    copy_source(source)
    done = build_wheel(source)
    assert done.returncode == 0, done.stderr
    (file,) = (source / "dist").glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    """The wheel in a fresh environment, which sees the packages of this one."""
    root = tmp_path_factory.mktemp("installed")
    venv, cwd = root / "venv", root / "empty"
    cwd.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    install += ["-q", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = venv.glob("lib/python*/site-packages")
    here = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    (site / "packages.pth").write_text("\n".join(here) + "\n")
    return Installed(venv / "bin" / "python", cwd)


@pytest.fixture(scope="module")
def trained(installed) -> Installed:
    """A run of cartpole, trained by gpusim train."""
    words = ("task=cartpole", *SMALL, "iterations=3", "run_dir=run", "export=none")
    said = installed.succeed("gpusim train", *words)
    assert "see it: gpusim play run=run" in said
    assert (installed.cwd / "run" / "report.html").exists()
    return installed


@pytest.fixture(scope="module")
def own(trained) -> Installed:
    """A task of the user's own in the directory, trained."""
    cwd = trained.cwd
    (cwd / "tasks" / "mine").mkdir(parents=True)
    (cwd / "conf" / "task").mkdir(parents=True)
    model = (ROOT / "tasks" / "assets" / "cartpole.xml").read_text()
    (cwd / "tasks" / "mine" / "hang.xml").write_text(model.replace('"0.1"', '"0.11"'))
    (cwd / "tasks" / "mine" / "hang.py").write_text(TASK)
    yaml = (ROOT / "conf" / "task" / "cartpole.yaml").read_text()
    yaml = yaml.replace("name: cartpole", "name: hang").replace("cartpole.xml", "hang.xml")
    (cwd / "conf" / "task" / "hang.yaml").write_text(yaml)
    says = f"importing {cwd}/tasks/mine/hang.py\n"
    words = ("task=hang", *SMALL, "iterations=2", "run_dir=own", "export=none", "report=false")
    said = trained.succeed("gpusim train", *words, stderr=says)
    assert "see it: gpusim play run=own task_code=here\n" in said
    return trained


def test_a_source_without_links_is_not_built(tmp_path):
    """A link that became a text file, as in some zip files, ends the build and names itself."""
    copy_source(tmp_path)
    setup = partial(run_process, sys.executable, "setup.py", "--version", cwd=tmp_path)
    for name, build in (("tasks", partial(build_wheel, tmp_path)), ("conf", setup)):
        link = tmp_path / "gpusim_rl" / name
        link.unlink()
        link.write_text(f"../{name}")
        done = build()
        assert done.returncode != 0 and not list(tmp_path.glob("dist/*.whl"))
        assert f"error: gpusim_rl/{name}/" in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr


def test_what_is_installed(wheel, installed):
    """Everything lies in gpusim_rl: site-packages gets no tasks, conf or tests."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"gpusim_rl"}
    (site,) = installed.python.parents[1].glob("lib/python*/site-packages")
    assert not {"tasks", "conf", "tests", "train.py", "play.py"} & set(os.listdir(site))
    ours = {str(path.relative_to(ROOT)) for path in ROOT.glob("gpusim_rl/**/*.py")}
    ours |= {f"gpusim_rl/{path.relative_to(ROOT)}" for path in ROOT.glob("conf/**/*.yaml")}
    ours |= {f"gpusim_rl/{path.relative_to(ROOT)}" for path in ROOT.glob("tasks/**/*.*")}
    for folder in ("commands/templates", "demo"):
        ours |= {str(path.relative_to(ROOT)) for path in ROOT.glob(f"gpusim_rl/{folder}/*.*")}
    ours = {name for name in ours if "__pycache__" not in name}
    assert ours <= set(zipfile.ZipFile(wheel).namelist())
    program = "import gpusim_rl.tasks; print(gpusim_rl.__file__)"
    assert installed.succeed("python", "-c", program) == f"{site}/gpusim_rl/__init__.py\n"


def test_evaluate_and_film(trained):
    """gpusim play evaluates a run, and films the demo."""
    words = ("run=run", "mode=evaluate", "episodes=4")
    assert '"success"' in trained.succeed("gpusim play", *words)
    said = trained.succeed("gpusim play", "demo", "seconds=1").splitlines()
    assert (trained.cwd / "demo.mp4").stat().st_size > 1000
    assert said[0].startswith("verdict of the release gate: pass") and said[1:] == [
        "wrote demo.mp4"
    ]


def test_help_and_mistakes(trained):
    """Help names the commands; a mistake gets the line that train.py gives."""
    for name in ("gpusim train", "gpusim play"):
        said = trained.succeed(name, "--help")
        assert f"  {name} " in said and "python " not in said and "task_code" in said
    line = trained.refused("gpusim train", "nun_envs=4")
    assert line.startswith("error: unknown key 'nun_envs': did you mean num_envs")


def test_a_task_of_ones_own(own):
    """A task of the working directory is trained, exported and continued, and evaluated then."""
    config = (own.cwd / "own" / "config.yaml").read_text()
    assert "task_code: here" in config and "mjcf: model/task/model.xml" in config
    allowed, says = ("run=own", "task_code=here"), f"importing {own.cwd}/tasks/mine/hang.py\n"
    words = ("mode=export", "export=network", "out=own.onnx", *allowed)
    assert "wrote own.onnx" in own.succeed("gpusim play", *words, stderr=says)
    notes = {prop.key for prop in onnx.load(own.cwd / "own.onnx").metadata_props}
    assert "mjcf" in notes
    words = ("resume=own", "iterations=3", "task_code=here", "export=none")
    assert "iteration 3/3" in own.succeed("gpusim train", *words, stderr=says)


def test_a_new_task(installed):
    """The installed command writes a task, which trains as it is and passes its tests."""
    cwd = installed.cwd.parent / "new"
    cwd.mkdir()
    here = Installed(installed.python, cwd)
    said = here.succeed("gpusim play", "mode=new-task", "name=my_arm").splitlines()
    assert said[-2] == "train it: gpusim train task=my_arm" and len(said) == 6
    assert {path.name for path in cwd.iterdir()} == {"conf", "tasks", "tests"}
    words = ("task=my_arm", *SMALL, "iterations=1", "run_dir=run", "export=none", "report=false")
    here.succeed("gpusim train", *words, stderr=f"importing {cwd}/tasks/my_arm.py\n")
    # the fourth trains and exports: tests/commands/test_new_task.py runs it
    line = (*said[-1].split()[3:], "-k", "not training")
    assert "3 passed, 1 deselected" in here.succeed("python", *line)
    assert "exists already" in here.refused("gpusim play", "mode=new-task", "name=my_arm")


def test_a_run_imports_nothing(own):
    """Without task_code=here no command imports a task for a run, whatever the run says."""

    def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        (own.cwd / "imported").unlink(missing_ok=True)
        return command(script, *words, cwd=own.cwd)  # at once: the package is the same

    done = run("play.py", "run=own", "task_code=here", "mode=export", "out=policy.onnx")
    assert done.returncode == 0 and (own.cwd / "imported").exists(), done
    for script, *words in (
        ("play.py", "run=own", "mode=evaluate"),
        ("train.py", "resume=own", "iterations=9"),
        ("-m gpusim_rl verify", "own"),
    ):
        done = run(script, *words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        start = script.replace("-m gpusim_rl", "gpusim") if "-m" in script else f"python {script}"
        assert done.stderr.endswith(f"{start} {' '.join(words)} task_code=here\n"), done
        assert not (own.cwd / "imported").exists()
    # a task of ours by name, and code that the run says is here
    shutil.copytree(own.cwd / "run", own.cwd / "stranger")
    file = own.cwd / "stranger" / "config.yaml"
    file.write_text(file.read_text().replace("task_code: null", "task_code: here"))
    (own.cwd / "tasks" / "mine" / "cartpole.py").write_text(TASK)
    done = run("play.py", "run=stranger", "mode=evaluate")
    assert done.returncode == 2 and "task_code=here" in done.stderr
    assert not (own.cwd / "imported").exists()
    for words in (
        ("run=run", "mode=evaluate", "episodes=2"),
        ("onnx=policy.onnx", "video=onnx.mp4", "seconds=1"),
    ):
        done = run("play.py", *words)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert not (own.cwd / "imported").exists()


def test_an_algorithm_of_ones_own(installed):
    """An algorithm of the working directory is trained; tests/algorithms/ has the rest of it."""
    cwd = installed.cwd.parent / "learner"
    own_algorithms.write(cwd)
    here = Installed(installed.python, cwd)
    words = ("task=cartpole", *SMALL, "algo=a2c", "iterations=1", "export=none", "report=false")
    here.succeed("gpusim train", *words, stderr=f"importing {cwd}/algorithms/a2c.py\n")

"""The rule of imports: a package imports those of lower floors, and a few names stay private."""

import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.command_lines import run_python
from tests.draw_packages import PICTURE, draw, without_implied
from tests.packages import (
    FLOORS,
    ROOT,
    imported_names,
    module_imports,
    package,
    package_imports,
    package_of_name,
    source_files,
)

# Beside the floors: who alone may import a name, and what a lower package is still not for.
ONLY_FOR = {
    "gpusim_rl.algorithms.ppo": ("algorithms", "build"),  # all others ask build for a learner
    "gpusim_rl.web": ("web", "commands"),
    "gpusim_rl.gate": ("gate", "commands", "tools"),
    "gpusim_rl.serve": ("serve", "commands"),
}
NOT_FOR = {"training": ("viewer", "report")}  # commands/train.py calls them after a training

# Who may read configuration, and with what. All others take plain values.
READERS = {
    **dict.fromkeys(
        ("config", "build", "report", "adapters", "tools", "commands"), "hydra omegaconf yaml"
    ),
    "runs": "yaml",  # a run directory holds config.yaml
}
# What is copied to a robot, or read without a training: NumPy and onnxruntime, nothing of ours.
STANDALONE = (Path("gpusim_rl/deploy/runtime.py"),)
ONBOARD = Path("gpusim_rl/deploy/onboard")  # a folder that is copied, whose files import each other


def violations(root: Path) -> list[str]:
    """One line for each import that the rule forbids."""
    wrong = []
    for file in source_files(root):
        me = package(file)
        if me not in FLOORS:
            wrong.append(f"{file} is in package {me}, which FLOORS lacks")
            continue
        for name in sorted(imported_names((root / file).read_text())):
            complaint = forbidden(file, me, name)
            if complaint:
                wrong.append(f"{file} imports {name}: {complaint}")
    return wrong


def forbidden(file: Path, me: str, name: str) -> str:
    """Why a module of package `me` must not import the dotted name; empty if it may."""
    head, other = name.split(".")[0], package_of_name(name)
    if name.startswith("."):
        inside = file.parent == ONBOARD and not name.startswith("..")
        return "" if inside else "relative imports are not used"
    standalone = file in STANDALONE or file.parent == ONBOARD
    more = {"mcap"} if file == ONBOARD / "log.py" else set()
    if standalone and head not in {"numpy", "onnxruntime", *more, *sys.stdlib_module_names}:
        return "what runs on a robot imports NumPy and onnxruntime alone"
    if head in ("hydra", "omegaconf", "yaml") and head not in READERS.get(me, "").split():
        return f"{me} does not read configuration"
    for private, packages in ONLY_FOR.items():
        if f"{name}.".startswith(f"{private}.") and me not in packages:
            return f"{private} is only for {' and '.join(packages)}"
    if other is None or other == me:
        return ""
    below = FLOORS[other] < FLOORS[me] and other not in NOT_FOR.get(me, ())
    return "" if below else f"{me} may not import {other}"


def test_imports_follow_the_rule():
    """No module of the project imports a package that its own may not import."""
    assert violations(ROOT) == []
    assert len(source_files(ROOT)) > 70


def test_no_module_imports_itself_in_a_circle():
    """Modules have an order, those of one package too; static_order raises CycleError else."""
    assert len([*TopologicalSorter(module_imports(ROOT)).static_order()]) > 70


def test_few_packages_lie_at_the_top():
    """At most 23 packages and seven modules lie directly in gpusim_rl, on ten floors."""
    files = [file for file in source_files(ROOT) if file.parts[0] == "gpusim_rl"]
    packages = {file.parts[1] for file in files if len(file.parts) > 2} | {"tasks"}
    assert len(packages) <= 23
    assert sum(len(file.parts) == 2 for file in files) <= 7
    assert package_imports(ROOT).keys() == FLOORS.keys()
    assert {*FLOORS.values()} == {*range(1, 11)}


@pytest.mark.parametrize(
    "path, line, complaint",
    [
        ("gpusim_rl/core/maths.py", "from gpusim_rl.envs.task import Task", "core may not"),
        ("gpusim_rl/sim/native.py", "from gpusim_rl import envs", "sim may not import envs"),
        ("gpusim_rl/sim/native.py", "import gpusim_rl.runs.run", "sim may not import runs"),
        (
            "gpusim_rl/envs/env.py",
            "if TYPE_CHECKING:\n    from gpusim_rl.algorithms.learner import Learner",
            "envs may not import algorithms",
        ),
        (
            "gpusim_rl/envs/env.py",
            "import importlib\nimportlib.import_module('gpusim_rl.play.player')",
            "envs may not import play",
        ),
        ("gpusim_rl/envs/env.py", "from gpusim_rl import bench", "may not import programs"),
        ("gpusim_rl/envs/env.py", "import train", "envs may not import programs"),
        ("gpusim_rl/envs/env.py", "import tasks.walk", "envs may not import tasks"),
        ("gpusim_rl/envs/env.py", "from . import task", "relative"),
        ("gpusim_rl/envs/env.py", "from omegaconf import OmegaConf", "configuration"),
        ("gpusim_rl/runs/run.py", "import omegaconf", "configuration"),
        ("gpusim_rl/deploy/runtime.py", "import torch.nn", "NumPy and onnxruntime alone"),
        ("gpusim_rl/deploy/onboard/verdict.py", "from gpusim_rl.core.maths import norm", "alone"),
        ("gpusim_rl/training/loop.py", "import gpusim_rl.viewer.film", "may not import viewer"),
        ("gpusim_rl/training/loop.py", "import gpusim_rl.gate.command", "is only for gate"),
        ("gpusim_rl/training/loop.py", "from gpusim_rl.algorithms import ppo", "is only for"),
        ("gpusim_rl/training/loop.py", "import gpusim_rl.algorithms.ppo_plus", ""),
        ("gpusim_rl/tools/verify.py", "import gpusim_rl.web.app", "is only for web"),
        ("gpusim_rl/utils/text.py", "x = 1", "FLOORS lacks"),
        ("tasks/classic/walk.py", "from gpusim_rl.config import compose", "tasks may not"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path, path, line, complaint):
    """One forbidden import, in a tree that is otherwise right, is named; an allowed one is not."""
    good = {
        "gpusim_rl/__init__.py": '"""The package."""',
        "gpusim_rl/core/maths.py": "import torch",
        "gpusim_rl/sim/native.py": "from gpusim_rl.sim import base",
        "gpusim_rl/envs/env.py": "from gpusim_rl.core import maths",
        "gpusim_rl/runs/run.py": "import yaml",
        "gpusim_rl/deploy/runtime.py": "import json\nimport numpy",
        "gpusim_rl/training/loop.py": "from gpusim_rl import algorithms, build",
        "gpusim_rl/commands/train.py": "import gpusim_rl.web.app\nimport hydra",
        "gpusim_rl/build/iteration.py": "import tasks\nimport gpusim_rl.algorithms.ppo.ppo",
        "tasks/classic/walk.py": "from gpusim_rl.core.maths import rotate\nimport torch",
        "train.py": "from gpusim_rl.commands.train import main",
    }
    for name, text in good.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert violations(tmp_path) == []
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    with open(tmp_path / path, "a") as file:
        file.write(f"\n{line}\n")
    if complaint:
        (violation,) = violations(tmp_path)
        assert complaint in violation and path in violation
    else:
        assert violations(tmp_path) == []


@pytest.mark.parametrize(
    "modules",
    [
        "gpusim_rl.config.command_line gpusim_rl.config.compose",
        "train play",
        "gpusim_rl.runs.run",
        "gpusim_rl.deploy.runtime",
    ],
)
def test_importing_does_not_load_torch(modules):
    """The command line, run directories and the exported policy's runtime import without torch."""
    code = "; ".join(
        [
            *(f"import {module}" for module in modules.split()),
            "import sys",
            "print([m for m in ('torch', 'mujoco', 'warp') if m in sys.modules])",
        ]
    )
    done = run_python(code)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr


def test_init_files_are_empty():
    """Importing a package runs nothing: each `__init__.py` is empty but the top one."""
    folders = ("gpusim_rl", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("__init__.py")]
    assert len(files) > 15
    assert [file for file in files if file.read_text()] == [ROOT / "gpusim_rl" / "__init__.py"]
    assert imported_names((ROOT / "gpusim_rl" / "__init__.py").read_text()) == {"os"}


def test_the_picture_is_fresh():
    """docs/packages.svg is what tests/draw_packages.py draws from the source, byte by byte."""
    assert PICTURE.read_text() == draw(ROOT), "run python -m tests.draw_packages"


def test_the_picture_leaves_out_what_follows():
    """An arrow that follows from two others is not drawn dark."""
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert without_implied(arrows) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"c"}}

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
    "gpusim_rl.algorithms.ppo": ("algorithms", "assembly"),  # all others ask assembly
    "gpusim_rl.web": ("web", "commands"),
    "gpusim_rl.gate": ("gate", "commands", "identify"),
    "gpusim_rl.serve": ("serve", "commands"),
}
NOT_FOR = {"training": ("viewer", "report")}  # commands/train.py calls them after a training

# Who may read configuration, and with what. All others take plain values.
READERS = {
    **dict.fromkeys(
        ("config", "assembly", "report", "adapters", "identify", "commands"), "hydra omegaconf yaml"
    ),
    "runs": "yaml",  # a run directory holds config.yaml
    "population": "yaml",  # the folder of a search holds search.yaml
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
    """Packages have a floor each and import lower ones alone; no module imports itself."""
    assert violations(ROOT) == []
    assert package_imports(ROOT).keys() == FLOORS.keys()
    assert len([*TopologicalSorter(module_imports(ROOT)).static_order()]) > 70  # else CycleError


def test_what_is_forbidden_is_named():
    """An import upwards, a private room, a reader of configuration, and what a robot lacks."""
    assert forbidden(Path("gpusim_rl/sim/native.py"), "sim", "gpusim_rl.envs.env")
    assert forbidden(Path("gpusim_rl/training/loop.py"), "training", "gpusim_rl.gate.command")
    assert forbidden(Path("gpusim_rl/envs/env.py"), "envs", "omegaconf")
    assert forbidden(Path("gpusim_rl/deploy/runtime.py"), "deploy", "torch")
    assert not forbidden(Path("gpusim_rl/envs/env.py"), "envs", "gpusim_rl.sim.base")


@pytest.mark.parametrize(
    "modules",
    [
        "gpusim_rl.config.command_line gpusim_rl.config.compose",
        "train play",
        "gpusim_rl.runs.run",
        "gpusim_rl.deploy.runtime",
        "gpusim_rl gpusim_rl.__main__",
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


def test_the_picture_is_fresh():
    """docs/packages.svg is what tests/draw_packages.py draws, without arrows that others imply."""
    assert PICTURE.read_text() == draw(ROOT), "run python -m tests.draw_packages"
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}
    assert without_implied(arrows) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"c"}}

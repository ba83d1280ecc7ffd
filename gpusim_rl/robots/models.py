"""Find model files, compile them, and make a solver converge."""

import copy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import mujoco

from gpusim_rl.core.errors import silence_mujoco, warn_once
from gpusim_rl.core.paths import ASSETS, find_asset, folders, install
from gpusim_rl.robots.model_files import model_name, reason

SPARSE_IS_WRONG = "4.0.0"  # of MuJoCo
AUTORESET = int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
RESETS = (
    "MuJoCo would reset a world whose state is not finite, and nobody would notice: this is "
    'switched off; write <option><flag autoreset="disable"/></option> into the file'
)


def find_mjcf(path: str) -> Path:
    """The file at a path, or the file of that name in `tasks/`.

    A bare name is looked up in the working directory's `tasks/` and then in ours. FileNotFoundError
    with the choices if there is none.
    """
    file = Path(path) if Path(path).exists() else find_asset(path)
    if file is None or not file.is_file():
        assets = [p.name for folder in folders("tasks") for p in folder.glob("assets/*.xml")]
        choices = ", ".join(sorted(set(assets)))
        raise FileNotFoundError(f"task.mjcf: no file {path!r}, here or among {choices}")
    return file


def find_own_mjcf(path: str, task_code: str | None) -> str:
    """The path of our model if the task is ours and a bare name is of one, else `path`.

    So a file of the same name in the working directory does not take its place.
    """
    asset = ASSETS / path
    bare = Path(path).name == path
    return str(asset) if task_code is None and bare and asset.is_file() else path


def find_robot_file(path: str) -> Path:
    """The MJCF or URDF file of a robot: a path, `package:path` within an installed package, or
    `menagerie:robot`.

    FileNotFoundError, with the files in its folder, if there is none. ValueError if MuJoCo
    Menagerie does not have the robot, or cannot be reached.
    """
    package, colon, inside = str(path).partition(":")
    if package == "menagerie" and colon:
        return find_menagerie_file(inside)
    if colon:
        spec = find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                f"robot.mjcf={path}: no package {package!r} is installed; "
                f"install it or give a file, robot.mjcf=<file>"
            )
        path = str(Path(spec.submodule_search_locations[0]) / inside)
    if not Path(path).is_file():
        folder = Path(path).parent
        names = sorted(p.name for p in folder.glob("*") if p.suffix in (".xml", ".urdf"))
        choices = f"; {folder} has {', '.join(names)}" if names else ""
        raise FileNotFoundError(f"robot.mjcf: no file {path!r}{choices}")
    return Path(path)


def find_menagerie_file(name: str) -> Path:
    """The MJCF file of a robot in MuJoCo Menagerie, ROBOT or ROBOT/ENTRY, which is downloaded once.

    ValueError if there is no such robot, or it cannot be downloaded.
    """
    try:
        import mujoco_menagerie as package
    except ImportError:
        raise ValueError(
            f"robot.mjcf=menagerie:{name} needs MuJoCo Menagerie: {install('robots')}"
        ) from None
    robot, _, entry = name.partition("/")
    try:
        description = package.get(robot)
        description.entry(entry or description.default_model)  # raises before any download
        return description.xml(entry or description.default_model)
    except package.UnknownRobotError:
        choices = ", ".join(other.name for other in package.robots("quadruped"))
        raise ValueError(
            f"robot.mjcf=menagerie:{name}: no such robot, choose one of {choices}"
        ) from None
    except package.UnknownEntryPointError as error:
        raise ValueError(f"robot.mjcf=menagerie:{name}: {error}") from None
    except (package.MenagerieError, OSError) as error:
        remedy = (
            f"run `python -m mujoco_menagerie prefetch {robot}` once with a network, "
            "or set MENAGERIE_ROOT to a checkout"
        )
        raise ValueError(
            f"robot.mjcf=menagerie:{name} cannot be downloaded ({error}): {remedy}"
        ) from None


# Why: docs/decisions/sims.md
def compile_spec(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """The compiled spec. Every model that is simulated is made here.

    Where MuJoCo computes wrong forces with a sparse constraint Jacobian, the model's is dense.
    """
    model = spec.compile()
    if mujoco.__version__ == SPARSE_IS_WRONG and mujoco.mj_isSparse(model):
        model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
        warn_once(
            f"warning: MuJoCo {SPARSE_IS_WRONG} computes wrong forces with a sparse Jacobian: a "
            f"model of {model.nv} degrees of freedom has a dense one; 4.0.1 needs none"
        )
    return model


def compile_mjcf(
    path: str, change: Callable[[mujoco.MjSpec], mujoco.MjSpec] | None = None
) -> mujoco.MjModel:
    """The compiled model of an MJCF file, whose spec `change` may change.

    A world whose state is not finite must stay so: where the file lets MuJoCo reset it, the model
    does not. `play.py mode=check` says so.

    ValueError or FileNotFoundError in one line if it cannot be compiled.
    """
    file = find_mjcf(path)
    silence_mujoco()  # else it would leave MUJOCO_LOG.TXT behind
    try:
        spec = mujoco.MjSpec.from_file(str(file))
        spec.modelname = model_name(spec.modelname, file)
        spec.option.disableflags |= AUTORESET
        return compile_spec(change(spec) if change else spec)
    except ValueError as error:
        raise ValueError(f"task.mjcf: {file}: {reason(error)}") from None


def converged(mjm: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of the model whose solver runs to convergence."""
    model = copy.copy(mjm)
    model.opt.iterations, model.opt.ls_iterations = 100, 50
    return model

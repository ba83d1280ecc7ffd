"""`make` builds the Sim of a backend; `choose` picks the backend and the device."""

import re
from typing import Any

import mujoco
import torch

from gpusim_rl.core.paths import install
from gpusim_rl.core.streams import one_stream
from gpusim_rl.sim.base import Sim

NAMES = ("auto", "warp", "native", "mjx")

ITERATIONS = 20  # of the solver, above which `solver_cost` names its kernels
NEWTON, CG = 10, 8  # kernels of an iteration of MuJoCo Warp's solver


def choose(name: str, device: str) -> tuple[str, str]:
    """(backend, device) for the names a user writes.

    `auto` is warp where CUDA is available, else native.
    """
    if name not in NAMES:
        raise ValueError(f"unknown sim {name!r}: choose one of {', '.join(NAMES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and name != "native" else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"unknown device {device!r}: choose one of auto, cpu, cuda, cuda:1 …")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={device}: torch sees no CUDA device here; use device=cpu")
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise ValueError(
            f"device={device}: there are {torch.cuda.device_count()} CUDA devices, from cuda:0 on"
        )
    if name == "auto":
        name = "warp" if device.startswith("cuda") else "native"
    if name == "native" and device != "cpu":
        raise ValueError(f"sim=native runs on the CPU, not on device={device}; use sim=warp")
    return name, device


def order_of_contacts(name: str, device: str, mjm: mujoco.MjModel, deterministic: bool) -> str:
    """A line that says where sim.deterministic=true cannot repeat bits; empty elsewhere."""
    name, device = choose(name, device)
    collides = bool((mjm.geom_contype | mjm.geom_conaffinity).any() or mjm.npair)
    if name != "warp" or device == "cpu" or not (deterministic and collides):
        return ""
    # `_sort_contacts` and `_sort_constraints` of mujoco_warp 4.0.0 are empty.
    return (
        "sim.deterministic=true: on a GPU, MuJoCo Warp 4.0 takes the contacts of a model in any "
        "order, so results repeat up to rounding"
    )


def solver_cost(
    name: str, device: str, mjm: mujoco.MjModel, substeps: int, conditional: bool
) -> str:
    """A line that says what the solver's iterations cost; empty if they are few, or end early.

    substeps: timesteps of a control step. conditional: the option of sim=warp.
    """
    name, device = choose(name, device)
    iterations, ends_early = mjm.opt.iterations, conditional and device != "cpu"
    if name != "warp" or iterations <= ITERATIONS or ends_early:
        return ""
    stages = 4 if mjm.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4 else 1
    one = NEWTON if mjm.opt.solver == mujoco.mjtSolver.mjSOL_NEWTON else CG
    kernels = substeps * stages * iterations * one
    return (
        f"the model's solver has iterations={iterations}: MuJoCo Warp launches all of them in "
        f"every timestep, about {kernels:,} kernels a control step; "
        '<option iterations="6"/> is usually enough'
    )


def make(
    name: str,
    mjm: mujoco.MjModel,
    num_envs: int,
    *,
    device: str,
    fields: tuple[str, ...] = (),
    **options: Any,
) -> Sim:
    """The Sim `name` over num_envs copies of mjm.

    `fields` are the model fields that get a value per world. `options` are the backend's own:
    native takes `threads`; warp `naconmax`, `njmax`, `conditional`, `deterministic`, `graph`; mjx
    none.
    """
    name, device = choose(name, device)
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs}: at least one world is needed")
    if name == "native":
        from gpusim_rl.sim.native import Native

        return Native(mjm, num_envs, fields=fields, **options)
    one_stream(device)
    if name == "mjx":
        if "geom_pos" in fields:
            raise ValueError("sim=mjx has no ground of its own per world: use sim=native or warp")
        try:
            from gpusim_rl.sim.mjx import Mjx
        except ImportError as error:
            raise ValueError(f"sim=mjx needs JAX: {install('mjx')}") from error

        return Mjx(mjm, num_envs, device=device, fields=fields, **options)
    from gpusim_rl.sim.warp import Warp

    return Warp(mjm, num_envs, device=device, fields=fields, **options)

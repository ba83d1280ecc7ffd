"""The Sim protocol: B copies of one MuJoCo model in live tensors, and `make`, which picks a backend."""

import re
from typing import Protocol

import mujoco
import torch
from torch import Tensor

from gpusim_rl.graph import one_stream


class Sim(Protocol):
    """B copies of one MuJoCo model, stepped together.

    The tensors are allocated once and written in place only, in the backend's own precision (native float64, warp
    and mjx float32). After `step`, `sensordata` is as mj_step leaves it: one timestep older than `qpos`. After `reset` its
    position and velocity sensors are current in the worlds that restarted, and its acceleration sensors are zero there.
    """

    capturable: bool  # whether step and reset may stand inside a CUDA graph
    qpos: Tensor  # (B, nq)  m, rad, unit quaternions (w, x, y, z)
    qvel: Tensor  # (B, nv)  m/s, rad/s
    ctrl: Tensor  # (B, nu)  units of each actuator
    sensordata: Tensor  # (B, ns)  units of each sensor
    force: Tensor  # (B, nv)  N, N m: applied to each coordinate beside the actuators, until it is written anew; reset: 0
    overflow: Tensor  # (B,) bool: the last step went over a capacity; such worlds are in fault() too

    def step(self, n: int) -> None:
        """Advance every world by n timesteps with `ctrl` held."""
        ...

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds where mask (B,) is true from the rows of qpos (B, nq) and qvel (B, nv)."""
        ...

    def model(self, field: str) -> Tensor:
        """The per-world model field (B, …), live and writable; the field was named when the Sim was built."""
        ...

    def refresh(self) -> None:
        """Recompute the constants MuJoCo derives from masses and inertias, after writes to model(field)."""
        ...

    def fault(self) -> Tensor:
        """(B,) bool: state not finite or |x| > 1e8, a new engine warning or error, or over a capacity."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All that a continuation needs, as copies: rows of it loaded into a new Sim continue bit-identically."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Write what `state` returned, in place."""
        ...


LIMIT = 1e8  # m, rad, m/s, rad/s: a state beyond this is a fault, as MuJoCo's own mjMAXVAL is 1e10
NAMES = ("auto", "warp", "native", "mjx")

NEEDS = "sim=mjx needs JAX: pip install 'gpusim_rl[mjx]'"


def choose(name: str, device: str) -> tuple[str, str]:
    """(backend, device) for the names a user writes; `auto` is warp where CUDA is available, else native."""
    if name not in NAMES:
        raise ValueError(f"unknown sim {name!r}: choose one of {', '.join(NAMES)}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and name != "native" else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"unknown device {device!r}: choose one of auto, cpu, cuda, cuda:1 …")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={device}: torch sees no CUDA device here; use device=cpu")
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise ValueError(f"device={device}: there are {torch.cuda.device_count()} CUDA devices, from cuda:0 on")
    if name == "auto":
        name = "warp" if device.startswith("cuda") else "native"
    if name == "native" and device != "cpu":
        raise ValueError(f"sim=native runs on the CPU, not on device={device}; use sim=warp")
    return name, device


def make(name: str, mjm: mujoco.MjModel, num_envs: int, *, device: str, fields: tuple[str, ...] = (), **options) -> Sim:
    """The Sim `name` over num_envs copies of mjm. `fields` are the model fields that get a value per world.

    `options` are the backend's own: native takes `threads`; warp `naconmax`, `njmax`, `conditional`, `graph`; mjx none.
    """
    name, device = choose(name, device)
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs}: at least one world is needed")
    if name == "native":
        from gpusim_rl.sim.native import Native

        return Native(mjm, num_envs, fields=fields, **options)
    one_stream(device)
    if name == "mjx":
        try:
            from gpusim_rl.sim.mjx import Mjx
        except ImportError as error:
            raise ValueError(NEEDS) from error

        return Mjx(mjm, num_envs, device=device, fields=fields, **options)
    from gpusim_rl.sim.warp import Warp

    return Warp(mjm, num_envs, device=device, fields=fields, **options)

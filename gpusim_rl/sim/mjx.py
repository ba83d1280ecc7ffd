"""MuJoCo XLA (JAX), for models made for MJX.

It is slower than the other two, and the rollout stands outside CUDA graphs.
"""

# pyright: reportMissingImports=false, reportPrivateUsage=false

import os
import platform
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import torch
from mujoco import mjx
from torch import Tensor

from gpusim_rl.sim.base import STATE, Sim, derive, with_derived, write_fault

LACKING = ("history", "plastic")  # of STATE: what MJX does not have
Arrays = dict[str, jax.Array]


class Mjx(Sim):
    """`Sim` over MJX, in float32, or with JAX_ENABLE_X64=1 in float64.

    Neighbors change no bit of a world's result. JAX returns new buffers from each call, so the
    results are copied into tensors that stay. The first step and the first reset compile, which
    takes half a minute for a quadruped. Sims of one model and size share what was compiled.

    Args:
        mjm: the model. What MJX lacks is refused. Which dofs and tendons have dry friction is fixed
            by the model. With implicitfast, saturated actuators differ from MuJoCo C: MJX keeps the
            damping that C drops.
        num_envs: B.
        device: "cpu", "cuda" or "cuda:<i>"; JAX must have been installed for it.
        fields: model fields with a value per world. They must be arrays in mjx.Model, so not
            opt.gravity.

    `overflow` is always false: MJX has room for every contact that the model could have.
    """

    capturable = False

    def __init__(
        self,
        mjm: mujoco.MjModel,
        num_envs: int,
        *,
        device: str = "cpu",
        fields: tuple[str, ...] = (),
    ):
        configure_jax()
        self._mjm, (self._m, self._blank) = mjm, put_model(mjm, jax_device(device))
        arrays = [name for name, value in vars(self._m).items() if isinstance(value, jax.Array)]
        unknown = [name for name in fields if name not in arrays or name.startswith("_")]
        if unknown:
            raise ValueError(f"sim=mjx has no value per world for {', '.join(unknown)}")
        self._fields = fields

        def rows(array: jax.Array) -> Tensor:
            return torch.from_numpy(np.tile(array, (num_envs, *[1] * array.ndim))).to(device)

        start = {name: getattr(self._blank, name) for name in STATE if name not in LACKING}
        self._state = {name: rows(array) for name, array in start.items() if array.size}
        own = (*fields, "dof_M0") if fields else ()  # MJX has this derived field, too
        stored = {name: getattr(self._m, name) for name in with_derived(own)}
        self._model = {name: rows(array) for name, array in stored.items() if array.size}
        empty = torch.zeros(num_envs, 0, device=device)
        self.qpos, self.qvel = self._state["qpos"], self._state["qvel"]
        self.ctrl = self._state.get("ctrl", empty)
        self.sensordata = self._state.get("sensordata", empty)
        self.force = self._state["qfrc_applied"]
        self.mocap_pos = self._state.get("mocap_pos", empty[:, None])
        self.mocap_quat = self._state.get("mocap_quat", empty[:, None])
        self.overflow = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._fault = torch.zeros_like(self.overflow)

    def step(self, n: int) -> None:
        self._copy(advance(self._m, self._blank, to_jax(self._model), to_jax(self._state), n=n))
        write_fault(self._fault, self.qpos, self.qvel)

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        start = {"mask": mask, "qpos": qpos.to(self.qpos), "qvel": qvel.to(self.qvel)}
        fields, state = to_jax(self._model), to_jax(self._state)
        self._copy(restart(self._m, self._blank, fields, state, **to_jax(start)))
        self._fault &= ~mask

    def refresh(self) -> None:
        derive(self._mjm, self._model, self._fields)

    def tensors(self) -> dict[str, Tensor]:
        """Derived constants too: computed again they may differ."""
        model = {f"model/{name}": value for name, value in self._model.items()}
        return {**self._state, **model, "fault": self._fault}

    # Why: docs/decisions/sims.md
    def _copy(self, result: Arrays) -> None:
        """Write what JAX returned into the tensors, in place."""
        # It reads our tensors, which are written next.
        jax.block_until_ready(result)
        for name, array in result.items():
            self._state[name].copy_(torch.from_dlpack(array))


@partial(jax.jit, static_argnames="n")
def advance(m: mjx.Model, blank: mjx.Data, fields: Arrays, state: Arrays, *, n: int) -> Arrays:
    """The states (B, …) after n timesteps of worlds with model fields (B, …)."""

    def world(fields: Arrays, state: Arrays) -> Arrays:
        model = m.replace(**fields)

        def timestep(state: Arrays, _) -> tuple[Arrays, None]:
            return select(mjx.step(model, blank.replace(**state)), state), None

        return jax.lax.scan(timestep, state, length=n)[0]

    return jax.vmap(world)(fields, state)


@jax.jit
def restart(
    m: mjx.Model,
    blank: mjx.Data,
    fields: Arrays,
    state: Arrays,
    *,
    mask: jax.Array,
    qpos: jax.Array,
    qvel: jax.Array,
) -> Arrays:
    """The states (B, …); those of mask (B,) restart at qpos (B, nq) and qvel (B, nv).

    Their position and velocity sensors are current.
    """

    def world(
        fields: Arrays, state: Arrays, mask: jax.Array, qpos: jax.Array, qvel: jax.Array
    ) -> Arrays:
        placed = {name: state[name] for name in ("mocap_pos", "mocap_quat") if name in state}
        model, d = m.replace(**fields), blank.replace(qpos=qpos, qvel=qvel, **placed)
        d = mjx.sensor_pos(model, mjx.fwd_position(model, d))
        d = mjx.sensor_vel(model, mjx.fwd_velocity(model, d))
        return {name: jnp.where(mask, new, state[name]) for name, new in select(d, state).items()}

    return jax.vmap(world)(fields, state, mask, qpos, qvel)


def select(d: mjx.Data, names: Arrays) -> Arrays:
    """The arrays of a Data that have these names."""
    return {name: getattr(d, name) for name in names}


def to_jax(tensors: dict[str, Tensor]) -> Arrays:
    """The tensors as JAX arrays, without a copy where their memory is aligned as XLA wants it."""
    return {name: jax.dlpack.from_dlpack(tensor.contiguous()) for name, tensor in tensors.items()}


def configure_jax() -> None:
    """Set what JAX reads when it starts its first device, unless the user has set it."""
    # else JAX takes three quarters of the GPU's memory from torch
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # with a pool of two threads 512 quadrupeds hung on two cores, with sixteen they did not
    os.environ.setdefault("PJRT_NPROC", str(max(16, os.cpu_count() or 1)))
    # with AVX-512, XLA adds in an order that depends on the number of worlds
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")


def jax_device(device: str) -> Any:
    """JAX's name of torch's device; ValueError if JAX was installed without it."""
    kind, _, index = device.partition(":")
    try:
        return jax.devices(kind)[int(index or 0)]
    except (RuntimeError, IndexError):
        raise ValueError(
            f"device={device}: JAX sees no such device; pip install 'jax[cuda12]' or use device=cpu"
        ) from None


def put_model(mjm: mujoco.MjModel, device: Any) -> tuple[mjx.Model, mjx.Data]:
    """The model and the Data that a world starts from; ValueError names what MJX cannot do."""
    try:
        m = mjx.put_model(mjm, device=device, impl="jax")
        blank = mjx.make_data(mjm, device=device, impl="jax")
    except NotImplementedError as error:
        raise ValueError(f"sim=mjx cannot run this model ({error}): use sim=native") from None
    asleep = mjm.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP
    ignored = {
        "delays": mjm.nhistory,
        "plugins": mjm.nplugin,
        "sleeping islands": asleep,
        "moving surfaces": mjm.flg_surfacevel,
    }
    if any(ignored.values()):
        raise ValueError(
            f"sim=mjx ignores {', '.join(name for name in ignored if ignored[name])}: "
            "use sim=native"
        )
    late = mjm.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC
    if late.any() and not blank._impl.efc_J.size:
        raise ValueError(
            "sim=mjx computes no acceleration sensors in a model without any constraint: use "
            "sim=native"
        )
    return m, blank

"""The torque of a joint from its target and its motion: PD law, DC motor, learned network."""

import json
import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.core.files import read_whole, write_whole

LARGEST_NETWORK_BYTES = 1 << 20  # bytes of a network's file
WIDEST, DEEPEST, FARTHEST = 256, 8, 1000  # units of a layer, layers, samples into the past
KEY = "gpusim_rl"  # of the metadata


def pd(error: Tensor, speed: Tensor, kp: Tensor, kd: Tensor) -> Tensor:
    """τ = kp (q* - q) - kd q̇ [N m], unlimited: the law of MuJoCo's position servo.

    error (…) [rad], speed (…) [rad/s], kp [N m/rad], kd [N m s/rad].
    """
    return kp * error - kd * speed


def envelope(speed: Tensor, stall: Tensor, no_load: Tensor) -> tuple[Tensor, Tensor]:
    """(lowest, highest) torque [N m] of a DC motor at a speed [rad/s].

    It gives no torque beyond the speed without load:

        τ⁻(q̇) = min(-τ₀ (1 + q̇/ω₀), 0),   τ⁺(q̇) = max(τ₀ (1 - q̇/ω₀), 0)

    Here τ₀ is the torque at stall and ω₀ the speed without load. Source:
    `isaaclab.actuators.DCMotor`, Isaac Lab 2.1.
    """
    slope = stall / no_load * speed
    return (-stall - slope).clamp(max=0), (stall - slope).clamp(min=0)


@dataclass(kw_only=True, frozen=True)
class Inputs:
    """The inputs of an actuator network, errors first.

    These are e(t - k dt) / error and q̇(t - k dt) / speed for each k of offsets. The network's
    output times `torque` is the torque [N m].
    """

    dt: float  # s
    offsets: tuple[int, ...]  # samples ago, ascending from 0
    error: float  # rad
    speed: float  # rad/s
    torque: float  # N m

    def __post_init__(self) -> None:
        k, scales = self.offsets, (self.dt, self.error, self.speed, self.torque)
        whole = bool(k) and all(type(x) is int for x in k)
        if not whole or k[0] != 0 or any(a >= b for a, b in pairwise(k)) or k[-1] > FARTHEST:
            raise ValueError(
                f"offsets {list(k)[:9]}: expected whole numbers that ascend from 0, at most "
                f"{FARTHEST}"
            )
        if not all(type(x) in (int, float) and 1e-9 < x < 1e9 for x in scales):
            raise ValueError(f"dt, error, speed, torque {scales}: expected numbers above 0")


class Net:
    """An actuator network with softsign layers, the same for all joints.

    Source: Hwangbo et al., Science Robotics 2019, arXiv:1901.08652. layers: (out, in) weight and
    (out,) bias of each, float32.
    """

    def __init__(self, inputs: Inputs, layers: list[tuple[Tensor, Tensor]]):
        self.inputs, self.layers = inputs, layers

    def to(self, device: torch.device) -> "Net":
        """This network on another device."""
        return Net(self.inputs, [(w.to(device), b.to(device)) for w, b in self.layers])

    def __call__(self, errors: Tensor, speeds: Tensor) -> Tensor:
        """Torque (…) [N m] from errors [rad] and speeds [rad/s], (…, offsets) each."""
        x = torch.cat([errors / self.inputs.error, speeds / self.inputs.speed], -1)
        for i, (weight, bias) in enumerate(self.layers):
            x = torch.nn.functional.linear(
                x if i == 0 else torch.nn.functional.softsign(x), weight, bias
            )
        return self.inputs.torque * x[..., 0]

    def steps(self, timestep: float) -> list[int]:
        """The offsets as counts of timesteps [s]; ValueError if they are not whole numbers."""
        steps = [k * self.inputs.dt / timestep for k in self.inputs.offsets]
        if any(abs(x - round(x)) > 1e-3 for x in steps) or round(steps[-1]) > FARTHEST:
            seconds = [round(k * self.inputs.dt, 6) for k in self.inputs.offsets]
            raise ValueError(
                f"its inputs lie {seconds} s back, which are no timesteps of this model's "
                f"{timestep} s"
            )
        return [round(x) for x in steps]

    def save(self, path: Path) -> None:
        """Write a safetensors file that `load` reads."""
        tensors = {
            f"{i}.{name}": x
            for i, layer in enumerate(self.layers)
            for name, x in zip("wb", layer, strict=True)
        }
        tensors = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        write_whole(
            path,
            to_bytes(tensors, metadata={KEY: json.dumps({"format": 1, **asdict(self.inputs)})}),
        )


def load(path: Path) -> Net:
    """An actuator network, on the CPU. Nothing of the file is executed.

    ValueError if the file is none, OSError if it cannot be read.
    """
    if not path.is_file():
        raise FileNotFoundError(f"robot.actuator.file={path}: no such file")
    data = read_whole(path, LARGEST_NETWORK_BYTES)
    try:
        description = json.loads(
            json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"][KEY]
        )
        if description.pop("format") != 1:
            raise ValueError("of another format")
        inputs = Inputs(**description | {"offsets": tuple(description["offsets"])})
        return Net(inputs, checked(from_bytes(data), 2 * len(inputs.offsets)))
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"robot.actuator.file={path} is no actuator network: {type(error).__name__} {reason}"
        ) from None


def checked(tensors: dict[str, Tensor], width: int) -> list[tuple[Tensor, Tensor]]:
    """The layers, from `width` inputs to one output; ValueError unless they fit together."""
    count = len(tensors) // 2
    if not 1 <= count <= DEEPEST or set(tensors) != {
        f"{i}.{name}" for i in range(count) for name in "wb"
    }:
        raise ValueError(f"expected 0.w, 0.b and so on, of at most {DEEPEST} layers")
    layers = [(tensors[f"{i}.w"], tensors[f"{i}.b"]) for i in range(count)]
    for i, (w, b) in enumerate(layers):
        out = 1 if i == count - 1 else len(b) if b.ndim else 0
        shapes = w.shape == (out, width) and b.shape == (out,)
        if not shapes or {w.dtype, b.dtype} != {torch.float32}:
            raise ValueError(
                f"layer {i} is {tuple(w.shape)} {w.dtype}, expected {width} inputs, float32"
            )
        if not 1 <= out <= WIDEST:
            raise ValueError(f"layer {i} has {out} units, at most {WIDEST} are read")
        if not (math.isfinite(w.abs().sum().item()) and math.isfinite(b.abs().sum().item())):
            raise ValueError(f"layer {i} is not finite")
        width = out
    return layers

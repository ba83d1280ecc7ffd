"""The torque of a joint, from its target and its motion: a PD law, a DC motor, a network that learned it."""

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

from gpusim_rl.disk import read_whole, write_whole

LARGEST = 1 << 20  # bytes of a network's file
WIDEST, DEEPEST, FARTHEST = 256, 8, 1000  # units of a layer, layers, samples into the past
KEY = "gpusim_rl"  # of the metadata


def pd(error: Tensor, speed: Tensor, kp: Tensor, kd: Tensor) -> Tensor:
    """τ = kp (q* - q) - kd q̇ [N m], unlimited: the law of MuJoCo's position servo.

    error (…) [rad], speed (…) [rad/s], kp [N m/rad], kd [N m s/rad].
    """
    return kp * error - kd * speed


def envelope(speed: Tensor, stall: Tensor, no_load: Tensor) -> tuple[Tensor, Tensor]:
    """(lowest, highest) torque [N m] of a DC motor at a speed [rad/s]: it gives nothing beyond the speed without load.

        τ⁻(q̇) = min(-τ₀ (1 + q̇/ω₀), 0),   τ⁺(q̇) = max(τ₀ (1 - q̇/ω₀), 0)

    with the torque τ₀ at stall and the speed ω₀ without load: `isaaclab.actuators.DCMotor`, Isaac Lab 2.1.
    """
    slope = stall / no_load * speed
    return (-stall - slope).clamp(max=0), (stall - slope).clamp(min=0)


@dataclass(kw_only=True, frozen=True)
class Inputs:
    """What an actuator network sees: e(t - k dt) / error and q̇(t - k dt) / speed for each k of offsets, errors first.

    Its output times `torque` is the torque [N m].
    """

    dt: float  # s
    offsets: tuple[int, ...]  # samples ago, ascending from 0
    error: float  # rad
    speed: float  # rad/s
    torque: float  # N m

    def __post_init__(self) -> None:
        k, scales = self.offsets, (self.dt, self.error, self.speed, self.torque)
        if not k or k[0] != 0 or any(type(x) is not int for x in k) or any(a >= b for a, b in pairwise(k)) or k[-1] > FARTHEST:
            raise ValueError(f"offsets {list(k)[:9]}: expected whole numbers that ascend from 0, at most {FARTHEST}")
        if not all(type(x) in (int, float) and 1e-9 < x < 1e9 for x in scales):
            raise ValueError(f"dt, error, speed, torque {scales}: expected numbers above 0")


class Net:
    """An actuator network (Hwangbo et al., Science Robotics 2019, arXiv:1901.08652): softsign layers, one for all joints.

    Args:
        inputs: what it sees.
        layers: (out, in) weight and (out,) bias of each, float32.
    """

    def __init__(self, inputs: Inputs, layers: list[tuple[Tensor, Tensor]]):
        self.inputs, self.layers = inputs, layers

    def to(self, device: torch.device) -> "Net":
        """On another device."""
        return Net(self.inputs, [(w.to(device), b.to(device)) for w, b in self.layers])

    def __call__(self, errors: Tensor, speeds: Tensor) -> Tensor:
        """Torque (…) [N m] from errors [rad] and speeds [rad/s], (…, offsets) each."""
        x = torch.cat([errors / self.inputs.error, speeds / self.inputs.speed], -1)
        for i, (weight, bias) in enumerate(self.layers):
            x = torch.nn.functional.linear(x if i == 0 else torch.nn.functional.softsign(x), weight, bias)
        return self.inputs.torque * x[..., 0]

    def steps(self, timestep: float) -> list[int]:
        """The offsets in timesteps [s] of a simulation; ValueError if they are none."""
        found = [k * self.inputs.dt / timestep for k in self.inputs.offsets]
        if any(abs(x - round(x)) > 1e-3 for x in found) or round(found[-1]) > FARTHEST:
            seconds = [round(k * self.inputs.dt, 6) for k in self.inputs.offsets]
            raise ValueError(f"its inputs lie {seconds} s back, which are no timesteps of this model's {timestep} s")
        return [round(x) for x in found]

    def save(self, path: Path) -> None:
        """Write a safetensors file that `load` reads."""
        tensors = {f"{i}.{name}": x for i, layer in enumerate(self.layers) for name, x in zip("wb", layer, strict=True)}
        tensors = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        write_whole(path, to_bytes(tensors, metadata={KEY: json.dumps({"format": 1, **asdict(self.inputs)})}))


def load(path: Path) -> Net:
    """An actuator network, on the CPU; ValueError or OSError in one line if the file is no such. Nothing of it is executed."""
    if not path.is_file():
        raise FileNotFoundError(f"robot.actuator.file={path}: no such file")
    data = read_whole(path, LARGEST)
    try:
        about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"][KEY])
        if about.pop("format") != 1:
            raise ValueError("of another format")
        inputs = Inputs(**about | {"offsets": tuple(about["offsets"])})
        return Net(inputs, checked(from_bytes(data), 2 * len(inputs.offsets)))
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        says = " ".join(str(error).split())[:200]
        raise ValueError(f"robot.actuator.file={path} is no actuator network: {type(error).__name__} {says}") from None


def checked(tensors: dict[str, Tensor], width: int) -> list[tuple[Tensor, Tensor]]:
    """The layers, from `width` inputs to one output; ValueError if they do not fit together, or are not finite."""
    count = len(tensors) // 2
    if not 1 <= count <= DEEPEST or set(tensors) != {f"{i}.{name}" for i in range(count) for name in "wb"}:
        raise ValueError(f"expected 0.w, 0.b and so on, of at most {DEEPEST} layers")
    layers = [(tensors[f"{i}.w"], tensors[f"{i}.b"]) for i in range(count)]
    for i, (w, b) in enumerate(layers):
        out = 1 if i == count - 1 else len(b) if b.ndim else 0
        if w.dtype != torch.float32 or b.dtype != torch.float32 or w.shape != (out, width) or b.shape != (out,):
            raise ValueError(f"layer {i} is {tuple(w.shape)} {w.dtype}, expected {width} inputs, float32")
        if not 1 <= out <= WIDEST:
            raise ValueError(f"layer {i} has {out} units, at most {WIDEST} are read")
        if not (math.isfinite(w.abs().sum().item()) and math.isfinite(b.abs().sum().item())):
            raise ValueError(f"layer {i} is not finite")
        width = out
    return layers

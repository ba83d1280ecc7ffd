"""What a card says, as two torch modules around the network: readings → observation, action →
targets."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from gpusim_rl.deploy.card import Card
from gpusim_rl.deploy.controller import COMMAND, MEMORY, RESTART, TARGETS, finite, where

OBSERVATION, SOUND, RESULT = "observation", "sound", "result"
DRAFT = "draft."  # before the name of a memory: its next value, unless there is a fault
ACTION, PHASE, PAST = "action", "phase", "past"
NETWORK = "network."  # before the name of an input that the network itself remembers
Memory = dict[str, Tensor]


class Observation(nn.Module):
    """Readings, command, restart and memory (B, …) → observation (B, no) and next memory.

    Args:
        card: what is seen.
        order: (n,) for each joint of the card its place in the readings.
        network: what the network itself remembers, name → (1, layers, width) at the start.

    Attributes:
        start: memory at the start of an episode, name → (1, …).
        inputs, outputs: names of the arguments and results of `forward`, in order. `sound` (B,)
            tells whether all inputs are finite.
    """

    def __init__(self, card: Card, order: list[int], pose: np.ndarray, network: Memory):
        super().__init__()
        self.card, self.network = card, [*network]
        self.order, self.pose = torch.tensor(order), torch.tensor(pose, dtype=torch.float32)
        self.scales = [torch.tensor(scale) for _, scale in card.terms]
        hidden = [x in card.values.get("hide", ()) for x in card.joints]
        self.shown = (~torch.tensor(hidden)).float()
        self.start: Memory = {ACTION: torch.zeros(1, len(order))}
        if clock := card.values.get("clock"):
            self.start[PHASE] = torch.tensor([clock["start"]], dtype=torch.float64)
        if card.steps > 1:
            self.start[PAST] = torch.zeros(1, card.steps, card.step_width)
        self.start |= {NETWORK + name: x for name, x in network.items()}
        self.inputs = [*card.readings, COMMAND, RESTART, *(MEMORY + x for x in self.start)]
        own = [x for x in (PHASE, PAST) if x in self.start]
        self.outputs = [OBSERVATION, SOUND, *(NETWORK + x for x in network)]
        self.outputs += [DRAFT + x for x in own]

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The `outputs` for the `inputs`."""
        v = dict(zip(self.inputs, args, strict=True))
        begins = v[RESTART]
        memory = {
            name: where(begins, x.expand_as(v[MEMORY + name]), v[MEMORY + name])
            for name, x in self.start.items()
        }
        terms, after = self.terms(v, memory)
        pairs = zip(self.card.terms, self.scales, strict=True)
        parts = [terms[name] * scale for (name, _), scale in pairs]
        if clip := self.card.values.get("clip"):
            parts = [x.clamp(-clip, clip) for x in parts]
        seen = torch.cat(parts, 1)
        if PAST in memory:
            seen, after[PAST] = self.history(seen, memory[PAST], begins)
        sound = finite({name: x for name, x in v.items() if name != RESTART})
        return (seen, sound, *(memory[NETWORK + x] for x in self.network), *after.values())

    def terms(self, v: Memory, memory: Memory) -> tuple[Memory, Memory]:
        """The terms (B, …) without their scales, and the next phase of the clock."""
        command, terms = v[COMMAND], {ACTION: memory[ACTION]}
        terms |= {x: v[x] for x in ("gyro", "velocity", "up") if x in v}
        terms |= {"gravity": -v["up"]} if "up" in v else {}
        terms |= {
            "command": command,
            "command_move": command[:, :2],
            "command_turn": command[:, 2:],
        }
        if "joint_pos" in v:
            angles = v["joint_pos"][:, self.order]
            terms |= {"joint_pos": angles, "joint_pos_rel": (angles - self.pose) * self.shown}
        if "joint_vel" in v:
            terms["joint_vel"] = v["joint_vel"][:, self.order] * self.shown
        if "quat" in v:
            terms["euler"] = euler(v["quat"])
        if PHASE not in memory:
            return terms, {}
        shown, after = self.clock(memory[PHASE], command)
        return terms | {"sin": shown.sin(), "cos": shown.cos()}, {PHASE: after}

    def clock(self, phase: Tensor, command: Tensor) -> tuple[Tensor, Tensor]:
        """(B, feet) the phase that is shown, and that of the next step [rad]."""
        clock, dt = self.card.values["clock"], self.card.values["dt"]

        def exact(x: float) -> Tensor:  # a plain number would become float32 in ONNX
            return torch.tensor(x, dtype=torch.float64)

        size = torch.linalg.vector_norm(command, dim=1, keepdim=True).double()
        low, high = np.broadcast_to(clock["hz"], 2)
        hz = exact(low)
        if high != low:
            hz = hz + exact(high - low) * torch.minimum(size / exact(clock["full"]), exact(1.0))
        after = phase + exact(2 * math.pi * dt) * hz
        after = torch.where(after > exact(math.pi), after - exact(2 * math.pi), after)
        shown = phase
        if "least" in clock:
            stands = size < exact(clock["least"])
            shown = torch.where(stands, exact(clock["stand"]), phase)
            if clock.get("restart"):
                after = torch.where(stands, self.start[PHASE].expand_as(after), after)
        return shown.float(), after

    def history(self, now: Tensor, past: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """(B, steps · width) the steps that the network sees, and (B, steps, width) all of them."""
        rule, steps = self.card.values["history"], self.card.steps
        first = now[:, None].expand(-1, steps, -1) if rule["begin"] == "repeat" else past
        before = where(begins, first, past)
        past = torch.cat([before[:, 1:], now[:, None]], 1)
        seen = past if rule["first"] == "oldest" else past.flip(1)
        if rule["by"] == "time":
            return seen.flatten(1), past
        widths = [self.card.width(name) for name, _ in self.card.terms]
        return torch.cat([x.flatten(1) for x in seen.split(widths, 2)], 1), past


class Action(nn.Module):
    """The network's result and the draft memory → targets, fault and the next memory.

    Where a number is not finite, `fault` is true, targets are those of the last step without one,
    and the memory stays. The arguments are in the order of `inputs`; `result` is the network's.
    """

    def __init__(self, observation: Observation, order: list[int], pose: np.ndarray):
        super().__init__()
        card = observation.card
        self.back = torch.tensor(np.argsort(order))
        self.pose, self.scale = (
            torch.tensor(x, dtype=torch.float32) for x in (pose, card.vector("scale"))
        )
        ends = card.values.get("clip_action")
        self.clip = None if ends is None else [torch.tensor(x, dtype=torch.float32) for x in ends]
        self.start = observation.start | {TARGETS: self.pose[self.back][None]}
        self.draft = [DRAFT + x for x in observation.start if x != ACTION]
        self.inputs = [RESULT, SOUND, *self.draft, *(MEMORY + x for x in self.start)]

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Targets (B, nu), fault (B,), and the next memory in the order of `start`."""
        v = dict(zip(self.inputs, args, strict=True))
        action = v[RESULT]
        remembered = {x: v[x] for x in self.draft if x.startswith(DRAFT + NETWORK)}
        sound = v[SOUND] & finite({ACTION: action} | remembered)
        if self.clip:
            action = torch.minimum(torch.maximum(action, self.clip[0]), self.clip[1])
        after = {ACTION: action, TARGETS: (self.pose + self.scale * action)[:, self.back]}
        after |= {x.removeprefix(DRAFT): v[x] for x in self.draft}
        after = {x: where(sound, after[x], v[MEMORY + x]) for x in self.start}
        return (after[TARGETS], ~sound, *(x + 0 for x in after.values()))


def euler(quat: Tensor) -> Tensor:
    """(B, 3) roll, pitch and yaw [rad] of unit quaternions (B, 4), w first."""
    w, x, y, z = quat.unbind(1)
    roll = torch.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = torch.asin((2 * (w * y - z * x)).clamp(-1, 1))
    return torch.stack([roll, pitch, torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))], 1)

"""What `task.randomise` does to B worlds: once per world, at each restart, and by pushes at random times."""

import math
from collections.abc import Callable
from operator import attrgetter

import mujoco
import torch
from torch import Tensor

from gpusim_rl.actuator import GAINS, Actuator
from gpusim_rl.draws import Block, free_joint, spread
from gpusim_rl.noise import Noise
from gpusim_rl.variety import Entry, active, field

GRAVITY = "opt.gravity"
Values = dict[str, Tensor]


class Randomisation:
    """The entries of `task.randomise` that are on, for a model. Its methods are pure, like a task's.

    Args:
        mjm: the model, with its servos.
        randomise: field → entry, as `variety.FIELDS` says.
        actuator: what acts for those servos.
        dt: control period [s].
        terms: observation term → width.

    Raises:
        ValueError: in one line, for an entry that makes no sense, or not with this model.
    """

    def __init__(
        self, mjm: mujoco.MjModel, randomise: Entry, *, actuator: Actuator, dt: float, terms: dict[str, int], device: str
    ):
        self.mjm, self.actuator, self.dt, self.device = mjm, actuator, dt, device
        self.entries = active(randomise)
        if actuator.kind == "net":  # which has learned its gains
            self.entries = {name: entry for name, entry in self.entries.items() if name not in ("kp", "kd")}
        self.spreads = {name: spread(mjm, name, entry, terms, device) for name, entry in self.entries.items()}
        free = free_joint(mjm)
        self.qpos, self.qvel = (0, 0) if free is None else (int(mjm.jnt_qposadr[free]), int(mjm.jnt_dofadr[free]))
        self.own = {target: self._nominal(target) for name in self.entries for target in self.targets(name)}
        for name in self.entries:
            self.check(name, self.entries[name]["low"])
        self.fields = tuple(dict.fromkeys(t if t == GRAVITY else t.partition(".")[0] for t in self.own))
        self.once, self.anew = self._block("world"), self._block("episode")
        self._push_blocks()
        self._gravity()
        self._start()
        self._biases(terms)

    # -- building ------------------------------------------------------------------------------------------------------

    def targets(self, name: str) -> tuple[str, ...]:
        """The model fields that an entry is written to; gains are the actuator's own where the engine's servos do not act."""
        return (name,) if name in GAINS and self.actuator.kind != "position" else field(name).targets

    def _tensor(self, values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def _nominal(self, target: str) -> Tensor:
        """The model's own value of a target; "geom_friction.0" is component 0 of the last axis."""
        if target in GAINS:
            return self._tensor(self.actuator.gains(self.mjm)[target])
        name, _, part = target.rpartition(".") if target[-1].isdigit() else (target, "", "")
        value = self._tensor(attrgetter(name)(self.actuator.plant(self.mjm)))
        return value[..., int(part)] if part else value

    def check(self, name: str, low: float) -> None:
        """ValueError where such a number scales nothing, or could make a mass, or anything that may not be, negative."""
        how = self._how(name)
        if name == "gravity" and how == "set" and not self.own[GRAVITY].any():
            raise ValueError("task.randomise.gravity: this model has none, so it has no direction")
        own = [self.own[target][self.spreads[name].mask] for target in self.targets(name) if target != GRAVITY]
        if how == "scale" and any(not value.any() for value in own):
            other = ", say how=set" if "set" in field(name).hows else ""
            raise ValueError(f"task.randomise.{name}: this model has none to scale{other}")
        if how != "add" or name in ("centre", "tilt"):
            return
        for target in self.targets(name):
            least = float(self.own[target][self.spreads[name].mask].min()) + low
            if least < 0 or (name == "payload" and least == 0):
                raise ValueError(f"task.randomise.{name}.low={low}: {target} could become {least:.4g}")

    def _how(self, name: str) -> str:
        return self.entries[name].get("how", field(name).hows[0])

    def _block(self, when: str) -> Block | None:
        """The block of the entries that are drawn then; None if there are none."""
        named = [(name, e) for name, e in self.entries.items() if field(name).when == when]
        parts = [(name, e["kind"], e["low"], e["high"], self.spreads[name].width) for name, e in named]
        if when == "episode" and "tilt" in self.entries:
            parts.append(("azimuth", "uniform", 0.0, 2 * math.pi, 1))
        return Block(f"randomise/{when}", parts, self.device) if parts else None

    def _push_blocks(self) -> None:
        """The blocks of the two kinds of push: x and y, whether, and for how long."""
        timed = {name: e for name, e in self.entries.items() if "every" in e}
        self.every = {name: self._tensor(e["every"]) for name, e in timed.items()}
        self.pushes: dict[str, Block] = {}
        for name, e in timed.items():
            parts = [(name, e["kind"], e["low"], e["high"], 2), ("chance", "uniform", 0.0, 1.0, 1)]
            parts += [("hold", "uniform", *e["hold"], 1)] if "hold" in e else []
            self.pushes[name] = Block(f"randomise/{name}", parts, self.device)

    def _gravity(self) -> None:
        """Two unit vectors across the model's gravity, which it is tilted towards."""
        down = torch.nn.functional.normalize(self._tensor(self.mjm.opt.gravity), dim=0)
        side = self._tensor([1.0, 0.0, 0.0] if abs(float(down[0])) < 0.9 else [0.0, 1.0, 0.0])
        across = torch.nn.functional.normalize(torch.linalg.cross(down, side), dim=0)
        self.across, self.ahead = across, torch.linalg.cross(across, down)

    def _start(self) -> None:
        """Bounds (nq,) of start angles, and where a measured angle reaches which servo."""
        m = self.mjm
        low, high = torch.full((m.nq,), -torch.inf), torch.full((m.nq,), torch.inf)
        for j in range(m.njnt):
            if m.jnt_limited[j] and m.jnt_type[j] in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE):
                low[m.jnt_qposadr[j]], high[m.jnt_qposadr[j]] = m.jnt_range[j].tolist()
        self.least, self.most = low.to(self.device), high.to(self.device)
        on_joint = m.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
        servo = on_joint & (m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE) & (m.actuator_biasprm[:, 1] != 0)
        joints = m.actuator_trnid[:, 0].clip(min=0)
        self.acts_on = torch.as_tensor(m.jnt_qposadr[joints], dtype=torch.int64, device=self.device)
        self.gear = self._tensor(servo * m.actuator_gear[:, 0])

    def _biases(self, terms: dict[str, int]) -> None:
        """Which biases make up those of the actor's view, in its order."""
        self.bias = [(f"bias.{term}" if f"bias.{term}" in self.entries else "", wide) for term, wide in terms.items()]
        self.biased = any(name for name, _ in self.bias)

    def number(self, name: str, which: str) -> Tensor:
        """The live number of an entry, low, high or every: a view to write to."""
        if which == "every":
            return self.every[name]
        block = self.pushes.get(name, self.anew)
        assert block is not None
        return getattr(block, which)[block.place[name]]

    # -- drawing -------------------------------------------------------------------------------------------------------

    def memory(self, n: int) -> Values:
        """What an Env keeps of n worlds for us, blank."""
        nq, kept = self.mjm.nq, {}
        if self.biased:
            kept["sensor_bias"] = torch.zeros(n, sum(wide for _, wide in self.bias), device=self.device)
        if "encoder" in self.entries:
            kept["encoder"] = torch.zeros(n, nq, device=self.device)
        if "force" in self.entries:
            kept["force_left"] = torch.zeros(n, dtype=torch.int64, device=self.device)
        return kept

    def world(self, noise: Noise) -> Values:
        """Model fields (B, …) drawn once per world."""
        if self.once is None:
            return {}
        block, drawn = self.once, self.once(noise)
        return self._apply(lambda name: drawn[:, block.place[name]], block)

    def restart(self, start: Values, noise: Noise) -> Values:
        """The first states and memory of a task's `start`, with what is drawn anew for each episode."""
        if "force" in self.entries:
            start = start | {"force_left": torch.zeros(len(start["qpos"]), dtype=torch.int64, device=self.device)}
        if self.anew is None:
            return start
        block, drawn = self.anew, self.anew(noise)

        def draw(name: str) -> Tensor:
            return drawn[:, block.place[name]]

        if self.biased:
            zero = drawn[:, :1] * 0
            biases = [draw(name) if name else zero.expand(-1, wide) for name, wide in self.bias]
            start["sensor_bias"] = torch.cat(biases, dim=1)
        if "encoder" in self.entries:
            start["encoder"] = self.spreads["encoder"].only(draw("encoder"))
        return self._begin(start, draw) | self._apply(draw, block)

    def _begin(self, start: Values, draw: Callable[[str], Tensor]) -> Values:
        """`start` with other angles, speeds, height and velocities."""
        m, on = self.mjm, self.entries
        if "start_angle" in on:
            qpos = start["qpos"] + self.spreads["start_angle"].only(draw("start_angle"))
            start["qpos"] = torch.minimum(torch.maximum(qpos, self.least), self.most)
        if "start_speed" in on:
            start["qvel"] = start["qvel"] + self.spreads["start_speed"].only(draw("start_speed"))
        for name, key, at, size in (
            ("start_height", "qpos", self.qpos + 2, m.nq),
            ("start_velocity", "qvel", self.qvel, m.nv),
            ("start_spin", "qvel", self.qvel + 3, m.nv),
        ):
            if name in on:
                start[key] = start[key] + wide(draw(name), at, size)
        return start

    def _apply(self, draw: Callable[[str], Tensor], block: Block) -> Values:
        """The model fields (B, …) of the entries of a block."""
        values: Values = {}
        for name in (name for name in self.entries if name in block.place):
            for target in self.targets(name) if GRAVITY not in self.targets(name) else ():
                values[target] = self._write(name, target, values.get(target, self.own[target]), draw(name))
        if GRAVITY in self.own and block is self.anew:
            values[GRAVITY] = self._down(draw)
        return values

    def _write(self, name: str, target: str, value: Tensor, x: Tensor) -> Tensor:
        """A target's value ((B,) E, …) scaled by the numbers x (B, width) of an entry, with them added, or set to them."""
        lay, how, mask = self.spreads[name], self._how(name), self.spreads[name].mask
        x = x.unflatten(1, (-1, 3)).index_select(1, lay.index) if name == "centre" else lay(x)
        if self.own[target].ndim == 2:  # rows of three, or of two limits
            x, mask = x if name == "centre" else x[:, :, None], mask[:, None]
        new = value * x if how == "scale" else value + x if how == "add" else x.expand(-1, value.shape[-1])
        return new if lay.all else torch.where(mask, new, value)

    def _down(self, draw: Callable[[str], Tensor]) -> Tensor:
        """(B, 3) gravity: its magnitude, then its direction."""
        g = self.own[GRAVITY]
        size, unit = g.norm(), torch.nn.functional.normalize(g, dim=0)
        strength = size
        if "gravity" in self.entries:
            strength = draw("gravity") * (size if self._how("gravity") == "scale" else 1.0)
        if "tilt" not in self.entries:
            return strength * unit
        angle, azimuth = draw("tilt"), draw("azimuth")
        side = azimuth.cos() * self.across + azimuth.sin() * self.ahead
        return strength * (angle.cos() * unit + angle.sin() * side)

    def push(self, noise: Noise, force: Tensor, left: Tensor | None) -> Values:
        """`kick` (B, nv), and `force` (B, nv) with the control steps it lasts: begun, held or ended. Called once a step."""
        values: Values = {}
        if "push" in self.pushes:
            values["kick"] = wide(self._shove("push", noise)[0], self.qvel, self.mjm.nv)
        if "force" in self.pushes and left is not None:
            shove, begins, block_hold = self._shove("force", noise)
            left = (left - 1).clamp(min=0)
            begins = begins & (left == 0)
            steps = (block_hold / self.dt).round().clamp(min=1).long()
            held = force * (left > 0)[:, None]
            values["force"] = torch.where(begins[:, None], wide(shove, self.qvel, self.mjm.nv).to(force.dtype), held)
            values["force_left"] = torch.where(begins, steps, left)
        return values

    def _shove(self, name: str, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """x and y (B, 2), zero where none begins; whether one does (B,) bool; and how long it lasts (B,) [s]."""
        block = self.pushes[name]
        drawn = block(noise)
        begins = drawn[:, block.place["chance"]] * self.every[name] < self.dt
        hold = drawn[:, block.place["hold"]] if "hold" in block.place else begins
        return drawn[:, block.place[name]] * begins, begins[:, 0], hold[:, 0]

    def servo(self, ctrl: Tensor, offset: Tensor) -> Tensor:
        """The controls (B, nu) of servos that act on measured angles: q + offset (B, nq)."""
        return ctrl - self.gear * offset.index_select(1, self.acts_on)


def wide(x: Tensor, at: int, size: int) -> Tensor:
    """x (B, n) as columns at … of (B, size) zeros."""
    return torch.nn.functional.pad(x, (at, size - at - x.shape[1]))

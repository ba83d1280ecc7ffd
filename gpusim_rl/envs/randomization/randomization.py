"""Randomization of B worlds by `task.randomise`: once per world, and at each restart."""

import math
from collections.abc import Callable
from operator import attrgetter

import mujoco
import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.randomization.entries import Entry, active_entries
from gpusim_rl.envs.randomization.fields import field
from gpusim_rl.envs.randomization.gravity import Gravity
from gpusim_rl.envs.randomization.joints import joint_ranges, servo_joints
from gpusim_rl.envs.randomization.pushes import Pushes
from gpusim_rl.envs.randomization.sampling import Block, element_columns, zero_padded
from gpusim_rl.robots.free_bodies import free_base
from gpusim_rl.sim.actuator_spec import DELAY, GAINS, Actuator
from gpusim_rl.sim.base import GRAVITY, OPTIONS, WIND

Values = dict[str, Tensor]
Draw = Callable[[str], Tensor]  # name of an entry → its numbers (B, width)


class Randomization:
    """The entries of `task.randomise` that are on, for a model. Its methods are pure.

    The constructor raises ValueError if an entry makes no sense, or does not fit this model.
    actuator: what makes torques in place of the model's servos. dt: control period [s]. readings:
    what a robot of this model can measure → width.

    Attributes:
        entries: field → entry, of those that are on.
        fields: names of the model fields that get a value per world.
        push: draws the pushes of a control step.
        biases: reading → width, of those that have a bias.
    """

    def __init__(
        self,
        mjm: mujoco.MjModel,
        randomise: Entry,
        *,
        actuator: Actuator,
        dt: float,
        readings: dict[str, int],
        device: str,
    ):
        self.mjm, self.actuator, self.device = mjm, actuator, device
        learned = ("kp", "kd") if actuator.kind == "net" else ()  # the net has learned its gains
        self.entries = {
            name: entry for name, entry in active_entries(randomise).items() if name not in learned
        }
        self.columns = {
            name: element_columns(mjm, name, entry, readings, device)
            for name, entry in self.entries.items()
        }
        base = free_base(mjm)
        self.qpos, self.qvel = (base.qpos.start, base.qvel.start) if base else (0, 0)
        self.nominal = {
            target: self._nominal(target) for name in self.entries for target in self.targets(name)
        }
        for name in self.entries:
            self.check_low(name, self.entries[name]["low"])
        names = (t if t in OPTIONS else t.partition(".")[0] for t in self.nominal)
        low, high = actuator.delays
        self.delays = (self._tensor([low]), self._tensor([high])) if low < high else None
        self.fields = tuple(dict.fromkeys((*names, *((DELAY,) if self.delays else ()))))
        self.world_block, self.episode_block = self._block("world"), self._block("episode")
        self.push = Pushes(self.entries, dt, self.qvel, mjm.nv, device)
        self.gravity = Gravity(self.nominal[GRAVITY]) if GRAVITY in self.nominal else None
        self.lower, self.upper = (end.to(device) for end in joint_ranges(mjm))
        self.acts_on, self.gear = (x.to(device) for x in servo_joints(mjm))
        biased = [name[5:] for name in self.entries if name.startswith("bias.")]
        self.biases = {name: readings[name] for name in biased}

    def targets(self, name: str) -> tuple[str, ...]:
        """The model fields that an entry changes, or a gain of the actuator."""
        return (
            (name,) if name in GAINS and self.actuator.kind != "position" else field(name).targets
        )

    def _tensor(self, values: object) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def _nominal(self, target: str) -> Tensor:
        """The model's own value of a target; "geom_friction.0" is component 0 of the last axis."""
        if target in GAINS:
            return self._tensor(self.actuator.gains(self.mjm)[target])
        name, _, part = target.rpartition(".") if target[-1].isdigit() else (target, "", "")
        value = self._tensor(attrgetter(name)(self.actuator.plant(self.mjm)))
        return value[..., int(part)] if part else value

    def check_low(self, name: str, low: float) -> None:
        """ValueError if an entry scales only zeros, or `low` may make a mass or such negative."""
        how, properties = self._how(name), field(name)
        if name == "wind" and not self.mjm.opt.density:
            raise ValueError('task.randomise.wind: this model has no air, such as density="1.2"')
        if name == "gravity" and how == "set" and not self.nominal[GRAVITY].any():
            raise ValueError("task.randomise.gravity: this model has none, so it has no direction")
        nominal = {
            target: self.nominal[target][self.columns[name].mask]
            for target in self.targets(name)
            if target not in OPTIONS
        }
        if how == "scale" and any(not value.any() for value in nominal.values()):
            other = ", say how=set" if "set" in properties.hows else ""
            raise ValueError(f"task.randomise.{name}: this model has none to scale{other}")
        if how != "add" or properties.signed:
            return
        for target, value in nominal.items():
            least = float(value.min()) + low
            if least < 0 or (properties.positive and least == 0):
                raise ValueError(
                    f"task.randomise.{name}.low={low}: {target} could become {least:.4g}"
                )

    def _how(self, name: str) -> str:
        return self.entries[name].get("how", field(name).hows[0])

    def _block(self, when: str) -> Block | None:
        """The block of the entries that are drawn per "world" or "episode"; None without any."""
        named = [(name, e) for name, e in self.entries.items() if field(name).when == when]
        parts = [
            (name, e["kind"], e["low"], e["high"], self.columns[name].width) for name, e in named
        ]
        around = {"tilt": "azimuth", "wind": "wind_azimuth"}  # directions that go with a number
        directions = [around[name] for name, _ in named if name in around]
        parts += [(name, "uniform", 0.0, 2 * math.pi, 1) for name in directions]
        return Block(f"randomise/{when}", parts, self.device) if parts else None

    def scheduled_number(self, name: str, which: str) -> Tensor:
        """The live tensor of `low`, `high` or `every` of an entry; a curriculum writes to it."""
        if which == "every":
            return self.push.every[name]
        block = self.push.blocks.get(name, self.episode_block)
        assert block is not None
        return getattr(block, which)[block.place[name]]

    def memory(self, n: int) -> Values:
        """The tensors (n, …) that an Env keeps of n worlds for these methods, filled with 0."""
        memory = {}
        if self.biases:
            width = sum(self.biases.values())
            memory["sensor_bias"] = torch.zeros(n, width, device=self.device)
        if "encoder" in self.entries:
            memory["encoder"] = torch.zeros(n, self.mjm.nq, device=self.device)
        if "force" in self.entries:
            memory["force_left"] = torch.zeros(n, dtype=torch.int64, device=self.device)
        return memory

    def world(self, rng: Rng) -> Values:
        """Model fields (B, …) drawn once per world."""
        late = {DELAY: rng.uniform("actuator/delay", *self.delays)} if self.delays else {}
        if self.world_block is None:
            return late
        block, drawn = self.world_block, self.world_block(rng)
        return late | self._model_fields(lambda name: drawn[:, block.place[name]], block)

    def restart(self, start: Values, rng: Rng) -> Values:
        """Values of a task's `start`, with all that is drawn anew for each episode."""
        if "force" in self.entries:
            start = start | {
                "force_left": torch.zeros(len(start["qpos"]), dtype=torch.int64, device=self.device)
            }
        if self.episode_block is None:
            return start
        block, drawn = self.episode_block, self.episode_block(rng)

        def draw(name: str) -> Tensor:
            return drawn[:, block.place[name]]

        if self.biases:
            start["sensor_bias"] = torch.cat([draw(f"bias.{name}") for name in self.biases], dim=1)
        if "encoder" in self.entries:
            start["encoder"] = self.columns["encoder"].only(draw("encoder"))
        return self._first_states(start, draw) | self._model_fields(draw, block)

    def _first_states(self, start: Values, draw: Draw) -> Values:
        """`start` with other joint angles and speeds, and another height and velocity."""
        m, on = self.mjm, self.entries
        if "start_angle" in on:
            qpos = start["qpos"] + self.columns["start_angle"].only(draw("start_angle"))
            start["qpos"] = torch.minimum(torch.maximum(qpos, self.lower), self.upper)
        if "start_speed" in on:
            start["qvel"] = start["qvel"] + self.columns["start_speed"].only(draw("start_speed"))
        for name, key, first, size in (
            ("start_height", "qpos", self.qpos + 2, m.nq),
            ("start_velocity", "qvel", self.qvel, m.nv),
            ("start_spin", "qvel", self.qvel + 3, m.nv),
        ):
            if name in on:
                start[key] = start[key] + zero_padded(draw(name), first, size)
        return start

    def _model_fields(self, draw: Draw, block: Block) -> Values:
        """The model fields (B, …) that the entries of a block change."""
        values: Values = {}
        for name in (name for name in self.entries if name in block.place):
            for target in (t for t in self.targets(name) if t not in OPTIONS):
                value = values.get(target, self.nominal[target])
                values[target] = self._changed(name, target, value, draw(name))
        if self.gravity and block is self.episode_block:
            strength = draw("gravity") if "gravity" in self.entries else None
            if strength is not None and self._how("gravity") == "scale":
                strength = strength * self.nominal[GRAVITY].norm()
            angles = (draw("tilt"), draw("azimuth")) if "tilt" in self.entries else None
            values[GRAVITY] = self.gravity.vector(strength, angles)
        if "wind" in block.place:
            speed, angle = draw("wind"), draw("wind_azimuth")
            values[WIND] = torch.cat([speed * angle.cos(), speed * angle.sin(), 0 * speed], 1)
        return values

    def _changed(self, name: str, target: str, value: Tensor, x: Tensor) -> Tensor:
        """A target's value ((B,) E, …) scaled by, increased by or set to numbers x (B, width)."""
        columns, how, size = self.columns[name], self._how(name), field(name).columns
        x = columns(x) if size == 1 else x.unflatten(1, (-1, size)).index_select(1, columns.index)
        mask = columns.mask
        if self.nominal[target].ndim == 2:  # each element is x, y and z, or two limits
            x, mask = x[:, :, None] if size == 1 else x, mask[:, None]
        if how == "scale":
            new = value * x
        else:
            new = value + x if how == "add" else x.expand(-1, value.shape[-1])
        return new if columns.all else torch.where(mask, new, value)

    def servo(self, ctrl: Tensor, offset: Tensor) -> Tensor:
        """The controls (B, nu) of servos that act on measured angles: q + offset (B, nq)."""
        return ctrl - self.gear * offset.index_select(1, self.acts_on)

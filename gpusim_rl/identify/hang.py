"""What a robot that hangs tells of its joints: gains, rotor inertia, dry friction and delay.

The base is held, the joints follow targets that excite them, and MuJoCo repeats the log with other
numbers until angles and speeds agree. One factor of each quantity holds for all joints at first. A
last step gives each joint its own, and what is told is their mean.

    log = read("hang.mcap")
    fit = identify(of_log(log))
    print(table(fit.estimates), *fit.lines(), sep="\n")
"""

import copy
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import mujoco
import numpy as np
from mujoco import rollout

from gpusim_rl.core.paths import install
from gpusim_rl.identify.estimates import CERTAIN, Estimate
from gpusim_rl.robots.models import compile_spec, converged
from gpusim_rl.robots.servos import driven_joints

Array = np.ndarray
ALL = slice(None)
# Quantity → its model fields, and which numbers of the last axis. The factor of each scales what
# the model has.
FACTORS: dict[str, list[tuple[str, int | slice]]] = {
    "kp": [("actuator_gainprm", 0), ("actuator_biasprm", 1)],
    "kd": [("actuator_biasprm", 2)],
    "damping": [("dof_damping", ALL)],
    "armature": [("dof_armature", ALL)],
    "joint_friction": [("dof_frictionloss", ALL)],
}
NAMES = (*FACTORS, "delay")
GUESS = dict.fromkeys(FACTORS, 1.0) | {"delay": 0.01}  # s
DELAYS = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04)  # s, that fits begin with: each may end elsewhere
LOWEST = dict.fromkeys(FACTORS, 0.05) | {"delay": 0.0}
HIGHEST = dict.fromkeys(FACTORS, 20.0) | {"delay": 0.2}
STEP = dict.fromkeys(FACTORS, 3e-3) | {"delay": 3e-4}  # of finite differences; s
ROUGHLY = {"xtol": 1e-3, "ftol": 1e-4, "max_nfev": 15}  # as fits of the first seconds end
FIRST = 12.0  # s of a log that are fitted before all of it
UNLIKE = (1e-4, 0.02, 0.05, 0.1, 0.2)  # standard deviations that joints may differ by, as shares
STEPS = 4  # of the joints' own numbers, at most
DEPENDENT = 0.2  # smallest singular value of two columns of length 1: 0 if they are parallel
BEGIN = 0.5  # s of a log, in which the motion forgets how it began
REST, RISE = 2.0, 1.0  # s in which a robot stands before it is excited, and until it is in full
AMPLITUDE = 0.25  # rad, of all sines of a joint together
SINES, SLOWEST, FASTEST = 5, 0.2, 6.0  # of each joint, and their frequencies [Hz]
TOO_STILL = "{} does not move its joints enough to tell kp"
STILL = 0.5  # s after which a joint whose target does not change stands
NOISE = {"angles": 0.005, "speeds": 0.1}  # rad and rad/s, unless the log shows it
LEAST_NOISE = {"angles": 1e-4, "speeds": 1e-3}  # of an encoder


@dataclass(frozen=True)
class Motion:
    """T rows of a robot that hangs, its joints in the order of the actuators."""

    mjcf: str  # the text of the model
    time: Array  # (T,) [s]
    angles: Array  # (T, nu) as measured [rad]
    speeds: Array  # (T, nu) as measured [rad/s]
    targets: Array  # (T, nu) that were sent right after each row was measured [rad]

    def until(self, seconds: float) -> "Motion":
        """Its first seconds."""
        rows = self.time <= self.time[0] + seconds
        arrays = {name: x[rows] for name, x in vars(self).items() if name != "mjcf"}
        return Motion(self.mjcf, **arrays)


@dataclass(frozen=True)
class Fit:
    """What a motion tells."""

    estimates: dict[str, Estimate]  # quantity → its factor, a mean of all joints, or the delay [s]
    dependent: list[tuple[str, str]]  # that only act together: the second is as the model has it
    # root mean squares of the log's differences from the model, over the noise of the readings
    nominal: float  # from the model as it is
    fitted: float
    noise: dict[str, float]  # of angles [rad] and speeds [rad/s]
    spread: float  # standard deviation of the joints' kp, as a share of their mean

    def lines(self) -> list[str]:
        """What is to be said of it beside the estimates."""
        lines = [
            f"{first} and {second} are one number: {first} has what both do,"
            f" with {second} as in the model"
            for first, second in self.dependent
        ]
        errors = f"{self.nominal:.1f} times the noise of the readings, {self.fitted:.2f} as fitted"
        lines += [f"the model as it is errs by {errors}"]
        return [*lines, f"kp of the joints differs by {self.spread:.1%} (standard deviation)"]


class HangingModel:
    """A model whose base is held, and what its joints do for numbers of `NAMES`.

    ValueError if an actuator is no position servo of a joint.
    """

    def __init__(self, motion: Motion):
        self.model = hung_model(motion.mjcf)
        self.motion, m = motion, self.model
        joints = np.array(driven_joints(m))
        if (joints < 0).any() or not (m.actuator_biasprm[:, 1] < 0).all():
            raise ValueError("identify: all actuators must be position servos of joints")
        self.dofs, self.places = m.jnt_dofadr[joints], m.jnt_qposadr[joints]
        self.timestep = h = m.opt.timestep
        self.ends = np.arange(motion.time[0], motion.time[-1] + h, h)  # of timesteps [s]
        spans = np.diff(motion.time)[:, None] * motion.targets[:-1]
        self.area = np.vstack([0 * motion.targets[:1], spans.cumsum(0)])  # ∫ target dt
        self.rows = motion.time >= motion.time[0] + BEGIN
        self.state = self.first_state()
        self.data = mujoco.MjData(m)

    def first_state(self) -> Array:
        """The state that a log begins with, as MuJoCo's rollout takes it."""
        data, m = mujoco.MjData(self.model), self.model
        data.qpos[self.places] = self.motion.angles[0]
        data.qvel[self.dofs] = self.motion.speeds[0]
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
        state = np.empty(mujoco.mj_stateSize(m, kind))
        mujoco.mj_getState(m, data, state, kind)
        return state

    def controls(self, delay: float) -> Array:
        """(N, nu) the mean target of each timestep, `delay` seconds late [rad]."""
        time, first = self.motion.time, self.motion.targets[0]
        late = self.ends - delay
        columns = [np.interp(late, time, area) for area in self.area.T]
        area = np.stack(columns, 1) + np.minimum(late - time[0], 0)[:, None] * first
        return np.diff(area, axis=0) / self.timestep

    def scaled_model(self, numbers: dict[str, Any]) -> mujoco.MjModel:
        """The model with factors of its fields: of all joints, or (nu,) of each."""
        model = copy.copy(self.model)
        for name, fields in FACTORS.items():
            for field, column in fields:
                values, factors = getattr(model, field)[..., column], numbers[name]
                if np.ndim(factors) and field.startswith("dof_"):  # others have the joints' mean
                    factors = np.full(model.nv, np.mean(numbers[name]))
                    factors[self.dofs] = numbers[name]
                values *= factors
        return model

    def __call__(self, numbers: dict[str, Any]) -> tuple[Array, Array]:
        """(T', nu) angles and speeds of the rows that count."""
        controls = self.controls(numbers["delay"])
        model = self.scaled_model(numbers)
        states: Any = rollout.rollout(model, self.data, self.state[None], controls[None])[0]
        states = np.vstack([self.state, states[0]])
        # time, qpos, qvel; between two timesteps a state is interpolated
        at = (self.motion.time[self.rows] - self.ends[0]) / self.timestep
        before = np.minimum(at.astype(int), len(states) - 2)
        part = (at - before)[:, None]
        states = (1 - part) * states[before] + part * states[before + 1]
        return states[:, 1 + self.places], states[:, 1 + model.nq + self.dofs]


def excitation(pose: Array, dt: float, seconds: float, *, seed: int) -> Array:
    """(T, nu) targets [rad] about a pose (nu,), a row for each dt [s]: sums of sines.

    The robot stands for `REST` seconds first, which show the noise of its readings. No joint is
    moved by more than `AMPLITUDE`.
    """
    rng, nu = np.random.default_rng(seed), len(pose)
    time = np.arange(round(seconds / dt))[:, None] * dt
    frequency = rng.uniform(SLOWEST, FASTEST, (SINES, 1, nu))
    phase = rng.uniform(0, 2 * np.pi, (SINES, 1, nu))
    waves = (np.sin(2 * np.pi * frequency * time + phase) / np.sqrt(frequency)).sum(0)
    rise = np.clip((time - REST) / RISE, 0, 1)
    return pose + AMPLITUDE * rise * waves / np.abs(waves).max(0)


def hung_model(mjcf: str) -> mujoco.MjModel:
    """The model of a text without free joints and contacts, with a solver that converges.

    One that stops early makes a rough surface of what is fitted.
    """
    spec = mujoco.MjSpec.from_string(mjcf)
    free = [x for x in spec.joints if x.type == mujoco.mjtJoint.mjJNT_FREE]
    for thing in [*spec.keys, *spec.sensors, *free]:
        spec.delete(thing)
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0
    return converged(compile_spec(spec))


def noise_of(motion: Motion) -> dict[str, float]:
    """Standard deviations of angles [rad] and speeds [rad/s] while the targets stand still."""
    changed = np.abs(np.diff(motion.targets, axis=0)).max(1, initial=0) > 1e-9
    times = np.concatenate([motion.time[:1], motion.time[1:][changed]])
    last = times[np.searchsorted(times, motion.time, side="right") - 1]
    still = motion.time - last >= STILL
    still &= np.cumsum(np.r_[False, changed]) == 0  # before the first change alone
    if still.sum() < 20:
        return dict(NOISE)
    deviations = {x: np.sqrt(getattr(motion, x)[still].var(0, ddof=1).mean()) for x in NOISE}
    return {name: max(float(x), LEAST_NOISE[name]) for name, x in deviations.items()}


class Residual:
    """What a model with other numbers differs from a motion by, over the noise of the readings.

    The numbers of `names` are arguments; all others are those of `GUESS`.
    """

    def __init__(self, motion: Motion, noise: dict[str, float], names: list[str]):
        self.hung, self.names, self.noise = HangingModel(motion), names, noise
        self.measured = motion.angles[self.hung.rows], motion.speeds[self.hung.rows]

    def __call__(self, values: Any) -> Array:
        """(n,) for the numbers of the names; each is one for all joints, or (nu,) of them."""
        predicted = self.hung(GUESS | dict(zip(self.names, values, strict=True)))
        parts = zip(predicted, self.measured, self.noise.values(), strict=True)
        return np.concatenate([((x - y) / s).ravel() for x, y, s in parts])

    def jacobian(self, values: Array) -> Array:
        """(n, names) by central differences: one-sided ones miss the end of a flat valley."""
        return np.stack([self.derivative(values, i) for i in range(len(self.names))], 1)

    def derivative(self, values: Array, i: int, joints: Any = 1.0) -> Array:
        """(n,) by the number i of all joints, or of those that are 1 in joints (nu,)."""
        up, down, size = [*values], [*values], STEP[self.names[i]]
        below = max(values[i] - size, LOWEST[self.names[i]])
        up[i], down[i] = up[i] + size * joints, down[i] + (below - down[i]) * joints
        return (self(up) - self(down)) / (values[i] + size - below)


# Why: docs/decisions/robot-log.md
def identify(motion: Motion, file: str = "the log") -> Fit:
    """Fit the numbers of `NAMES` by least squares: to the first seconds, then to all.

    ValueError, which names the file, if the motion does not fit its model or is too small, or
    scipy is missing.
    """
    noise, first = noise_of(motion), motion.until(FIRST)
    names = [name for name in NAMES if name not in without(hung_model(motion.mjcf))]
    try:
        start = Residual(first, noise, names)
        pairs = dependent_pairs(start.jacobian(np.array([GUESS[x] for x in names])), names)
        names = [x for x in names if x not in {second for _, second in pairs}]
        starts = best_fits(Residual(first, noise, names), names, guesses(names), **ROUGHLY)
        residual = Residual(motion, noise, names)
        fits = best_fits(residual, names, [fit.x for fit in starts])
        half_widths = np.max([np.abs(fit.x - fits[0].x) for fit in fits], 0)
        each = fit_each(residual, fits[0])
        margins = np.maximum(each.deviations * CERTAIN, half_widths)
    except np.linalg.LinAlgError:
        raise ValueError(TOO_STILL.format(file)) from None
    estimates = {
        name: Estimate(float(x), float(margin))
        for name, x, margin in zip(names, each.means, margins, strict=True)
    }
    if estimates["kp"].margin > estimates["kp"].value:
        raise ValueError(TOO_STILL.format(file))
    nominal = residual(np.array([GUESS[x] * (x != "delay") for x in names]))
    return Fit(estimates, pairs, rms(nominal), each.error, noise, each.spread)


def guesses(names: list[str]) -> list[Array]:
    """The numbers that fits begin with: those of `GUESS` with each of `DELAYS`."""
    return [np.array([(GUESS | {"delay": x})[name] for name in names]) for x in DELAYS]


def best_fits(residual: Any, names: list[str], starts: list[Array], **options: Any) -> list[Any]:
    """The fits that are as good as the best, within its interval of 95 %; the best comes first.

    The squared errors of a stiff servo have several minima.
    """
    fits = [least_squares(residual, names, x, **options) for x in starts]
    fits.sort(key=lambda fit: fit.cost)
    limit = fits[0].cost + (CERTAIN * max(rms(fits[0].fun), 1.0)) ** 2 / 2
    return [fit for fit in fits if fit.cost <= limit]


def least_squares(residual: Any, names: list[str], values: Array, **options: Any) -> Any:
    """What scipy's fit of that name says, within `LOWEST` and `HIGHEST` of the names."""
    try:
        from scipy import optimize
    except ImportError:
        raise ValueError(f"identify needs scipy: {install('identify')}") from None
    bounds = tuple(np.array([ends[name] for name in names]) for ends in (LOWEST, HIGHEST))
    options = {"bounds": bounds, "x_scale": "jac", "xtol": 1e-5, "ftol": 1e-6} | options
    return optimize.least_squares(residual, values, residual.jacobian, **options)


class EachJoint(NamedTuple):
    """A fit in which each joint has numbers of its own."""

    means: Array  # (names,) of the joints' numbers
    deviations: Array  # (names,) how uncertain these means are
    spread: float  # standard deviation of kp, as a share
    error: float  # root mean square of what is left, over the noise of the readings


# Why: docs/decisions/robot-log.md
def fit_each(residual: Residual, fit: Any) -> EachJoint:
    """Steps of Gauss and Newton from a fit whose numbers hold for all joints.

    Joints that differ would else pull the common numbers to values that none of them has. The
    derivatives are those of the fit, and steps end where they no longer help.
    """
    names, nu = residual.names, len(residual.hung.dofs)
    parts = [np.eye(nu) if name in FACTORS else [1.0] for name in names]
    which = [(i, x) for i, part in enumerate(parts) for x in part]
    owner = np.array([i for i, _ in which])  # of each joint's number, the place of its name
    jacobian = np.stack([residual.derivative(fit.x, *x) for x in which], 1)
    common = (owner[:, None] == np.arange(len(names))).astype(float)
    jacobian = np.hstack([jacobian @ common, jacobian])  # what all change by, then each beside it
    expected = np.r_[np.full(len(names), np.inf), fit.x[owner].clip(1e-6)]
    hessian, precision, scale = likeliest(jacobian, fit.fun, expected)
    low, high = (np.array([ends[name] for name in names])[owner] for ends in (LOWEST, HIGHEST))
    mean = np.hstack([np.eye(len(names)), (common / common.sum(0)).T])
    change, left, error = np.zeros(len(expected)), fit.fun, rms(fit.fun)
    for _ in range(STEPS):
        step = np.linalg.solve(hessian, jacobian.T @ left / scale + precision * change)
        own = joint_numbers(fit.x, change - step, owner).clip(low, high)
        after = residual([own[owner == i] for i in range(len(names))])
        if not rms(after) < error:
            break
        change, left, error = change - step, after, rms(after)
    kp = joint_numbers(fit.x, change, owner)[owner == names.index("kp")]
    deviation = np.sqrt(np.diag(mean @ np.linalg.inv(hessian) @ mean.T))
    return EachJoint(fit.x + mean @ change, deviation, float(kp.std() / kp.mean()), error)


def joint_numbers(common: Array, change: Array, owner: Array) -> Array:
    """The numbers of all joints, from the common ones, changes of these, and of each."""
    return (common + change[: len(common)])[owner] + change[len(common) :]


def likeliest(jacobian: Array, errors: Array, expected: Array) -> tuple[Array, Array, float]:
    """The Hessian, the precision of priors, and the variance of errors that a log is likeliest for.

    What joints may differ by is one of `UNLIKE`, times what is expected. Errors are as large as
    what a linear model leaves, and at least the noise.
    """
    normal, gradient, scale = jacobian.T @ jacobian, jacobian.T @ errors, 1.0
    for _ in range(2):
        priors = [(x * expected) ** -2.0 for x in UNLIKE]
        precision = max(priors, key=lambda x: evidence(normal / scale, gradient / scale, x))
        hessian = normal / scale + np.diag(precision)
        scale = max(rms(errors - jacobian @ np.linalg.solve(hessian, gradient / scale)), 1.0) ** 2
    return normal / scale + np.diag(precision), precision, scale


def evidence(normal: Array, gradient: Array, precision: Array) -> float:
    """The logarithm of the probability of what was measured, of linear errors and Gaussian priors.

    normal, gradient: JᵀJ and Jᵀr of the errors; precision: of each number's prior, or 0.
    """
    hessian = normal + np.diag(precision)
    gain = gradient @ np.linalg.solve(hessian, gradient)
    return float(gain - np.linalg.slogdet(hessian)[1] + np.log(precision[precision > 0]).sum()) / 2


def rms(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))


def without(model: mujoco.MjModel) -> list[str]:
    """The quantities of which a model has none to scale."""
    return [
        name
        for name, fields in FACTORS.items()
        if not any(getattr(model, field)[..., column].any() for field, column in fields)
    ]


def dependent_pairs(jacobian: Array, names: list[str]) -> list[tuple[str, str]]:
    """Pairs of columns that are nearly parallel, by the smaller of their two singular values."""
    columns = jacobian / np.linalg.norm(jacobian, axis=0).clip(1e-12)
    return [
        (names[i], names[j])
        for i, j in combinations(range(len(names)), 2)
        if np.linalg.svd(columns[:, [i, j]], compute_uv=False)[-1] < DEPENDENT
    ]

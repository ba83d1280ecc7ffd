"""What a robot that walks tells of ground, load and delay, by regression.

Simulated robots with drawn numbers follow the commands of the log under the same policy. A ridge
regression from what a log holds to these numbers is then asked about the log itself. It needs
neither the base's velocity nor forces. In the next round the numbers are drawn about the answer.
"""

import numpy as np

from gpusim_rl.core.waiting import counted
from gpusim_rl.deploy.rest_measurements import NOSLIP
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.drive import ReadingErrors
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import Plan
from gpusim_rl.gate.settings import usual_settings
from gpusim_rl.gate.worlds import Worlds
from gpusim_rl.identify.estimates import CERTAIN, Estimate
from gpusim_rl.identify.hang import FACTORS

Array = np.ndarray
Range = tuple[float, float]
# Quantity → the numbers that are drawn: of the ground, a share of the robot's mass, seconds, and
# factors of what the model has.
DRAWS = {"friction": (0.3, 1.6), "payload": (-0.2, 0.3), "delay": (0.0, 0.06)}
DRAWS |= {"kp": (0.7, 1.3), "kd": (0.5, 1.5), "armature": (0.5, 2.0), "joint_friction": (0.3, 3.0)}
LEAST_DRAWN = dict.fromkeys(DRAWS, 0.1) | {"payload": -0.8, "delay": 0.0}  # that may be drawn
QUANTITIES = ("friction", "payload", "delay", "kp", "kd")  # what a walk can tell
OF_WALKERS = ("friction", "payload")  # not of a fixed base
BEGIN, BLOCK = 2.0, 3.0  # s that do not count, and of the parts whose features are compared
LAGS = 6  # control steps of a correlation between targets and angles
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # of the ridge
ROBOTS = 192
FEWEST_WALKS = 8  # of them that walk to the end
SURE = {"friction": 0.05, "payload": 0.05}  # smallest half-widths: the model has other errors
ROUNDS = 3  # of simulated robots
AROUND = 1.5  # half-widths of an interval, to each side of an estimate, that are drawn next
TILT, HEIGHT = np.deg2rad(60), 0.5  # of a fall: angle, and share of the base's height


def identify(
    policy: Policy,
    readings: dict[str, Array],
    targets: Array,
    command: Array,
    *,
    joints: dict[str, Estimate],
    trained: dict[str, Range],
    robots: int,
    seed: int,
) -> tuple[dict[str, Estimate], dict[str, Range]]:
    """What T control steps of a walk tell, by quantity, and what was drawn last to learn it from.

    An estimate may lie beyond what was drawn: `within` cuts it.

    Args:
        policy: that drove the robot.
        readings: name → (T, width); targets: (T, nu); command: (T, n), as a log has them.
        joints: estimates of a robot that hung, which narrow what is drawn.
        trained: ranges beyond which a robot may have drifted, which widen it.
        robots: that are simulated.

    ValueError if the policy reads no joints in the order of its targets, the log is short, or
    hardly a simulated robot walks to its end.
    """
    if policy.reads.get("joint_pos") != policy.joints:
        raise ValueError("identify: this policy reads no joint_pos in the order of its targets")
    if len(blocks(len(targets), policy.dt)) < 2:
        line = f"the log has {len(targets) * policy.dt:.3g} s of walking"
        raise ValueError(f"{line}: at least {BEGIN + 2 * BLOCK:g} s are needed")
    names = [name for name in quantities(make_robot(policy)) if name not in joints]
    ranges = DRAWS | {name: around(name, *ends) for name, ends in trained.items()}
    ranges |= {name: x.range for name, x in joints.items() if name in DRAWS}
    mine = {name: x[:, None] for name, x in (readings | {"targets": targets}).items()}
    row, estimates = features(mine, policy.dt), dict[str, Estimate]()
    for number in range(ROUNDS if names else 0):
        ranges |= {name: narrowed(name, ranges[name], x) for name, x in estimates.items()}
        truth, stood, simulated = walks(policy, command, ranges, robots, seed + number)
        if stood.sum() < FEWEST_WALKS:
            raise ValueError(f"only {stood.sum()} of {robots} simulated robots walked to the end")
        rows = features(simulated, policy.dt)[stood]
        told = [name for name in ranges if name not in joints]
        estimates = {name: ridge(rows, truth[name][stood], row) for name in told}
    widest = {name: max(x.margin, SURE.get(name, 0)) for name, x in estimates.items()}
    estimates = {name: Estimate(estimates[name].value, widest[name]) for name in names}
    return estimates, {name: ranges[name] for name in names}


def narrowed(name: str, ends: Range, x: Estimate) -> Range:
    """What is drawn after an estimate from numbers of a range: the same, or a narrower range.

    One that lies beyond what was drawn is not sure enough to draw about.
    """
    low, high = max(x.value - AROUND * x.margin, LEAST_DRAWN[name]), x.value + AROUND * x.margin
    near = ends[0] <= x.value <= ends[1] and high - low < ends[1] - ends[0]
    return (low, high) if near else ends


def around(name: str, low: float, high: float) -> Range:
    """What is usually drawn, and once the width of a range to each side of it, where that exists.

    A regression gives too little near the ends of what it has seen.
    """
    width, ends = high - low, DRAWS[name]
    return min(ends[0], max(low - width, LEAST_DRAWN[name])), max(ends[1], high + width)


def quantities(robot: Robot) -> tuple[str, ...]:
    """What a log of this robot can tell: with a fixed base neither ground nor load."""
    return QUANTITIES if robot.base else tuple(x for x in QUANTITIES if x not in OF_WALKERS)


def walks(
    policy: Policy, command: Array, ranges: dict[str, Range], robots: int, seed: int
) -> tuple[dict[str, Array], Array, dict[str, Array]]:
    """Robots with drawn numbers (B,), whether each stood to the end, and what they measured.

    The last is name → (T, B, width): the readings, and the targets.
    """
    rng, steps = np.random.default_rng(seed), len(command)
    robot = make_robot(policy)
    robot.model.opt.noslip_iterations = NOSLIP
    plan = Plan(robot, "normal", robots, 1, usual_settings(), seed)
    truth = {name: rng.uniform(*ends, robots) for name, ends in ranges.items()}
    plan.friction, plan.payload, plan.late = (truth[x] for x in ("friction", "payload", "delay"))
    plan.noise, plan.bias = rng.uniform(0, 1, (2, robots, 1))  # those of the robot are not known
    worlds = Worlds([plan])
    scale(worlds, truth)
    sensing, stood = ReadingErrors(plan), np.ones(robots, bool)
    policy.reset(robots)
    rows: dict[str, list[Array]] = {name: [] for name in (*policy.needs, "targets")}
    for t in counted(steps, "walking"):
        row = {name: sensing(name, x) for name, x in worlds.readings().items()}
        told = command[t] if policy.command else None
        worlds.ctrl[:] = row["targets"] = policy.act(dict(row), told)
        stood &= ~(policy.fault | worlds.step(stood) | worlds.fallen(TILT, HEIGHT))
        for name, x in row.items():
            rows[name].append(np.array(x, np.float32))
    return truth, stood, {name: np.stack(x) for name, x in rows.items()}


def scale(worlds: Worlds, factors: dict[str, Array]) -> None:
    """Scale what each world's joints have by factors (B,), in place."""
    for name, fields in FACTORS.items():
        for field, column in fields if name in factors else ():
            values = worlds.native.batch.expand(field)[..., column]
            values *= factors[name][:, None]


def blocks(steps: int, dt: float) -> list[slice]:
    """The control steps of each part of a log."""
    begin, length = round(BEGIN / dt), round(BLOCK / dt)
    return [slice(i, i + length) for i in range(begin, steps - length + 1, length)]


def features(x: dict[str, Array], dt: float) -> Array:
    """(B, n) of x, name → (T, B, width): means and deviations in each block of readings and errors.

    Also how much the angles' changes resemble those of the targets a few control steps before,
    which a delay shifts.
    """
    targets, angles = x["targets"], x["joint_pos"]
    parts = {**x, "error": targets - angles}
    del parts["targets"], parts["joint_pos"]
    columns = []
    for rows in blocks(len(targets), dt):
        for value in parts.values():
            columns += [value[rows].mean(0), value[rows].std(0)]
        p, q = np.diff(angles[rows], axis=0), np.diff(targets[rows], axis=0)
        for lag in range(LAGS):
            a, b = p[lag:], q[: len(q) - lag]
            size = np.sqrt((a**2).mean((0, 2)) * (b**2).mean((0, 2)))
            columns.append(((a * b).mean((0, 2)) / (size + 1e-9))[:, None])
    return np.concatenate(columns, 1).astype(float)


def within(x: Estimate, ends: Range) -> Estimate:
    """An estimate within what was drawn; its interval still reaches what the regression said."""
    value = float(np.clip(x.value, *ends))
    return Estimate(value, max(x.margin, abs(x.value - value)))


def ridge(rows: Array, truth: Array, row: Array) -> Estimate:
    """The number of a row (1, n), by regression from rows (B, n) to numbers (B,).

    The interval is that of the errors of robots that were left out, one at a time.
    """
    center, size = rows.mean(0), rows.std(0) + 1e-6
    rows, row = (rows - center) / size, (row - center) / size
    mean, fits = truth.mean(), []
    gram = rows @ rows.T
    for strength in STRENGTHS:
        inverse = np.linalg.inv(gram + strength * np.eye(len(rows)))
        weights = inverse @ (truth - mean)
        # PRESS: weights over the diagonal are the errors of the rows left out
        error = float(np.sqrt(np.mean((weights / np.diag(inverse)) ** 2)))
        fits.append((error, float((row @ rows.T @ weights)[0] + mean)))
    error, value = min(fits)
    return Estimate(value, CERTAIN * error)

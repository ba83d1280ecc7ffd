"""The fitter of actuator networks: what made a log is recovered; bad logs."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gpusim_rl.identify import fit_actuator
from gpusim_rl.sim.actuator_models import Net, load
from gpusim_rl.sim.actuator_spec import Actuator
from tests.sim.test_actuators import INPUTS, hinge, place
from tests.worlds import make_actuator

JOINTS, ROWS, DT = 4, 3000, 0.005
QUICK = ("steps=600", "hidden=24,24", "seed=3")


def wishes(seed: int, rows: int = ROWS) -> torch.Tensor:
    """(rows, JOINTS) targets [rad]: sines of 0.3 to 4 Hz, and steps."""
    draw = np.random.default_rng(seed)
    time, target = DT * np.arange(rows)[:, None], 0.0
    for _ in range(5):
        ends = ((0.3, 4.0), (0.05, 0.3), (0.0, 6.3))
        f, a, phase = (draw.uniform(*x, JOINTS) for x in ends)
        target = target + a * np.sin(2 * np.pi * f * time + phase)
    steps = draw.uniform(-0.5, 0.5, (rows // 100 + 1, JOINTS)).repeat(100, 0)[:rows]
    return torch.from_numpy(target + steps)


def moved(actuator: Actuator, targets: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """(target, angle, speed, torque) of JOINTS hinges at each timestep."""
    sim, rows = hinge("native", JOINTS, actuator), []
    place(sim, torch.zeros(JOINTS), torch.zeros(JOINTS))
    for target in targets:
        sim.ctrl.copy_(target[:, None])
        before = sim.qpos[:, 0].clone(), sim.qvel[:, 0].clone()
        sim.step(1)
        rows.append((target, *before, sim.sensordata[:, 0].clone()))
    return rows


def write(path: Path, rows: list[tuple[torch.Tensor, ...]]) -> str:
    """A log."""
    lines = ["time,joint,target,position,velocity,torque"]
    for i, row in enumerate(rows):
        for j in range(JOINTS):
            numbers = ",".join(f"{x[j].item():.9g}" for x in row)
            lines.append(f"{i * DT:.6f},hinge{j},{numbers}")
    path.write_text("\n".join(lines))
    return str(path)


def hand_made(path: Path) -> Actuator:
    """A network made by hand, a soft PD law with memory, written to path."""
    draw = torch.Generator().manual_seed(5)
    first = torch.tensor(
        [[0.9, 0.5, 0.2, -1.5, -0.3, 0.0], [0.2, 0.3, 0.6, -0.8, -0.3, 0.2]]
    ).repeat(4, 1)
    first = first * (1 + 0.3 * torch.randn(8, 6, generator=draw))
    last = torch.full((1, 8), 0.12), torch.zeros(1)
    Net(INPUTS, [(first, 0.1 * torch.randn(8, generator=draw)), last]).save(path)
    return make_actuator(kind="net", file=str(path))


@pytest.mark.parametrize("what", ["network", "dc"])
def test_recovers(what, tmp_path, capsys):
    """A network, and a delayed DC motor, on what was held out and on new targets."""
    true = make_actuator(kind="dc", stall=14.0, no_load=8.0, delay=0.01)
    true = hand_made(tmp_path / "true.safetensors") if what == "network" else true
    log = write(tmp_path / "log.csv", moved(true, wishes(0)))
    fit_actuator.main([log, *QUICK])
    said = capsys.readouterr().out
    (plain, _), (error, share) = (
        map(float, x) for x in re.findall(r"RMSE (\S+) N m, (\S+) of the variance", said)
    )
    fitted = load(tmp_path / "log.safetensors")
    assert fitted.inputs.offsets == (0, 2, 4) and fitted.inputs.dt == DT
    both = true, make_actuator(kind="net", file=str(tmp_path / "log.safetensors"))
    free = [torch.stack([row[1] for row in moved(actuator, wishes(1, 600))]) for actuator in both]
    apart, moves = (free[0] - free[1]).square().mean().sqrt().item(), free[0].std().item()
    print(
        f"{what}: RMSE {error} N m, PD law {plain}, share {share}; free motion {apart:.4f} rad "
        f"apart, of {moves:.3f}"
    )
    assert share > 0.98 and error < 0.25 * plain
    assert apart < 0.15 * moves


def test_seeded(tmp_path, capsys):
    """One log, seed and number of steps give one file; another seed gives another."""
    log = write(tmp_path / "log.csv", moved(make_actuator(kind="pd"), wishes(0, 400)))
    files = []
    for seed in (1, 1, 2):
        fit_actuator.main([log, "steps=5", f"seed={seed}", f"out={tmp_path}/x.safetensors"])
        files.append((tmp_path / "x.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_nothing_held_out_is_learned_from():
    """Every fifth block of time, into which no other sample's history reaches."""
    rows = np.zeros((1000, 6))
    rows[:, 1] = rows[:, 5] = DT * np.arange(1000)
    rows[:, 4] = np.arange(1000) // 50  # the block, as a speed
    samples, held = fit_actuator.window({"a": rows, "b": rows}, [0, 2, 7])
    assert (samples.speeds == samples.speeds[:, :1]).all() and len(held) == 2 * 20 * 43
    assert torch.equal(held, samples.speeds[:, 0] % 5 == 4)


GOOD = "time,joint,target,position,velocity,torque\n" + "".join(
    f"{i * 0.005:.3f},0,0,0,0,0\n" for i in range(50)
)


def row(text: str) -> str:
    """A log whose fourth row is another one."""
    return GOOD.replace("0.010,0,0,0,0,0", text)


@pytest.mark.parametrize(
    "text, words, says",
    [
        ("", "", "has no column time, joint, target, position, velocity, torque"),
        (GOOD.replace("velocity", "speed"), "", "no column velocity: its first row is time,joint,"),
        (GOOD.splitlines()[0], "", "has no rows"),
        (row("0.010,0,x,0,0,0"), "", "row 4: target is 'x', not a number"),
        (row("0.010,0,nan,0,0,0"), "", "row 4: target is nan, not a finite number"),
        (row("0.010,0,0"), "", "row 4 has 3 columns"),
        (row("0.013,0,0,0,0,0"), "", "row 4: 0.008 s after the row before of joint '0', others 0"),
        (row("0.001,0,0,0,0,0"), "", "row 4: -0.004 s after the row before"),
        (GOOD, "", "too few to learn from"),
        (GOOD, "history=0,0.007", "0.007: expected 0 and whole numbers of the log's rows of 0.005"),
        (GOOD, "history=0.005", "history=0.005: expected 0 and"),
        (GOOD, "hidden=0", "hidden=0: expected at most 7, from 1 to 256"),
        (GOOD, "steps=many", "steps=many: expected numbers, such as 2000"),
        (GOOD, "rate=1", "rate=1: expected a log, and perhaps KEY=VALUE of out, history, hidden,"),
        (GOOD, "out=net.pt", "out=net.pt: expected a name that ends in .safetensors"),
        (GOOD, "out=no/net.safetensors", "out=no/net.safetensors: no directory no"),
        ("\0\1" * 50, "", "has no column"),
        (GOOD + '"' + "x" * 200000, "", "is no CSV file"),
    ],
)
def test_bad_logs(tmp_path, capsys, text, words, says):
    """One line names the column, the row or the key, and nothing is written."""
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(SystemExit) as stop:
        fit_actuator.main([str(tmp_path / "log.csv"), *words.split()])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and says in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_no_log(capsys):
    """So is a log that is not there, and a picture."""
    with pytest.raises(SystemExit):
        fit_actuator.main(["none.csv"])
    assert capsys.readouterr().err == "error: no log none.csv\n"

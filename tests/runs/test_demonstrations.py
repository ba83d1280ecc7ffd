"""Files of demonstrations: what they hold, what is refused, and rows of a ring made of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpusim_rl.core.record import FLAG, NUMBER, Record, vector
from gpusim_rl.runs.demonstrations import Demonstrations, demonstration_columns
from tests.command_lines import one_line

COLUMNS = demonstration_columns(dict(actor=vector(2), critic=vector(3)), 1)
FORMAT = {"gpusim_rl": "demonstrations 1"}
ABOUT = {"task": "cartpole", "dt": "0.02"}


def shown(steps: int = 6) -> Demonstrations:
    """Two episodes: one of two steps that is terminated, and one that runs out of time."""
    record = Record.zeros(COLUMNS, steps, device=torch.device("cpu"))
    record.rows.copy_(torch.arange(record.rows.numel()).view(record.rows.shape))
    for name, last in (("terminated", 1), ("truncated", steps - 1)):
        record.column(name).zero_()
        record.column(name)[last] = 1.0
    return Demonstrations(record, ABOUT)


def test_a_file_round_trip(tmp_path):
    """It has a tensor for each column, and gives the same back."""
    demos, file = shown(), tmp_path / "a.safetensors"
    demos.write(file)
    tensors = load_file(file)
    assert {name: x.dtype for name, x in tensors.items()} == {
        name: x.dtype for name, x in COLUMNS.items()
    }
    again = Demonstrations.read(file)
    assert again.description == ABOUT and again.episodes == 2
    assert torch.equal(again.record.rows, demos.record.rows)


def test_the_first_episodes():
    """The first one ends where its step was terminated."""
    assert len(shown().first(1).record) == 2 and len(shown().first(2).record) == 6
    with pytest.raises(ValueError, match="3 episodes are asked for, and 2 are there"):
        shown().first(3)


def changed(**columns: float) -> Callable[[Path], None]:
    """What writes other numbers into whole columns of a file."""

    def write(file: Path) -> None:
        demos = Demonstrations.read(file)
        for name, value in columns.items():
            demos.record.column(name).fill_(value)
        demos.write(file)

    return write


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-3]), "is no whole safetensors file"),
        (
            lambda file: save_file(load_file(file), file),
            "holds no demonstrations: play.py mode=record writes them",
        ),
        (changed(reward=torch.inf), "its column 'reward' has a number that is not finite"),
        (changed(truncated=0.0), "has no whole episode at its end"),
        (
            lambda file: save_file(load_file(file) | {"end": torch.zeros(6, 2)}, file, FORMAT),
            "its column 'end' is [6, 2]",
        ),
        (lambda file: save_file({}, file, FORMAT), "its column 'obs' is None"),
        (Path.unlink, "no demonstrations"),
    ],
)
def test_what_is_no_file_of_demonstrations(tmp_path, damage, message):
    """It is refused in one line that names the file."""
    file = tmp_path / "a.safetensors"
    shown().write(file)
    damage(file)
    with one_line(str(file), message):
        Demonstrations.read(file)


def test_rows_of_a_ring():
    """Each world gets successive steps, and no later row follows from the last one."""
    columns = dict(obs=vector(2), action=vector(1), reward=NUMBER)
    columns |= dict.fromkeys(("terminated", "truncated", "fault"), FLAG)
    demos, worlds = shown(), torch.tensor([3, 4])
    steps = demos.steps(columns, 5, worlds)
    for world in range(2):
        taken = [(int(worlds[world]) * 5 + t) % 6 for t in range(5)]
        assert torch.equal(steps.obs[:, world], demos.record.obs[taken])
        assert torch.equal(steps.terminated[:, world], demos.record.terminated[taken])
        ends = demos.record.truncated[taken[:-1]].tolist()
        assert steps.truncated[:4, world].tolist() == ends
    assert (steps.terminated | steps.truncated)[4].all() and not steps.fault.any()
    with pytest.raises(ValueError, match="demonstrations have no column 'logp'"):
        demos.steps(columns | {"logp": NUMBER}, 5, worlds)

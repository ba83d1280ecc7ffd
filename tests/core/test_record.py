"""Records: named columns of any shape and type, written row by row."""

import pytest
import torch

from gpusim_rl.core.record import FLAG, NUMBER, Column, Record, row_bytes, vector

COLUMNS = {
    "obs": vector(3),
    "picture": Column((2, 4), torch.uint8),
    "reward": NUMBER,
    "over": FLAG,
    "count": Column((), torch.int64),
}


def poisoned() -> Record:
    """Four rows of five worlds, with NaN and the largest integers in every place."""
    record = Record.zeros(COLUMNS, 4, 5, device=torch.device("cpu"))
    for part in record.parts.values():
        part.fill_(torch.nan if part.is_floating_point() else torch.iinfo(part.dtype).max)
    return record


def values() -> dict[str, torch.Tensor]:
    """A value for each column, in another order than theirs; `other` is no column."""
    g = torch.Generator().manual_seed(0)
    return {
        "count": torch.arange(5),
        "over": torch.tensor([True, False, False, True, False]),
        "other": torch.zeros(5),
        "picture": torch.randint(0, 255, (5, 2, 4), generator=g, dtype=torch.uint8),
        "reward": torch.randn(5, generator=g),
        "obs": torch.randn(5, 3, generator=g),
    }


def test_a_row_is_what_was_put():
    """Every column has its values, shape and type in the row that was written, and no other row."""
    record, row = poisoned(), values()
    record.put(torch.tensor([2]), row)
    for name, column in COLUMNS.items():
        x = getattr(record, name)
        assert x.shape == (4, 5, *column.shape) and x.dtype == column.dtype
        assert torch.equal(x[2], row[name])
    assert record.obs[[0, 1, 3]].isnan().all() and (record.picture[[0, 1, 3]] == 255).all()


def test_a_part_of_a_row():
    """Columns that are apart may be put together, and leave those between them alone."""
    record, row = poisoned(), values()
    record.put(torch.tensor([0]), {name: row[name] for name in ("obs", "over")})
    assert torch.equal(record.obs[0], row["obs"]) and torch.equal(record.over[0], row["over"])
    assert record.reward.isnan().all()


def test_columns_share_tensors_by_type():
    """Numbers and truth values lie in one tensor, integers in their own; the schema says all."""
    record = poisoned()
    assert {str(x): part.shape[-1] for x, part in record.parts.items()} == {
        "torch.float32": 5,
        "torch.uint8": 8,
        "torch.int64": 1,
    }
    assert row_bytes(COLUMNS) == 5 * 4 + 8 + 8 and len(record) == 4
    assert record.schema == (
        "obs:float32[3] picture:uint8[2,4] reward:float32[] over:bool[] count:int64[]"
    )
    with pytest.raises(AttributeError, match="'color' is no column of obs, picture, reward"):
        _ = record.color

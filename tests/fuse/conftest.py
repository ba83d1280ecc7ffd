"""What the tests of kernels share."""

import pytest

from gpusim_rl.fuse.kernel import Place


@pytest.fixture(autouse=True)
def poison(monkeypatch) -> None:
    """Results that a kernel must write begin as NaN, so that one it leaves out is seen."""
    blank = Place.blank

    def poisoned(self: Place, worlds: int) -> Place:
        place = blank(self, worlds)
        if not self.mask_name:
            place.tensor.fill_(float("nan") if place.tensor.is_floating_point() else 77)
        return place

    monkeypatch.setattr(Place, "blank", poisoned)

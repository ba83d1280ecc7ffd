"""What refers to itself is freed where that is asked for."""

import gc
import weakref

import pytest

from gpusim_rl.core.memory import free_cycles


class Cycle:
    """An object that refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def by_hand():
    """Nothing is collected but where the test says so, and nothing stays frozen."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def cycle() -> weakref.ref[Cycle]:
    """To an object that only itself refers to."""
    return weakref.ref(Cycle())


def test_what_was_made_within_is_freed():
    """At the end, even of a part that raises an error. An older object stays for a full search."""
    older = cycle()
    with free_cycles():
        within = cycle()
        assert within()
    assert within() is None and older()
    with pytest.raises(ValueError), free_cycles():
        within = cycle()
        raise ValueError
    assert within() is None and older()
    gc.collect()
    assert older() is None and not gc.get_freeze_count()


def test_one_within_another():
    """Each frees its own, and the inner one also what the outer one has left."""
    older = cycle()
    with free_cycles():
        outer = cycle()
        with free_cycles():
            inner = cycle()
        assert inner() is None and outer() is None
        outer = cycle()
    assert outer() is None and older() and not gc.get_freeze_count()


def test_a_process_that_has_frozen_its_objects():
    """They stay frozen, and no others become so."""
    gc.collect()
    gc.freeze()
    count, older = gc.get_freeze_count(), cycle()
    with free_cycles():
        within = cycle()
    assert within() is None and older() is None
    assert 0 < gc.get_freeze_count() <= count

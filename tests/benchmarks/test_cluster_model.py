"""The model of a cluster agrees with arithmetic where that is known."""

from dataclasses import replace

import pytest

from benchmarks.cluster_model import Case, Model, closed_form


@pytest.mark.parametrize("actors, collect, update", [(2, 0.1, 0.3), (8, 0.4, 0.6), (4, 0.5, 0.1)])
def test_the_closed_form_is_the_model_without_deaths(actors, collect, update):
    """With even times, updates per second and lag are the closed form's, and nothing is refused."""
    case = Case(actors=actors, collect=collect, update=update, spread=0.0, seconds=60.0)
    speed, lag, refused = Model(case).run()
    assert (speed, lag) == pytest.approx(closed_form(case)[:2], rel=0.05) and refused == 0


def test_deaths_cost_speed():
    """Actors that end make a cluster slower whose actors bound it."""
    case = Case(actors=4, collect=0.5, update=0.1)
    assert Model(replace(case, deaths=5.0)).run()[0] < 0.9 * Model(case).run()[0]

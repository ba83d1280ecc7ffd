"""Finds an algorithm of the user's own by its name."""

from typing import cast

from gpusim_rl.algorithms.learner import Learner, LearnerSpec
from gpusim_rl.core.paths import user_code
from gpusim_rl.core.user_code import import_user_file


def load_algorithm(name: str) -> LearnerSpec[Learner]:
    """The `SPEC` of `algorithms/**/<name>.py` in the working directory.

    ValueError if there is no such file, or it cannot be used.
    """
    file = user_code("algo", name)
    if file is None:
        raise ValueError(f"algo={name}: algorithms/ of the working directory has no {name}.py")
    spec = vars(import_user_file(file, "algorithms")).get("SPEC")
    if not isinstance(spec, LearnerSpec):
        raise ValueError(f"{file}: SPEC is {type(spec).__name__}, expected a LearnerSpec")
    return cast(LearnerSpec[Learner], spec)

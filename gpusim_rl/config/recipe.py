"""Recipes: what a training does otherwise for a purpose, such as a policy for a real robot.

`recipe=NAME` takes the section `recipe.NAME` of the task's file. The command line wins over it, and
a run keeps what it began with. `recipe=fast` is the file as it stands.
"""

from gpusim_rl.config.check_words import merge
from gpusim_rl.config.device_overrides import KEYS, without
from gpusim_rl.config.nested_dict import flatten, is_below, leaves, merged
from gpusim_rl.core.files import Plain

FAST, ROBOT = "fast", "robot"
# Why: docs/decisions/configuration.md
ALLOWED = (*KEYS, "task", "curriculum", "gpu")
# what ranges= may change
RANGES = ("task.randomise", "robot.actuator.delay", "task.observation_delay")
FIXED = ("task.name", "task.mjcf", "algo.name")  # with these it would be another task or learner
# Key of a recipe → what a policy learns by it
LESSONS = {
    "task.observation_delay": "late readings",
    "task.dropout": "lost readings",
    "task.randomise.bias": "biased readings",
    "task.randomise.payload": "payload",
    "task.randomise.tilt": "slopes",
    "task.randomise.push": "strong pushes",
    "task.redraw": "sudden commands",
}


def apply_recipe(cfg: Plain, override_keys: list[str]) -> Plain:
    """A composed configuration with the numbers of its recipe; ValueError if there is none.

    Errors and `override_keys` as of `apply_section`.
    """
    name, task = cfg["recipe"]["name"], cfg["task"]["name"]
    if name == FAST:
        return cfg
    if not isinstance(values := cfg["recipe"].get(name), dict):
        expected = f"conf/task/{task}.yaml has no section recipe.{name}"
        raise ValueError(f"recipe={name} does not exist for task={task}: {expected}")
    return apply_section(cfg, f"recipe.{name}", values, ALLOWED, override_keys)


def apply_ranges(cfg: Plain, override_keys: list[str]) -> Plain:
    """A composed configuration with the ranges of ranges=NAME; as `apply_recipe`.

    They were identified of a robot, so they win over the task's file and its recipe.
    """
    return apply_section(cfg, "ranges", without(cfg["ranges"], ("name",)), RANGES, override_keys)


def apply_section(
    cfg: Plain,
    name: str,
    values: Plain,
    allowed: tuple[str, ...],
    override_keys: list[str],
) -> Plain:
    """A composed configuration with the numbers of one of its sections.

    ValueError if it has a key that is not among the `allowed` ones, or a wrong value.

    override_keys: keys of the command line, which stay as they are.
    """
    for key in leaves(values):
        if not is_below(key, allowed) or is_below(key, FIXED):
            raise ValueError(f"{name}.{key}: this section cannot change this key")
    fixed, values = tuple(override_keys), without(values, tuple(override_keys))
    if isinstance(plan := values.pop("curriculum", None), dict):
        plan = {key: entry for key, entry in plan.items() if not is_below(key, fixed)}
    values |= {"curriculum": plan} if plan else {}
    try:  # keys of gpu are looked at later, as those of a task's file are
        merge(cfg, {key: x for key, x in values.items() if key != "gpu"})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return merged(cfg, values)


def describe_recipe(recipe: Plain, cfg: Plain) -> str:
    """What a configuration has of its recipe, as KEY=VALUE in one line; empty for recipe=fast.

    Its command line or section `gpu` may have other numbers.
    """
    name, now = recipe["name"], flatten(cfg)
    values = {key: x for key, x in numbers_of(recipe.get(name)).items() if now.get(key) == x}
    words = " ".join(f"{key}={x}" for key, x in values.items()).replace("'", "")
    return f"recipe={name}: {words}" if values and name != FAST else ""


def unlearned(recipe: Plain, cfg: Plain) -> str:
    """What recipe=robot would have taught and recipe=fast did not, in one line.

    It is empty for another recipe, and for a task without recipe=robot.
    """
    now, values = flatten(cfg), numbers_of(recipe.get(ROBOT))
    missing = [key for key, x in values.items() if now.get(key) != x]
    lessons = [x for key, x in LESSONS.items() if any(is_below(other, (key,)) for other in missing)]
    if recipe["name"] != FAST or not lessons:
        return ""
    return f"the policy did not learn {', '.join(lessons)}: for a robot, train with recipe=robot"


def numbers_of(section: object) -> Plain:
    """Dotted key → value of a recipe, less those of `gpu`."""
    return leaves(without(section, ("gpu",))) if isinstance(section, dict) else {}

"""The section `terrain` of a configuration: rough ground for the tasks that take it."""

from typing import Any

from gpusim_rl.envs.task import Task


def arguments(kind: type[Task], cfg: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a task that come from terrain=; ValueError if it is for other tasks."""
    section = cfg.get("terrain") or {"name": "flat"}
    if kind.takes_terrain == (section["name"] != "flat"):
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}
        values.pop("name")
        return {"terrain": values} if kind.takes_terrain else {}
    task, name = cfg["task"]["name"], section["name"]
    remedy = "terrain=rough" if kind.takes_terrain else "terrain=flat, or task=quadruped_rough"
    raise ValueError(f"terrain={name} does not fit task={task}: choose {remedy}")

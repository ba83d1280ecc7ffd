"""Robot reinforcement learning in shared tensors: simulate, update, verify and export without
leaving the device."""

import os
import sys

# libgomp reads it when torch is loaded. Its threads wait for each other in a loop: beside another
# program long loops made a quadruped train 15 times slower on two cores.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# Modules that documents or files of `mode=new-task` imported → where they are now.
MOVED = {
    "gpusim_rl.trainer": "gpusim_rl.commands.train; its class Trainer: gpusim_rl.training.trainer",
    "gpusim_rl.exporter": "gpusim_rl.deploy.export_policy",
    "gpusim_rl.player": "gpusim_rl.play.player",
    "gpusim_rl.envs.actions": "gpusim_rl.tasks.common.actions",
    "gpusim_rl.envs.on_terrain": "gpusim_rl.tasks.common.on_terrain",
    "gpusim_rl.envs.registry": "gpusim_rl.envs.load_task",
    "gpusim_rl.robots.terrains": "gpusim_rl.envs.terrain",
}


class MovedFinder:
    """The last finder of modules: where a module had an old name, it says the new one."""

    @staticmethod
    def find_spec(fullname: str, path: object, target: object = None) -> None:
        if fullname in MOVED:
            raise ImportError(f"{fullname} has moved: import {MOVED[fullname]}", name=fullname)


sys.meta_path.append(MovedFinder)

"""One file per task, in a folder for each family; imported as `gpusim_rl.tasks`."""

if __name__ != "gpusim_rl.tasks":
    raise ImportError(f"import gpusim_rl.tasks, not {__name__}: each task is one class")

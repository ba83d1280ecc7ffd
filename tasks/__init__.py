"""One file per task; `load` finds it by name."""

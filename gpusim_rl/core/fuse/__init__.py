"""Pure functions of B worlds, written in torch, as Warp kernels with a thread for each world."""

"""Robot reinforcement learning in shared tensors: simulate, update, verify and export without
leaving the device."""

import os

# libgomp reads it when torch is loaded. Its threads wait for each other in a loop: beside another
# program long loops made a quadruped train 15 times slower on two cores.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

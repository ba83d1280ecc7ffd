"""Robot reinforcement learning in shared tensors: simulate, update, verify and export without
leaving the device."""

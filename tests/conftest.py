"""What all tests share: one torch thread, because small tensors gain nothing from more and the engine's threads fight them."""

import torch

torch.set_num_threads(1)

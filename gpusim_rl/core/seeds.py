"""Which seeds are of trainings and which of evaluations: the two share no random numbers."""

# Why: docs/decisions/physics.md
EVALUATION_SEEDS = 0x5EED_0000  # the first of them; those of trainings are below

"""A learner through a learned model of the physics, with the task's own formulas."""

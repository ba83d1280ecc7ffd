"""Rough ground: patches of boxes, each level of each kind in several variants."""

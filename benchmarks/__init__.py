"""Measurements, each a ratio or a difference of medians taken in alternating rounds within one run."""

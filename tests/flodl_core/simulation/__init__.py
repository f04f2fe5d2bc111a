"""Tests of the simulator, and of the engine in it."""

"""Parameters and places of a run: what it was asked to do, its name, where its files lie. No torch, no HTTP."""

"""What a run does, step by step: recipes, and the plain functions that train one."""

"""Recipes: what to train, under a name."""

from flows.recipes.recipe import Recipe
from flows.recipes.resolve import list_recipes, resolve_recipe

__all__ = ["Recipe", "list_recipes", "resolve_recipe"]

"""Every error that flows raises on purpose."""


class FlowError(Exception):
    """Root of the errors of flows."""


class RecipeError(FlowError, ValueError):
    """A recipe is unknown or cannot be imported; the message says which there are, or where its code failed."""


class DataError(FlowError, ValueError):
    """A recipe's data are missing or damaged; the message says what to set or to fetch again."""

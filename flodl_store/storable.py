"""Text as every database takes it: PostgreSQL refuses NUL characters, and no driver sends half a surrogate pair.

Such characters come from outside, in an error's message or a file's name, and must not cost a run its record.
"""

import re
from typing import Any

from flodl_store.plain_json import dump_json

REPLACEMENT = "\ufffd"
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # not where the backslash is escaped itself


def storable_text(text: str) -> str:
    """``text`` with the replacement character in place of what cannot be stored."""
    return _without_surrogates(text).replace("\0", REPLACEMENT)


def storable_json(value: Any) -> str:
    """``value`` as JSON for a column; see ``plain_json.dump_json``.

    Raises:
        TypeError: ``value`` holds something that JSON has no form for.
    """
    text = _without_surrogates(dump_json(value))
    return _ESCAPED_NUL.sub(rf"\1{REPLACEMENT}", text) if r"\u0000" in text else text


def _without_surrogates(text: str) -> str:
    # "surrogatepass" turns each half into three bytes that are no UTF-8; reading them puts the replacement there.
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")

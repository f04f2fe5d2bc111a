"""The pages' templates. What is put into them is escaped, also inside a script element."""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from dashboard.assets import assets_version, modules_of
from flodl_store.plain_json import dump_json


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(
    template: str, *, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None, **values: Any
) -> HTMLResponse:
    """The page that ``template`` makes of ``values``."""
    page = _environment().get_template(template).render(version=assets_version(), modules_of=modules_of, **values)
    return HTMLResponse(page, status, headers=dict(headers or {}))


def script_json(value: Any) -> Markup:
    """``value`` as JSON that no text in it can end the script element around it."""
    text = dump_json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # nothing that HTML knows is left in it

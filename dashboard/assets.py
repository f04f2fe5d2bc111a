"""Styles and scripts, read once into memory: a request names one of them or nothing, never a path.

Their address holds a digest of them all, so that a browser may keep them for ever and a new version is fetched at once.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_IMPORT = re.compile(r'from "\./([\w-]+\.js)"')
FOR_EVER = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    media_type: str


@router.api_route("/static/{version}/{name}", methods=["GET", "HEAD"])
async def send_asset(version: str, name: str) -> Response:
    """A style or script. One of another version is refused: it would not fit the page."""
    asset = all_assets().get(name)
    if asset is None or version != assets_version():
        raise HTTPException(404)
    return Response(asset.content, media_type=asset.media_type, headers={"cache-control": FOR_EVER})


@router.api_route("/favicon.ico", methods=["GET", "HEAD"])
async def send_favicon() -> Response:
    """For browsers that ask for it without having read the page."""
    asset = all_assets()["favicon.svg"]
    return Response(asset.content, media_type=asset.media_type, headers={"cache-control": "public, max-age=86400"})


@cache
def all_assets() -> dict[str, Asset]:
    """Every file that may be asked for, by name."""
    files = [*sorted((Path(__file__).parent / "static").iterdir()), _plotly()]
    return {
        file.name: Asset(content=file.read_bytes(), media_type=MEDIA_TYPES[file.suffix])
        for file in files
        if file.suffix in MEDIA_TYPES
    }


@cache
def assets_version() -> str:
    """A digest of all of them, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, asset in all_assets().items():
        digest.update(name.encode() + hashlib.sha256(asset.content).digest())
    return digest.hexdigest()[:12]


@cache
def modules_of(name: str) -> tuple[str, ...]:
    """The script ``name`` and all that it imports: a page that names them has them fetched at once, not one by one."""
    found: dict[str, None] = {name: None}
    waiting = [name]
    while waiting:
        source = all_assets()[waiting.pop()].content.decode()
        new = [module for module in _IMPORT.findall(source) if module not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return tuple(found)


def _plotly() -> Path:
    # Where it lies, without the import: the package's Python half is not used.
    spec = find_spec("plotly")
    assert spec is not None, "plotly is a dependency"
    assert spec.origin is not None, "plotly is a package with an __init__"
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"

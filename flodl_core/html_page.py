"""A page that needs nothing but itself: opened from disk it asks for no file and runs no script."""

import html
from collections.abc import Iterable, Sequence

LONG_FACT = 40
"""Letters beyond which a fact does not stand beside another."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root {
  color-scheme: light dark;
  --bg: #f6f7f9; --card: #fff; --line: #e3e6eb; --grid: #eceff3; --ink: #16181d; --dim: #5d6470; --bad: #c2312b;
  --c0: #2f5fd0; --c1: #d55e00; --c2: #00845f; --c3: #b0568a; --c4: #b07800; --c5: #2b86b8; --c6: #8c6d31;
  --c7: #6a3d9a; --soft: #c3c9d3; --firm: #8d96a5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #0e1116; --card: #161a21; --line: #262c36; --grid: #222832; --ink: #e8eaee; --dim: #a0a8b5; --bad: #ff7a72;
    --c0: #7aa2ff; --c1: #f0883e; --c2: #3fc79a; --c3: #e5a3cb; --c4: #f2c14e; --c5: #8ecae6; --c6: #c2a36b;
    --c7: #b39ddb; --soft: #39414e; --firm: #6b7585;
  }
}
* { box-sizing: border-box }
body {
  margin: 0 auto; max-width: 1180px; padding: 22px 20px 40px; background: var(--bg); color: var(--ink);
  font: 14px/1.5 system-ui, Helvetica, Arial, sans-serif; overflow-wrap: anywhere;
}
h1 { font-size: 20px; margin: 0 }
h2 { font-size: 14px; margin: 0 0 10px }
p { margin: 2px 0 10px; color: var(--dim) }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 13px 14px 14px;
  margin-top: 14px;
}
.row { display: grid; grid-template-columns: 190px minmax(0, 1fr); gap: 0 12px; align-items: center; margin: 3px 0 }
.row > :first-child { font-size: 12px; line-height: 1.35 }
.row small, .key { color: var(--dim); font-size: 12px }
.row small { display: block }
.plot { display: block; width: 100%; background: var(--bg); border-radius: 3px }
.plot path { vector-effect: non-scaling-stroke }
.levels { position: relative }
.levels span {
  position: absolute; right: 4px; transform: translateY(-50%); color: var(--dim); font-size: 11px; line-height: 1;
  text-shadow: 0 0 3px var(--bg), 0 0 3px var(--bg), 0 0 3px var(--bg); pointer-events: none;
}
.axis { position: relative; height: 18px; color: var(--dim); font-size: 11.5px }
.axis span { position: absolute; white-space: nowrap }
.keys { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0 0 8px }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums; overflow-wrap: normal }
th { font-weight: 400; color: var(--dim); text-align: left }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; vertical-align: top }
.num { text-align: right }
.wide { white-space: normal; min-width: 180px; overflow-wrap: anywhere }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 8px 20px; margin: 0 }
.facts .long { grid-column: 1 / -1 }
.facts dt { color: var(--dim); font-size: 12px }
.facts dd { margin: 0; font-size: 13px }
.bad, .row small.bad { color: var(--bad) }
.picture { display: block; max-width: 100%; margin: 0 auto }
@media (max-width: 640px) {
  body { padding: 14px 10px 30px }
  .row { grid-template-columns: minmax(0, 1fr); margin: 8px 0 }
  .row small { display: inline; margin-left: 8px }
}
"""


def escape(text: object) -> str:
    """Text that may stand anywhere in a page."""
    return html.escape(str(text), quote=True)


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """A whole HTML document; ``title`` and ``subtitle`` are text, the sections HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>"
        f"<main>{''.join(part for part in sections if part)}</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A card with a heading; ``title`` is text, the parts HTML."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def note(text: str) -> str:
    """A line of text."""
    return f"<p>{escape(text)}</p>"


def warning(text: str) -> str:
    """A line of text that must not be overlooked."""
    return f'<p class="bad">{escape(text)}</p>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, as many beside each other as there is room for; long ones have a line for themselves."""
    return f'<dl class="facts">{"".join(_fact(name, str(value)) for name, value in pairs)}</dl>'


def _fact(name: str, value: str) -> str:
    kind = ' class="long"' if len(value) > LONG_FACT else ""
    return f"<div{kind}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def row(label: str, detail: str, plot: str, *, is_bad: bool = False) -> str:
    """A plot with its name beside it, or above it on a narrow screen; the first two are text, the plot HTML.

    Args:
        label: The name.
        detail: More about it, in smaller letters.
        plot: What stands beside.
        is_bad: Whether the detail tells of a failure.
    """
    kind = ' class="bad"' if is_bad else ""
    small = f"<small{kind}>{escape(detail)}</small>" if detail else ""
    return f'<div class="row"><div>{escape(label)}{small}</div>{plot}</div>'


def keys(names: Iterable[tuple[str, str]]) -> str:
    """A legend of (name, CSS colour of ours)."""
    entries = (f'<span class="key"><i style="background:{color}"></i>{escape(name)}</span>' for name, color in names)
    return f'<div class="keys">{"".join(entries)}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wide: str | None = None) -> str:
    """A table of text and numbers, which stand to the right.

    Args:
        columns: Headings.
        rows: Cells by column.
        wide: Heading of the column that may be broken into lines.
    """
    body = "".join(
        f"<tr>{''.join(_cell(value, name == wide) for name, value in zip(columns, row, strict=True))}</tr>"
        for row in rows
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object, is_wide: bool) -> str:
    kind = ' class="wide"' if is_wide else ' class="num"' if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(value)}</td>"

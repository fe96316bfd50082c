"""What reports say, as lines of a terminal and as HTML of a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

#: A table: its head, and its rows.
Table = Sequence[tuple[str, ...]]


def table(rows: Table) -> list[str]:
    """Rows as aligned columns; numbers to the right."""
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            c.rjust(w) if _is_number(c) else c.ljust(w) for c, w in zip(r, widths, strict=True)
        ).rstrip()
        for r in rows
    ]


def lines(parts: Sequence[str | Table]) -> list[str]:
    """Lines as they are, and tables below an empty line."""
    out: list[str] = []
    for part in parts:
        out += [part] if isinstance(part, str) else ["", *table(part)]
    return out


def html(parts: Sequence[str | Table]) -> str:
    """The same for `_repr_html_`: the notebook styles it."""
    out: list[str] = []
    for part in parts:
        if isinstance(part, str):
            out += [f'<div style="white-space: pre-wrap">{escape(part)}</div>'] if part else []
        else:
            head, *rows = part
            sides = ["right" if _is_number(c) else "left" for c in (rows or [head])[0]]
            body = "".join(_row("td", row, sides) for row in rows)
            out.append(
                f"<table><thead>{_row('th', head, sides)}</thead><tbody>{body}</tbody></table>"
            )
    return f"<div>{''.join(out)}</div>"


def _row(tag: str, cells: tuple[str, ...], sides: Sequence[str]) -> str:
    made = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or (text[:1] == "-" and text[1:2].isdigit())

"""The report as one HTML file: tables that sort, figures inside, no network; prints well."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.1em; margin: 2em 0 .4em; }
.scroll { overflow-x: auto; } img { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .3em .7em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
td.text, th.text { text-align: left; white-space: normal; }
th { border-bottom: 2px solid #444; cursor: pointer; user-select: none; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
th:focus-visible { outline: 2px solid #00798c; }
td.confirmed { color: #00798c; font-weight: 600; } td.refuted { color: #b3001b; font-weight: 600; }
.refused { color: #b3001b; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } table { font-size: 8pt; }
  h2, figure, table { break-inside: avoid; } th { cursor: auto; } th::after { content: "" !important; } }
"""
SCRIPT = """
for (const header of document.querySelectorAll("th")) {
  const sort = () => {
    const row = header.parentElement, table = header.closest("table"), body = table.tBodies[0];
    const column = [...row.children].indexOf(header), falling = header.getAttribute("aria-sort") === "ascending";
    for (const other of row.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const value = line => {
      const text = line.cells[column].textContent, number = parseFloat(text.replaceAll(",", ""));
      return Number.isNaN(number) ? text : number;
    };
    const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    const lines = [...body.rows].sort((a, b) => compare(value(a), value(b)) * (falling ? -1 : 1));
    body.append(...lines);
  };
  header.tabIndex = 0;
  header.addEventListener("click", sort);
  header.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
  });
}
"""
TEXTS = {"arm", "task", "group", "claim", "verdict", "evidence", "record", "gate", "what was compared", "tasks"}

Titled = tuple[str, list[dict[str, str]]]


def page(introduction: str, tables: Sequence[Titled], notes: Sequence[str], figures: Sequence[Path]) -> str:
    """The page as text. Every cell is escaped; figures are PNG files, taken in as data."""
    title = "Masked diffusion against its autoregressive twin"
    images = "".join(
        f'<figure><img alt="{escape(path.stem.replace("_", " "))}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}"></figure>'
        for path in figures
    )
    sections = "".join(_section(heading, rows) for heading, rows in tables)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>{escape(introduction)}</p>{images}{sections}<h2>How to read it</h2><ul>{items}</ul>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _section(heading: str, rows: list[dict[str, str]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    kind = {column: ' class="text"' if column in TEXTS else "" for column in columns}
    head = "".join(f'<th scope="col"{kind[column]}>{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(_cell(column, row.get(column, "—"), kind[column]) for column in columns) + "</tr>"
        for row in rows
    )
    mark = ' class="refused"' if heading.startswith("REFUSED") else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2{mark}>{escape(heading)}</h2><div class="scroll">{table}</div>'


def _cell(column: str, text: str, kind: str) -> str:
    if column == "verdict" and text in ("confirmed", "refuted"):
        kind = f' class="text {text}"'
    return f"<td{kind}>{escape(text)}</td>"

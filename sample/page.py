"""A trace as one HTML page that plays it: no network, no other file, no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sample.trace import write_whole

TEMPLATE = Path(__file__).with_name("page.html")


def write_page(path: str | Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Writes the page of a trace, see `sample.trace`. Raises `UserError` where `path` cannot be written."""
    write_whole(path, page(lines))


def page(lines: Sequence[Mapping[str, Any]]) -> str:
    """The page's HTML."""
    template = TEMPLATE.read_text(encoding="utf-8")
    checkpoint = "/".join(Path(lines[0].get("checkpoint", "")).parts[-2:])
    title = html.escape(f"A decode, pass by pass: {checkpoint}" if checkpoint else "A decode, pass by pass")
    title = title.encode("ascii", "xmlcharrefreplace").decode()  # whatever bytes a path may have
    parts = {"title": title, "policy": policy(template), "trace": embedded(lines)}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def policy(template: str) -> str:
    """The page's Content-Security-Policy: its own script and style by their hashes, and nothing else from anywhere."""
    sources = {}
    for tag in ("script", "style"):
        (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode("utf-8")).digest()).decode()
        sources[tag] = f"{tag}-src 'sha256-{digest}'"
    closed = "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    return f"default-src 'none'; {sources['script']}; {sources['style']}; {closed}"


def embedded(lines: Sequence[Mapping[str, Any]]) -> str:
    """The lines as a JSON array that can stand in a script element: no text in it opens or closes a tag or comment."""
    text = json.dumps(list(lines), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

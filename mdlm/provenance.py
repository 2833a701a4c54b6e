"""Which commit a number was made with, and which file."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path


def checkout() -> tuple[str | None, bool | None]:
    """The commit this program runs from and whether files differ from it; None and None outside its own checkout."""
    root = Path(__file__).resolve().parents[1]
    top, commit = _git(root, "rev-parse", "--show-toplevel"), _git(root, "rev-parse", "HEAD")
    if not top or not commit or Path(top).resolve() != root:
        return None, None  # installed somewhere, perhaps inside another project's repository
    return commit, _git(root, "status", "--porcelain") != ""


def sha256_of(path: Path) -> str:
    """A file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

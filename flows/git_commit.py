"""Which version of the user's code trains."""

import subprocess
from pathlib import Path

LIMIT_S = 5.0


def git_commit(folder: Path) -> str | None:
    """The commit that ``folder`` is at, 40 hexadecimal digits; None outside of repositories and without git."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None

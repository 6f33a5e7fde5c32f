"""A headless Chromium for the pages that the engine writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_HEAD = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
</script>"""
_TAIL = """<script>
{
  const answer = document.createElement("pre");
  answer.id = "answer";
  let found = null;
  try {
    found = (() => { SCRIPT })();
  } catch (error) {
    problems.push(String(error.stack));
  }
  answer.textContent = JSON.stringify({ found, problems });
  document.body.append(answer);
}
</script>"""
_ANSWER = re.compile(r'<pre id="answer">(.*?)</pre>', re.DOTALL)


@dataclass(frozen=True)
class Visit:
    """What a page did.

    Attributes:
        found: what the test's script returned.
        problems: errors of the page and of the script, and what went to the console.
    """

    found: Any
    problems: list[str]


def chromium() -> str:
    """The browser. Skips without one, or fails if ENGINE_REQUIRE_CHROMIUM=1."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium on PATH (Debian: apt-get install chromium)"
        if os.environ.get("ENGINE_REQUIRE_CHROMIUM") == "1":
            pytest.fail(f"{reason}, and ENGINE_REQUIRE_CHROMIUM=1 demands one", pytrace=False)
        pytest.skip(reason)
    return found


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [chromium(), "--headless", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-first-run", f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", "--window-size=1400,900"]
    command += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def visit(page: str, folder: Path, script: str, fragment: str = "") -> Visit:
    """Opens a page, runs the body of a function in it, and tells what that returned.

    Args:
        page: HTML.
        folder: where files may lie.
        script: JavaScript that ends with `return`; the value must be JSON.
        fragment: behind the address, such as "#find=Conv".
    """
    assert "</body>" in page and "<head>" in page
    tail = _TAIL.replace("SCRIPT", script)
    path = folder / "page.html"
    watched = page.replace("<head>", f"<head>{_HEAD}", 1)
    head, _, rest = watched.rpartition("</body>")
    path.write_text(f"{head}{tail}</body>{rest}", encoding="utf-8")
    done = _run(folder, "--virtual-time-budget=5000", "--dump-dom", f"{path.as_uri()}{fragment}")
    answer = _ANSWER.search(done.stdout)
    assert answer is not None, done.stdout[-2000:] + done.stderr
    content = json.loads(unescape(answer[1]))
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Visit(content["found"], [*content["problems"], *said])


def screenshot(page: str, folder: Path, dark: bool = False) -> Path:
    """A picture of a page, 1400 by 900."""
    source, picture = folder / "shot.html", folder / "shot.png"
    source.write_text(page, encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(folder, "--virtual-time-budget=5000", *scheme, f"--screenshot={picture}", source.as_uri())
    return picture

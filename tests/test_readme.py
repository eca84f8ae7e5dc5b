"""Every command that README and docs show is run, in the order shown; names and links they mention exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trnt.models import registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[list[str]]:
    """The lines of the page's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


def test_readme_shows_commands() -> None:
    assert len(commands(ROOT / "README.md")) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path, corpus: Path) -> None:
    """In one folder, one after another. TRNT_STEPS shortens the recipes, as it would for a user."""
    shutil.copytree(corpus, tmp_path / "notes")
    environment = {**os.environ, "TRNT_STEPS": "2", "TRNT_BATCH_SIZE": "2"}
    if page.name != "README.md":  # the pages on export go on from the runs that README makes
        for words in commands(ROOT / "README.md"):
            if words[:2] == ["trnt", "train"] and "--data" in words and "--init-from" not in words:
                assert run(words, tmp_path, environment) is None
    for words in commands(page):
        assert run(words, tmp_path, environment) is None


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str | None:
    """None, or what was wrong."""
    if words[0] == "make":  # make test runs this very test, so make only shows what it would do
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        return done.stderr if done.returncode else None
    if words[0] != "trnt":
        return f"a page shows {words}, which no test runs"
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        return f"{shlex.join(words)}\n{done.stderr}"
    return None if done.stdout.strip() else f"{shlex.join(words)} says nothing"


def test_the_demo_is_the_readmes_commands() -> None:
    demo = re.findall(r"^say (.*)$", (ROOT / "examples" / "demo.sh").read_text(), flags=re.MULTILINE)
    shown = [shlex.join(words) for words in commands(ROOT / "README.md")]
    assert [line for line in demo if line.startswith("trnt")] == [line for line in shown if line in demo]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert "://" in link or (page.parent / link).exists(), f"{page.name} links to {link}"


def test_readme_lists_every_model() -> None:
    text = (ROOT / "README.md").read_text().split("## Models")[1].split("##")[0]
    listed: set[str] = set()
    family = ""
    for name in re.findall(r"`(-?[a-z0-9.-]+)`", text):
        if name.startswith("--"):
            continue
        if name.startswith("-"):
            name = family + name
        else:
            family = name.rpartition("-")[0]
        listed.add(name)
    assert listed == set(registry.names())


def test_every_metric_is_documented() -> None:
    table = (ROOT / "docs" / "train.md").read_text()
    source = (ROOT / "trnt" / "report.py").read_text() + (ROOT / "trnt" / "trainer.py").read_text()
    keys = set(re.findall(r'^            "([a-z_]+)":', source, flags=re.MULTILINE))
    keys |= set(re.findall(r'"(moe/[a-z_]+)"', source))
    assert {"loss", "moe/busiest_expert"} <= keys
    assert not {key for key in keys if f"`{key}`" not in table}


def test_every_page_is_linked_from_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert not [page.name for page in PAGES[1:] if f"docs/{page.name}" not in text]

"""The design's import rules, walked: nothing imports upward, light modules import nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "trnt"
HEAVY = {"torch", "torchtitan", "transformers", "safetensors", "numpy", "datasets", "huggingface_hub", "matplotlib"}

# Lower levels may not import higher ones. A module's level is that of the longest prefix that names it.
LEVELS = {
    "trnt": 0,
    "trnt.errors": 0,
    "trnt.console": 1,
    "trnt.host_memory": 1,
    "trnt.option_checks": 1,
    "trnt.options": 2,
    "trnt.flags": 3,
    "trnt.clusters": 7,
    "trnt.compiling": 4,
    "trnt.plugins": 2,
    "trnt.device": 2,
    "trnt.config": 2,
    "trnt.models": 3,
    "trnt.kernels": 3,
    "trnt.optim": 4,
    "trnt.starting": 6,
    "trnt.ready": 6,
    "trnt.data": 3,
    "trnt.parallel": 3,
    "trnt.runs": 4,
    "trnt.report": 5,
    "trnt.checkpoint": 4,
    "trnt.launch": 4,
    "trnt.elastic": 4,
    "trnt.trainer": 6,
    "trnt.doctor": 6,
    "trnt.assemble": 7,
    "trnt.planning": 7,
    "trnt.training": 8,
    "trnt.opening": 5,
    "trnt.converting": 6,
    "trnt.verifying": 6,
    "trnt.exporting": 8,
    "trnt.benching": 7,
    "trnt.benched": 8,
    "trnt.commands": 9,
    "trnt.cli": 10,
    "trnt.__main__": 11,
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if "sample" not in path.parts}


def level(module: str) -> int:
    while module not in LEVELS:
        module = module.rpartition(".")[0]
    return LEVELS[module]


def imports(path: Path, *, top_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name in MODULES and name != "trnt"}


@pytest.mark.parametrize("module", MODULES)
def test_imports_flow_one_way(module: str) -> None:
    upward = {name for name in ours(imports(MODULES[module])) if level(name) > level(module)}
    assert not upward, f"{module} imports {upward}, which lie above it"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("trnt.commands.")])
def test_commands_do_not_import_one_another(module: str) -> None:
    sideways = {n for n in ours(imports(MODULES[module])) if n.startswith("trnt.commands.") and n != module}
    assert not sideways


LIGHT = (
    "trnt.cli",
    "trnt.console",
    "trnt.errors",
    "trnt.options",
    "trnt.config",
    "trnt.device",
    "trnt.host_memory",
    "trnt.planning",
    "trnt.runs",
)
LIGHT_PREFIXES = (
    "trnt.commands",
    "trnt.doctor",
    "trnt.training",
    "trnt.ready",
    "trnt.exporting",
    "trnt.opening",
    "trnt.converting",
    "trnt.verifying",
    "trnt.models.registry",
    "trnt.models.listing",
)


@pytest.mark.parametrize("module", [m for m in MODULES if m in LIGHT or m.startswith(LIGHT_PREFIXES)])
def test_light_modules_load_nothing_heavy(module: str) -> None:
    direct = {name.partition(".")[0] for name in imports(MODULES[module], top_only=True)}
    assert not direct & HEAVY
    code = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_console_prints() -> None:
    printing = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.append(f"{module}:{node.lineno}")
    allowed = ("trnt.doctor.probe:",)  # a child process whose stdout is its result
    assert not [place for place in printing if not place.startswith(allowed)]


def test_every_module_has_a_test_file() -> None:
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        module
        for module, path in MODULES.items()
        if path.name not in ("__init__.py", "__main__.py") and not any(path.stem in name for name in tests)
    ]
    assert not missing

"""The Python that NKI's compiler accepts, checked on a kernel's syntax tree. Stricter than the official simulator."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnt.kernels.sim.refusal import refuse

REFUSED: dict[type, str] = {
    ast.Try: "try",
    ast.Raise: "raise (use assert)",
    ast.Lambda: "lambda",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Await: "await",
    ast.AsyncFunctionDef: "async",
    ast.ClassDef: "a class inside a kernel",
    ast.Import: "import inside a kernel",
    ast.ImportFrom: "import inside a kernel",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Delete: "del",
    ast.GeneratorExp: "a generator",
    ast.SetComp: "a set",
    ast.Set: "a set",
    ast.NamedExpr: "an assignment inside an expression",
    ast.Starred: "* in a call or a list",
    ast.Match: "match",
}
CONSTANTS = (int, float, str, bool, type(None), tuple)


def check(function: Callable[..., Any]) -> None:
    """Check a kernel and the plain functions of its module that it calls. Raises Refused ("language")."""
    check_all(inspect.unwrap(function))


@functools.cache
def check_all(function: Callable[..., Any]) -> None:
    seen: set[Any] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        waiting += check_one(one)


def check_one(function: Any) -> list[Any]:
    """Check one function; returns the plain functions that it refers to."""
    source, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(source)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    name = Path(inspect.getsourcefile(function) or "?").name

    def no(node: ast.AST, what: str) -> None:
        refuse(
            "language", f"{what}: NKI's compiler does not accept it", f"{name}:{first + getattr(node, 'lineno', 1) - 1}"
        )

    messages = {
        id(part)
        for node in ast.walk(definition)
        for text in ([node.msg] if isinstance(node, ast.Assert) else named(node))
        if text is not None
        for part in ast.walk(text)
    }
    for node in ast.walk(definition):
        if type(node) in REFUSED:
            no(node, REFUSED[type(node)])
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            no(node, "is / is not")
        if isinstance(node, ast.arguments) and (node.kwonlyargs or node.vararg or node.kwarg):
            no(definition, "keyword-only arguments, * or **")
        if isinstance(node, ast.JoinedStr) and id(node) not in messages:
            no(node, "an f-string outside of a name or a message")
        if isinstance(node, ast.With) and not all(is_no_reorder(item.context_expr) for item in node.items):
            no(node, "with, except nl.no_reorder()")
    called: list[Any] = []
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in function.__globals__:
            value = function.__globals__[node.id]
            if isinstance(value, types.FunctionType):
                called.append(inspect.unwrap(value))
            elif isinstance(value, (list, dict, set)):
                no(node, f"the global {node.id}, which can change: kernels are cached by their arguments")
    return called


def named(node: ast.AST) -> list[ast.expr | None]:
    """Where text may be made: print, device_print, and the name of a tensor or an instruction."""
    if not isinstance(node, ast.Call):
        return []
    if isinstance(node.func, ast.Name) and node.func.id == "print":
        return list(node.args)
    return [keyword.value for keyword in node.keywords if keyword.arg == "name"]


def is_no_reorder(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "no_reorder"

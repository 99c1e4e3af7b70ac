"""How a source file binds its names: read from its syntax tree, through everything but the inside of functions."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import dataclass, field
from typing import Any

MAX_LITERAL = 200


@dataclass(frozen=True, slots=True)
class Binding:
    """One way in which a source file binds a name.

    Attributes:
        how: `def`, `class`, `import` (`source` is "module:name", or "module" for a whole one), `assign` (`source` is
            a dotted name, if the value is one), `call` (`source` is the callee's dotted name, if it has one), or
            `other` (loops, with, except, deletion).
        line: where.
        source: see `how`.
        decorators: dotted names of a function's or class's decorators, "" for one that has none.
        literal: repr of the assigned constant.
        defaults: repr of a function's constant default arguments, positional ones under their number from the last.
    """

    how: str
    line: int
    source: str = ""
    decorators: tuple[str, ...] = ()
    literal: str | None = None
    defaults: dict[str, str] = field(default_factory=dict)


class Reader:
    """Collects bindings of a module and of its classes, through `if`, `try`, `with` and loops, not into functions."""

    def __init__(self) -> None:
        self.bindings: dict[str, dict[str, list[Binding]]] = {"": {}}
        self.tables: dict[str, dict[str, str]] = {}
        self.stores: dict[str, int] = {}
        self.ops: set[str] = set()
        self.imports: set[str] = set()
        self.dynamic = False
        self.generates = False

    def body(self, statements: list[ast.stmt], scope: str) -> None:
        """Read the statements of a module ("") or class."""
        names = self.bindings.setdefault(scope, {})
        for node in statements:
            self._statement(node, scope, names)

    def _statement(self, node: ast.stmt, scope: str, names: dict[str, list[Binding]]) -> None:
        def bind(name: str, how: str, **more: Any) -> None:
            names.setdefault(name, []).append(Binding(how, node.lineno, **more))

        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = tuple(_dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list)
            bind(node.name, "def", decorators=decorators, defaults=_defaults(node.args))
            self._inside(node, scope)
        elif isinstance(node, ast.ClassDef):
            decorators = tuple(_dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list)
            bind(node.name, "class", decorators=decorators)
            self.body(node.body, f"{scope}.{node.name}" if scope else node.name)
        elif isinstance(node, ast.Import):
            self._import(node)
            for alias in node.names:
                bind(alias.asname or alias.name.split(".")[0], "import", source=alias.name)
        elif isinstance(node, ast.ImportFrom):
            self._import(node)
            home = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    self.dynamic = True
                else:
                    bind(alias.asname or alias.name, "import", source=f"{home}:{alias.name}")
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assign(node, scope, bind)
        else:
            self._compound(node, scope, bind)

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: str, bind: Any) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        for target in targets:
            if isinstance(target, ast.Name) and value is not None and not isinstance(node, ast.AugAssign):
                self._value(target.id, value, scope, bind)
                continue
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    bind(inner.id, "other")
                elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    self.stores.setdefault(inner.attr, inner.lineno)
        if value is not None:
            self._expressions(value)

    def _value(self, name: str, value: ast.expr, scope: str, bind: Any) -> None:
        literal = None
        if isinstance(value, (ast.Constant, ast.UnaryOp, ast.Tuple)):
            with contextlib.suppress(ValueError, TypeError):
                literal = repr(ast.literal_eval(value))
        if isinstance(value, ast.Call):
            bind(name, "call", source=_dotted(value.func))
        elif literal is not None and len(literal) <= MAX_LITERAL:
            bind(name, "assign", literal=literal)
        else:
            bind(name, "assign", source=_dotted(value))
        if isinstance(value, ast.Dict):
            table = {
                repr(key.value): _dotted(item)
                for key, item in zip(value.keys, value.values, strict=True)
                if isinstance(key, ast.Constant) and _dotted(item)
            }
            if table:
                self.tables[f"{scope}.{name}" if scope else name] = table

    def _compound(self, node: ast.stmt, scope: str, bind: Any) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                self.body(value, scope)
            elif name == "handlers":
                for handler in value:
                    self.body(handler.body, scope)
            elif name == "cases":
                for case in value:
                    self.body(case.body, scope)
            elif isinstance(value, ast.expr):
                self._expressions(value)
            elif name in ("items", "targets") and isinstance(value, list):
                for item in value:
                    self._expressions(item)
        for inner in ast.walk(node) if isinstance(node, (ast.For, ast.With, ast.Delete)) else ():
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, (ast.Store, ast.Del)):
                bind(inner.id, "other")

    def _inside(self, node: ast.AST, scope: str) -> None:
        """What a function writes outside of itself."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Global):
                for name in inner.names:
                    self.stores.setdefault(name, inner.lineno)
            elif isinstance(inner, ast.Attribute):
                if isinstance(inner.ctx, ast.Store):
                    self.stores.setdefault(inner.attr, inner.lineno)
                else:
                    self._op(inner)
            elif isinstance(inner, ast.Call):
                self._setattr(inner)
            elif isinstance(inner, (ast.Import, ast.ImportFrom)):
                self._import(inner)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            self.imports |= {alias.name.partition(".")[0] for alias in node.names}
        elif node.level == 0 and node.module:
            self.imports.add(node.module.partition(".")[0])

    def _expressions(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self._setattr(inner)
                if isinstance(inner.func, ast.Name) and inner.func.id in ("globals", "vars", "setattr", "exec"):
                    self.dynamic = True
            elif isinstance(inner, ast.Attribute):
                self._op(inner)
                if inner.attr == "__dict__" or (inner.attr == "modules" and _dotted(inner) == "sys.modules"):
                    self.dynamic = True

    def _setattr(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("exec", "eval", "compile"):
            self.generates = True
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and len(node.args) == 3:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self.stores.setdefault(name.value, node.lineno)
            else:
                self.generates = True

    def _op(self, node: ast.Attribute) -> None:
        parts = _dotted(node).split(".")
        if len(parts) == 4 and parts[:2] == ["torch", "ops"]:
            self.ops.add(f"{parts[2]}.{parts[3]}")


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute chain; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _defaults(arguments: ast.arguments) -> dict[str, str]:
    found = {}
    for place, value in enumerate(reversed(arguments.defaults)):
        with contextlib.suppress(ValueError, TypeError):
            found[str(place)] = repr(ast.literal_eval(value))
    for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            with contextlib.suppress(ValueError, TypeError):
                found[name.arg] = repr(ast.literal_eval(default))
    return found

"""The changes that a mutation run makes to a source file."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARISONS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
# Methods whose result differs from their object where a bound, a mask or a precision matters.
GUARDS = {"clamp", "clamp_min", "clamp_max", "clamp_min_", "masked_fill", "masked_fill_", "nan_to_num", "maximum"}
CASTS = {"float", "double", "to", "detach"}
# Functions and methods that reduce or join along a dimension.
ALONG_DIMENSION = {"sum", "mean", "amax", "amin", "max", "min", "argmax", "cumsum", "softmax", "log_softmax", "norm"}
ALONG_DIMENSION |= {"logsumexp", "unsqueeze", "squeeze", "flatten", "cat", "stack", "gather", "index_select", "size"}
# What a test need not notice: messages, annotations and what is printed.
MESSAGES = {"warn", "warn_user", "debug", "info"}
PRINTED = {"__repr__", "_repr_html_", "__str__", "extra_repr"}


@dataclass(frozen=True)
class Mutant:
    """A source file with one change; a test that runs one of the lines, from first to last, reaches it."""

    path: str
    line: int
    lines: tuple[int, int]
    operator: str
    before: str
    after: str
    start: int
    end: int

    def apply(self, source: str) -> str:
        """Return the changed source."""
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()

    @property
    def key(self) -> str:
        return f"{self.path}:{self.line}:{self.start} {self.operator}: {self.before} -> {self.after}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a file, in the order of the source."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    found = []
    for node, scope, operator, after in _changes(ast.parse(source)):
        before = ast.get_source_segment(source, node) or ""
        start = starts[node.lineno - 1] + node.col_offset
        end = start + len(before.encode())
        lines = (getattr(scope, "lineno", 1), getattr(scope, "end_lineno", len(starts)))
        found.append(Mutant(path, node.lineno, lines, operator, before, after, start, end))
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST, str, str]]:
    for node, scope in _code(tree, tree):
        for operator, changed in _changed(node):
            text = ast.unparse(changed)
            in_brackets = isinstance(changed, ast.BinOp | ast.BoolOp | ast.UnaryOp)
            yield node, scope, operator, f"({text})" if in_brackets else text


def _code(node: ast.AST, scope: ast.AST | None) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield the nodes that run and whose effect a test can see, each with its scope.

    What runs in a function is its own scope. What runs when the file is imported has the file as its scope, and a
    default value its function.
    """
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "bases", "decorator_list"):
            continue
        inner = scope
        if isinstance(node, ast.FunctionDef) and scope:
            inner = None if name == "body" else node
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_unseen(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child, inner or child
            yield from _code(child, inner)


def _is_unseen(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if isinstance(node, ast.FunctionDef):
        return node.name in PRINTED
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets)
    if isinstance(node, ast.Expr):
        # Docstrings, and statements that only warn.
        return isinstance(node.value, ast.Constant) or _name(node.value) in MESSAGES
    return False


def _name(node: ast.AST) -> str:
    """Return the name of the called function or method, or an empty string."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _changed(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC and not _is_text(node):
        yield "arithmetic", _with(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", _with(node, ops=[COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "boolean", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "off by one", ast.Constant(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", node.operand
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.IfExp):
        yield "branch", node.body
        yield "branch", node.orelse
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "dropped statement", ast.Pass()
    elif isinstance(node, ast.Call):
        yield from _changed_call(node)


def _changed_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = _name(node)
    is_method = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") != "torch"
    if name == "no_grad":
        yield "gradient", ast.parse("torch.enable_grad()", mode="eval").body
    if name == "where" and len(node.args) == 3:
        yield "branch", node.args[1]
        yield "branch", node.args[2]
    if isinstance(node.func, ast.Attribute) and is_method:
        if name in GUARDS:
            yield "dropped guard", node.func.value
        if name in CASTS:
            yield "gradient" if name == "detach" else "dropped cast", node.func.value
    if isinstance(node.func, ast.Attribute) and name in ALONG_DIMENSION:
        dimensions = [keyword.value for keyword in node.keywords if keyword.arg == "dim"]
        dimensions += node.args[0 if is_method else 1 :][:1]
        for value in dimensions:
            if (dimension := _integer(value)) is not None:
                other = ast.Constant(0 if dimension in (-1, 1) else -1)
                args = [other if one is value else one for one in node.args]
                keywords = [ast.keyword(one.arg, other) if one.value is value else one for one in node.keywords]
                yield "dimension", _with(node, args=args, keywords=keywords)


def _integer(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    return any(isinstance(one, ast.JoinedStr) or isinstance(getattr(one, "value", None), str) for one in operands)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed

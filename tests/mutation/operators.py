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
    """A source file with one change."""

    path: str
    line: int
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
    """Return all mutants of a file that still parse, in the order of the source."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    found = []
    for node, operator, after in _changes(ast.parse(source)):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[start:end].decode()
        mutant = Mutant(path, node.lineno, operator, before, after, start, end)
        try:
            ast.parse(mutant.apply(source))
        except SyntaxError:
            continue
        found.append(mutant)
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    for node in _code(tree):
        for operator, changed in _changed(node):
            text = ast.unparse(changed)
            yield node, operator, f"({text})" if isinstance(changed, ast.BinOp | ast.BoolOp | ast.UnaryOp) else text


def _code(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that run and whose effect a test can see."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "bases") or (name == "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_unseen(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _code(child)


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
    elif isinstance(node, ast.With) and any(_name(item.context_expr) == "no_grad" for item in node.items):
        yield "gradient", _with(node, items=[ast.withitem(ast.parse("torch.enable_grad()", mode="eval").body)])
    elif isinstance(node, ast.Call):
        yield from _changed_call(node)


def _changed_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = _name(node)
    is_method = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") != "torch"
    if name == "where" and len(node.args) == 3:
        yield "branch", node.args[1]
        yield "branch", node.args[2]
    if isinstance(node.func, ast.Attribute) and is_method:
        if name in GUARDS:
            yield "dropped guard", node.func.value
        if name in CASTS:
            yield "gradient" if name == "detach" else "dropped cast", node.func.value
    if isinstance(node.func, ast.Attribute) and name in ALONG_DIMENSION:
        for keyword in node.keywords:
            if keyword.arg == "dim" and (dimension := _integer(keyword.value)) is not None:
                keywords = [
                    ast.keyword("dim", _other_dimension(dimension)) if one is keyword else one for one in node.keywords
                ]
                yield "dimension", _with(node, keywords=keywords)
        place = 0 if is_method else 1
        if len(node.args) > place and (dimension := _integer(node.args[place])) is not None:
            args = [*node.args]
            args[place] = _other_dimension(dimension)
            yield "dimension", _with(node, args=args)


def _integer(node: ast.AST) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int) else None
    is_integer = isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if is_integer else None  # type: ignore[attr-defined]


def _other_dimension(dimension: int) -> ast.expr:
    other = 0 if dimension in (-1, 1) else -1
    return ast.parse(str(other), mode="eval").body


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    return any(isinstance(one, ast.JoinedStr) or isinstance(getattr(one, "value", None), str) for one in operands)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed

"""Record which public functions, methods and properties the tests call without optional arguments.

A plugin of pytest. Only a run of the whole suite records, and fails if a name is missing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, update_wrapper
from types import FunctionType, ModuleType
from typing import Any

import pytest

# Modules whose functions and classes users call; `make docs` has a page for each.
CALLED = ("", ".functional", ".losses", ".callbacks", ".catalog", ".statistics", ".baselines", ".layer_tuning")
CALLED += (".compat.bert_score", ".compat.evaluate", ".compat.torchmetrics")
PACKAGE = "bertscore_tm"
# Without a model or a language these are errors, as in bert-score.
NEEDS_OPTIONS = {"bertscore_tm.compat.bert_score.plot_example", "bertscore_tm.compat.bert_score.score"}
FOLDERS = (PACKAGE, f"{PACKAGE}.losses", f"{PACKAGE}.callbacks")


def package_modules() -> list[str]:
    """Return the names of all modules of the package except those that run when they are imported."""
    folders = {folder: importlib.import_module(folder).__path__[:1] for folder in FOLDERS}
    modules = {module.name for name, path in folders.items() for module in pkgutil.walk_packages(path, f"{name}.")}
    return sorted(name for name in {*FOLDERS, *modules} if not name.endswith(".__main__"))


def public_members() -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the name, owner, attribute and raw value of each exported function and each member of exported classes."""
    seen: set[str] = set()
    for module_name in CALLED:
        module = importlib.import_module(PACKAGE + module_name)
        for exported in module.__all__:
            value = getattr(module, exported)
            owners = [owner for owner in getattr(value, "__mro__", ()) if owner.__module__.startswith(PACKAGE)]
            members = [(owner, *each) for owner in owners for each in vars(owner).items() if each[0][0] != "_"]
            if inspect.isfunction(value):
                members = [(sys.modules[value.__module__], value.__name__, value)]
            for owner, attribute, raw in members:
                place = owner.__name__ if inspect.ismodule(owner) else f"{owner.__module__}.{owner.__qualname__}"
                name = f"{place}.{attribute}"
                kinds = (FunctionType, classmethod, staticmethod, property, cached_property)
                is_abstract = getattr(raw, "__isabstractmethod__", False)
                if isinstance(raw, kinds) and not is_abstract and name not in seen | NEEDS_OPTIONS:
                    seen.add(name)
                    yield name, owner, attribute, raw


def has_required_only(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call passes no argument that has a default."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    return all(bound.signature.parameters[name].default is inspect.Parameter.empty for name in bound.arguments)


class Recorder:
    """Replace public callables by ones that record the first call without optional arguments that returns."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.names: set[str] = set()

    def install(self) -> None:
        """Replace the callables in every module that has them."""
        modules = [importlib.import_module(name) for name in package_modules()]
        for name, owner, attribute, raw in list(public_members()):
            self.names.add(name)
            if isinstance(raw, FunctionType) and isinstance(owner, ModuleType):
                wrapper = self._wrap(name, raw)
                for module in modules:
                    for key in [key for key, value in vars(module).items() if value is raw]:
                        setattr(module, key, wrapper)
            elif isinstance(raw, FunctionType):
                setattr(owner, attribute, self._wrap(name, raw))
            elif isinstance(raw, property):
                setattr(owner, attribute, property(self._wrap(name, raw.fget), raw.fset, raw.fdel, raw.__doc__))
            elif isinstance(raw, cached_property):
                raw.func = self._wrap(name, raw.func)
            else:
                setattr(owner, attribute, type(raw)(self._wrap(name, raw.__func__)))

    def _wrap(self, name: str, function: Any) -> Any:
        called, is_plain = self.called, functools.partial(has_required_only, function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if name not in called and is_plain(args, kwargs):
                called.add(name)
            return result

        # With the module's globals: doctest, and warnings that point to the user's line, look at them.
        copied = FunctionType(wrapper.__code__, function.__globals__, function.__name__, None, wrapper.__closure__)
        return update_wrapper(copied, function)


_RECORDER = pytest.StashKey[Recorder]()


def _is_whole_suite(config: pytest.Config) -> bool:
    if hasattr(config, "workerinput"):
        return bool(config.workerinput["is_whole_suite"])
    option = config.option
    is_selected = option.keyword or option.markexpr or option.maxfail or getattr(option, "lf", False)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not is_selected and not option.collectonly


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["is_whole_suite"] = _is_whole_suite(node.config)


def pytest_sessionstart(session: pytest.Session) -> None:
    recorder = session.config.stash[_RECORDER] = Recorder()
    if _is_whole_suite(session.config) and not getattr(session.config.option, "numprocesses", None):
        recorder.install()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    recorder = node.config.stash[_RECORDER]
    for kind in ("called", "names"):
        getattr(recorder, kind).update(getattr(node, "workeroutput", {}).get(kind, ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    recorder = session.config.stash[_RECORDER]
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput |= {"called": sorted(recorder.called), "names": sorted(recorder.names)}
    elif recorder.names - recorder.called and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    recorder = config.stash[_RECORDER]
    for name in sorted(recorder.names - recorder.called):
        terminalreporter.write_line(f"PUBLIC NAME that no test calls without optional arguments: {name}", red=True)

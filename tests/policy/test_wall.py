"""That the wall around the pure suite stands (see ``tests/conftest.py``)."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["ray", "vllm", "torch"])
def test_a_pure_test_that_imports_an_engine_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(pytest.fail.Exception, match=rf"tests/policy/test_wall.py imports {name}: the pure suite"):
        importlib.import_module(name)

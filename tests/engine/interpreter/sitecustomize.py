"""On ``PYTHONPATH``: vLLM's Model Runner V2 on a CPU, its Triton kernels run by Triton's interpreter.

``TRITON_FOLDER``: where `tools/triton.py` put Triton. vLLM chooses the runner by whether Triton has a driver for the machine, so Triton is
given one for the CPU as soon as it has looked for those of GPUs. Python imports this file in every process of the engine.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

BACKENDS = "triton.backends"


class CpuDriver:
    """What vLLM and Triton ask of a driver before a kernel is interpreted."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 1)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        module.backends.clear()
        module.backends["cpu"] = module.Backend(None, CpuDriver)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != BACKENDS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Loader(spec.loader)
        return spec


if "TRITON_FOLDER" in os.environ:
    sys.path.append(os.environ["TRITON_FOLDER"])
    os.environ["TRITON_INTERPRET"] = "1"
    sys.meta_path.insert(0, _Finder())

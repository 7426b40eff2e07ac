"""Muon: momentum made orthogonal, for the hidden matrices (K. Jordan et al., 2024); Adam for the rest."""

from __future__ import annotations

import torch
from torch import Tensor

# Coefficients of the quintic Newton-Schulz iteration, as published: they send all singular values near 1 in five rounds.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ROUNDS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearest (semi-)orthogonal matrices, roughly: singular values of about 0.7 to 1.2. ``[count, rows, columns]`` in and out."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    def __init__(self, matrices: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
            for matrices in by_shape.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, float]) -> None:
        steps = []
        for matrix in matrices:
            assert matrix.grad is not None
            velocity = self.state[matrix].setdefault("velocity", torch.zeros_like(matrix))
            velocity.lerp_(matrix.grad, 1 - group["momentum"])
            steps.append(matrix.grad.lerp(velocity, group["momentum"]))  # Nesterov
        scale = group["lr"] * max(1.0, matrices[0].shape[0] / matrices[0].shape[1]) ** 0.5
        for matrix, step in zip(matrices, orthogonal(torch.stack(steps)), strict=True):
            matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-scale)

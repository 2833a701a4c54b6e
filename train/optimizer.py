"""Optimizers, their learning rate as a function of the step, and their state as named tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mdlm.errors import UserError
from train.config import OptimizerConfig

_STATE = {torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}, torch.optim.Muon: {"momentum_buffer"}}


def learning_rate_factor(step: int, steps: int, config: OptimizerConfig) -> float:
    """Share of the peak rate at `step` (from 0): linear warm-up, constant, linear decay to zero over the last part."""
    warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
    decay = (steps - step) / max(1.0, config.decay_fraction * steps)
    return min(warmup, decay, 1.0)


class Optimizers:
    """Muon for the layers' matrices and AdamW for embeddings, head and norms; or AdamW for all."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        matrices = {n: p for n, p in named.items() if p.ndim == 2 and ".layers." in f".{n}" and config.name == "muon"}
        others = {n: p for n, p in named.items() if n not in matrices}
        self._names = {id(p): n for n, p in named.items()}
        self.all: list[torch.optim.Optimizer] = []
        self._peaks: list[float] = []
        decayed = [p for p in others.values() if p.ndim == 2]
        plain = [p for p in others.values() if p.ndim != 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        peak = config.adamw_lr if matrices else config.lr
        self._add(torch.optim.AdamW(groups, lr=peak, betas=config.betas, fused=True), peak)
        if matrices:
            muon = torch.optim.Muon(list(matrices.values()), lr=config.lr, weight_decay=config.weight_decay)
            self._add(muon, config.lr)

    def _add(self, optimizer: torch.optim.Optimizer, peak: float) -> None:
        self.all.append(optimizer)
        self._peaks.append(peak)

    def rate(self, step: int) -> float:
        """The first optimizer's learning rate at `step`."""
        return self._peaks[0] * learning_rate_factor(step, self.steps, self.config)

    def step(self, step: int, good: Tensor | None = None) -> None:
        """Applies the gradients at the rate of `step` and clears them.

        `good` is a flag on the device, for which nothing waits: where it is false, weights and state stay as they are.
        """
        factor = learning_rate_factor(step, self.steps, self.config)
        for optimizer, peak in zip(self.all, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            if good is None:
                optimizer.step()
            elif isinstance(optimizer, torch.optim.Muon):
                _step_where(good, optimizer)
            else:
                vars(optimizer)["found_inf"] = (~good).float()  # the fused kernel's own way to leave a step out
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All optimizer state, each tensor under `parameter name/state name`."""
        tensors = {}
        for optimizer in self.all:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                    tensors[f"{self._names[id(parameter)]}/{key}"] = tensor.detach().cpu().contiguous()
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor], source: str) -> None:
        """The inverse of `state_tensors`; a missing entry is a `UserError`."""
        for optimizer in self.all:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name = self._names[id(parameter)] + "/"
                    found = {k.removeprefix(name): v for k, v in tensors.items() if k.startswith(name)}
                    if set(found) != _STATE[type(optimizer)]:
                        raise UserError(
                            f"{source}: no state of this optimizer for {name[:-1]}; take another checkpoint"
                        )
                    for key, value in found.items():
                        device = "cpu" if key == "step" and not group.get("fused") else parameter.device
                        found[key] = value.to(device)
                    optimizer.state[parameter] = found


@torch.no_grad()
def _step_where(good: Tensor, optimizer: torch.optim.Muon) -> None:
    """A step that changes nothing where `good` is false."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    before = [p.clone() for p in parameters]
    for p in parameters:
        # The momentum moves towards the gradient by a share of their difference: towards itself, not at all.
        p.grad = torch.where(good, p.grad, optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)))
    optimizer.step()
    for p, old in zip(parameters, before, strict=True):
        p.copy_(torch.where(good, p, old))

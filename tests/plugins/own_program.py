"""Local training of one's own: FedSAM (Qu et al. 2022), whose gradients are those of the worst weights nearby."""

from dataclasses import dataclass, replace

import torch

import knot_runner as kr
from knot_runner.methods.federated import averaging


@dataclass(kw_only=True)
class FedSamSettings(kr.AveragingSettings):
    rho: float


def sharpness_aware(settings, work):
    """w - lr gradient(w + rho g / ||g||), g being the gradient at w."""
    rows, loss = work.objective()
    optimizer, parameters, total, steps = work.optimizer(work.model), list(work.model.parameters()), 0.0, 0
    work.train_mode(work.model)
    for positions, inputs in work.batches():
        batch = {name: tensor[positions] for name, tensor in rows.items()}
        value = loss(work.model(**inputs), batch).mean()
        found = torch.autograd.grad(value, parameters)
        scale = settings["rho"] / (sum(g.square().sum() for g in found).sqrt() + 1e-12)
        moves = [scale * g for g in found]
        torch._foreach_add_([p.data for p in parameters], moves)
        optimizer.zero_grad()
        loss(work.model(**inputs), batch).mean().backward()
        torch._foreach_sub_([p.data for p in parameters], moves)
        optimizer.step()
        total, steps = total + float(value.detach()), steps + 1
    return kr.LocalResult(total / steps, steps)


def plan(config, state, federation, round):
    program = kr.LocalProgram(sharpness_aware, {"rho": config.rho})
    return [replace(request, program=program) for request in averaging.plan(config, state, federation, round)]


kr.METHODS["fedsam"] = replace(kr.METHODS["fedavg"], plan=plan, settings=FedSamSettings)

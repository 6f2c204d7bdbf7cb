"""FedNova (Wang et al. 2020): the mean of the updates per step, times the mean number of steps."""

from dataclasses import replace

import torch

import knot_runner as kr
from knot_runner.methods.federated import averaging


def message(config, state, federation, work):
    steps = work.trained[0].steps
    parts = averaging.message(config, state, federation, work)
    return {**parts, "update": parts["update"] / steps, "steps": torch.tensor([float(steps)])}


def fold(config, state, federation, round, mean, share):
    scaled = {**mean, "update": mean["steps"] * mean["update"]}
    return averaging.fold(config, state, federation, round, scaled, share)


kr.METHODS["fednova"] = replace(kr.METHODS["fedavg"], message=message, fold=fold)

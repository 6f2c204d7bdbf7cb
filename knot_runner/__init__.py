"""knot_runner: experiments in knowledge distillation and federated learning, composed from YAML."""

__version__ = "0.1.0"

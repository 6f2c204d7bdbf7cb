"""Federated, distillation and KNOT methods. For the interface of a method, see ``contract.py``."""

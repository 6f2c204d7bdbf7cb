"""Optimal transport between distributions on a few labels (KNOT eq. 1, 3, 4, Algorithm 1).

Distillation methods call ``transport_loss``. The default solver is ``semi_dual``, a Newton method that returns
transport costs, potentials and marginal errors.
"""

from knot_runner.transport.costs import Solver, TransportError, ground_cost, support
from knot_runner.transport.loss import SOLVERS, transport_loss
from knot_runner.transport.newton import SemiDual, semi_dual

__all__ = ["SOLVERS", "SemiDual", "Solver", "TransportError", "ground_cost", "semi_dual", "support", "transport_loss"]

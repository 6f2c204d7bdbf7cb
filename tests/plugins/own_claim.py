"""A measure of claims of one's own: how far accuracies of clients lie apart, their standard deviation."""

import numpy as np

import knot_runner as kr
from knot_runner.report.run_folders import rounds


def spread(run):
    if run.result.kind != "federated":
        return None  # the claim is refused: such runs have no clients
    shares = [share for share in rounds(run)[-1]["clients"] if share is not None]
    return float(np.std(shares)) if len(shares) > 1 else "fewer than two clients have test examples"


kr.CLAIM_MEASURES["client_spread"] = kr.ClaimMeasure("points", 2, 100.0, tested=True, read=spread)

"""Run in a process of its own: eight threads build their first text model at once; prints how many could."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from knot_runner.config.settings import ModelSettings
from knot_runner.models.bert import TextClassifier

THREADS = 8
SPEC = ModelSettings(
    kind="bert", name="tiny", head="plain", weights="scratch", vocab="train", vocab_size=20, hub_id="", revision=None,
    dropout=0.0, hidden=8, layers=1, heads=1, intermediate=8,
)  # fmt: skip
together = threading.Barrier(THREADS)
sys.setswitchinterval(1e-5)


def built(_: int) -> bool:
    together.wait()
    TextClassifier(SPEC, 20, 3)
    return True


with ThreadPoolExecutor(THREADS) as pool:
    print(sum(pool.map(built, range(THREADS))))

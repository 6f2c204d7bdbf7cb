"""Settings: one dataclass per config group, built strictly (``config/strict.py``) from the composed YAML.

Open ``run.py`` first: one run's settings, whole. ``text_tasks.py`` and ``image_tasks.py``: what is learned;
``methods/``: by what; ``checks.py``: whether they fit together.
"""

from knot_runner.config.settings.groups import StageSettings
from knot_runner.config.settings.methods.algorithms import FedProxSettings
from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings, FederatedTraining
from knot_runner.config.settings.text_tasks import Labels

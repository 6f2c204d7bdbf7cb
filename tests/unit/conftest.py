"""Fixtures of the unit tests, each beside the tests of its part."""

from tests.unit.data.images.image_tasks import image_task, load_cifar, write  # noqa: F401
from tests.unit.data.text_tasks import folder, make, task_dict  # noqa: F401
from tests.unit.methods.federated.worlds import deep, failing, linear, paced, world  # noqa: F401
from tests.unit.report.made_runs import factory, federated  # noqa: F401
from tests.unit.report.run_grids import full_grid, trio  # noqa: F401

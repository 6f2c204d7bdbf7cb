"""Checks of one's own parts, which the package's parts pass, too. They raise ``AssertionError`` and need no pytest.

:func:`~knot_runner.testing.engines.check_engine`: an engine of ``hardware.engine``;
:func:`~knot_runner.testing.launchers.check_launcher`: a launcher of ``hydra/launcher``.
"""

from knot_runner.testing.engines import check_engine as check_engine
from knot_runner.testing.launchers import check_launcher as check_launcher

"""With this folder on PYTHONPATH, torch reports a CPU without AMX, in every Python process."""

import sys
from importlib.machinery import ModuleSpec, PathFinder


class HideAmx:
    """An import hook that replaces the function by which torch detects AMX."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != "torch.cpu":
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_hide(module: object) -> None:
            execute(module)
            module._is_amx_tile_supported = lambda: False

        spec.loader.exec_module = execute_and_hide
        return spec


sys.meta_path.insert(0, HideAmx())

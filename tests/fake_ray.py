"""Ray's transport, as far as this program uses it, in this process: what is sent is pickled, workers can be lost.

As in Ray, a method of an actor runs after those that were called before it, and nothing raises before ``get``.
"""

from __future__ import annotations

import pickle
import signal
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

from knot_runner.util import processes, ray_cluster


class RayError(Exception):
    pass


class RayTaskError(RayError):
    """What the worker's code raised."""

    def __init__(self, cause):
        super().__init__(f"ray::function() {cause}")
        self.cause = cause


class WorkerCrashedError(RayError):
    """The worker was lost."""


class Ref:
    """What a call comes to, once :meth:`run`."""

    def __init__(self, call):
        self.call, self.value, self.problem, self.ran = call, None, None, False

    def run(self):
        if self.ran:
            return
        self.ran = True
        try:
            self.value = pickle.loads(pickle.dumps(self.call()))
        except RayError as problem:
            self.problem = problem
        except Exception as problem:
            self.problem = RayTaskError(problem)


class FakeRay(ModuleType):
    """``lost``: numbers of the calls (from 0) whose workers are lost; ``resources``: of the cluster."""

    def __init__(self, lost=(), resources=None):
        super().__init__("ray")
        self.__spec__ = ModuleSpec("ray", None)
        self.lost, self.resources = set(lost), resources or {"CPU": 2.0}
        self.inits, self.calls, self.options, self.killed = [], [], [], []
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def is_initialized(self):
        return bool(self.inits)

    def init(self, **options):
        if options["address"] == "nowhere:1":
            raise ConnectionError("could not connect\nat all")
        self.inits.append(options)
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))

    def cluster_resources(self):
        return self.resources

    def called(self, function, *arguments, retries=0):
        """A call of a function that is sent with its arguments; a reference among them stands for its value."""
        sent = pickle.dumps([one.value if isinstance(one, Ref) else one for one in arguments])
        self.calls.append(function.__name__)
        first = len(self.calls) - 1

        def call(number=first, left=retries):
            if number not in self.lost:
                return function(*pickle.loads(sent))
            if not left:
                raise WorkerCrashedError("The worker died unexpectedly while executing this task.")
            self.calls.append(function.__name__)
            return call(len(self.calls) - 1, left - 1)

        return Ref(call)

    def put(self, value):
        ref = Ref(lambda: value)
        ref.run()
        return ref

    def remote(self, **options):
        self.options.append(options)

        def decorated(function):
            if isinstance(function, type):
                return SimpleNamespace(remote=lambda *arguments: Actor(self, function, *arguments))
            retries = options["max_retries"]
            return SimpleNamespace(remote=lambda *arguments: self.called(function, *arguments, retries=retries))

        return decorated

    def wait(self, refs, num_returns):
        """The last one called is the first to end."""
        assert num_returns == 1 and refs
        refs[-1].run()
        return [refs[-1]], refs[:-1]

    def get(self, ref):
        ref.run()
        if ref.problem is not None:
            raise ref.problem
        return ref.value

    def kill(self, actor):
        self.killed.append(actor)


class Actor:
    """A handle, whose methods have a ``remote``. A lost actor answers nothing any more."""

    def __init__(self, ray, kind, *arguments):
        made = ray.called(kind, *arguments)

        def method(name):
            def call(*arguments):
                return getattr(ray.get(made), name)(*arguments)

            call.__name__ = name
            return SimpleNamespace(remote=lambda *arguments: ray.called(call, *arguments))

        self.method = method

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self.method(name)


def faked(monkeypatch, **more) -> FakeRay:
    """A fake in the place of the module ``ray`` during one test. No process watches for the end of this one."""
    ray = FakeRay(**more)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(processes, "_signal_actions", [])
    monkeypatch.setattr(ray_cluster, "subprocess", SimpleNamespace(Popen=lambda *_, **__: None))
    return ray

"""Optional engines: a folder that adds itself to the table, and that nothing else needs."""

from knot_runner.composing.commands import compose_all
from knot_runner.config.settings import groups
from tests.golden.messages import refuses


def test_without_its_folder_the_engine_is_an_unknown_name(monkeypatch):
    monkeypatch.setattr(groups, "OPTIONAL_ENGINES", "knot_runner.bundles")  # a package without engines
    monkeypatch.delitem(groups.ENGINES.data, "native", raising=False)
    with refuses() as problem:
        compose_all(["task=femnist", "method=fedavg", "hardware.engine=native"])
    said = "hardware.engine: there is no engine 'native' (there is: auto, lean, loop, ray, stacked)"
    assert str(problem.value) == said

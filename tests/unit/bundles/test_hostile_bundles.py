"""A bundle may be anything: one line names it, exit code 2, nothing executed, nothing outside a temporary folder."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from dataclasses import replace

import pytest

from knot_runner.bundles.rerun import RerunEnvironment, job_here, made_again, settings_problem
from knot_runner.bundles.unpack import BundledRun
from knot_runner.cli.main import main
from knot_runner.records import recorded_config, require_result
from knot_runner.util.errors import UserError
from knot_runner.util.processes import cores
from tests.bundled import archive, bundled, members_of, small_run, tampered, tampered_config
from tests.golden.messages import refused, refuses


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run's folder, and the members of its bundle."""
    place = tmp_path_factory.mktemp("made")
    folder = small_run(place / "out", "training.rounds=1")
    return folder, members_of(bundled(folder, place / "whole.tar.gz"))


def refused_archive(capsys, path, members):
    refused(capsys, "verify", str(archive(path, members)))


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_verify_refuses_damaged_archives_and_non_bundles(made, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "nowhere.tar.gz", tmp_path, tmp_path / "pipe"):
        refused(capsys, "verify", str(path))
    path = tmp_path / "x.tar.gz"
    whole = archive(path, made[1]).read_bytes()
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:800]))
    refused(capsys, "verify", str(path))
    bit = bytearray(whole)
    bit[len(bit) // 2] ^= 4
    for content in (b"", b"text", whole[: len(whole) // 2], gzip.compress(b"text"), whole[:40], bytes(bit)):
        path.write_bytes(content)
        assert main(["verify", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "damaged, or not a bundle of runs: " in line or "does not match its checksum" in line


def sized(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info


MEMBERS = {one.name: one for one in (
    link("t/m/a/f", "/etc/passwd"), link("t/m/b/f", "/etc/passwd", tarfile.LNKTYPE), link("dev", "", tarfile.CHRTYPE),
    link("t/m/c/f", "", tarfile.GNUTYPE_SPARSE), link("t/m/d/f", "", tarfile.DIRTYPE),
)} | {
    name: b"x" for name in (
        "../evil", "/tmp/evil", "more", "../../evil/run/x", "/etc/cron.d/x", "femnist/fedavg/x",
        "femnist/fedavg/a\nb/x", "t/m/a/.bashrc", "t/m/a/../x", "t/m/r/" + "n" * 201,
        "\x1b[2J" + 10**3 * "k" + "/b/c/d",
    )
}  # fmt: skip
#: What an archive may hold in place of a bundle's members, or beside them.
ARCHIVES = {
    "nothing": lambda members: {},
    "unfolds without end": lambda members: {**members, next(n for n in members if "config" in n): bytes(10**7)},
    "a huge member": lambda members: {**members, "t/m/r/x": sized("t/m/r/x", 65 * 10**6)},
    "more files": lambda members: {**members, **{f"t/m/r/f{i}": b"" for i in range(900)}},
    "no result": lambda members: {name: content for name, content in members.items() if "result" not in name},
    "a file without a checksum": lambda members: {**members, next(iter(members)) + ".x": b""},
    **{name: lambda members, name=name: {**members, name: MEMBERS[name]} for name in MEMBERS},
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_members_that_no_bundle_has(name, made, tmp_path, capsys):
    refused_archive(capsys, tmp_path / "x.tar.gz", ARCHIVES[name](made[1]))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_extended_headers_are_not_read(kind, tmp_path, capsys):
    """tarfile would hold all of one in memory."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 10**9
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(10**6)))
    refused(capsys, "verify", str(tmp_path / "x.tar.gz"))


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "rounds.jsonl", "model.safetensors"])
def test_files_that_their_result_did_not_seal(name, made, tmp_path, capsys):
    (place,) = [one for one in made[1] if one.endswith(f"/{name}")]
    refused_archive(capsys, tmp_path / "x.tar.gz", {**made[1], place: b"{}"})


def test_repeated_members_are_refused(made, tmp_path, capsys):
    path = archive(tmp_path / "x.tar.gz", made[1])
    plain = gzip.decompress(path.read_bytes()).rstrip(b"\0")
    plain += bytes(-len(plain) % tarfile.BLOCKSIZE)
    path.write_bytes(gzip.compress(plain + plain))
    refused(capsys, "verify", str(path))


@pytest.mark.parametrize("row", [b"{", b"NaN", b"\xff", b"1" * 5000, b"[]", b"[" * 100_000])
def test_rows_refuses_malformed_text(row, tmp_path):
    (tmp_path / "rounds.jsonl").write_bytes(row)
    with refuses():
        BundledRun("t/m/r", {}, None, tmp_path / "rounds.jsonl").rows()


#: Changes of a result that no run writes.
RESULTS = {
    "of another run": lambda result, _: result.update(method="fedprox"),
    "no status": lambda result, _: result.update(status="soon"),
    "of an unknown kind": lambda result, _: result.update(kind=["federated"]),
    "beyond belief": lambda result, _: result["metrics"]["accuracy"].update(ALL=7),
    "endless": lambda result, _: result.update(rounds=10**400),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_that_no_run_writes(name, made, tmp_path, capsys):
    path = tampered(made[0], tmp_path, RESULTS[name])
    if name == "of another run":
        members = members_of(path)
        archive(path, {key.replace("fedprox", "fedavg"): content for key, content in members.items()})
    refused(capsys, "verify", str(path))


def here(made, tmp_path, change, **place):
    config = json.loads(json.dumps(recorded_config(made[0])))
    change(config)
    return job_here(config, RerunEnvironment(None, tmp_path / "out", **place))


def test_job_here_refuses_hostile_or_malformed_configs(made, tmp_path):
    marker = tmp_path / "executed"
    plugin = tmp_path / "evil_plugin.py"
    plugin.write_text(f"open({str(marker)!r}, 'w').close()")
    files = [{"train": ["/etc/x"], "test": []}, {"train": [], "test": ["x/../../y"]}, {"train": [], "test": [".."]}]
    for change in (
        lambda config: config.update(plugins=[str(plugin)]),
        lambda config: config["task"].update(source="local", local={"format": "idx", **files[0]}),
        lambda config: config["task"].update(source="local", local={"format": "idx", **files[1]}),
        lambda config: config["task"].update(source="local", local={"format": "idx", **files[2]}),
        lambda config: config["task"].update(source="hub"),
        lambda config: config["method"].update(more=1),
        lambda config: config.update(hardware=None),
        lambda config: config["task"].update(name="../evil"),
    ):
        with refuses():
            here(made, tmp_path, change)
    assert not marker.exists()


def test_job_here_replaces_tracker_paths_and_hardware(made, tmp_path):
    def change(config):
        config["tracker"] = {"name": "wandb", "project": "theirs", "mode": "online"}
        config["paths"] = {"data_dir": "/theirs", "output_dir": "/theirs"}
        config["hardware"] |= {"device": "cuda:3", "engine": "theirs", "devices": ["cuda:0"]}
        config["hardware"] |= {"num_workers": 1024, "threads": 1024}

    settings = here(made, tmp_path, change).settings
    paths = settings.paths
    assert (settings.tracker.name, paths.output_dir, paths.data_dir) == ("none", str(tmp_path / "out"), None)
    hardware = settings.hardware
    assert hardware.device == "cpu" and hardware.num_workers <= cores() and hardware.threads <= cores()
    assert hardware.devices == [] and hardware.engine == "auto"
    assert here(made, tmp_path, lambda _: None).run_id == made[0].name


@pytest.mark.parametrize("key", ["rounds", "local_epochs"])
def test_made_again_refuses_more_steps_than_allowed(key, made, tmp_path):
    job = here(made, tmp_path, lambda config: config["training"].update({key: 5001}))
    with refuses():
        made_again(job, RerunEnvironment(None, tmp_path), print, print)
    assert not list(tmp_path.rglob("rounds.jsonl"))


OTHER = "config.yaml: has the settings of run "


@pytest.mark.parametrize(("old", "new", "said"), [
    ("seed: 0", "seed: 1", OTHER), ("embedded_clients: 6", "embedded_clients: 5", OTHER),
    ("plugins: []", "plugins: ['PLUGIN']", "plugins: the run uses custom code"),
])  # fmt: skip
def test_verify_refuses_the_settings_of_another_run_and_any_code(old, new, said, made, tmp_path, capsys):
    plugin = tmp_path / "evil_plugin_of_a_bundle.py"
    plugin.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    bundle = tampered_config(made[0], tmp_path, old, new.replace("PLUGIN", str(plugin)))
    capsys.readouterr()
    assert main(["verify", str(bundle)]) == 2
    shown = capsys.readouterr().out
    assert f": not rerun\n  {said}" in shown and "1 run: 1 not rerun" in shown
    assert not (tmp_path / "executed").exists()


def test_settings_problem_reports_another_run_id_under_other_code(made):
    config, result = recorded_config(made[0]), require_result(made[0])
    assert settings_problem(BundledRun("", config, result, made[0])) == ""
    result.code, config["plugins"] = "other", ["more"]
    assert "has the settings of run " in settings_problem(BundledRun("", config, result, made[0]))
    with pytest.raises(UserError, match="seed 0, but the result is from run [0-9a-f]+, seed 1"):
        settings_problem(BundledRun("", config, replace(result, seed=1), made[0]))

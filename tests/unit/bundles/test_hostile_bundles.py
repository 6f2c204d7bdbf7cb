"""A bundle may be anything: one line names it, exit code 2, nothing executed, nothing outside a temporary folder."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile

import pytest

from knot_runner.bundles.manifest import read_manifest
from knot_runner.bundles.rerun import RerunPlace, job_here
from knot_runner.cli.main import main
from knot_runner.records import recorded_config
from knot_runner.util.processes import cores
from tests.bundled import archive, bundled, members_of, small_run, tampered
from tests.golden.messages import refused, refuses


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run's folder, and the members of its bundle."""
    place = tmp_path_factory.mktemp("made")
    folder = small_run(place / "out", "training.rounds=1")
    return folder, members_of(bundled(folder, place / "whole.tar.gz"))


def refusal(path, capsys, *flags):
    """The one line that verify refuses a bundle with."""
    capsys.readouterr()
    assert main(["verify", str(path), *flags]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert not said.out and line.startswith(f"knot-runner: {path}: ") and len(line) < 600
    return line


def with_manifest(members, change):
    """The members with another table of contents."""
    table = json.loads(members["bundle.json"])
    change(table)
    return {**members, "bundle.json": json.dumps(table).encode()}


def renamed(members, old, new):
    return {name.replace(old, new): content for name, content in members.items()}


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def set_run(key, value):
    return lambda table: table["runs"][0].update({key: value})


def set_file(key, value):
    return lambda table: table["runs"][0]["files"][0].update({key: value})


TABLES = [
    set_run("folder", "../../evil/run"), set_run("folder", "/etc/cron.d/x"), set_run("folder", "femnist/fedavg"),
    set_run("folder", "femnist/fedavg/a\nb"), set_run("folder", "a" * 700 + "/b/c"), set_file("name", "../result.json"),
    set_file("name", ".bashrc"), set_file("name", "n" * 300), set_file("size", -1), set_file("size", 10**8),
    set_file("size", "many"), set_file("sha256", "0" * 64), set_file("sha256", "xyz"),
    lambda table: table.update(written_by="0.9"), lambda table: table.update(runs=[]),
    lambda table: table.update(more=1), lambda table: table.pop("runs"),
    lambda table: table["runs"].append(table["runs"][0]),
    lambda table: table["runs"][0]["files"].append(table["runs"][0]["files"][0]),
    lambda table: table["runs"][0]["files"].append({"name": "x", "size": 1, "sha256": "0" * 64}),
]  # fmt: skip


@pytest.mark.parametrize("change", TABLES)
def test_a_table_of_contents_that_no_bundle_has(change, made, tmp_path, capsys):
    refused(capsys, "verify", str(archive(tmp_path / "x.tar.gz", with_manifest(made[1], change))))


@pytest.mark.parametrize("text", [b"{", b"NaN", b"\xff", b"1" * 5000, b"[]", b"[" * 100_000])
def test_a_table_of_contents_that_is_none(text):
    with refuses():
        read_manifest(text, "x")


def test_what_is_no_archive_or_no_bundle(made, tmp_path, capsys):
    assert "is not there" in refusal(tmp_path / "nowhere.tar.gz", capsys)
    assert "is not a file" in refusal(tmp_path, capsys)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refusal(tmp_path / "pipe", capsys)
    path = tmp_path / "x.tar.gz"
    whole = archive(path, made[1]).read_bytes()
    bit = bytearray(whole)
    bit[len(bit) // 2] ^= 4
    cut = gzip.compress(gzip.decompress(whole)[:800])
    path.write_bytes(cut)
    assert "it is cut short" in refusal(path, capsys)
    for content in (b"", b"text", whole[: len(whole) // 2], gzip.compress(b"text"), whole[:40], bytes(bit)):
        path.write_bytes(content)
        line = refusal(path, capsys)
        assert "is damaged, or no bundle of runs: " in line or "not as its digest says" in line
    assert "it does not begin with bundle.json" in refusal(archive(path, {"x": b""}), capsys)
    assert "it does not begin with bundle.json" in refusal(archive(path, {"bundle.json": bytes(5 * 10**6)}), capsys)


@pytest.mark.parametrize("member", [
    link("runs/a", "/etc/passwd"), link("runs/a", "/etc/passwd", tarfile.LNKTYPE), link("dev", "", tarfile.CHRTYPE),
    link("runs/a", "", tarfile.GNUTYPE_SPARSE), link("runs/a", "", tarfile.DIRTYPE), link("bundle.json", "x"),
])  # fmt: skip
def test_members_that_are_no_plain_files(member, made, tmp_path, capsys):
    whole = {**made[1], member.name: member}
    assert "is no plain file" in refusal(archive(tmp_path / "x.tar.gz", whole), capsys)
    first = {member.name: member, **{name: one for name, one in made[1].items() if name != member.name}}
    assert "is no plain file" in refusal(archive(tmp_path / "x.tar.gz", first), capsys)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_extended_headers_are_not_read(kind, tmp_path, capsys, monkeypatch):
    """tarfile would hold all of one in memory."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 10**9
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(10**6)))
    assert "its member 'x' is no plain file" in refusal(path, capsys)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "runs/../../evil", "more"])
def test_members_that_are_not_listed(name, made, tmp_path, capsys):
    line = refusal(archive(tmp_path / "x.tar.gz", {**made[1], name: b"x"}), capsys)
    assert "it holds more files than its bundle.json lists" in line
    manifest, *others = made[1].items()
    line = refusal(archive(tmp_path / "x.tar.gz", dict([manifest, (name, b"x"), *others])), capsys)
    assert "config.yaml is not where bundle.json has it" in line
    swapped = dict([manifest, others[1], others[0], *others[2:]])
    assert "is not where bundle.json has it" in refusal(archive(tmp_path / "x.tar.gz", swapped), capsys)


def test_a_member_that_unfolds_without_end_is_not_read(made, tmp_path, capsys):
    name = next(name for name in made[1] if name.endswith("config.yaml"))
    bomb = {**made[1], name: bytes(10**7)}
    assert "or of another size" in refusal(archive(tmp_path / "x.tar.gz", bomb), capsys)


def test_more_files_or_bytes_than_a_bundle_has(made, tmp_path, capsys):
    def many(table):
        table["runs"][0]["files"] += [{"name": f"f{i}", "size": 0, "sha256": "0" * 64} for i in range(900)]

    def large(table):
        table["runs"][0]["files"] += [{"name": f"f{i}", "size": 6 * 10**7, "sha256": "0" * 64} for i in range(6)]

    for change, said in ((many, "907 files of"), (large, "at most 900 and")):
        assert said in refusal(archive(tmp_path / "x.tar.gz", with_manifest(made[1], change)), capsys)


def resealed(members, name, content):
    """The members with other ``content`` of a run's file, and the table of contents that says so."""
    (place,) = [one for one in members if one.endswith(f"/{name}")]

    def change(table):
        for file in table["runs"][0]["files"]:
            if file["name"] == name:
                file.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())

    return with_manifest({**members, place: content}, change)


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "rounds.jsonl", "model.safetensors"])
def test_files_that_their_result_did_not_seal(name, made, tmp_path, capsys):
    refused(capsys, "verify", str(archive(tmp_path / "x.tar.gz", resealed(made[1], name, b"{}"))))


def test_results_that_no_run_writes(made, tmp_path, capsys):
    changes = {
        "of another run": lambda result, _: result.update(method="fedprox"),
        "no status done or diverged": lambda result, _: result.update(status="soon"),
        "of a kind of run that this version does not know": lambda result, _: result.update(kind=["federated"]),
        "cannot be believed (metrics.accuracy.ALL": lambda result, _: result["metrics"]["accuracy"].update(ALL=7),
        "cannot be believed (": lambda result, _: result.update(rounds=10**400),
    }
    folder, members = made
    for number, (said, change) in enumerate(changes.items()):
        (tmp_path / str(number)).mkdir()
        path = tampered(folder, tmp_path / str(number), change)
        if "another run" in said:
            name = json.loads(members["bundle.json"])["runs"][0]["folder"]
            path = archive(path, renamed(with_manifest(members_of(path), set_run("folder", name)), "fedprox", "fedavg"))
        assert said in refusal(path, capsys), said


def here(made, tmp_path, change, **place):
    """The job of the run's config after ``change``."""
    config = json.loads(json.dumps(recorded_config(made[0])))
    change(config)
    return job_here(config, RerunPlace(None, tmp_path / "out", **place))


def test_a_config_chooses_neither_code_nor_files_nor_downloads(made, tmp_path):
    marker = tmp_path / "executed"
    plugin = tmp_path / "evil_plugin.py"
    plugin.write_text(f"open({str(marker)!r}, 'w').close()")
    for change in (
        lambda config: config.update(plugins=[str(plugin)]),
        lambda config: config["task"]["local"].update(train=["/etc/x"]),
        lambda config: config["task"]["local"].update(test=["x/../../y"]),
        lambda config: config["task"].update(source="hub"),
        lambda config: config["method"].update(more=1),
        lambda config: config.update(hardware=None),
        lambda config: config["task"].update(name="../evil"),
    ):
        with refuses():
            here(made, tmp_path, change)
    assert not marker.exists()


def test_where_it_runs_is_chosen_here(made, tmp_path):
    def change(config):
        config["tracker"] = {"name": "wandb", "project": "theirs", "mode": "online"}
        config["paths"] = {"data": "/theirs", "out": "/theirs"}
        config["hardware"] |= {"device": "cuda:3", "workers": 1024, "devices": ["cuda:0"]}

    settings = here(made, tmp_path, change).settings
    assert (
        settings.tracker.name == "none" and settings.paths.out == str(tmp_path / "out") and settings.paths.data is None
    )
    assert settings.hardware.device == "cpu" and settings.hardware.workers <= cores()
    assert settings.hardware.devices == [] and settings.hardware.engine == "lean"
    assert here(made, tmp_path, lambda _: None).run_id == made[0].name


def test_a_run_that_is_refused_is_said_and_nothing_of_it_executed(made, tmp_path, capsys):
    plugin = tmp_path / "evil_plugin_of_a_bundle.py"
    plugin.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    folder = made[0]
    place = tmp_path / "t"
    place.mkdir()
    own = tampered_config(folder, place, lambda text: text.replace("plugins: []", f"plugins: ['{plugin}']"))
    capsys.readouterr()
    assert main(["verify", str(own)]) == 2
    said = capsys.readouterr().out
    assert ": not made again\n  plugins: names code that is not in the bundle" in said
    assert "1 run: 1 not made again" in said and not (tmp_path / "executed").exists()
    (tmp_path / "v").mkdir()
    own = tampered_config(folder, tmp_path / "v", lambda text: text.partition("\ntask:")[0] + "\ntask: digits\n")
    assert main(["verify", str(own)]) == 2
    assert ": not made again\n  " in capsys.readouterr().out


def tampered_config(folder, place, change):
    """A bundle, whole and sealed, of a run with another config."""
    config = (folder / "config.yaml").read_text()
    try:
        (folder / "config.yaml").write_text(change(config))
        return tampered(folder, place, lambda *_: None)
    finally:
        (folder / "config.yaml").write_text(config)

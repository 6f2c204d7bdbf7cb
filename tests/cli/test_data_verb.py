"""``knot-runner data``: the table, one data set in full, and downloads, from a file server of this test."""

import hashlib
import random

import pytest
import yaml

from knot_runner import compose
from knot_runner.cli.main import main
from knot_runner.data.sources import data_sets
from knot_runner.util.config_yaml import choices, config_folder
from tests.disk import ReadOnly
from tests.file_server import serving
from tests.golden.messages import refuses
from tests.of_papers import of_papers

FILES = {name: random.Random(name).randbytes(70_000) for name in ("a.gz", "b.gz")}


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.delenv("KNOT_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "data"


@pytest.fixture
def server():
    with serving() as served:
        served.files = dict(FILES)
        yield served


@pytest.fixture
def own(tmp_path, server):
    write(tmp_path, server.address)
    return f"--config-dir={tmp_path}/own"


def write(tmp_path, address, **changes):
    files = [
        {"path": f"toys/{name}", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in FILES.items()
    ]
    one = {"tasks": ["toytask"], "home": "http://toys", "license": "MIT", "from": [address], "files": files}
    (tmp_path / "own/data").mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({key: value for key, value in {**one, **changes}.items() if value is not None})
    (tmp_path / "own/data/toys.yaml").write_text(f"# knot-runner data toys\n# Toys of a test\n{text}")


def said(capsys, *arguments, code=0):
    assert main(["data", *arguments]) == code
    told = capsys.readouterr()
    return told.out, told.err


def test_data_verb_lists_all_data_sets(root, capsys):
    (root / "cifar10").mkdir(parents=True)
    (root / "cifar10/cifar10_jpeg_subset.zip").touch()
    (root / "mnist").mkdir()
    (root / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(b"x")
    out, _ = said(capsys, f"paths.data_dir={root}")
    rows = {line.split()[0]: line for line in out.splitlines()[2:]}
    assert set(rows) == set(data_sets()) and f"paths.data_dir: {root}" in out
    assert "  present  " in rows["cifar10"] and "170.1 MB" in rows["cifar10"] and "--fetch" in rows["cifar10"]
    assert "partly, but differs from the published file" in rows["mnist"]
    assert "  absent  " in rows["iemocap"] and "by hand" in rows["iemocap"] and "erc" in rows["iemocap"]
    assert "paths.data_dir: not set" in said(capsys)[0]


def test_data_verb_shows_data_sets_of_task(root, capsys):
    out, _ = said(capsys, "mnist", "erc", f"paths.data_dir={root}")
    assert [line.split(":")[0] for line in out.splitlines() if line[:1].islower() and ": " in line] == [
        "dailydialog", "iemocap", "meld", "mnist"
    ]  # fmt: skip
    assert "sha256 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609" in out
    assert "published: not known, no published checksum" in out and "its owners give it out on request" in out


def test_data_fetch_resumes_and_reports_cut_download(root, own, capsys, server):
    server.cuts = [100]
    _, err = said(capsys, "toys", own, f"paths.data_dir={root}", "--fetch", code=1)
    assert "a.gz: the download ended early, after 100 bytes. Repeat the command to try again" in err
    assert "toys/b.gz: downloaded, checksum as published" in err  # one failure does not stop the others
    out, _ = said(capsys, "toys", own, f"paths.data_dir={root}")
    assert "toys: Toys of a test" in out and "state     partly in" in out
    assert "toys/a.gz: absent; published: 70.0 KB, sha256" in out and "toys/b.gz: found, as published; " in out
    _, err = said(capsys, "toytask", own, f"paths.data_dir={root}", "--fetch")
    assert "toys/a.gz: downloaded" in err and "toys/b.gz: found, checksum as published" in err
    assert server.asked[-1] == ("/a.gz", "bytes=100-")
    assert {path.name: path.read_bytes() for path in (root / "toys").iterdir()} == FILES
    out, _ = said(capsys, "toys", own, f"paths.data_dir={root}")
    assert "state     present in" in out


def test_data_fetch_explains_manual_downloads(root, capsys):
    _, err = said(capsys, "iemocap", "femnist", "--fetch", f"paths.data_dir={root}")
    assert "iemocap: download by hand: its owners give it out on request" in err and "preprocess.sh -s niid" in err
    assert not root.exists()


def test_data_fetch_refuses_a_read_only_folder(root, own, capsys):
    root.mkdir()
    with ReadOnly(root):
        _, err = said(capsys, "toys", own, f"paths.data_dir={root}", "--fetch", code=2)
    assert err.startswith(f"knot-runner: paths.data_dir: {root}: cannot be written") and err.count("\n") == 1


FILE = {"path": "toys/a", "size": 1}


@pytest.mark.parametrize("changes", [
    {"files": [{**FILE, "path": "../a"}]}, {"files": [{**FILE, "path": "/a"}]}, {"files": [{**FILE, "sha256": "abc"}]},
    {"files": []}, {"from": ["file:///etc/"]}, {"from": ["https://a"]}, {"from": None}, {"license": None},
    {"licens": "MIT"},
], ids=str)  # fmt: skip
def test_data_sets_refuses_wrong_entries(tmp_path, changes):
    write(tmp_path, "http://toys/", **changes)
    with refuses():
        data_sets(f"{tmp_path}/own")


LOCAL = ["task.source=local"]


def local_paths(task):
    """Every file and folder that the YAML of ``task`` names, without what lies inside of archives."""
    settings = compose([f"task={task}", *LOCAL[task == "gaussians" :]])[0].settings.task
    for one in [settings, *getattr(settings, "sets", {}).values(), *getattr(settings, "datasets", {}).values()]:
        local = getattr(one, "local", None)
        paths = [*local.train, *local.test] if hasattr(local, "train") else []
        paths += [file.path for own in getattr(local, "files", {}).values() for file in own]
        yield from (path.split(".zip/")[0] + ".zip" * (".zip/" in path) for path in paths)


@pytest.mark.parametrize(
    "task", of_papers(sorted({*choices("task")} - {"csv", "folders"}))
)  # those read the user's own files
def test_data_sets_cover_every_task_file(task):
    known = {file.path for one in data_sets().values() for file in one.files if task in one.tasks}
    known |= {path for one in data_sets().values() if task in one.tasks for paths in one.instead for path in paths}
    assert set(local_paths(task)) <= known


def test_data_sets_give_size_and_digest_of_downloads():
    for name, one in data_sets().items():
        assert one.title and set(one.tasks) <= set(choices("task")), name
        for file in one.files if one.sources else []:
            assert file.size and file.sha256, file.path


def test_data_sets_use_overrides_name_archive_files():
    for one in data_sets().values():
        if one.use:
            (job,) = compose([f"task={one.tasks[0]}", *one.use.split(" "), "task.source=local"])
            assert {*job.settings.task.local.train, *job.settings.task.local.test} == {file.path for file in one.files}
    assert (config_folder() / "data").is_dir()

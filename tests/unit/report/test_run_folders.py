"""Records of a run folder are read as its result sealed them, or named and left out."""

from knot_runner.report.claims.measures import with_learning_curves
from knot_runner.report.compare.answer import compare_runs
from knot_runner.report.figures.style import Drawing, figure_of, panels
from knot_runner.report.frame import read_runs
from knot_runner.report.run_folders import VECTORS, arrays, kept_file, load_runs, predictions, readable, rounds
from knot_runner.report.run_rows import run_rows
from knot_runner.report.tables.footnotes import absences
from knot_runner.util.files import parsed_json
from tests.golden.messages import refuses
from tests.unit.report.compared import made


def test_runs_have_the_numbers_of_finished_records(factory, federated):
    jobs = [factory.made(base=0.4), factory.job(seed=1), factory.made(seed=2, status="diverged")]
    done, absent, diverged = load_runs(jobs)
    assert (done.status, done.problem, done.metric("f1", "MELD"), done.metric("f1", "Moon")) == ("done", "", 0.4, None)
    assert (absent.status, absent.problem) == ("missing", "not run yet")
    assert diverged.status == "diverged" and diverged.metric("f1", "MELD") is None
    for several in (jobs[1:], jobs[2:]):  # a diverged run cannot be repeated otherwise
        with refuses():
            readable(several, command="knot-runner x")


def test_damaged_result_is_not_read(factory):
    job = factory.made()
    path = job.folder / "result.json"
    whole = path.read_bytes()
    texts = [b"", b"{", b"[]", b"null", b'{"status": NaN}', b"[" * 100_000, b'{"a":1,"a":2}', b"\x00"]
    for text in [*texts, *(whole[:length] for length in range(0, len(whole), 97))]:
        path.write_bytes(text)
        assert load_runs([job])[0].status in ("damaged", "different version"), text[:20]


def test_array_readers_return_arrays_by_name(factory):
    (run,) = load_runs([factory.probes(factory.vectors(factory.predictions(factory.made(), rows=30), rows=50))])
    found, before, vectors = predictions(run), predictions(run, "before"), arrays(run, VECTORS)
    assert set(found) == set(before) == set(run.result.bias)
    shares, truth = before["MELD"]
    assert shares.shape == (30, 5) and (truth == found["MELD"][1]).all() and (shares != found["MELD"][0]).any()
    assert vectors["vectors"].shape == (50, 16) and vectors["labels"].max() == 4
    assert {entry["model"] for entry in parsed_json(kept_file(run, "probe.json"))} == {"student", "before", "MELD"}


def test_missing_and_damaged_arrays_name_the_command(factory):
    (bare,) = load_runs([factory.made()], "knot-runner z")
    for name in ("predictions.safetensors", "vectors.safetensors", "probe.json"):
        with refuses():
            kept_file(bare, name)
    (cut,) = load_runs([factory.predictions(factory.made(seed=1), rows=30)], "knot-runner y")
    path = cut.folder / "predictions.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with refuses():
        predictions(cut)


def test_rounds_of_a_federated_run_are_read(federated):
    jobs = [federated.made(0.5, [0.1, 0.2, 0.4]), federated.write(federated.job(seed=1), [0.1, 0.2, 0.3], every=2)]
    # a loss may be large, and clients may be without images
    each = {"tempered_loss": [2.0, 46.2], "clients": [[None, 0.2, 0.2, 0.2]] * 2, "after": [[None, 0.3]] * 2}
    jobs.append(federated.write(federated.job(seed=2), [0.1, 0.2], each=each))
    whole, sparse, large = load_runs(jobs)
    assert whole.status == "done" and whole.metric("tempered_loss", "ALL") == 2.6
    assert [row["round"] for row in rounds(whole)] == [1, 2, 3] and rounds(whole)[1]["accuracy"] == 0.2
    assert ["accuracy" in row for row in rounds(sparse)] == [False, True, True]
    assert rounds(large)[1]["tempered_loss"] == 46.2


def test_truncated_and_missing_rounds_are_refused(federated):
    (run,) = load_runs([federated.made(1.0, [0.1, 0.2, 0.3])], "knot-runner z")
    path = run.folder / "rounds.jsonl"
    whole = path.read_bytes()
    for length in range(0, len(whole), 200):
        path.write_bytes(whole[:length])
        with refuses():
            rounds(run)
    path.unlink()
    with refuses():
        rounds(run)


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def test_tables_and_figures_name_and_omit_swapped_logs(trio, tmp_path):
    jobs = trio
    swap(jobs[2].folder / "rounds.jsonl", jobs[4].folder / "rounds.jsonl")
    runs, courses = with_learning_curves(load_runs(jobs, "knot-runner x"))
    wrong = {jobs[2].run_id, jobs[4].run_id}
    assert {run.run_id for run in runs if run.status == "damaged"} == wrong
    assert set(courses) == {job.run_id for job in jobs} - wrong
    rows = run_rows(runs)
    assert " ".join(absences(rows, rows["task"])).count("rounds.jsonl: does not match its checksum in result.json") == 2

    @figure_of(reads=("rounds.jsonl",))
    def figure(runs):
        return Drawing(panels(1, 8, 4)[0], "Runs", [], [run.run_id for run in runs])

    lines = figure(jobs, tmp_path / "x.png")
    assert wrong.isdisjoint(lines) and sum("does not match its checksum" in line for line in lines) == 2
    assert len([run for run in readable(jobs) if run.status == "done"]) == len(jobs)  # a figure that reads no logs


def test_compare_omits_changed_configs_and_swapped_results(tmp_path):
    """Two runs of one task, method and seed, told apart by a setting alone."""
    folders = [made(tmp_path, 0.5 + heat / 10, method__temperature=heat) for heat in (1, 2, 3)]
    swap(*(folder / "result.json" for folder in folders[:2]))
    path = folders[2] / "config.yaml"
    path.write_text(path.read_text() + "\n")
    lines = " ".join(compare_runs(read_runs(tmp_path)).lines)
    assert lines.count("Not counted: ") == 3 and "belongs to another run" in lines
    assert "config.yaml: does not match its checksum" in lines

"""A finished run that other code made is kept and named, or set aside and made anew, by the flag."""

from knot_runner.cli.main import main
from knot_runner.records import read_result, write_result
from tests.tiny import TINY_IMAGES


def made_by_other_code(out):
    grid = ["-m", *TINY_IMAGES, "seed=0,1", f"paths.out={out}"]
    assert main(grid) == 0
    folders = [path.parent for path in out.glob("femnist/*/*/result.json")]
    for folder in folders:
        result = read_result(folder)
        del result["digest"]
        write_result(folder, {**result, "code": "0.0.1+aaaaaaaaaaaa"})
    return grid, folders


def test_kept_by_default_and_said_in_one_line(tmp_path, capsys):
    grid, folders = made_by_other_code(tmp_path)
    before = [(folder / "result.json").read_bytes() for folder in folders]
    capsys.readouterr()
    assert main(grid) == 0
    said = capsys.readouterr().err
    assert (
        said.count("0.0.1+aaaaaaaaaaaa") == 1 and "--stale=rerun" in said and "2 done, 0 failed (2 were there)" in said
    )
    assert [(folder / "result.json").read_bytes() for folder in folders] == before

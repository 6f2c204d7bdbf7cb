"""Every command and every Python example of README and the guides works, with settings for a run of a few seconds."""

import random
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from knot_runner.cli.main import main
from knot_runner.cli.parsers import VERBS, parser_of
from knot_runner.composing.commands import compose_all
from tests.of_papers import PAPERS, WORDS, of_papers, papers_in

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("knot_runner", "conf", "docs", "scripts", "tests")
GUIDES = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
GUIDES += ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
TEXTS = {guide: (ROOT / guide).read_text() for guide in GUIDES}
PAGES = [guide for guide in GUIDES if guide.startswith("docs/") or guide == "README.md"]
BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```", re.M | re.S)
#: First line of a block that a reader saves under this name.
FILE = re.compile(r"^(?:# @package _global_\n# .*\n)?# ([\w./-]+\.(?:py|yaml))\n")
#: A command with one of these is composed, but not run.
PLACEHOLDER = re.compile(r"\b(FOLDER|DIR|FILE|RUN|BUNDLE|SHARED|QUEUE)\b")
#: An override of an optional package -> its module.
EXTRAS = {"tracker=tensorboard": "tensorboard"}
#: A verb on a preset -> the folder that it writes to.
WRITTEN = {"table": "tables", "claims": "claims", "report": "reports", "plot": "figures"}
#: Of a page that runs: what its output holds.
PRINTED = {
    "README.md": [r"fedprox_0.1 +0\.\d+", r"outputs/femnist/fedavg/\w+ 0\.\d+\n", r"fedprox .*accuracy"],
    "docs/sweeps.md": [r"Selected: of 2 settings of training\.lr"],
    "docs/python.md": [r"outputs/femnist/fedavg_chill/\w+ 0\.\d+ 2\n", r"fedprox .*accuracy"],
}


def blocks(guide: str, language: str = "bash") -> list[str]:
    """Return the blocks of code of a guide."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXTS[guide], flags=re.M | re.S)


def commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines if re.match(r"(\$ |    )?knot-runner ", line)]


def split(line: str) -> tuple[str, list[str], list[str]]:
    """Return (verb, arguments, those that compose jobs) of a command."""
    verb, *arguments = shlex.split(line, comments=True)[1:]
    if verb not in VERBS:
        verb, arguments = "", [verb, *arguments]
    options = parser_of(verb).parse(arguments)
    words = list(options.words)
    if verb in WRITTEN and words and "/" in words[0] and "=" not in words[0]:
        words[0] = f"experiment={words[0]}"
    elif (verb, *words[:1]) == ("plot", "partition"):
        del words[0]
    elif verb not in ("", "check"):
        return verb, arguments, []
    return verb, arguments, [*options.flags, *words]


def is_missing_extra(line: str) -> bool:
    return any(word in line and find_spec(module) is None for word, module in EXTRAS.items())


COMMANDS = {line for page in PAGES for block in blocks(page) for line in commands(block)}
#: Blocks that a reader saves, by name.
FILES = {FILE.match(block)[1]: block for page in PAGES for _, block in BLOCK.findall(TEXTS[page]) if FILE.match(block)}
#: Commands of published results, too: indented, or in a terminal's text.
PUBLISHED = {line for text in TEXTS.values() for line in commands(text)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data that README's commands read, and the guides' files."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("cat", "dog"):
        (folder / "pets" / name).mkdir(parents=True)
        for n in range(30):
            image = Image.effect_noise((30 + n, 60 - n), 50).convert("RGB")
            image.save(folder / "pets" / name / f"{n}.{'png' if n % 2 else 'jpg'}")
    (folder / "reviews").mkdir()
    rows = [f"word{number} word{number % 7},{'good' if number % 2 else 'bad'}" for number in range(80)]
    (folder / "reviews" / "texts.csv").write_text("\n".join(["text,label", *rows, ""]))
    for name, block in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(block)
    return folder


class RandomSearch:
    """``optuna.study.Study`` with two random trials, as far as the guides use it; also the trial."""

    def __init__(self, direction, sampler):
        assert direction == "maximize"
        self.sampler = sampler

    def suggest_float(self, name, low, high, log):
        assert log
        return low * (high / low) ** self.sampler.random()

    def optimize(self, objective, n_trials):
        values = [objective(self) for _ in range(min(n_trials, 2))]
        assert all(0 <= value <= 1 for value in values)


@pytest.fixture
def enter(data, tmp_path, monkeypatch):
    """A function that enters a new folder with links to the data and files of a reader."""
    monkeypatch.syspath_prepend(tmp_path)  # and what a page adds is removed
    if find_spec("optuna") is None:
        stand_in = SimpleNamespace(
            create_study=RandomSearch, samplers=SimpleNamespace(TPESampler=lambda seed: random.Random(seed))
        )
        monkeypatch.setitem(sys.modules, "optuna", stand_in)

    def entered(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        for path in (ROOT / "tests", ROOT / "scripts", *data.iterdir()):
            Path(path.name).symlink_to(path)

    yield entered
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.parametrize("line", of_papers(sorted(COMMANDS)))
def test_guide_command_composes(line, enter):
    enter("reader")
    check_composes(line)


@pytest.mark.thorough
@pytest.mark.paper(*WORDS)
def test_published_commands_compose(enter):
    enter("reader")
    for line in sorted(PUBLISHED - COMMANDS):
        check_composes(line)


def check_composes(line: str) -> None:
    """Compose the first job of a command, without optional packages that are not installed."""
    verb, _, words = split(line)
    if is_missing_extra(line):
        words = [word for word in words if "hydra" not in word[:7] and not is_missing_extra(word)]
    assert (verb and not words) or compose_all(words, first=True)[0]


def small_settings(words: list[str]) -> list[str]:
    """Return overrides with which a job takes about a second."""
    config = compose_all(words, first=True)[0][0].config
    task, model, training, method = (config.get(group) or {} for group in ("task", "model", "training", "method"))
    texts = model.get("kind") == "bert"
    small = ["hardware.num_workers=1", f"task.max_examples={60 if texts else 300}"] if "max_examples" in task else []
    if model.get("kind") == "mlp":
        small += ["model.hidden=[8]", f"task.shape=[{task['shape'][0]},8,8]"]
    if texts and model["weights"] == "scratch":
        small += ["model.hidden=16", "model.layers=1", "model.intermediate=32", "model.vocab_size=600"]
    if "rounds" in training:
        rounds = min(training["rounds"], 2)
        small += [f"training.rounds={rounds}", "training.local_epochs=1", "training.small_clients=allow"]
    small += [f"training.{stage}.epochs=1" for stage in ("local", "pretrain", "distill") if training.get(stage)]
    small += [f"method.bias.{name}=20" for name in method.get("bias") or () if name in ("texts", "tokens", "images")]
    if any(word.startswith("experiment=") for word in words):
        small += ["seed=0" if "seed=0" in words else "seed=0,1"]
    elif any(word.startswith("seed=") for word in words):
        small += ["seed=0"]
    return small


def run_small(line: str) -> None:
    """Run a command in the current folder with small settings, one job after another."""
    verb, arguments, words = split(line)
    arguments, words = ([word for word in part if "hydra" not in word[:7]] for part in (arguments, words))
    small = small_settings(words) if words or not verb else []
    small += ["--quick"] if verb == "check" else []
    assert main([verb, *arguments, *small][not verb :]) == 0, line
    for preset in [word.removeprefix("experiment=") for word in words if verb in WRITTEN and "experiment=" in word]:
        assert list(Path().glob(f"*/{WRITTEN[verb]}/{preset}*")), line


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
def test_guide_pages_run(part, enter, monkeypatch, capsys):
    """Run the commands and the Python of a quarter of the pages in their order, each page in a folder of its own."""
    monkeypatch.setenv("COLUMNS", "200")  # pandas leaves out columns of a narrow terminal
    pages = [page for page in PAGES if BLOCK.search(TEXTS[page]) and papers_in(TEXTS[page]) <= PAPERS]
    size = -(-len(pages) // 4)
    for number, page in enumerate(pages[part * size :][:size]):
        enter(str(number))
        names = {"__name__": "__main__"}
        for language, block in BLOCK.findall(TEXTS[page]):
            if language == "python" and not FILE.match(block):
                exec(compile(block, page, "exec"), names)
            for line in commands(block) if language == "bash" else ():
                if not PLACEHOLDER.search(line) and not is_missing_extra(line):
                    run_small(line)
        shown = capsys.readouterr().out
        assert [pattern for pattern in PRINTED.get(page, ()) if not re.search(pattern, shown)] == [], page

"""The table of verbs, with the arguments of each verb and the module that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knot_runner.composing.hydra_compose import Parser
from knot_runner.config.plugins import Table
from knot_runner.util.config_yaml import unquoted
from knot_runner.util.errors import UserError, nearest

PRESET_TEXT = "PRESET is a name from 'knot-runner ls experiment'. Use the same overrides as for its runs."


@dataclass(frozen=True)
class Verb:
    """A verb of the command line, as in ``knot-runner VERB``.

    Attributes:
        module: Name of the module that defines ``<verb>_command``. The name is absolute, or relative to the package
            ``knot_runner.cli.verbs``.
        summary: One-line description of the verb in ``knot-runner --help``.
        usage: The verb and its arguments.
        text: What the verb does, in sentences.
        examples: Commands, without ``knot-runner``.
        composes: Whether the verb composes jobs. If true, the verb accepts Hydra's options.
        options: Options besides those of Hydra: dict from name to the keyword arguments of argparse's ``add_argument``.
    """

    module: str
    summary: str
    usage: str
    text: str
    examples: Sequence[str]
    composes: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def run_verb(verb: str, arguments: Sequence[str]) -> int:
    """Run ``verb`` on the given arguments, and return the exit code. Raises :class:`UserError`."""
    options = parser_of(verb).parse(arguments)
    module = importlib.import_module(VERBS[verb].module, "knot_runner.cli.verbs")
    code: int = getattr(module, f"{verb}_command")(options)
    return code


def parser_of(verb: str) -> Parser:
    """Return the argument parser of ``verb``. For "", return the parser of a command without a verb."""
    entry = _RUN
    if verb:
        entry = VERBS[verb]
    text = entry.text
    if not verb:
        text += "\n\nverbs:"
        for name, known in VERBS.data.items():
            text += f"\n  {name:<10} {known.summary}"
    parser = Parser(entry.usage, text, entry.examples, entry.composes)
    for name, arguments in entry.options.items():
        parser.add_argument(*name.split(", "), **arguments)
    return parser


_RUN = Verb(
    "", "",
    "[KEY=VALUE ...] [options]\n       knot-runner VERB --help",
    "Run experiments in federated learning and knowledge distillation. Overrides follow Hydra's grammar. "
    "Several values make a grid. The same command resumes interrupted runs and shows finished ones.",
    [
        "task=femnist method=fedavg_chill method.temperature=0.05",
        "method=entropy_a,sinkhorn_e seed=0,1,2 hydra/launcher=joblib",
        "experiment=knot/table3 task.missing=skip",
    ],
    options={
        "-c, --cfg": {"choices": ("job", "hydra", "all"), "help": "print the composed config and stop"},
        "--stale": {
            "choices": ("keep", "rerun"), "default": "",
            "help": "keep or rerun finished runs whose code or data have changed",
        },
        "--version": {"action": "store_true", "help": "print the version and stop"},
    },
)  # fmt: skip

#: Verbs of the package. The papers' modules ``verbs`` add others.
VERBS: Table[Verb] = Table("VERBS", {
    "ls": Verb(
        ".ls", "list tasks, models, methods, presets and other choices",
        "ls [GROUP ...]", "List the config groups, or the choices of each GROUP with descriptions.",
        ["ls", "ls method experiment"], composes=False,
        options={"-cd, --config-dir": {"metavar": "DIR", "help": "a folder with your own YAML files"}},
    ),
    "data": Verb(
        ".data", "list and download data sets",
        "data [TASK or DATA SET ...] [paths.data_dir=DIR] [options]",
        "List data sets, their state and where to get them. Instead of paths.data_dir=DIR, you can set the variable "
        "KNOT_DATA=DIR.",
        ["data", "data mnist cifar10 --fetch paths.data_dir=DIR"], composes=False,
        options={
            "-cd, --config-dir": {"metavar": "DIR", "help": "a folder with your own data sets, data/NAME.yaml"},
            "--fetch": {
                "action": "store_true",
                "help": "download files that need no agreement, and verify size and checksum",
            },
        },
    ),
    "check": Verb(
        ".check", "list the jobs of a command and any errors",
        "check [KEY=VALUE ...] [options]",
        "List the jobs that a command with these overrides would run, their state and any errors.",
        ["check experiment=knot/table3 task.missing=skip --quick"],
        options={
            "--all": {"action": "store_true", "help": "list each job of a large grid"},
            "--quick": {"action": "store_true", "help": "do not read any data"},
        },
    ),
    "table": Verb(
        ".preset", "print the table of a preset and the published one",
        "table PRESET [KEY=VALUE ...]",
        f"Print the table of a preset from recorded results, and write it as Markdown, CSV and LaTeX. {PRESET_TEXT}",
        ["table knot/table3 task.missing=skip"],
    ),
    "plot": Verb(
        ".plot", "draw any runs, a preset's figure, or a partition",
        "plot [FILTER ...] [paths.output_dir=DIR] [options]\n       knot-runner plot PRESET [KEY=VALUE ...] [options]\n"
        "       knot-runner plot partition [KEY=VALUE ...] [options]",
        "Draw finished runs selected by filters (as in compare), the figure of a preset, or a partition of classes. "
        f"{PRESET_TEXT}",
        [
            "plot --x=round --y=accuracy --by=method.name --out=curves.pdf",
            "plot --x=method.mu --y=accuracy --by=training.lr --mark=heatmap",
            "plot chill/fig4 task=femnist --formats=pdf --width=single",
            "plot partition task=femnist partition=small partition.alpha=0.1",
        ],
        options={
            "--x": {
                "metavar": "KEY",
                "help": "round, clock, seconds, bytes, flops, a setting, or a measure (default: round)",
            },
            "--y": {"metavar": "KEY", "help": "a measure (default: accuracy), clients, or confusion"},
            "--by": {
                "metavar": "KEYS",
                "help": "settings whose values get separate lines or colors (default: all that differ)",
            },
            "--row": {"metavar": "KEY", "help": "setting whose values get separate rows of panels"},
            "--col": {"metavar": "KEY", "help": "setting whose values get separate columns of panels"},
            "--mark": {"metavar": "MARK", "help": "curve, bar, box, scatter or heatmap"},
            "--smooth": {
                "type": float, "metavar": "N", "help": "draw running means over N rounds (N < 1: a share of rounds)",
            },
            "--out": {"metavar": "FILE", "help": "a .png, .pdf or .svg file"},
            "--formats": {"default": "png", "help": "png, pdf and svg, separated by commas (default: png)"},
            "--width": {"help": "for print, without title and notes: single (3.35 in), double (7 in) or millimeters"},
        },
    ),
    "confusion": Verb(
        ".plot", "print the confusion matrix of a run",
        "confusion RUN [paths.output_dir=DIR] [options]",
        "Print the confusion matrix of a finished run on its test examples. RUN is a folder, a run id, or filters that "
        "select one run.",
        ["confusion task=femnist method=fedavg seed=0 --out=confusion.png"], composes=False,
        options={"--out": {"metavar": "FILE", "help": "also draw it to a .png, .pdf or .svg file"}},
    ),
    "claims": Verb(
        ".preset", "test the claims of a preset's paper",
        "claims PRESET [KEY=VALUE ...]",
        f"Test the claims of a paper on recorded results, with 95% intervals. {PRESET_TEXT}",
        ["claims chill/table1 task=femnist"],
    ),
    "report": Verb(
        ".report", "write a preset's results as an HTML page",
        "report PRESET [KEY=VALUE ...]",
        f"Write table, figures and claims of a preset as one HTML page, from recorded results. {PRESET_TEXT}",
        ["report knot/table3 task.missing=skip"],
    ),
    "compare": Verb(
        ".compare", "compare any runs by any setting",
        "compare [KEY=VALUE ...] [paths.output_dir=DIR] [options]",
        "Compare the runs below paths.output_dir (default: outputs). Filters select runs: key=value, key!=value, "
        "key<value, and so on.",
        ["compare task=femnist --by=method.name --export=runs.csv"], composes=False,
        options={
            "--by": {
                "metavar": "KEYS", "help": "run_id, or settings whose values get rows (default: all that differ)",
            },
            "--measure": {
                "default": "", "metavar": "KEYS", "help": "columns of the table: accuracy, f1, sd, ...",
            },
            "--sort": {"default": "", "metavar": "KEY", "help": "column that orders the rows"},
            "--best": {
                "default": "", "metavar": "MEASURE",
                "help": "for the settings in --over, show only the values with the best MEASURE",
            },
            "--over": {"default": "", "metavar": "KEYS", "help": "settings whose values --best compares"},
            "--export": {"default": "", "metavar": "FILES", "help": "also write .csv, .tex or .md files"},
        },
    ),
    "reproduce": Verb(
        ".reproduce", "run presets one after another",
        "reproduce [PRESET ...] [KEY=VALUE ...] [options]",
        "Run presets one after another, starting with the most claims per minute, and write a table of their claims to "
        "paths.output_dir/reproduced.md. Without names, run the presets of conf/reproduce.yaml and of the papers' "
        "reproduce.yaml whose data are present and that fit into the time. The overrides apply to each preset.",
        ["reproduce --hours=2 paths.data_dir=DIR hardware=cpu"],
        options={
            "--hours": {
                "type": float, "default": 2.0,
                "help": "time limit. Repeat the command to resume; 0 only writes the table (default: 2)",
            },
        },
    ),
    "bundle": Verb(
        ".runs", "pack finished runs into an archive",
        "bundle RUN ... [paths.output_dir=DIR] [options]",
        "Pack the records of finished runs into an archive that others can verify. RUN is a run's folder, a folder "
        "that contains several runs, or a run id. The same runs give an identical archive.",
        ["bundle outputs/femnist --to=femnist.tar.gz"], composes=False,
        options={
            "--to": {"metavar": "FILE", "help": "archive FILE.tar.gz (default: in paths.output_dir/bundles)"},
            "--weights": {"action": "store_true", "help": "include files above 4 MB, such as weights"},
        },
    ),
    "verify": Verb(
        ".verify", "rerun a bundle and compare the results",
        "verify BUNDLE [KEY=VALUE ...] [options]",
        "Rerun the runs of BUNDLE, a .tar.gz file, and compare the results: the same bits, within rounding (numbers "
        "differ by at most 0.1% or 0.0001), within the 95% interval of the accuracy, or not the same. Code of plug-ins "
        "is not run. The exit code is 1 if a result is not the same, and 2 if a run could not be rerun.",
        ["verify femnist.tar.gz --rounds=5 paths.data_dir=DIR"], composes=False,
        options={
            "--rounds": {"type": int, "metavar": "N", "help": "rerun only the first N rounds of federated runs"},
            "--network": {"action": "store_true", "help": "allow downloads from the Hugging Face hub"},
            "--max-steps": {
                "type": int, "default": 5000, "metavar": "N",
                "help": "refuse settings with more rounds, epochs or steps than N (default: 5000)",
            },
            "--memory": {
                "type": int, "default": 16, "metavar": "GB", "help": "CPU memory limit of a process (default: 16)",
            },
        },
    ),
}, papers="verbs")  # fmt: skip


def names_and_keys(words: Iterable[str], known: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split ``words`` into a list of names and a dict of the ``KEY=VALUE`` words.

    Raises:
        UserError: A key is not in ``known``, or has no value.
    """
    names = []
    keys = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif key not in known:
            raise UserError(f"not an option of this verb{nearest(key, known)}", key)
        elif not value:
            raise UserError(f"no value. Use {key}=DIR", key)
        else:
            keys[key] = unquoted(value)
    return names, keys

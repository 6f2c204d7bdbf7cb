"""The table of verbs, with the arguments of each verb and the function that runs it. Imports no large packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence

from knot_runner.composing.hydra_compose import Parser
from knot_runner.config.plugins import Table
from knot_runner.util.config_yaml import unquoted
from knot_runner.util.errors import UserError, nearest

PRESET_TEXT = "PRESET is a name from 'knot-runner ls experiment'. Use the same overrides as for its runs."


def run_verb(verb: str, arguments: Sequence[str]) -> int:
    """Run ``verb``; return the exit code. Raises :class:`UserError`."""
    options = parser_of(verb).parse(arguments)
    module = importlib.import_module(VERBS[verb][0], "knot_runner.cli.verbs")
    code: int = getattr(module, f"{verb}_command")(options)
    return code


def parser_of(verb: str) -> Parser:
    """Return the parser of ``verb``, or of a command without one."""
    return VERBS[verb][1]() if verb else _run()


def _run() -> Parser:
    verbs = "\n".join(f"  {name:<10} {text}" for name, (_, _, text) in VERBS.data.items())
    parser = Parser(
        "[KEY=VALUE ...] [options]\n       knot-runner VERB --help",
        "Run experiments in federated learning and knowledge distillation. Overrides follow Hydra's grammar. "
        "Several values make a grid. The same command resumes interrupted runs and shows finished ones.\n"
        f"\nverbs:\n{verbs}",
        [
            "task=femnist method=fedavg_chill method.temperature=0.05",
            "method=entropy_a,sinkhorn_e seed=0,1,2 hydra/launcher=joblib",
            "experiment=knot/table3 task.missing=skip",
        ],
    )
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"), help="print the composed config and stop")
    stale = "keep or rerun finished runs whose code or data have changed"
    parser.add_argument("--stale", choices=("keep", "rerun"), default="", help=stale)
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    return parser


def _ls() -> Parser:
    text = "List the config groups, or the choices of each GROUP with descriptions."
    parser = Parser("ls [GROUP ...]", text, ["ls", "ls method experiment"], False)
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with your own YAML files")
    return parser


def _data() -> Parser:
    text = "List data sets, their state and where to get them. KNOT_DATA=DIR stands for paths.data_dir=DIR."
    examples = ["data", "data mnist cifar10 --fetch paths.data_dir=DIR"]
    parser = Parser("data [TASK or DATA SET ...] [paths.data_dir=DIR] [options]", text, examples, False)
    parser.add_argument("-cd", "--config-dir", metavar="DIR", help="a folder with your own data sets, data/NAME.yaml")
    fetch = "download files that need no agreement, and verify size and checksum"
    parser.add_argument("--fetch", action="store_true", help=fetch)
    return parser


def _check() -> Parser:
    text = "List the jobs that a command with these overrides would run, their state and any errors."
    parser = Parser("check [KEY=VALUE ...] [options]", text, ["check experiment=knot/table3 task.missing=skip --quick"])
    parser.add_argument("--all", action="store_true", help="list each job of a large grid")
    parser.add_argument("--quick", action="store_true", help="do not read any data")
    return parser


def _table() -> Parser:
    text = "Print the table of a preset from recorded results, and write it as Markdown, CSV and LaTeX. "
    return Parser("table PRESET [KEY=VALUE ...]", text + PRESET_TEXT, ["table knot/table3 task.missing=skip"])


def _claims() -> Parser:
    text = "Test the claims of a paper on recorded results, with 95% intervals. "
    return Parser("claims PRESET [KEY=VALUE ...]", text + PRESET_TEXT, ["claims chill/table1 task=femnist"])


def _plot() -> Parser:
    parser = Parser(
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
    )
    keys = {
        "x": "round, clock, seconds, bytes, flops, a setting, or a measure (default: round)",
        "y": "a measure (default: accuracy), clients, or confusion",
        "by": "settings with a line or color per value (default: all that differ)",
        "row": "setting with a row of panels per value",
        "col": "setting with a column of panels per value",
    }
    for name, text in keys.items():
        parser.add_argument(f"--{name}", metavar="KEYS" if name == "by" else "KEY", help=text)
    parser.add_argument("--mark", metavar="MARK", help="curve, bar, box, scatter or heatmap")
    parser.add_argument(
        "--smooth", type=float, metavar="N", help="draw running means over N rounds, or over a share of them"
    )
    parser.add_argument("--out", metavar="FILE", help="a .png, .pdf or .svg file")
    parser.add_argument("--formats", default="png", help="png, pdf and svg, separated by commas (default: png)")
    width = "for print, without title and notes: single (3.35 in), double (7 in) or millimeters"
    parser.add_argument("--width", help=width)
    return parser


def _confusion() -> Parser:
    parser = Parser(
        "confusion RUN [paths.output_dir=DIR] [options]",
        "Print the confusion matrix of a finished run on its test examples. RUN is a folder, a run id, or filters that "
        "select one run.",
        ["confusion task=femnist method=fedavg seed=0 --out=confusion.png"],
        composes=False,
    )
    parser.add_argument("--out", metavar="FILE", help="also draw it to a .png, .pdf or .svg file")
    return parser


def _report() -> Parser:
    text = "Write table, figures and claims of a preset as one HTML page, from recorded results. "
    return Parser("report PRESET [KEY=VALUE ...]", text + PRESET_TEXT, ["report knot/table3 task.missing=skip"])


def _compare() -> Parser:
    parser = Parser(
        "compare [KEY=VALUE ...] [paths.output_dir=DIR] [options]",
        "Compare the runs below paths.output_dir (default: outputs). Filters select runs: key=value, key!=value, "
        "key<value, and so on.",
        ["compare task=femnist --by=method.name --export=runs.csv"],
        composes=False,
    )
    by = "settings with a row per value, or run_id (default: all that differ)"
    parser.add_argument("--by", metavar="KEYS", help=by)
    parser.add_argument("--measure", default="", metavar="KEYS", help="columns of the table: accuracy, f1, sd, ...")
    parser.add_argument("--sort", default="", metavar="KEY", help="column that orders the rows")
    parser.add_argument(
        "--best", default="", metavar="MEASURE", help="show only the best value of the settings in --over"
    )
    parser.add_argument("--over", default="", metavar="KEYS", help="settings that were searched, for --best")
    parser.add_argument("--export", default="", metavar="FILES", help="also write .csv, .tex or .md files")
    return parser


def _reproduce() -> Parser:
    parser = Parser(
        "reproduce [PRESET ...] [KEY=VALUE ...] [options]",
        "Run presets one after another, starting with the most claims per minute, and write a table of their claims to "
        "paths.output_dir/reproduced.md. Without names, run the presets of conf/reproduce.yaml and of the papers' "
        "reproduce.yaml whose data are present and that fit into the time. The overrides apply to each preset.",
        ["reproduce --hours=2 paths.data_dir=DIR hardware=cpu"],
    )
    hours = "time limit. Repeat the command to resume; 0 only writes the table (default: 2)"
    parser.add_argument("--hours", type=float, default=2.0, help=hours)
    return parser


def _bundle() -> Parser:
    parser = Parser(
        "bundle RUN ... [paths.output_dir=DIR] [options]",
        "Pack the records of finished runs into an archive that others can verify. RUN is a run's folder, a folder "
        "above several, or a run id. The same runs give the same bytes.",
        ["bundle outputs/femnist --to=femnist.tar.gz"],
        composes=False,
    )
    parser.add_argument("--to", metavar="FILE", help="archive FILE.tar.gz (default: in paths.output_dir/bundles)")
    parser.add_argument("--weights", action="store_true", help="include files above 4 MB, such as weights")
    return parser


def _verify() -> Parser:
    parser = Parser(
        "verify BUNDLE [KEY=VALUE ...] [options]",
        "Rerun the runs of BUNDLE, a .tar.gz file, and compare the results: the same bits, within rounding (numbers "
        "differ by at most 0.1% or 0.0001), within the 95% interval of the accuracy, or not the same. Code of plug-ins "
        "is not run. The exit code is 1 if a result is not the same, and 2 if a run could not be rerun.",
        ["verify femnist.tar.gz --rounds=5 paths.data_dir=DIR"],
        composes=False,
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rerun only the first N rounds of federated runs")
    parser.add_argument("--network", action="store_true", help="allow downloads from the Hugging Face hub")
    steps = "refuse settings with more rounds, epochs or steps than N (default: 5000)"
    parser.add_argument("--max-steps", type=int, default=5000, metavar="N", help=steps)
    memory = "CPU memory limit of a process (default: 16)"
    parser.add_argument("--memory", type=int, default=16, metavar="GB", help=memory)
    return parser


#: Verb -> its module with ``<verb>_command``, its parser, and its line in the command's own help.
VERBS: Table[tuple[str, Callable[[], Parser], str]] = Table("VERBS", {
    "ls": (".ls", _ls, "list tasks, models, methods, presets and other choices"),
    "data": (".data", _data, "list and download data sets"),
    "check": (".check", _check, "list the jobs of a command and any errors"),
    "table": (".preset", _table, "print the table of a preset and the published one"),
    "plot": (".plot", _plot, "draw any runs, a preset's figure, or a partition"),
    "confusion": (".plot", _confusion, "print the confusion matrix of a run"),
    "claims": (".preset", _claims, "test the claims of a preset's paper"),
    "report": (".report", _report, "write a preset's results as an HTML page"),
    "compare": (".compare", _compare, "compare any runs by any setting"),
    "reproduce": (".reproduce", _reproduce, "run presets one after another"),
    "bundle": (".runs", _bundle, "pack finished runs into an archive"),
    "verify": (".verify", _verify, "rerun a bundle and compare the results"),
}, papers="verbs")  # fmt: skip


def names_and_keys(words: Iterable[str], known: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return (words without ``=``, the values of the ``known`` keys) for verbs that compose no jobs.

    Raises :class:`UserError`.
    """
    names, keys = [], {}
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

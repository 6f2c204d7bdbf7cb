"""Check what people read: phrases that the style guide replaces, British spellings, sentences of more than 35 words.

    python scripts/check_language.py [FILE or FOLDER ...]

Reads guides (.md), comments in YAML, strings in Python (docstrings, messages, ``--help``) and the recorded messages
(.json); without arguments all of them. Prints ``FILE:LINE: finding``. The exit code is 1 if there is a finding.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MESSAGES = "tests/golden/messages.json"
EVERYTHING = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "conf", "knot_runner", MESSAGES]
MOST_WORDS = 35
#: Phrases without another meaning in this project, and British spellings, as one regular expression.
PHRASES = """
say nothing of|is not there|are not there|was not there|is there twice|there is: |is right|are right|would be right
|would fit|would help|who has what|what came out|as run|for a look|dealt|deals|dealing|anew|made again|set aside
|sets aside|goes on|going on|went on|alike|seals|sealed|beside the paper's|nobody's|what is done here
|of one's own|front door|in silence|recipe
|(?:optimi|normali|personali|centrali|generali|initiali|seriali|minimi|maximi|organi|recogni|summari|regulari|speciali
|standardi|synthesi|randomi|utili|categori|emphasi|reali|visuali|tokeni|colori)s(?:e|ed|es|er|ers|ing|ation)
|labell(?:ed|ing)|unlabelled|modell(?:ed|ing)|travell(?:ed|ing)|colours?|coloured|behaviours?|neighbours?|favours?
|honours?|artefacts?|centres?|centred|(?:milli|centi|kilo)?metres?|distils?|fulfils?|analys(?:e|ed|ing)
|judgements?|grey|licences?|programmes?|learnt|spelt|whilst|defence|sceptical|catalogues?
""".replace("\n", "")
#: A command, or a sentence: it ends at a mark before a space, at the end of a paragraph, and before a list item, row,
#: cell, argument or command.
SENTENCE = r"""(?sx)knot-runner[ ][^\n]* | \S.*?(?: [.!?]+\)? (?=\s|\Z) | (?= \n\s*\n | \n\s*[-*\#|>] | \n\s*\d+\.\s
    | \s\|\s | \n\s+[\w*.\[\]]+:[ ] | \n\s*knot-runner[ ] | [^\S\n]{3} | \Z ))"""
#: Not prose: code, targets of links, comments, and the names that a message lists.
CODE = r"(?s)^@package[^\n]*|^ *```.*?^ *```|``[^`]+``|`[^`]+`|\]\([^)]*\)|<!--.*?-->|\(choose from [^)]*\)"


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts in a file and the line at which each begins."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from strings(ast.parse(content))
    elif path.suffix == ".md":
        yield 1, content
    elif path.suffix == ".yaml":  # a comment behind a value is a passage of its own
        yield 1, re.sub(r"(?m)^ *# ?", "", re.sub(r"(?m)^[^#\n]*[^#\s][^#\n]*(# ?)?", "# - ", content))
    else:  # messages, without the names of tests
        yield 1, re.sub(r'(?m)^ *(".*": \[)?', "- ", content)


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of at least two words; ``x`` stands for the values in an f-string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
        else:
            text = getattr(node, "value", None)
        if isinstance(text, str) and " " in text:
            yield node.lineno, text


def findings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each finding in a file."""
    for line, text in texts(path):
        prose = re.sub(CODE, lambda code: "x" + "\n" * code[0].count("\n"), text, flags=re.MULTILINE)
        for match in re.finditer(rf"(?i)(?<![\w.-])(?:{PHRASES})(?!\w)".replace(" ", r"\s+"), prose):
            yield line + prose.count("\n", 0, match.start()), " ".join(match[0].split())
        for match in re.finditer(SENTENCE, prose):
            count = len(re.findall(r"[A-Za-z][\w'-]*", match[0]))
            if count > MOST_WORDS:
                yield line + prose.count("\n", 0, match.start()), f"{count} words: {' '.join(match[0].split())[:60]}..."


def main(names: list[str]) -> int:
    """Print the findings in files and folders; return 1 if there is one."""
    found = 0
    for root in [ROOT / name for name in names or EVERYTHING]:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".md", ".yaml") or path == root:
                for line, text in sorted(set(findings(path))):
                    print(f"{path}:{line}: {text}".removeprefix(f"{ROOT}/"))
                    found += 1
    print(f"{found} findings")
    return int(found > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""What README and docs print must be accepted: every command of smmil, every link of llms.txt."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from smmil.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUP = get_command(app)


def commands(text):
    """Every `smmil …` of a page, in code blocks (continued lines joined) and between backticks."""
    blocks = re.findall(r"^(?:```\w*\n(.*?)^```|((?:    .*\n)+))", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in "".join(block).replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`(smmil [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    found = [part.strip().removeprefix("$ ") for line in [*lines, *inline] for part in line.split("; ")]
    return [line for line in found if line.startswith("smmil ")]


def problem(line):
    """What is wrong with a command: a verb or an option that does not exist; None otherwise (values are free)."""
    words = shlex.split(line, comments=True)[1:]
    verb = GROUP
    while words and not words[0].startswith("-") and hasattr(verb, "commands"):
        if words[0] not in verb.commands:
            return f"no verb {words[0]!r}"
        verb = verb.commands[words.pop(0)]
    known = {name for param in verb.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "--version"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_is_accepted(page):
    wrong = {line: said for line in commands(page.read_text(encoding="utf-8")) if (said := problem(line))}
    assert not wrong


def test_commands_are_found_and_wrong_ones_are_noticed():
    text = (
        "```bash\nsmmil train --manifest m.csv \\\n  --out run  # teach\n```\n"
        "or `smmil trian x` and `smmil view`\n\n    smmil train --ot x\n"
    )
    assert commands(text)[0].split() == ["smmil", "train", "--manifest", "m.csv", "--out", "run", "#", "teach"]
    assert [problem(line) is None for line in commands(text)] == [True, False, False, True]
    assert sum(len(commands(page.read_text(encoding="utf-8"))) for page in PAGES) > 150


def test_links_of_llms_txt_lead_to_pages():
    links = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

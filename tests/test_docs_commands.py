"""What README and docs print must be accepted: every command of smmil, every link of llms.txt."""

import re

import pytest
from support.docs_pages import PAGES, ROOT, commands, is_mention, problem


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_is_accepted(page):
    wrong = {line: said for line in commands(page.read_text(encoding="utf-8")) if (said := problem(line))}
    assert not wrong


def test_commands_are_found_and_wrong_ones_are_noticed():
    text = (
        "```bash\nsmmil train --manifest m.csv \\\n  --out run  # teach\n```\n"
        "or `smmil trian x` and `smmil\nview p`\n\n    smmil train --ot x\n"
    )
    assert commands(text)[0].split() == ["smmil", "train", "--manifest", "m.csv", "--out", "run"]
    assert [problem(line) is None for line in commands(text)] == [True, False, True, False]
    assert sum(len(commands(page.read_text(encoding="utf-8"))) for page in PAGES) > 150


def test_a_verb_that_is_only_spoken_of_is_told_from_a_command():
    spoken = ["smmil train", "smmil view", "smmil convert … --to native", "smmil predict --ensemble"]
    assert all(is_mention(line) for line in spoken)
    meant = ["smmil models", "smmil view p --slides s", "smmil --version", "smmil evaluate p --ci"]
    assert not any(is_mention(line) for line in meant)


def test_links_of_llms_txt_lead_to_pages():
    links = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

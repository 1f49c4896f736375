from __future__ import annotations

import pytest

from runtime.command_line import Parser
from runtime.errors import ConfigError

FOREIGN = {"--gpu*": "set CUDA_VISIBLE_DEVICES", "-es": "leave it out", "configs/*": "not read"}


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="p", foreign=FOREIGN, synonyms={"--epochs": "--length"})
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", type=int)
    parser.add_argument("-np", "--ranks")
    parser.add_argument("-p", "--port", type=int)
    return parser


@pytest.mark.parametrize("word", ["--mode", "--m", "--len", "--rank", "-n"])
def test_an_abbreviation_is_no_option(parser: Parser, word: str) -> None:
    with pytest.raises(ConfigError, match=f"unrecognized arguments: {word} 1"):
        parser.parse_args(["--model", "a", word, "1"])
    namespace, unknown = parser.parse_known_args(["--model", "a", f"{word}=b"])
    assert namespace.model == "a" and unknown == [f"{word}=b"]
    # Neither is it one of a subcommand.
    outer = Parser(prog="p")
    outer.add_subparsers().add_parser("run").add_argument("--model")
    with pytest.raises(ConfigError, match=f"unrecognized arguments: {word}=b"):
        outer.parse_args(["run", f"{word}=b"])


@pytest.mark.parametrize("words", [["-p22"], ["-p", "22"], ["-p=22"]])
def test_values_of_short_names_and_synonyms(parser: Parser, words: list[str]) -> None:
    found = parser.parse_args(["--model", "a", "-np", "2", "--epochs=3", *words])
    assert (found.port, found.ranks, found.length) == (22, "2", 3)


def test_options_of_other_programs_are_answered_before_required_ones(parser: Parser) -> None:
    with pytest.raises(ConfigError) as failure:
        parser.parse_args(["--gpus=0,1", "-es", "512"])
    assert str(failure.value) == (
        "--gpus is not an option here: set CUDA_VISIBLE_DEVICES; -es is not an option here: leave "
        "it out (docs/porting.md has the others)"
    )
    with pytest.raises(ConfigError, match="configs/a is not an option here: not read"):
        parser.parse_args(["--model", "a", "configs/a"])
    parser.add_argument("command", nargs="*")
    # Values, and the command after two dashes, are none of another program.
    found = parser.parse_args(["--model", "configs/a", "--", "python", "--gpus", "0"])
    assert found.model == "configs/a" and found.command == ["python", "--gpus", "0"]

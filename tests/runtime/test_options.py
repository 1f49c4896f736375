import json
import re
from pathlib import Path
from typing import Any

import pytest

from runtime import options
from runtime.command_line import Parser
from runtime.errors import ConfigError
from tests.support.typed import replaced
from training.config import faces, images

ADAM = "--dataset synthetic --optimizer adam --lr 1e-3 --wd 0"


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="p", foreign="options of train.py", synonyms={"--epochs": "--length"})
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
    outer = Parser(prog="p")
    outer.add_subparsers().add_parser("run").add_argument("--model")
    with pytest.raises(ConfigError, match=f"unrecognized arguments: {word}=b"):
        outer.parse_args(["run", f"{word}=b"])


@pytest.mark.parametrize("words", [["-p22"], ["-p", "22"], ["-p=22"]])
def test_values_of_short_names_and_synonyms(parser: Parser, words, monkeypatch) -> None:
    """Without words, those of the process."""
    monkeypatch.setattr("sys.argv", ["p", "--model", "a", "-np", "2", "--epochs=3", *words])
    found = parser.parse_args()
    assert (found.port, found.ranks, found.length) == (22, "2", 3)


def test_options_of_other_programs_are_answered_before_required_ones(parser: Parser) -> None:
    with pytest.raises(ConfigError) as failure:
        parser.parse_args(["--images-filter=3", "--bn_mom", "0.9"])
    assert str(failure.value) == (
        "--images-filter is not an option here: type `--min-images 3`; --bn_mom is not an option "
        "here: leave it out; it is 0.9, as there (docs/porting.md has the others)"
    )
    with pytest.raises(ConfigError, match="configs/a is not an option here: type `--rec .`; with"):
        parser.parse_args(["--model", "a", "configs/a"])
    parser.add_argument("command", nargs="*")
    # Values, and the command after two dashes, are none of another program.
    found = parser.parse_args(["--model", "configs/a", "--", "python", "--cutoff", "0"])
    assert found.model == "configs/a" and found.command == ["python", "--cutoff", "0"]


@pytest.mark.parametrize(("program", "name", "allowed", "refused"), [
    (faces, "batch_size", [1], [0]), (faces, "keep", [0], [-1]), (faces, "lr", [1e-9], [0.0]),
    (faces, "sample_ratio", [1e-9, 1.0], [0.0, 1.01]), (faces, "gray", [0.0, 1.0], [-0.01, 1.01]),
    (faces, "momentum", [0.0, 0.999], [-0.001, 1.0]), (faces, "seed", [0, 2**32 - 1], [-1, 2**32]),
    (images, "label_smoothing", [0.0, 0.999], [-0.01, 1.0]), (images, "mixup", [0.0], [-1e-6]),
    (images, "image_size", [8], [7]),
])  # fmt: skip
def test_the_ends_of_a_range(program: Any, name: str, allowed: list, refused: list) -> None:
    plain = program.resolve({"dataset": "synthetic"})
    for value in allowed:
        options.check(replaced(plain, **{name: value}))
    for value in refused:
        with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} .* must "):
            options.check(replaced(plain, **{name: value}))


def test_a_schedule_on_the_command_line_replaces_that_of_a_recipe() -> None:
    def of(line: str) -> Any:
        schedule = images.parse(f"--data-dir d {line}".split()).schedule
        return schedule.lr_schedule, schedule.lr_steps, schedule.lr_factor

    assert of("--dataset mnist") == ("step", (), 1.0)
    assert of("--dataset mnist --lr-steps 3") == ("step", (3,), None)
    assert of("--dataset imagenet --lr-factor 0.2 --lr-steps 30") == ("step", (30,), 0.2)
    schedule = faces.parse("--dataset 100w --lr-factor 0.5".split()).schedule
    assert (schedule.lr_steps, schedule.lr_factor) == ((), 0.5)


def saved_by(program: Any, folder: Path, line: str) -> list[str]:
    file = folder / "config.json"
    options.write(program.parse(line.split()).values(), file)
    return ["--config", str(file)]


@pytest.mark.parametrize(("program", "line", "more"), [
    (faces, "--dataset synthetic --loss arcface --seed 7", "--margins 1,0.3,0"),
    (faces, "--dataset synthetic --margins 1,0.3,0.2 --center-lr 0.3", "--lr 0.3"),
    (faces, "--dataset synthetic", "--models-root other --network r18"),
    (faces, ADAM, "--lr 2e-3"),
    (faces, "--dataset emore --debug --max-update 7 --lr-steps 3,5", "--seed 3"),
    (faces, "--rec . --epochs 3 --models-root m", "--seed 3"),
    (images, "--dataset synthetic", "--lr-schedule step --lr-steps 2,3"),
    (images, "--dataset imagenet --data-dir d --mixup 0.2 --no-lr-scaling", "--lr-power 1"),
])  # fmt: skip
def test_a_saved_configuration_gives_the_same_run(program, line, more, tmp_path: Path) -> None:
    saved = saved_by(program, tmp_path, line)
    assert program.parse(saved) == program.parse(line.split())
    found = program.parse([*saved, *more.split()])
    # The folder of the run is the saved one, whose name does not follow the network any more.
    expected = program.parse([*line.split(), *more.split()])
    assert replaced(expected, models_root=found.run.models_root) == found
    assert "models-root" not in more or found.run.models_root == "other"


@pytest.mark.parametrize(("program", "line", "more", "message"), [
    (faces, "--dataset synthetic", "--optimizer adam", "--optimizer adam needs --lr and --wd"),
    (faces, "--dataset synthetic", "--dataset emore --debug", "is another data set than synt"),
    (images, "--dataset synthetic", "--dataset mnist --data-dir d", "is another data set than"),
])  # fmt: skip
def test_words_that_contradict_a_saved_configuration(program, line, more, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        program.parse([*saved_by(program, tmp_path, line), *more.split()])


@pytest.mark.parametrize(("content", "said"), [
    (None, "cannot be read (No such file"),
    ("[" * 100_000, "is no table in JSON"),
    ('{"los": "arcface"}', "config.json: --los is not an option (did you mean '--loss'?)"),
    ('{"lr": NaN}', "--lr: 'nan'"),
    ('{"epochs": true}', "--epochs: expected one argument"),
    ('{"epochs": false}', "--epochs: invalid int value: 'False'"),
    ('{"margins": [1, 0]}', "--margins: invalid margins value: '1,0'"),
    ('{"dataset": "synthetic", "lr": -1}', "--lr -1 must be above 0"),
    ('{"dataset": "synthetic", "lr_steps": [2, 2]}', "--lr-steps 2,2"),
    ('{"dataset": "synthetic", "lr_schedule": "step"}', "--lr-schedule step"),
], ids=str)  # fmt: skip
def test_mistakes_in_a_saved_configuration_are_one_line(content, said, tmp_path) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"^.*{re.escape(said)}.*$"):
        faces.parse(["--config", str(file)])


def test_a_file_may_name_record_sets_alone_and_null(tmp_path: Path) -> None:
    folders = [f"{tmp_path}/people", f"{tmp_path}/more, people"]
    for folder in folders:
        Path(folder).mkdir()
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"rec": folders, "max_update": None}))
    found = faces.parse(["--config", str(file)])
    assert found.data.rec == tuple(folders)
    assert found == faces.parse(["--rec", folders[0], "--rec", folders[1]])

"""What bfloat16 does to the loss and the accuracy of a run, beside what rounding alone does.

    python -m benchmarks.precision --folder DIR [--rec DIR] [--seeds 1,2,3] [--forms float32,...]
        [--json FILE]

Each form trains the quick start (``bash run.sh``), or README's recipe for one's own faces on the
set of ``--rec``, once with every seed. One form is float32 with other instructions: it adds up the
same products in another order, and so shows by how much two runs differ that are equally good. A
run that is complete in the folder is not trained again. A processor with AVX-512 but without
bfloat16 computes it as if there were AMX tiles (``benchmarks/emulated_tiles``). The report goes to
the standard output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import measure
from evaluation.report import run_files
from runtime import processors
from runtime.command_line import Parser, positive_integer
from runtime.environment import bfloat16_unit
from runtime.errors import ConfigError, run_program

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "float32"


class Form(NamedTuple):
    """A form of the run: its name in the report, and its options."""

    name: str
    options: Sequence[str] = ()


FORMS: Mapping[str, Form] = {
    REFERENCE: Form("float32"),
    "avx2": Form("float32, AVX2"),
    "bfloat16": Form("`--dtype bfloat16`", ("--dtype", "bfloat16")),
}
_OWN_FACES = (
    *("--network", "tiny", "--val-targets", "holdout", "--embedding-size", "128"),
    *("--margins", "1,0,0.2", "--scale", "32", "--lr", "0.1", "--lr-schedule", "cosine"),
    *("--warmup", "30", "--max-update", "500"),
)
# The loss of a single update depends on its images; over so many the learning rate is near zero.
LAST_UPDATES = 20
# In the folder of a run that is complete.
_END = "end.json"


class End(NamedTuple):
    """What a run ended with.

    Attributes:
        loss: the mean of the last ``LAST_UPDATES`` updates.
        accuracy: of the last verification.
        commit: that trained it.
    """

    loss: float
    accuracy: float
    commit: str


Ends = Mapping[str, Sequence[End]]
"""The ends of the runs of each form, in the order of the seeds."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train what is not there yet, print the report and write the rows."""
    options = _parse(argv)
    case = "quick-start" if options.rec is None else options.rec.resolve().name
    # All forms of a seed before the next seed: what is there after an interruption is comparable.
    runs: dict[str, list[End]] = {form: [] for form in options.forms}
    for seed in options.seeds:
        for form in options.forms:
            print(f"training {form}, seed {seed}", file=sys.stderr)
            folder = options.folder.resolve() / case / f"{form}-{seed}"
            runs[form].append(train(folder, form, seed, options.rec))
    print(report(case, options.seeds, runs))
    if options.json:
        measure.write_json(options.json, list(rows(case, runs)))


def train(folder: Path, form: str, seed: int, rec: Optional[Path]) -> End:
    """Train a run, or go on with it, unless it is complete; returns its end."""
    kept = folder / _END
    if kept.is_file():
        return End(**json.loads(kept.read_text(encoding="utf-8")))
    words = ["bash", "run.sh", "--models-root", str(folder), "--seed", str(seed), "--frequent", "1"]
    if rec is not None:
        words += ["--rec", str(rec.resolve()), *_OWN_FACES]
    done = subprocess.run(
        [*words, *FORMS[form].options],
        cwd=ROOT,
        env={**os.environ, **environment(form)},
        stdout=sys.__stderr__,
        check=False,
    )
    if done.returncode:
        # It has said why.
        sys.exit(done.returncode)
    reached = end(folder)
    kept.write_text(json.dumps(reached._asdict()) + "\n", encoding="utf-8")
    return reached


def environment(form: str) -> dict[str, str]:
    """The variables of a form's runs."""
    if form == "avx2":
        return {"DNNL_MAX_CPU_ISA": "AVX2"}
    if form == "bfloat16" and bfloat16_unit() is None:
        paths = [str(Path(__file__).parent / "emulated_tiles"), str(ROOT)]
        if not processors.has_avx512():
            raise ConfigError(
                "--forms bfloat16: this processor has no AVX-512, without which oneDNN has no "
                "products of bfloat16; leave it out"
            )
        return {"PYTHONPATH": os.pathsep.join(paths)}
    return {}


def end(folder: Path) -> End:
    """Read what a run ended with."""
    files = run_files.read(folder)
    (target,) = files.targets.values()
    losses = [record["loss"] for record in files.training[-LAST_UPDATES:]]
    return End(statistics.mean(losses), target[-1]["accuracy"], measure.commit())


def of_differences(values: Sequence[float]) -> tuple[float, float]:
    """The mean over the seeds, and its standard error (infinite of one seed)."""
    if len(values) < 2:
        return statistics.mean(values), math.inf
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def rows(case: str, runs: Ends) -> list[measure.Row]:
    """The means of each form."""
    return [
        measure.Row(case, f"{form}, {name}", statistics.mean(values), unit)
        for form, ends in runs.items()
        for name, unit, values in (
            ("loss", "", [one.loss for one in ends]),
            ("accuracy", "", [one.accuracy for one in ends]),
        )
    ]


def report(case: str, seeds: Sequence[int], runs: Ends) -> str:
    """Describe the machine and the ends of the runs, as Markdown."""
    lines = [_line(form, ends, runs[REFERENCE]) for form, ends in runs.items()]
    header = (
        *("", "accuracy", "difference of means", "furthest"),
        *("loss", "ratio of means", "furthest"),
    )
    commits = sorted({one.commit for ends in runs.values() for one in ends})
    unit = bfloat16_unit()
    computed = unit.value if unit else "AVX-512, as if there were AMX tiles"
    return f"""# What bfloat16 does to a run: {case}

{measure.machine()}

`bash run.sh`, two ranks, seeds {", ".join(map(str, seeds))}. The loss is the mean of the last
{LAST_UPDATES} updates. Differences and ratios are to float32 with the same seed: the mean over the
seeds with its standard error, and the seed that is furthest from float32. bfloat16 was computed
with {computed}. Trained at {", ".join(commits)}.

{measure.markdown_table(header, lines)}"""


def _line(form: str, ends: Sequence[End], reference: Sequence[End]) -> Sequence[str]:
    cells = [FORMS[form].name, ", ".join(f"{one.accuracy:.4f}" for one in ends)]
    differences = [one.accuracy - other.accuracy for one, other in zip(ends, reference)]
    ratios = [one.loss / other.loss for one, other in zip(ends, reference)]
    losses = ", ".join(f"{one.loss:.3f}" for one in ends)
    if form == REFERENCE:
        return (*cells, "", "", losses, "", "")
    mean, error = of_differences(differences)
    cells += [f"{mean:+.4f} ± {error:.4f}", f"{max(differences, key=abs):+.4f}", losses]
    mean, error = of_differences(ratios)
    furthest = max(ratios, key=lambda one: abs(one - 1))
    return (*cells, f"{mean:.3f} ± {error:.3f}", f"{furthest:.3f}")


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.precision",
        description="Train with float32 and with bfloat16, and compare where the runs end.",
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="for the runs; kept"
    )
    parser.add_argument(
        "--rec", type=Path, metavar="DIR", help="a set of faces with pairs in holdout.bin"
    )
    parser.add_argument("--seeds", type=_seeds, default="1,2,3", help="(%(default)s)")
    parser.add_argument(
        "--forms", type=_forms, default=",".join(FORMS), help="which of %(default)s; with float32"
    )
    parser.add_argument("--json", type=measure.file_to_write, metavar="FILE", help="write the rows")
    return parser.parse_args(argv)


def _seeds(text: str) -> list[int]:
    return [positive_integer(word.strip()) for word in text.split(",")]


def _forms(text: str) -> list[str]:
    forms = [word.strip() for word in text.split(",")]
    unknown = [form for form in forms if form not in FORMS]
    if unknown or REFERENCE not in forms:
        raise argparse.ArgumentTypeError(
            f"{text}: there are {', '.join(FORMS)}, and {REFERENCE} must be among them"
        )
    return forms


if __name__ == "__main__":
    run_program(main)

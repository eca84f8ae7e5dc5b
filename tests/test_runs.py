"""Which run an --out holds, and what may be done with it."""

import json
import os
from pathlib import Path

import pytest

from trnt import runs
from trnt.errors import TrntError, UsageError

ID = {"model": "m", "seq_len": 8}


def make_run(folder: Path, identity: dict[str, object] | None = None, steps: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    runs.write_json(folder / "run.json", {"identity": identity or ID})
    for step in steps:
        (folder / "checkpoint" / step).mkdir(parents=True)
    return folder


def start(out: Path | None, resume: str = "auto", force: bool = False, tmp: Path = Path("runs")) -> runs.Start:
    return runs.choose_start(
        out=str(out) if out else None, runs_dir=str(tmp), resume=resume, force=force, model="m", identity=ID
    )


def test_only_exact_step_names_are_steps(tmp_path: Path) -> None:
    for name in ("step-9", "step-10", "step-100", "step-100.backup", "STEP-200", "step-300-ext", "step-7.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-400").write_text("a file")
    assert list(runs.steps(tmp_path)) == [9, 10, 100]


def test_a_new_run_never_takes_a_name_in_use(tmp_path: Path) -> None:
    first = runs.new_run(str(tmp_path), "m")
    first.mkdir()
    assert runs.new_run(str(tmp_path), "m") != first


def test_auto_resumes_the_same_run_and_refuses_another(tmp_path: Path) -> None:
    same = make_run(tmp_path / "a")
    assert start(same) == runs.Start(same, resume=True)
    other = make_run(tmp_path / "b", {"model": "m", "seq_len": 16})
    with pytest.raises(UsageError, match="seq_len 16 -> 8"):
        start(other)


def test_never_refuses_a_folder_with_a_run_and_force_moves_it_aside(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text("kept")
    with pytest.raises(UsageError, match="already holds a run"):
        start(run, resume="never")
    assert start(run, resume="never", force=True) == runs.Start(run, resume=False)
    aside = next(tmp_path.glob("a.replaced-*"))
    assert (aside / "metrics.jsonl").read_text() == "kept"


def test_a_folder_with_other_files_is_refused_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("x")
    for force in (False, True):
        with pytest.raises(UsageError, match="not a run"):
            start(tmp_path, force=force)
    (tmp_path / "f").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        start(tmp_path / "f")


def test_a_missing_step_names_those_that_exist(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=("step-3", "step-6"))
    with pytest.raises(UsageError) as caught:
        start(tmp_path / "b", resume=str(run / "checkpoint" / "step-999"))
    assert "step-3, step-6" in caught.value.fix
    with pytest.raises(UsageError, match="no run folder"):
        start(tmp_path / "b", resume=str(tmp_path / "nowhere"))


def test_resume_from_a_step_of_the_same_folder_goes_on_in_place(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=("step-3", "step-6"))
    assert start(run, resume=str(run / "checkpoint" / "step-3")) == runs.Start(run, resume=True, step=3)
    got = start(tmp_path / "b", resume=str(run / "checkpoint" / "step-3"))
    assert got == runs.Start(tmp_path / "b", resume=False, source=run / "checkpoint" / "step-3")


def test_newest_run_is_the_one_that_saved_last(tmp_path: Path) -> None:
    with pytest.raises(TrntError, match="no run"):
        runs.newest_run(str(tmp_path))
    for number, name in enumerate(("b", "a", "c")):
        run = make_run(tmp_path / name, steps=("step-1",))
        os.utime(run / "checkpoint" / "step-1", (1000 + number, 1000 + number))
    make_run(tmp_path / "empty")
    assert runs.newest_run(str(tmp_path)).name == "c"


def test_a_broken_run_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(TrntError, match=r"run\.json"):
        runs.read_run(tmp_path)


def test_write_json_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    runs.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        runs.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_full_disk_or_a_closed_folder_is_found_before_training(tmp_path: Path) -> None:
    runs.check_writable(tmp_path / "new" / "deep", 1)
    with pytest.raises(TrntError, match="are free"):
        runs.check_writable(tmp_path, 1 << 60)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrntError, match="cannot write"):
        runs.check_writable(tmp_path / "file" / "sub", 1)

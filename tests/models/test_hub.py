"""Hub ids: downloaded by the library's own code, from a Hub that is played by the test; one line when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from trnt.errors import TrntError, UsageError
from trnt.models import hub


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert hub.resolve(str(tmp_path)) == tmp_path
    with pytest.raises(UsageError, match="--revision is for Hub ids"):
        hub.resolve(str(tmp_path), "main")


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "./a/b", "/a/b", "a/", "-a/b"])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no folder"):
        hub.resolve(name)


def test_offline_is_one_line_with_what_to_type() -> None:
    with pytest.raises(TrntError, match=r"no folder nobody/nothing here, .* the Hub cannot be reached") as caught:
        hub.resolve("nobody/nothing")
    assert "hf download nobody/nothing" in caught.value.fix


def test_weights_configs_and_tokenizer_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def snapshot(repo: str, **words: Any) -> str:
        asked.append({"repo": repo, **words})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    files = ["model.safetensors", "pytorch_model.bin"]
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, repo, revision: files)
    assert hub.resolve("Some/Model", "v1") == tmp_path
    files.remove("model.safetensors")
    hub.resolve("Some/Model")
    assert [(a["repo"], a["revision"]) for a in asked] == [("Some/Model", "v1"), ("Some/Model", None)]
    assert "pytorch_model*.bin" not in asked[0]["allow_patterns"]
    assert "pytorch_model*.bin" in asked[1]["allow_patterns"]


@pytest.mark.parametrize(
    ("kind", "cause", "fix"),
    [
        ("GatedRepoError", "asks for its terms", "hf auth login"),
        ("RepositoryNotFoundError", "no Hub repository", "check the name"),
        ("RevisionNotFoundError", "no revision v9", "--revision"),
    ],
)
def test_the_hub_s_refusals_are_one_line(monkeypatch: pytest.MonkeyPatch, kind: str, cause: str, fix: str) -> None:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(404, request=httpx.Request("GET", "http://hub.test"))

    def refuse(self: Any, repo: str, revision: str | None) -> None:
        raise getattr(errors, kind)("no", response=response)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", refuse)
    with pytest.raises(TrntError, match=cause) as caught:
        hub.resolve("some/model", "v9")
    assert fix in caught.value.fix

"""Paths lead to the right model folder, and bad folders are refused by what they lack."""

import pytest

from posttrain.errors import ModelError
from posttrain.models.complete import seal
from posttrain.models.locate import check_folder, fingerprint, is_adapter, looks_like_folder, resolve_model_path


def make_model(folder, *, weights=b"w" * 8):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def make_checkpoint(run, step, *, whole=True):
    checkpoint = run / "checkpoints" / f"step-{step:06d}"
    make_model(checkpoint / "model")
    if whole:
        seal(checkpoint)
    return checkpoint


def test_model_folder_is_itself(tmp_path):
    folder = make_model(tmp_path / "m")
    assert folder == resolve_model_path(folder)


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_model(tmp_path / "m") == resolve_model_path("~/m")


def test_checkpoint_gives_its_model(tmp_path):
    checkpoint = make_checkpoint(tmp_path, 120)
    assert checkpoint / "model" == resolve_model_path(checkpoint)


def test_run_gives_its_newest_checkpoint(tmp_path):
    make_checkpoint(tmp_path, 90)
    newest = make_checkpoint(tmp_path, 120)
    assert newest / "model" == resolve_model_path(tmp_path)


def test_checkpoints_folder_gives_its_newest(tmp_path):
    newest = make_checkpoint(tmp_path, 120)
    assert newest / "model" == resolve_model_path(tmp_path / "checkpoints")


def test_torn_newest_checkpoint_is_passed_over(tmp_path):
    earlier = make_checkpoint(tmp_path, 90)
    make_checkpoint(tmp_path, 120, whole=False)
    assert earlier / "model" == resolve_model_path(tmp_path)


def test_shortened_newest_checkpoint_is_passed_over(tmp_path):
    earlier = make_checkpoint(tmp_path, 90)
    (make_checkpoint(tmp_path, 120) / "model" / "model.safetensors").write_bytes(b"w")
    assert earlier / "model" == resolve_model_path(tmp_path)


def test_run_without_whole_checkpoint_says_why(tmp_path):
    make_checkpoint(tmp_path, 120, whole=False)
    with pytest.raises(ModelError, match=r"no whole checkpoint.*step-000120: it has no COMPLETE"):
        resolve_model_path(tmp_path)


def test_run_without_any_checkpoint_says_so(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ModelError, match="there is none yet"):
        resolve_model_path(tmp_path)


def test_torn_checkpoint_itself_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"cannot be used.*Take an earlier one"):
        resolve_model_path(make_checkpoint(tmp_path, 3, whole=False))


def test_absent_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"absent does not exist"):
        resolve_model_path(tmp_path / "absent")


def test_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"w")
    with pytest.raises(ModelError, match="is a file; give the folder"):
        resolve_model_path(tmp_path / "model.safetensors")


def test_good_folder_passes(tmp_path):
    assert check_folder(make_model(tmp_path / "m")) is None


def test_folder_without_config_lists_what_it_holds(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelError, match=r"no config.json.*notes.txt"):
        check_folder(tmp_path)


def test_folder_without_weights_is_refused(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="a model folder without weights"):
        check_folder(folder)


def test_empty_weight_file_counts_as_none(tmp_path):
    with pytest.raises(ModelError, match="without weights"):
        check_folder(make_model(tmp_path / "m", weights=b""))


def test_folder_without_tokenizer_is_refused(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        check_folder(folder)


def test_older_weight_files_pass(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00001.bin")
    assert check_folder(folder) is None


def test_adapters_need_weights_but_no_tokenizer(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"w")
    assert is_adapter(tmp_path)
    assert check_folder(tmp_path) is None


def test_whole_model_is_no_adapter(tmp_path):
    assert not is_adapter(make_model(tmp_path / "m"))


@pytest.mark.parametrize("path", ["./m", "/m", "~/m", "a/b/c", "runs/", "..\\m"])
def test_paths_look_like_folders(path):
    assert looks_like_folder(path)


@pytest.mark.parametrize("path", ["gpt2", "owner/name"])
def test_hub_names_do_not(path):
    assert not looks_like_folder(path)


def test_fingerprint_is_stable_over_copies(tmp_path):
    assert fingerprint(make_model(tmp_path / "a")) == fingerprint(make_model(tmp_path / "b"))


def test_fingerprint_changes_with_the_weights(tmp_path):
    assert fingerprint(make_model(tmp_path / "a")) != fingerprint(make_model(tmp_path / "b", weights=b"v" * 8))


def test_fingerprint_changes_with_the_tokenizer(tmp_path):
    before = fingerprint(make_model(tmp_path / "a"))
    (tmp_path / "a" / "tokenizer.json").write_text("{ }")
    assert before != fingerprint(tmp_path / "a")


def test_fingerprint_ignores_other_files(tmp_path):
    before = fingerprint(make_model(tmp_path / "a"))
    (tmp_path / "a" / "README.md").write_text("hello")
    assert before == fingerprint(tmp_path / "a")


def test_fingerprint_of_a_large_file_sees_both_ends(tmp_path):
    prints = set()
    for number, offset in enumerate([None, 0, (80 << 20) - 1]):
        folder = make_model(tmp_path / str(number))
        with open(folder / "model.safetensors", "wb") as stream:
            stream.truncate(80 << 20)
            if offset is not None:
                stream.seek(offset)
                stream.write(b"x")
        prints.add(fingerprint(folder))
    assert 3 == len(prints)

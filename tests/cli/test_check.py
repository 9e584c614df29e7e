"""``posttrain check``: a table of verdicts, exit code 0 or 3, and nothing written."""


def test_a_healthy_model(posttrain):
    done = posttrain("check", "grpo.toml")
    assert (0, True, True) == (done.code, "✓ first-step ratio is 1" in done.out, "invariants hold, 0 fail" in done.out)


def test_demonstrations_too(posttrain):
    assert 0 == posttrain("check", "sft.toml").code


def test_a_broken_invariant_ends_with_3(posttrain, monkeypatch):
    monkeypatch.setattr("posttrain.checks.exactness.tolerance", lambda learner: -1.0)
    done = posttrain("check", "grpo.toml")
    assert (3, True) == (done.code, "✗ first-step ratio is 1" in done.out)


def test_nothing_is_written(posttrain, here):
    before = sorted(path.name for path in here.iterdir())
    posttrain("check", "grpo.toml")
    assert before == sorted(path.name for path in here.iterdir())


def test_notes_keep_their_brackets(posttrain, monkeypatch):
    monkeypatch.setattr("posttrain.assemble.remarks", lambda *_: ["betas = [0.9] and [dim]"])
    assert "betas = [0.9] and [dim]" in posttrain("check", "sft.toml").out

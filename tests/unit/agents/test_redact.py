from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.redact import MASK, redact

TRACES = Path(__file__).parents[4] / "shared" / "traces"
HEX40 = "0123456789abcdef0123456789abcdef01234567"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("password=hunter2", "hunter2"),
        ("db_password: 'correct horse'", "correct horse"),
        ('{"api_key": "abc def", "lr": 1}', "abc def"),
        ("export WANDB_API_KEY=" + HEX40, HEX40),
        ("wandb login --relogin " + HEX40, HEX40),
        ("Authorization: Bearer abc.DEF-123", "abc.DEF-123"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("curl -H 'Authorization: token 9f8e7d6c'", "9f8e7d6c"),
        ("cloning https://bob:s3cr3t@git.example.org/x", "s3cr3t"),
        ("proxy http://u:p@ss@10.0.0.1:3128", "p@ss"),
        ("AKIAIOSFODNN7EXAMPLE is our key id", "AKIAIOSFODNN7EXAMPLE"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
        ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx", "hf_AbCdEfGhIjKl"),
        ("token hf_AbCdEfGhIjKlMnOpQrStUvWx expired", "hf_AbCdEfGhIjKl"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abc"),
        ("--token abcdefghij --lr 1", "abcdefghij"),
        (f"jwt {JWT}", "dozjgNryP4J3"),
        ("-----BEGIN RSA PRIVATE KEY-----MIIEow", "MIIEow"),
        ("MIIEowIBAAKCAQEAx4UbaDzY5xjW6hc9jwN0mX33XpTDVW8WqHp5AKaRbtAC3DqX", "MIIEow"),
        ("MYSQL_PWD=abc", "abc"),
    ],
)
def test_secrets_go(line: str, secret: str) -> None:
    assert secret not in redact(line)
    assert MASK in redact(line)


@pytest.mark.parametrize(
    "line",
    [
        "step 5 | tokens: 4096 | tokens/s: 173073 | loss per token: 2.345678901",
        "eos_token: '<|endoftext|>' pad_token=[PAD-TOKEN]",
        "max_new_token: 100000000",
        "PWD=/home/user/work",
        "NVRM: Xid (PCI:0000:43:00): 13, pid=7, Graphics Exception: ESR 0x52e7b0=0x101000e",
        "tcp://10.0.0.1:29500 rendezvous",
        "https://example.org/a@b",
        "the key to the keyboard",
        "iteration 5/10 | author: none",
    ],
)
def test_other_lines_stay(line: str) -> None:
    assert redact(line) is line or redact(line) == line


def test_what_stands_around_a_secret_stays() -> None:
    assert redact("user=bob password=x1 lr=3") == f"user=bob password={MASK} lr=3"
    assert redact("https://bob:pw@host/x") == f"https://{MASK}@host/x"


secret_text = st.text("abcdefXYZ0123456789+/_-.", min_size=12, max_size=40).map(lambda t: "Q9" + t)
around = st.text("abc ,;|:", max_size=20)


@given(around, secret_text, around)
def test_a_password_never_survives(before: str, secret: str, after: str) -> None:
    for line in (
        f"{before} password={secret} {after}",
        f"{before} API_KEY: '{secret}' {after}",
        f'{before} {{"client_secret": "{secret}"}} {after}',
        f"{before} Bearer {secret.replace('/', '').replace(' ', '')} {after}",
    ):
        assert secret not in redact(line)


@given(st.text(max_size=300))
def test_any_line_goes_through_and_once_is_enough(line: str) -> None:
    once = redact(line)
    assert redact(once) == once


def test_no_line_of_the_recordings_changes() -> None:
    logs = [*TRACES.glob("*/*.log"), *TRACES.glob("*/dmesg.txt")]
    if not logs:
        pytest.skip("the recordings are not here")
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            assert redact(line) == line

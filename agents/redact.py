"""Secrets out of log lines, before they leave the node.

A line is first searched for words that any secret stands beside; most have none and pass at the
cost of that search. Numbers are never touched: ``tokens: 4096`` is a measurement.
"""

import re

MASK = "[redacted]"
_CLUES = (
    "://",
    "-----begin",
    "akia",
    "apikey",
    "asia",
    "auth",
    "bearer",
    "credential",
    "eyj",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "hf_",
    "key",
    "passphrase",
    "passw",
    "pwd",
    "secret",
    "sk-",
    "token=",
    "token:",
    'token"',
    "token'",
    "token ",
    "token\\",
    "wandb",
    "xox",
)
_NAME = (
    r"passwords?|passwd|passphrase|pwd|secret(?:[_-]?access)?(?:[_-]?key)?|api[_-]?key"
    r"|access[_-]?key(?:[_-]?id)?|(?:private|encryption|signing|account)[_-]?key|credentials?|token"
)
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|[^\s&;'"]+)"""
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.*-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|.*)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"
    r"|\bxox[a-z]-[\w-]{10,}"
    r"|\bsk-[\w-]{20,}"
    r"|\bwandb_v\d+_\w{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|(?P<url>://)(?:[^\s/@]+@)+"
    r"|(?P<header>\bauthorization\\?[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|token|digest)\s+)?)[^\s\"',]+"
    r"|(?P<bearer>\bbearer\s+)[\w.~+/=-]{8,}"
    r"|(?P<login>\bwandb\s+login\s+(?:--\S+\s+)*)[0-9a-f]{32,}"
    rf"|(?P<option>--[\w-]*(?:{_NAME})\s+)(?P<given>(?!-){_VALUE})"
    rf"|(?P<assign>(?P<name>{_NAME})\\?[\"']?\s*(?:=>|[=:])\s*)(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[\"'(\[{]?[-+]?[\d.,_]+(?:e[-+]?\d+)?[)\]},;%/a-z\"']{0,3}", re.IGNORECASE)
_VOCABULARY = re.compile(
    r"(?:eos|bos|pad|unk|mask|sep|cls|per|image|special|next|max|new|num|end|start)[_ -]?$",
    re.IGNORECASE,
)
_KEY_BODY = re.compile(r"\s*[A-Za-z0-9+/]{40,}={0,2}\s*")
_GROUPS = ("url", "header", "bearer", "login", "option", "assign")


def redact(line: str) -> str:
    """The line with its secrets masked; the very line where it has none.

    >>> redact("export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567")
    'export WANDB_API_KEY=[redacted]'
    >>> redact("step 5 | tokens: 4096 | loss per token: 2.5")
    'step 5 | tokens: 4096 | loss per token: 2.5'
    """
    lowered = line.lower()
    if any(clue in lowered for clue in _CLUES):
        line = _SECRET.sub(_masked, line)
    # A line of nothing but base64 is the inside of a key whose first line is elsewhere.
    return MASK if _KEY_BODY.fullmatch(line) else line


def _masked(match: "re.Match[str]") -> str:
    if match["assign"] and _is_harmless(match):
        return match[0]
    before = next((match[group] for group in _GROUPS if match[group]), "")
    return f"{before}{MASK}@" if match["url"] else f"{before}{MASK}"


def _is_harmless(match: "re.Match[str]") -> bool:
    name, value = match["name"].lower(), match["value"]
    if name == "pwd":
        return value.startswith(("/", '"/', "'/"))  # the shell's working directory
    if name != "token":
        return value.strip("\"'") in {"", MASK}
    before = match.string[max(0, match.start() - 12) : match.start()]
    bare = value.strip("\"'")
    return len(bare) < 8 or bool(_NUMBER.fullmatch(value)) or bool(_VOCABULARY.search(before))

"""``stethoscope explain``: what a code or a cause means, and what to do."""

from typing import Annotated

import typer

from stethoscope.schemas.errors import UsageError

explain_app = typer.Typer(
    name="explain", help="What an Xid, SXid or cause means; what to do.", no_args_is_help=True
)


@explain_app.command()
def xid(code: Annotated[int, typer.Argument(help="The number, as in the kernel line.")]) -> None:
    """An error code of the NVIDIA kernel driver."""
    from stethoscope.schemas.xid import xid_catalogue

    known = xid_catalogue()
    if code not in known:
        msg = f"xid {code} is not in the catalogue; known are {min(known)} to {max(known)}"
        raise UsageError(msg)
    entry = known[code]
    _print(
        f"Xid {code}: {entry.name}",
        severity=entry.severity,
        cause=entry.cause,
        scope=entry.scope,
        action=_action(entry.action),
        usually="brought about by the program" if entry.user_code else "",
        mnemonic=entry.mnemonic,
    )


@explain_app.command()
def sxid(code: Annotated[int, typer.Argument(help="The number, as in the kernel line.")]) -> None:
    """An error code of an NVSwitch."""
    from stethoscope.schemas.sxid import sxid_catalogue

    known = sxid_catalogue()
    if code not in known:
        msg = f"sxid {code} is not in the catalogue; known are {min(known)} to {max(known)}"
        raise UsageError(msg)
    entry = known[code]
    _print(
        f"SXid {code}: {entry.name}",
        severity=entry.severity,
        cause="nvswitch_error",
        scope=entry.fatal_class.replace("_", " "),
        action=_action(entry.action),
        mnemonic=entry.mnemonic,
    )


@explain_app.command()
def cause(
    name: Annotated[str, typer.Argument(help="As in an alert's label `cause`, or `alertname`.")],
) -> None:
    """A cause: how loud it is, whose it is, and the next steps."""
    from stethoscope.schemas.causes import cause_catalogue
    from stethoscope.schemas.incidents import alertname_of
    from stethoscope.schemas.strict_yaml import did_you_mean

    known = cause_catalogue()
    name = {alertname_of(one): one for one in known}.get(name, name)
    if name not in known:
        msg = f"{name!r} is no cause; {did_you_mean(name, known)}"
        raise UsageError(msg)
    entry = known[name]
    _print(f"{name}: {entry.meaning}", severity=entry.severity, audience=entry.audience)
    for number, step in enumerate(entry.actions, 1):
        typer.echo(f"  {number}. {step}")


def _print(headline: str, **facts: str) -> None:
    typer.echo(headline)
    for name, value in facts.items():
        if value:
            typer.echo(f"  {name:<9} {value}")


_ACTIONS = {
    "RESTART_APP": "restart the job; the GPU is fine",
    "RESET_GPU": "drain the node, then reset the GPU",
    "RESTART_BM": "drain the node, then restart it",
    "RESTART_VM": "restart the virtual machine",
    "RESTART_HOST": "restart the host, which resets the fabric",
    "RESET_FABRIC": "reset all GPUs and NVSwitches; look for Xid 74 beside it",
    "IGNORE": "nothing; counted for trends",
    "CHECK_MECHANICALS": "check seating, power and cables",
    "CHECK_COOLING": "check the cooling",
    "CHECK_ROUTING": "check the fabric partition's routing",
    "CHECK_UVM": "reset the GPU if unified memory or vGPU is used, else nothing",
    "UPDATE_SWFW": "update driver and firmware to versions that fit",
    "CONTACT_SUPPORT": "keep the logs and ask the vendor",
    "WORKFLOW_XID_45": "follow the Xid before it; alone, restart the fabric manager",
    "WORKFLOW_XID_48": "reset the GPU; with Xid 63 or 64 drain the node first",
    "WORKFLOW_NVLINK_ERR": "reset the GPU; if it comes back on the same link, check its seating",
    "WORKFLOW_NVLINK5_ERR": "decode the line: sub-unit, fatal or not, link; then reset or reseat",
    "XID_154": "do what the line itself says (reset, drain, reboot)",
    "NONE_GIVEN": "the catalogue names none",
}


def _action(word: str) -> str:
    return f"{_ACTIONS[word]} ({word})"

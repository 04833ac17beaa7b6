-- What the schedules named for each hour, per tenant, and what came of it: the plan of a day against its outcome.
-- Ask until some days after the one that matters: retries end later. An occurrence of which nothing is on record is in no archive;
-- minutehand audit finds it. A range of skipped occurrences counts in the hour in which it begins.
WITH attempts AS (
  SELECT tenant_id, execution_id, max(date_trunc('hour', nominal_at)) AS hour, max(attempt) AS attempts, bool_or(outcome = 'succeeded') AS succeeded,
    bool_or(disposition = 'fired') AS called, max(reason) AS reason, min(disposition) AS disposition, max_by(outcome, attempt) AS last_outcome,
    date_diff('millisecond', max(scheduled_for), min(CASE WHEN outcome = 'succeeded' THEN completed_at END)) AS ms
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND trigger = 'schedule'
  GROUP BY tenant_id, execution_id
), single AS (
  SELECT tenant_id, hour, 1 AS occurrences, attempts, ms,
    CASE WHEN succeeded THEN 'succeeded' WHEN last_outcome = 'cancelled' THEN 'cancelled' WHEN NOT called THEN disposition WHEN reason IN ('permanent', 'max_attempts', 'window') THEN 'dead' ELSE 'open' END AS state
  FROM attempts
), ranges AS (
  SELECT max(tenant_id) AS tenant_id, max(date_trunc('hour', skipped_from)) AS hour, max(skipped_count) AS occurrences, 0 AS attempts, NULL AS ms,
    max(disposition) AS state
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'skipped'
  GROUP BY event_id
), planned AS (
  SELECT tenant_id, hour, occurrences, attempts, ms, state FROM single
  UNION ALL
  SELECT tenant_id, hour, occurrences, attempts, ms, state FROM ranges
)
SELECT tenant_id, hour, sum(occurrences) AS planned,
  count_if(state = 'succeeded' AND attempts = 1) AS succeeded_at_once, count_if(state = 'succeeded' AND attempts > 1) AS succeeded_later,
  count_if(state = 'dead') AS dead, count_if(state = 'open') AS not_ended,
  coalesce(sum(CASE WHEN state LIKE 'skipped%' THEN occurrences END), 0) AS skipped, coalesce(sum(CASE WHEN state = 'cancelled' THEN occurrences END), 0) AS cancelled,
  approx_percentile(ms, 0.5) AS p50_ms, approx_percentile(ms, 0.99) AS p99_ms
FROM planned
GROUP BY tenant_id, hour
ORDER BY tenant_id, hour

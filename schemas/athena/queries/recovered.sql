-- Executions that succeeded in the end, after retries: how often they failed, with what, and how long it took.
WITH attempts AS (
  SELECT event_id, max(tenant_id) AS tenant_id, max(job_id) AS job_id, max(execution_id) AS execution_id, max(attempt) AS attempt,
    max(outcome) AS outcome, max_by(error, CASE WHEN worker IS NULL THEN 0 ELSE 1 END) AS error,
    max(scheduled_for) AS scheduled_for, max(completed_at) AS completed_at
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt'
  GROUP BY event_id
)
SELECT tenant_id, job_id, execution_id, max(attempt) AS attempts,
  count_if(outcome IN ('failed', 'timed_out', 'worker_lost')) AS failures,
  min_by(coalesce(error, outcome), attempt) AS first_failure,
  date_diff('millisecond', min(scheduled_for), max(completed_at)) AS ms
FROM attempts
GROUP BY tenant_id, job_id, execution_id
HAVING count_if(outcome = 'succeeded') > 0 AND count_if(outcome IN ('failed', 'timed_out', 'worker_lost')) > 0
ORDER BY execution_id

-- Executions that were given up and not redriven since.
-- A redrive counts once one of its attempts is on record, and only if that is within the range.
WITH given_up AS (
  SELECT max(tenant_id) AS tenant_id, max(job_id) AS job_id, execution_id, max(target_host) AS target_host, max(attempt) AS attempt,
    max_by(outcome, attempt) AS outcome, max_by(status_code, attempt) AS status_code,
    max_by(error, attempt * 2 + CASE WHEN worker IS NULL THEN 0 ELSE 1 END) AS error, max_by(reason, attempt) AS reason,
    max(completed_at) AS completed_at
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND reason IN ('permanent', 'max_attempts', 'window')
  GROUP BY execution_id
), redriven AS (
  SELECT DISTINCT source_execution_id FROM events
  WHERE dt BETWEEN {from} AND {to} AND source_execution_id IS NOT NULL
)
SELECT tenant_id, job_id, execution_id, target_host, attempt, outcome, status_code, error, reason, completed_at
FROM given_up g
WHERE NOT EXISTS (SELECT 1 FROM redriven r WHERE r.source_execution_id = g.execution_id)
ORDER BY completed_at, execution_id

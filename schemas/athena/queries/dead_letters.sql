-- Executions that were given up and not redriven since.
-- A redrive counts once one of its attempts is on record, and only if that is within the range.
WITH given_up AS (
  SELECT DISTINCT tenant_id, job_id, execution_id, target_host, attempt, outcome, status_code, error, reason, completed_at
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND reason IN ('permanent', 'max_attempts', 'window')
), redriven AS (
  SELECT DISTINCT source_execution_id FROM events
  WHERE dt BETWEEN {from} AND {to} AND source_execution_id IS NOT NULL
)
SELECT tenant_id, job_id, execution_id, target_host, attempt, outcome, status_code, error, reason, completed_at
FROM given_up g
WHERE NOT EXISTS (SELECT 1 FROM redriven r WHERE r.source_execution_id = g.execution_id)
ORDER BY completed_at, execution_id

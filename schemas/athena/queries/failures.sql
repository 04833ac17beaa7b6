-- Why calls failed, per target host: the commonest causes first.
-- An event that was published twice counts once, as the executor told it that made the call: the other may not know the error.
WITH attempts AS (
  SELECT event_id, max(tenant_id) AS tenant_id, max(target_host) AS target_host, max(execution_id) AS execution_id, max(outcome) AS outcome,
    max(status_code) AS status_code, max_by(error, CASE WHEN worker IS NULL THEN 0 ELSE 1 END) AS error
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND outcome IN ('failed', 'timed_out', 'worker_lost')
  GROUP BY event_id
)
SELECT target_host, outcome, status_code, error, count(*) AS attempts, count(DISTINCT execution_id) AS executions,
  count(DISTINCT tenant_id) AS tenants
FROM attempts
GROUP BY target_host, outcome, status_code, error
ORDER BY attempts DESC, target_host, outcome, status_code, error

-- Why calls failed, per target host: the commonest causes first.
WITH attempts AS (
  SELECT DISTINCT event_id, tenant_id, target_host, execution_id, outcome, status_code, error
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND outcome IN ('failed', 'timed_out', 'worker_lost')
)
SELECT target_host, outcome, status_code, error, count(*) AS attempts, count(DISTINCT execution_id) AS executions,
  count(DISTINCT tenant_id) AS tenants
FROM attempts
GROUP BY target_host, outcome, status_code, error
ORDER BY attempts DESC, target_host, outcome, status_code, error

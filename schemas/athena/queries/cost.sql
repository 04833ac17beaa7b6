-- What each tenant used of each target, for billing back: executions, calls, bytes, and the seconds that calls took.
WITH attempts AS (
  SELECT event_id, tenant_id, target_kind, target_host, execution_id, max(request_bytes) AS request_bytes, max(response_bytes) AS response_bytes,
    max(date_diff('millisecond', invoked_at, completed_at)) AS ms
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND invoked_at IS NOT NULL
  GROUP BY event_id, tenant_id, target_kind, target_host, execution_id
)
SELECT tenant_id, target_kind, target_host, count(DISTINCT execution_id) AS executions, count(*) AS calls,
  coalesce(sum(request_bytes), 0) AS request_bytes, coalesce(sum(response_bytes), 0) AS response_bytes,
  round(sum(ms) / 1000e0, 3) AS seconds
FROM attempts
GROUP BY tenant_id, target_kind, target_host
ORDER BY tenant_id, target_kind, target_host

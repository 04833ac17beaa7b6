-- How late occurrences were called, per hour and tenant, in milliseconds.
-- First attempts of schedules alone: a retry is late on purpose. The first call counts where an attempt was called twice.
WITH calls AS (
  SELECT tenant_id, execution_id, min(scheduled_for) AS scheduled_for, min(invoked_at) AS invoked_at
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND trigger = 'schedule' AND attempt = 1 AND invoked_at IS NOT NULL
  GROUP BY tenant_id, execution_id
), late AS (
  SELECT tenant_id, date_trunc('hour', scheduled_for) AS hour, date_diff('millisecond', scheduled_for, invoked_at) AS ms FROM calls
)
SELECT tenant_id, hour, count(*) AS occurrences,
  approx_percentile(ms, 0.5) AS p50_ms, approx_percentile(ms, 0.95) AS p95_ms, approx_percentile(ms, 0.99) AS p99_ms, max(ms) AS max_ms
FROM late
GROUP BY tenant_id, hour
ORDER BY tenant_id, hour

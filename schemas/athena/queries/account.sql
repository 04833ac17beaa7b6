-- What became of every occurrence, per day and tenant.
-- An occurrence counts once, on the day of its first attempt; one that was called is fired, whatever else is there.
WITH single AS (
  SELECT tenant_id, execution_id, min(dt) AS day, CASE WHEN bool_or(disposition = 'fired') THEN 'fired' ELSE min(disposition) END AS disposition
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND trigger = 'schedule' AND attempt = 1 AND disposition IS NOT NULL
  GROUP BY tenant_id, execution_id
), ranges AS (
  SELECT event_id, max(tenant_id) AS tenant_id, min(dt) AS day, max(disposition) AS disposition, max(skipped_count) AS occurrences
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'skipped'
  GROUP BY event_id
)
SELECT day, tenant_id, disposition, sum(occurrences) AS occurrences
FROM (
  SELECT day, tenant_id, disposition, count(*) AS occurrences FROM single GROUP BY day, tenant_id, disposition
  UNION ALL
  SELECT day, tenant_id, disposition, occurrences FROM ranges
)
GROUP BY day, tenant_id, disposition
ORDER BY day, tenant_id, disposition

-- What became of every occurrence, per day and tenant.
-- An occurrence counts once, by its first disposition on record; one that was called is fired, whatever else is there.
WITH dispositions AS (
  SELECT DISTINCT tenant_id, execution_id, disposition
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND trigger = 'schedule' AND disposition IS NOT NULL
), single AS (
  SELECT tenant_id, execution_id, CASE WHEN bool_or(disposition = 'fired') THEN 'fired' ELSE min(disposition) END AS disposition
  FROM dispositions
  GROUP BY tenant_id, execution_id
), ranges AS (
  SELECT DISTINCT event_id, tenant_id, disposition, skipped_count
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'skipped'
)
SELECT tenant_id, disposition, sum(occurrences) AS occurrences
FROM (
  SELECT tenant_id, disposition, count(*) AS occurrences FROM single GROUP BY tenant_id, disposition
  UNION ALL
  SELECT tenant_id, disposition, sum(skipped_count) FROM ranges GROUP BY tenant_id, disposition
)
GROUP BY tenant_id, disposition
ORDER BY tenant_id, disposition

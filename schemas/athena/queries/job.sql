-- What became of one job: every event, in order.
-- An event that was published twice is shown once, as the executor told it that made the call.
WITH told AS (
  SELECT event_id, event_at, event_type, trigger, execution_id, attempt, scheduled_for, invoked_at, completed_at, outcome, disposition,
    status_code, error, reason, target_host, worker, skipped_from, skipped_to, skipped_count, principal, operation,
    row_number() OVER (PARTITION BY event_id ORDER BY CASE WHEN worker IS NULL THEN 1 ELSE 0 END, log_partition, log_offset) AS n
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND job_id = {job}
)
SELECT event_id, event_at, event_type, trigger, execution_id, attempt, scheduled_for, invoked_at, completed_at, outcome, disposition,
  status_code, error, reason, target_host, worker, skipped_from, skipped_to, skipped_count, principal, operation
FROM told
WHERE n = 1
ORDER BY event_at, event_id

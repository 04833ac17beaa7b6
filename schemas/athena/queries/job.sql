-- What became of one job: every event, in order.
SELECT DISTINCT event_id, event_at, event_type, trigger, execution_id, attempt, scheduled_for, invoked_at, completed_at, outcome,
  disposition, status_code, error, reason, target_host, worker, skipped_from, skipped_to, skipped_count, principal, operation
FROM events
WHERE dt BETWEEN {from} AND {to} AND job_id = {job}
ORDER BY event_at, event_id

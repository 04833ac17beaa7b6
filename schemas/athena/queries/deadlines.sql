-- Occurrences that missed a deadline of their job: by how many milliseconds, or that they failed for good or are not done yet.
-- Who was told at the time, and in which incident, /incidents says for 30 days. What was skipped or cancelled misses nothing here, also if it was
-- skipped because it came too late: not_fired tells of that. An occurrence whose first attempt lies before the range is held against finish_within only.
WITH attempts AS (
  SELECT event_id, max(tenant_id) AS tenant_id, max(job_id) AS job_id, max(execution_id) AS execution_id, max(attempt) AS attempt,
    max(outcome) AS outcome, max(disposition) AS disposition, max(reason) AS reason, max(nominal_at) AS nominal_at, max(invoked_at) AS invoked_at,
    max(completed_at) AS completed_at, max(start_deadline_at) AS start_by, max(deadline_at) AS finish_by
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND (start_deadline_at IS NOT NULL OR deadline_at IS NOT NULL)
  GROUP BY event_id
), occurrences AS (
  SELECT tenant_id, job_id, execution_id, max(nominal_at) AS nominal_at, max(attempt) AS attempts, max(start_by) AS start_by,
    max(finish_by) AS finish_by, min(attempt) AS first_attempt, max(reason) AS reason, max_by(outcome, attempt) AS last_outcome,
    min(CASE WHEN attempt = 1 THEN invoked_at END) AS began_at, min(CASE WHEN outcome = 'succeeded' THEN completed_at END) AS succeeded_at
  FROM attempts
  GROUP BY tenant_id, job_id, execution_id
  HAVING count_if(disposition = 'fired') > 0
), deadlines AS (
  SELECT tenant_id, job_id, execution_id, nominal_at, attempts, reason, 'start_within' AS deadline, start_by AS deadline_at, began_at AS met_at
  FROM occurrences
  WHERE start_by IS NOT NULL AND first_attempt = 1 AND began_at IS NOT NULL
  UNION ALL
  SELECT tenant_id, job_id, execution_id, nominal_at, attempts, reason, 'finish_within' AS deadline, finish_by AS deadline_at, succeeded_at AS met_at
  FROM occurrences
  WHERE finish_by IS NOT NULL AND (succeeded_at IS NOT NULL OR last_outcome <> 'cancelled')
)
SELECT tenant_id, job_id, execution_id, nominal_at, deadline, deadline_at, met_at, date_diff('millisecond', deadline_at, met_at) AS late_ms, attempts
FROM deadlines
WHERE met_at > deadline_at
  OR met_at IS NULL AND (reason IN ('permanent', 'max_attempts', 'window') OR deadline_at < (SELECT max(appended_at) FROM events WHERE dt BETWEEN {from} AND {to}))
ORDER BY nominal_at, execution_id, deadline

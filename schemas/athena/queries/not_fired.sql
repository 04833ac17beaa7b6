-- Occurrences that were skipped or cancelled, and why: the policy, or the change that did it and who made it.
-- The change is the latest one that stops the job, or the execution, before the occurrence was given up.
WITH given_up AS (
  SELECT DISTINCT event_id, event_at, tenant_id, job_id, execution_id, disposition, reason,
    coalesce(skipped_from, nominal_at) AS first_at, coalesce(skipped_to, nominal_at) AS last_at,
    CASE event_type WHEN 'skipped' THEN skipped_count ELSE 1 END AS occurrences
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND disposition IN ('skipped_missed', 'skipped_paused', 'skipped_overlap', 'cancelled')
    AND (event_type = 'skipped' OR trigger = 'schedule')
), stops AS (
  SELECT DISTINCT event_id, nominal_at AS changed_at, job_id, operation, object, principal, request_id
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'change'
    AND operation IN ('cancelJob', 'deleteJob', 'pauseJob', 'cancelExecution', 'deleteTenant')
), joined AS (
  SELECT g.event_id, g.event_at, g.tenant_id, g.job_id, g.execution_id, g.disposition, g.reason, g.first_at, g.last_at, g.occurrences,
    s.operation, s.principal, s.request_id, s.changed_at,
    row_number() OVER (PARTITION BY g.event_id ORDER BY s.changed_at DESC, s.event_id DESC) AS n
  FROM given_up g
  LEFT JOIN stops s ON s.job_id = g.job_id AND s.changed_at <= g.event_at
    AND CASE g.disposition
      WHEN 'skipped_paused' THEN s.operation = 'pauseJob'
      WHEN 'cancelled' THEN s.operation <> 'pauseJob' AND (s.operation <> 'cancelExecution' OR s.object = g.execution_id)
      ELSE false END
)
SELECT tenant_id, job_id, disposition, coalesce(reason, disposition) AS reason, first_at, last_at, occurrences, operation, principal, request_id, changed_at
FROM joined
WHERE n = 1
ORDER BY first_at, job_id, disposition, last_at

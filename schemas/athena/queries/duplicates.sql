-- Attempts that were called more than once, which only a crash causes: each call has its own fencing token.
SELECT tenant_id, job_id, execution_id, attempt, count(DISTINCT fencing_token) AS calls, min(invoked_at) AS first_at, max(invoked_at) AS last_at
FROM events
WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND invoked_at IS NOT NULL
GROUP BY tenant_id, job_id, execution_id, attempt
HAVING count(DISTINCT fencing_token) > 1
ORDER BY execution_id, attempt

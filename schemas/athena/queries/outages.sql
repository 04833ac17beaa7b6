-- Outages of targets as their jobs saw them: at least five calls of a host in a row that failed.
WITH attempts AS (
  SELECT DISTINCT event_id, target_host, execution_id, invoked_at, completed_at, outcome <> 'succeeded' AS failed
  FROM events
  WHERE dt BETWEEN {from} AND {to} AND event_type = 'attempt' AND invoked_at IS NOT NULL AND target_host IS NOT NULL AND outcome <> 'cancelled'
), numbered AS (
  SELECT target_host, execution_id, invoked_at, completed_at, event_id, failed,
    count_if(NOT failed) OVER (PARTITION BY target_host ORDER BY invoked_at, event_id) AS run
  FROM attempts
)
SELECT target_host, min(invoked_at) AS began_at, max(completed_at) AS ended_at, count(*) AS calls, count(DISTINCT execution_id) AS executions
FROM numbered
WHERE failed
GROUP BY target_host, run
HAVING count(*) >= 5
ORDER BY began_at, target_host

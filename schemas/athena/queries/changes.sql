-- Who changed what: jobs, tenants, keys and holds, in order.
SELECT DISTINCT nominal_at AS changed_at, tenant_id, principal, role, source, operation, job_id, object, version, request_id, event_id
FROM events
WHERE dt BETWEEN {from} AND {to} AND event_type = 'change'
ORDER BY changed_at, event_id

"""Takes a job through its life with the client that openapi-python-client generates; any other answer than the declared fails."""

import sys
import time

from minutehand_client import Client
from minutehand_client.api.executions import get_execution, list_executions
from minutehand_client.api.jobs import (
    create_job,
    delete_job,
    get_job,
    list_jobs,
    patch_job,
    pause_job,
    resume_job,
    trigger_job,
)
from minutehand_client.models import JobCreate, JobPatch

client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)


def expect(status, operation, *args, **kwargs):
    response = operation.sync_detailed(*args, client=client, **kwargs)
    if response.status_code != status:
        sys.exit(f"{operation.__name__}: {response.status_code} {response.content}")
    return response


body = JobCreate.from_dict(
    {
        "name": "round trip",
        "type": "interval",
        "every": "1h",
        "target": {"kind": "http_webhook", "url": "http://127.0.0.1:9/"},
    }
)
job = expect(201, create_job, body=body).parsed.job_id
etag = expect(200, get_job, job).headers["ETag"]
assert job in [item.job_id for item in expect(200, list_jobs).parsed.items], "the job is not listed"
patch = JobPatch.from_dict({"name": "changed", "labels": {"a": "b"}})
changed = expect(200, patch_job, job, body=patch, if_match=etag).parsed
assert (changed.name, changed.labels.to_dict()) == ("changed", {"a": "b"}), changed
expect(412, patch_job, job, body=patch, if_match=etag)
assert expect(200, pause_job, job).parsed.status == "paused"
assert expect(200, resume_job, job).parsed.status == "active"
execution = expect(202, trigger_job, job).parsed.execution_id
until = time.monotonic() + 30
while not expect(200, get_execution, execution).parsed.attempts:
    assert time.monotonic() < until, "the execution has no attempt"
    time.sleep(0.05)
assert execution in [x.execution_id for x in expect(200, list_executions, job).parsed.items], "the execution is not listed"
expect(204, delete_job, job)
expect(404, get_job, job)

"""Puts jobs, executions and dead letters into an API, and prints their ids as schemathesis' configuration."""

import json
import sys
import time

import httpx

TARGET = {"kind": "http_webhook", "url": "http://127.0.0.1:9/"}  # nothing listens there
api = httpx.Client(base_url=sys.argv[1], timeout=10)


def answer(status, method, path, body=None):
    response = api.request(method, path, json=body)
    if response.status_code != status:
        sys.exit(f"{method} {path}: {response.status_code} {response.text}")
    return response.json()


def create(name, **schedule):
    job = {"name": name, "target": TARGET, "retry_policy": {"max_attempts": 1}, "labels": {"seed": name}, **schedule}
    return answer(201, "POST", "/jobs", job)["job_id"]


def dictionary(name, values):
    print(f"[dictionaries.{name}]\nvalues = {json.dumps(values)}")


dead = [create("dead", type="one_shot", delay="0s") for _ in range(5)]
stand = [create("stands", type="cron", cron_expr="0 9 * * *") for _ in range(20)]
paused = [create("paused", type="cron", cron_expr="0 9 * * *") for _ in range(5)]
doomed = [create("doomed", type="cron", cron_expr="0 9 * * *") for _ in range(100)]
for job in paused:
    answer(200, "POST", f"/jobs/{job}/pause")
executions = [answer(202, "POST", f"/jobs/{job}/trigger")["execution_id"] for job in stand]
until = time.monotonic() + 30
while len(answer(200, "GET", "/dead-letters?limit=500")["items"]) < len(dead) + len(executions):
    if time.monotonic() > until:
        sys.exit("the dead letters do not come")
    time.sleep(0.1)

dictionary("jobs", stand + paused + dead)
dictionary("doomed", doomed)
dictionary("executions", executions)
print("""
[parameters]
"path.id" = {dictionary = "jobs", probability = 0.8}
"path.execution_id" = {dictionary = "executions", probability = 0.8}
"header.If-Match" = {dictionary = "versions", probability = 0.5}
[dictionaries.versions]
values = ["*"]""")
for operation in ("deleteJob", "cancelJob"):  # so that the others stay
    print(f"""
[[operations]]
include-operation-id = "{operation}"
parameters = {{"path.id" = {{dictionary = "doomed", probability = 0.8}}}}""")

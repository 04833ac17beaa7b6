package ledger

import (
	"encoding/json"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/minutehand/minutehand/libs/job"
)

// RequestsOf returns what is to be remembered of a request for a change, and of its answer: one Request, or one for each job of a batch;
// none if the request changes nothing. of is the path behind /api/v1. status is 0 if no answer came. jobIDs are those of the
// jobs in the answer to a creation.
func RequestsOf(method, of string, status int, answer http.Header, jobIDs []string) []Request {
	operation, named := operationOf(method, of)
	if operation == "" {
		return nil
	}
	q := Request{JobID: named, Operation: operation, AckedAt: time.Now()}
	if status != 0 {
		q.ID = answer.Get("Request-Id")
		q.Done, q.Refused = status < http.StatusMultipleChoices, status >= http.StatusBadRequest && status < http.StatusInternalServerError
	}
	if v, err := strconv.ParseInt(strings.Trim(answer.Get("ETag"), `"`), 10, 64); err == nil {
		q.Version = v
	}
	switch operation {
	case "createJob", "createJobs":
		var list []Request
		for _, id := range jobIDs {
			if q.JobID = id; id == "" {
				q.Done = false
			}
			list = append(list, q)
		}
		if len(list) == 0 {
			q.Done = false
			list = append(list, q)
		}
		return list
	case "backfillJob", "replayJob", "redriveAllDeadLetters": // the operation is what the answer names
		q.Object = path.Base(answer.Get("Location"))
	case "pauseOperation", "resumeOperation", "cancelOperation":
		q.JobID, q.Object = job.SettingsOf(job.DefaultTenant), named
	case "cancelExecution":
		ref, err := job.ParseExecutionID(named)
		if err != nil {
			return nil
		}
		q.JobID, q.Object = ref.JobID, named
	}
	return []Request{q}
}

// JobsIn returns the ids of the jobs in an answer to a creation, single or of a batch; "" for one that may have been created or not.
func JobsIn(answer []byte) (ids []string) {
	type created struct {
		ID string `json:"job_id"`
	}
	var body struct {
		created
		Results []struct {
			Status int     `json:"status"`
			Job    created `json:"job"`
		} `json:"results"`
	}
	if err := json.Unmarshal(answer, &body); err != nil {
		return nil // a 204 has no body
	}
	if body.ID != "" {
		ids = append(ids, body.ID)
	}
	for _, r := range body.Results {
		if r.Job.ID != "" || r.Status >= http.StatusInternalServerError {
			ids = append(ids, r.Job.ID)
		}
	}
	return ids
}

// operationOf returns the operation of a request for a change, and what its path names; "" for any other.
func operationOf(method, path string) (operation, named string) {
	part := strings.Split(strings.TrimPrefix(path, "/"), "/")
	action := ""
	if len(part) > 2 {
		action = part[2]
	}
	installation := job.InstallationSettings()
	switch part[0] + " " + method + " " + action {
	case "jobs POST ":
		return "createJob", ""
	case "jobs:batch POST ":
		return "createJobs", ""
	case "jobs PUT ":
		return "replaceJob", part[1]
	case "jobs PATCH ":
		return "patchJob", part[1]
	case "jobs DELETE ":
		return "deleteJob", part[1]
	case "jobs POST pause", "jobs POST resume", "jobs POST cancel":
		return action + "Job", part[1]
	case "jobs POST backfill", "jobs POST replay":
		return action + "Job", job.SettingsOf(job.DefaultTenant)
	case "dead-letters:redrive-all POST ":
		return "redriveAllDeadLetters", job.SettingsOf(job.DefaultTenant)
	case "operations POST pause", "operations POST resume", "operations POST cancel":
		return action + "Operation", part[1]
	case "executions POST cancel":
		return "cancelExecution", part[1]
	case "tenants POST ":
		return "createTenant", installation
	case "tenants DELETE ":
		return "deleteTenant", installation
	case "keys POST ":
		return "createKey", installation
	case "keys POST rotate":
		return "rotateKey", installation
	case "keys DELETE ":
		return "revokeKey", installation
	case "dispatch POST ":
		return part[1] + "Dispatch", installation
	}
	return "", ""
}

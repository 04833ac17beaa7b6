package ledger

import (
	"slices"
	"time"
)

// Keyed is a request that registers a job with a key, from its first try to its answer.
type Keyed struct {
	Key string
	// JobID is the job that was answered, "" if there was another answer, or none. Refused is set if it was that another job has the key.
	JobID    string
	Refused  bool
	From, At time.Time
}

// checkKeys checks that no two jobs have one key, that a key is refused only because of another job, and that a client finds the job that
// has it (I12).
func checkKeys(r *report, a *Account) {
	held := map[string]string{}
	for n := range a.Jobs {
		j := &a.Jobs[n].Job
		if j.Key == "" || j.Deleted {
			continue
		}
		key := j.Tenant.String() + " " + j.Key
		if other := held[key]; other != "" {
			r.add("I12", j.ID, "it has the key of %s", other)
		}
		held[key] = j.ID
	}
	answered := map[string]string{}
	for i := range a.Keyed {
		k := &a.Keyed[i]
		switch {
		case k.JobID == "":
			if k.Refused && !a.explains(i) {
				r.add("I12", "", "the key %s was refused, and no other job had it", k.Key)
			}
		case a.Deleted[k.JobID]:
		case answered[k.Key] != "" && answered[k.Key] != k.JobID:
			r.add("I12", k.JobID, "it was answered with the key %s, as %s was", k.Key, answered[k.Key])
		default:
			answered[k.Key] = k.JobID
		}
	}
	for key, id := range a.ByKey {
		if want := answered[key]; want != "" && id != want {
			r.add("I12", want, "it has the key %s, and a client that asked for the key was shown %q", key, id)
		}
	}
}

// explains reports whether another request may be why one was refused its key: the other's job had the key, or was about to get it.
func (a *Account) explains(refused int) bool {
	k := &a.Keyed[refused]
	for n := range a.Keyed {
		o := &a.Keyed[n]
		if n == refused || o.Key != k.Key || o.From.After(k.At) || o.JobID == "" && o.At.Before(k.From) {
			continue
		}
		if !slices.ContainsFunc(a.Stops, func(s Stop) bool {
			return s.JobID == o.JobID && s.Kind == StopCancel && a.Deleted[s.JobID] && s.AckedAt.Before(k.From)
		}) {
			return true
		}
	}
	return false
}

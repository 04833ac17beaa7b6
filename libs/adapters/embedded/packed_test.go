package embedded

import (
	"strconv"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/job"
)

func TestPackedOutcomesAreFoundUntilTheyAreForgottenOldestFirst(t *testing.T) {
	const n = 3*chunkOutcomes + 7
	began := time.Date(2039, 1, 1, 12, 0, 0, 0, time.UTC)
	key := func(i int) attempts.Key { return attempts.Key{ExecutionID: strconv.Itoa(i), Attempt: 1} }
	var p packed
	for i := range n {
		p.add(key(i), &attempts.Record{
			Exists: true, Token: job.Token{Counter: int64(i), Start: 3},
			Outcome: &job.Outcome{Kind: job.OutcomeSucceeded, Disposition: job.DispositionFired, StatusCode: 200, DefinitionID: "def_" + strconv.Itoa(i)},
		}, began.Add(time.Duration(i)*time.Millisecond))
	}
	for dropped := 0; ; dropped++ {
		if p.len() != n-dropped {
			t.Fatalf("%d are kept of %d when %d were forgotten", p.len(), n, dropped)
		}
		for _, i := range []int{dropped - 1, dropped, (dropped + n) / 2, n - 1} {
			rec, ok := p.find(key(i))
			if ok != (i >= dropped && i < n) {
				t.Fatalf("outcome %d is there: %t, when %d were forgotten", i, ok, dropped)
			}
			if ok && (rec.Token.Counter != int64(i) || rec.DefinitionID != "def_"+strconv.Itoa(i) || rec.Outcome.Kind != job.OutcomeSucceeded) {
				t.Fatalf("outcome %d is %+v", i, rec)
			}
		}
		if p.len() == 0 {
			return
		}
		if want := began.Add(time.Duration(dropped) * time.Millisecond); !p.oldest().Equal(want) {
			t.Fatalf("the oldest is of %s, want %s", p.oldest(), want)
		}
		p.drop()
	}
}

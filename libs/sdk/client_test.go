package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minutehand/minutehand/libs/sdk"
)

// One thread, because timers of a bubble that fire at one instant on two destroy the race detector's context
// (https://github.com/golang/go/issues/78156).
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// server answers requests without a network.
type server func(r *http.Request, body string) (status int, header http.Header, answer string, err error)

// RoundTrip implements http.RoundTripper.
func (s server) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	status, header, answer, err := s(r, string(text))
	if err != nil {
		return nil, err
	}
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: header, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

func client(t *testing.T, s server) *sdk.Client {
	t.Helper()
	c, err := sdk.New("http://minutehand", sdk.Settings{Token: "secret", Tenant: "shop", HTTP: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func oneShot() sdk.JobCreate {
	return sdk.JobCreate{
		Name: "invoice", Type: "one_shot", Delay: sdk.Duration(90 * time.Second),
		Target: sdk.Target{Kind: "pool", Pool: "billing", Handler: "invoice", Body: map[string]int{"customer": 7}},
	}
}

func TestCreationWhoseAnswerIsLostIsRepeatedUnderItsIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { //nolint:forbidigo // this module depends on nothing; see TestMain
		var keys []string
		c := client(t, func(r *http.Request, body string) (int, http.Header, string, error) {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			want := `{"delay":"1m30s","name":"invoice","target":{"body":{"customer":7},"handler":"invoice","kind":"pool","pool":"billing"},"type":"one_shot"}`
			if body != want {
				t.Errorf("it sends %s", body)
			}
			switch {
			case r.URL.Path != "/api/v1/jobs" || r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Minutehand-Tenant") != "shop":
				t.Errorf("it asks for %s with %v", r.URL, r.Header)
			case len(keys) == 1:
				return 0, nil, "", io.ErrUnexpectedEOF
			case len(keys) == 2:
				return http.StatusServiceUnavailable, http.Header{"Retry-After": {"7"}}, `{"detail":"Cassandra does not answer.","status":503}`, nil
			}
			return http.StatusCreated, nil, `{"job_id":"job_1","next_run_at":null,"created_at":"2030-01-01T10:00:00Z"}`, nil
		})
		began := time.Now()
		j, err := c.CreateJob(t.Context(), oneShot())
		if err != nil || j.JobID != "job_1" || !j.NextRunAt.IsZero() || j.CreatedAt.Year() != 2030 {
			t.Fatalf("created %+v, %v", j, err)
		}
		if len(keys) != 3 || keys[0] == "" || keys[0] != keys[1] || keys[1] != keys[2] {
			t.Errorf("the keys are %q", keys)
		}
		if took := time.Since(began); took < 7*time.Second || took > 8*time.Second {
			t.Errorf("it took %s although the server asked for 7 s", took)
		}
	})
}

func TestWhatMustNotBeDoneTwiceIsNotRepeated(t *testing.T) {
	for name, call := range map[string]func(*sdk.Client) error{
		"a key": func(c *sdk.Client) error {
			_, err := c.CreateKey(context.Background(), sdk.KeyCreate{Name: "ci"})
			return err
		},
		"a job of a version": func(c *sdk.Client) error {
			_, err := c.PatchJob(context.Background(), "job_1", `"3"`, map[string]any{"name": "x"})
			return err
		},
		"the deletion of a job by its key": func(c *sdk.Client) error { return c.DeleteJob(context.Background(), "key:nightly") },
	} {
		sent := 0
		c := client(t, func(*http.Request, string) (int, http.Header, string, error) {
			sent++
			return 0, nil, "", io.ErrUnexpectedEOF
		})
		if err := call(c); !errors.Is(err, io.ErrUnexpectedEOF) || sent != 1 {
			t.Errorf("%s: sent %d times, %v", name, sent, err)
		}
	}
}

func TestRefusalSaysEachFaultAndIsNotRepeated(t *testing.T) {
	sent := 0
	c := client(t, func(*http.Request, string) (int, http.Header, string, error) {
		sent++
		return http.StatusUnprocessableEntity, nil,
			`{"type":"about:blank","title":"Unprocessable","status":422,"detail":"The job is not valid.","errors":[{"pointer":"/cron_expr","code":"cron","message":"It has two fields."}]}`, nil
	})
	_, err := c.CreateJob(t.Context(), oneShot())
	if !sdk.HasStatus(err, http.StatusUnprocessableEntity) || err.Error() != "The job is not valid.\n  /cron_expr: It has two fields." || sent != 1 {
		t.Errorf("sent %d times: %v", sent, err)
	}
}

func TestIterationGoesThroughAllPagesAndEndsAfterAnError(t *testing.T) {
	var asked []string
	c := client(t, func(r *http.Request, _ string) (int, http.Header, string, error) {
		asked = append(asked, r.URL.RawQuery)
		switch len(asked) {
		case 1:
			return http.StatusOK, nil, `{"items":[{"job_id":"a"},{"job_id":"b"}],"next_cursor":"two"}`, nil
		case 2:
			return http.StatusOK, nil, `{"items":[{"job_id":"c"}],"next_cursor":"three"}`, nil
		}
		return http.StatusForbidden, nil, `{"detail":"No.","status":403}`, nil
	})
	var ids []string
	var failed error
	for j, err := range c.AllJobs(t.Context(), sdk.ListJobsParams{Status: "active", Limit: 2}) {
		if err != nil {
			failed = err
			continue
		}
		ids = append(ids, j.JobID)
	}
	if !slices.Equal(ids, []string{"a", "b", "c"}) || !sdk.HasStatus(failed, http.StatusForbidden) {
		t.Errorf("it goes through %v, then %v", ids, failed)
	}
	if want := []string{"limit=2&status=active", "cursor=two&limit=2&status=active", "cursor=three&limit=2&status=active"}; !slices.Equal(asked, want) {
		t.Errorf("it asks for %q", asked)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { //nolint:forbidigo // as above
		c := client(t, func(*http.Request, string) (int, http.Header, string, error) {
			return http.StatusServiceUnavailable, http.Header{"Retry-After": {"3600"}}, ``, nil
		})
		ctx, end := context.WithTimeout(t.Context(), 5*time.Second)
		defer end()
		began := time.Now()
		if _, err := c.GetJob(ctx, "job_1"); !sdk.HasStatus(err, http.StatusServiceUnavailable) || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestDurationIsWrittenAsTheAPIReadsIt(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", 90 * time.Second: "1m30s", 25*time.Hour + time.Millisecond: "25h1ms",
	} {
		text, err := json.Marshal(sdk.Duration(d))
		var back sdk.Duration
		if err := errors.Join(err, json.Unmarshal(text, &back)); err != nil || string(text) != `"`+want+`"` || time.Duration(back) != d {
			t.Errorf("%s is written %s and read %s, %v", d, text, back, err)
		}
	}
	for _, d := range []time.Duration{-time.Second, time.Microsecond} {
		if text, err := json.Marshal(sdk.Duration(d)); err == nil {
			t.Errorf("%s is written %s", d, text)
		}
	}
}

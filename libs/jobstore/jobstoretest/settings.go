package jobstoretest

import (
	"errors"
	"testing"
	"time"

	"github.com/minutehand/minutehand/libs/jobstore"
)

// RunSettings checks the promises of jobstore.Settings; open returns a new, empty store.
func RunSettings(t *testing.T, open func(t *testing.T) jobstore.Settings) {
	t.Run("a setting is read as it was written", func(t *testing.T) {
		s := open(t)
		if v, err := s.Setting(t.Context(), "a"); err != nil || v != nil {
			t.Errorf("before: %q, %v", v, err)
		}
		for _, step := range []struct{ old, value string }{{"", "one"}, {"one", "two"}} {
			if err := s.SwapSetting(t.Context(), "a", []byte(step.old), []byte(step.value)); err != nil {
				t.Error(err)
			}
			if v, err := s.Setting(t.Context(), "a"); err != nil || string(v) != step.value {
				t.Errorf("%q, %v", v, err)
			}
		}
		if v, err := s.Setting(t.Context(), "b"); err != nil || v != nil {
			t.Errorf("another: %q, %v", v, err)
		}
	})
	t.Run("a setting that was removed may be written anew", func(t *testing.T) {
		s := open(t)
		for _, step := range []struct{ old, value []byte }{{nil, []byte("one")}, {[]byte("one"), nil}, {nil, []byte("two")}} {
			if err := s.SwapSetting(t.Context(), "a", step.old, step.value); err != nil {
				t.Error(err)
			}
			if v, err := s.Setting(t.Context(), "a"); err != nil || string(v) != string(step.value) || step.value == nil && v != nil {
				t.Errorf("%q, %v", v, err)
			}
		}
		if err := s.SwapSetting(t.Context(), "a", []byte("one"), nil); !errors.Is(err, jobstore.ErrConflict) {
			t.Errorf("another value was removed: %v", err)
		}
	})
	t.Run("a swap of what no longer stands changes nothing", func(t *testing.T) {
		s := open(t)
		if err := s.SwapSetting(t.Context(), "a", nil, []byte("one")); err != nil {
			t.Fatal(err)
		}
		for _, old := range []string{"", "two"} {
			if err := s.SwapSetting(t.Context(), "a", []byte(old), []byte("x")); !errors.Is(err, jobstore.ErrConflict) {
				t.Errorf("swap of %q gave %v", old, err)
			}
		}
		if v, err := s.Setting(t.Context(), "a"); err != nil || string(v) != "one" {
			t.Errorf("%q, %v", v, err)
		}
	})
	runLists(t, open)
	runVersions(t, open)
}

func runLists(t *testing.T, open func(t *testing.T) jobstore.Settings) {
	t.Run("a list is read in the order of its names, page by page", func(t *testing.T) {
		s := open(t)
		list := "list/" + newJobID()
		for _, name := range []string{"b", "a", "aa", "\xff", "c"} {
			must(t, s.PutItem(t.Context(), list, jobstore.Item{Name: name, Value: []byte("of " + name)}))
		}
		must(t, s.PutItem(t.Context(), list+"x", jobstore.Item{Name: "b", Value: []byte("another list's")}))
		var names []string
		for after, left := "", true; left; {
			page, err := s.Items(t.Context(), list, after, 2)
			must(t, err)
			for _, i := range page {
				names, after = append(names, i.Name), i.Name
				same(t, "the value of "+i.Name, string(i.Value), "of "+i.Name)
			}
			left = len(page) == 2
		}
		same(t, "the list", names, []string{"a", "aa", "b", "c", "\xff"})
	})
	t.Run("an item is replaced and removed, and a list is removed as a whole", func(t *testing.T) {
		s := open(t)
		list := "list/" + newJobID()
		holds := func(want ...jobstore.Item) {
			t.Helper()
			page, err := s.Items(t.Context(), list, "", 10)
			must(t, err)
			same(t, "the list", page, want)
		}
		holds()
		for _, value := range []string{"old", "new"} {
			must(t, s.PutItem(t.Context(), list, jobstore.Item{Name: "a", Value: []byte(value)}))
		}
		must(t, s.PutItem(t.Context(), list, jobstore.Item{Name: "b", Value: []byte("b")}))
		holds(jobstore.Item{Name: "a", Value: []byte("new")}, jobstore.Item{Name: "b", Value: []byte("b")})
		must(t, s.RemoveItem(t.Context(), list, "b", 0))
		must(t, s.RemoveItem(t.Context(), list, "c", 0))
		holds(jobstore.Item{Name: "a", Value: []byte("new")})
		must(t, s.RemoveList(t.Context(), list))
		must(t, s.RemoveList(t.Context(), list))
		holds()
		must(t, s.PutItem(t.Context(), list, jobstore.Item{Name: "a", Value: []byte("again")}))
		holds(jobstore.Item{Name: "a", Value: []byte("again")})
	})
}

func runVersions(t *testing.T, open func(t *testing.T) jobstore.Settings) {
	t.Run("of two writes with versions the greater one stands", func(t *testing.T) {
		s := open(t)
		list, now := "list/"+newJobID(), time.Now().Add(-time.Minute).UnixMicro()
		holds := func(want ...jobstore.Item) {
			t.Helper()
			page, err := s.Items(t.Context(), list, "", 10)
			must(t, err)
			same(t, "the list", page, want)
		}
		put := func(value string, version int64) {
			must(t, s.PutItem(t.Context(), list, jobstore.Item{Name: "a", Value: []byte(value), Version: version}))
		}
		put("first", now+1)
		put("third", now+3)
		put("second", now+2)
		holds(jobstore.Item{Name: "a", Value: []byte("third")})
		put("fourth", now+4)
		holds(jobstore.Item{Name: "a", Value: []byte("fourth")})
		must(t, s.RemoveItem(t.Context(), list, "a", now+3))
		holds(jobstore.Item{Name: "a", Value: []byte("fourth")})
		must(t, s.RemoveItem(t.Context(), list, "a", now+4))
		holds()
		put("after a removal", now+5)
		holds(jobstore.Item{Name: "a", Value: []byte("after a removal")})
		must(t, s.RemoveItem(t.Context(), list, "a", 0))
		holds()
		put("fifth", time.Now().UnixMicro()+1)
		holds(jobstore.Item{Name: "a", Value: []byte("fifth")})
		must(t, s.RemoveList(t.Context(), list))
		holds()
	})
}

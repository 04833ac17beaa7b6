package cassandra

import (
	"errors"
	"testing"
)

func TestLocalDatacenterMustBeNamedWhereThereAreSeveral(t *testing.T) {
	for _, c := range []struct {
		there nodes
		local string
		wrong bool
	}{
		{nodes{"one": 3}, "", false},
		{nodes{"one": 3}, "one", false},
		{nodes{"one": 3, "two": 3}, "two", false},
		{nodes{"one": 3, "two": 3}, "", true},
		{nodes{"one": 3, "two": 3}, "three", true},
	} {
		if err := checkDatacenter(c.there, c.local); errors.Is(err, ErrDatacenter) != c.wrong {
			t.Errorf("%q of %v gave %v", c.local, c.there, err)
		}
	}
}

package sizing_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/minutehand/minutehand/services/all-in-one/sizing"
)

// invented are costs with round numbers.
func invented() sizing.Costs {
	return sizing.Costs{
		Tiers: map[string]sizing.Tier{
			"executor":         {Base: 10_000, PerFire: 500, PerFullFire: 500, PerKB: 10, PerRecurring: 0, PerRetry: 400, MiB: 100},
			"scheduler-worker": {Base: 10_000, PerPartition: 10, PerFire: 200, PerFullFire: 200, PerRecurring: 100, MiB: 100},
			"Cassandra":        {Base: 50_000, PerFire: 600, PerFullFire: 600, PerKB: 20},
			"Kafka":            {PerFire: 300, PerFullFire: 300},
			"Redis":            {PerFire: 300, PerFullFire: 300},
		},
		Bytes: sizing.Bytes{RedisPerHotEntry: 400, RedisPerOutcome: 120, RedisPerClaim: 80, CassandraPerJob: 300, CassandraPerFire: 500, KafkaPerFire: 800, NetworkPerFire: 10_000, RedisNetworkShare: 0.3},
	}
}

func TestCoresAreThoseOfEachPartOfALoad(t *testing.T) {
	c := invented()
	got := c.Cores(sizing.Load{FiresPerSecond: 1000, PayloadKB: 4, Recurring: 0.5, Retries: 0.1, Partitions: 100})
	for tier, want := range map[string]float64{
		"executor": 0.01 + 1000*(500+40+40)/1e6, "scheduler-worker": 0.01 + 0.001 + 1000*(200+50)/1e6, "Cassandra": 0.05 + 1000*(600+80)/1e6,
	} {
		if math.Abs(got[tier]-want) > 1e-9 {
			t.Errorf("%s uses %v cores, want %v", tier, got[tier], want)
		}
	}
}

func TestPlanGrowsWithItsLoadAndNamesWhatIsScarceFirst(t *testing.T) {
	c := invented()
	load := sizing.Load{FiresPerSecond: 100_000, Pending: 1e9, Retention: 30 * 24 * time.Hour, LogRetention: 24 * time.Hour, Partitions: 256}
	large, err := c.Plan(load)
	if err != nil {
		t.Fatal(err)
	}
	load.FiresPerSecond = 1000
	small, err := c.Plan(load)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range large.Needs {
		if s := small.Needs[i]; n.Cores <= s.Cores || n.Processes < s.Processes || n.Disk < s.Disk || n.Memory < s.Memory {
			t.Errorf("%s needs %+v for 100 times the load, and %+v for the load", n.Tier, n, s)
		}
		if n.Basis == "" {
			t.Errorf("%s does not say what was measured", n.Tier)
		}
	}
	if large.KafkaPartitions < 84 { // 50 cores of executors, of which 60 % may be used
		t.Errorf("%d partitions of Kafka", large.KafkaPartitions)
	}
	if !strings.HasPrefix(large.Bottleneck, "Cassandra") || !strings.Contains(small.Bottleneck, "%") {
		t.Errorf("scarce first: %q, %q", large.Bottleneck, small.Bottleneck)
	}
	load.FiresPerSecond, load.Partitions = 1e6, 16
	if few, err := c.Plan(load); err != nil || !strings.HasPrefix(few.Bottleneck, "partitions: 16 are too few") {
		t.Errorf("with few partitions: %q, %v", few.Bottleneck, err)
	}
}

func TestLoadThatMakesNoSenseIsRefused(t *testing.T) {
	c := invented()
	for _, l := range []sizing.Load{
		{FiresPerSecond: -1, Partitions: 1},
		{FiresPerSecond: math.NaN(), Partitions: 1},
		{FiresPerSecond: math.Inf(1), Partitions: 1},
		{Recurring: 1.1, Partitions: 1},
		{Retries: -0.1, Partitions: 1},
		{Partitions: 0},
		{Pending: -1, Partitions: 1},
		{Retention: -1, Partitions: 1},
	} {
		if _, err := c.Plan(l); err == nil {
			t.Errorf("%+v has a plan", l)
		}
	}
}

// What the release says of itself was measured, and the model was right about a load that it had not seen.
func TestMeasuredCostsAreComplete(t *testing.T) {
	c, err := sizing.Measured()
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range append(sizing.Servers(), "job-api", "bucket-loader", "scheduler-worker", "executor", "retry-manager", "audit-writer") {
		if _, ok := c.Tiers[tier]; !ok {
			t.Errorf("the costs of %s were not measured", tier)
		}
	}
	if l := c.Check.Load; l.PayloadKB != 4 || l.Partitions != 1024 || l.Recurring != 0.5 || l.Retries != 0.05 {
		t.Errorf("the model was held against %+v", l)
	}
	if b := c.Bytes; min(b.RedisPerHotEntry, b.RedisPerOutcome, b.RedisPerClaim, b.CassandraPerJob, b.CassandraPerFire, b.CassandraPerKB, b.KafkaPerFire, b.KafkaPerKB, b.S3PerFire, b.NetworkPerFire) <= 0 {
		t.Errorf("what things take was measured as %+v", b)
	}
	if off := c.Check.Off(); !(math.Abs(off) <= 0.25) {
		t.Errorf("the model is off by %.0f %%", 100*off)
	}
}

// Package sizing is the model behind minutehand capacity: what a load needs of each tier, from costs that were measured.
//
// A process or server of a tier uses so much CPU on its own (its share of the partitions included), and so much more for each fire,
// by size, kind and outcome. A fire costs less where so many are due that batches are full: that is what a large load is reckoned with.
// make bench-costs measures these costs on the real servers, one of each, and writes them to costs.json; the same run measures a load to
// which nothing was fitted, and keeps what the model said about it.
package sizing

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

//go:embed costs.json
var measured []byte

// Costs are what was measured.
type Costs struct {
	// Machine is the shape of the machine, At when it was measured, Command what measures it again.
	Machine string `json:"machine"`
	At      string `json:"at"`
	Command string `json:"command"`
	// Tiers are the costs of each service and server, by name.
	Tiers map[string]Tier `json:"tiers"`
	Bytes Bytes           `json:"bytes"`
	// Check is the load that nothing was fitted to.
	Check Check `json:"check"`
}

// Tier is what one process of a tier costs, in µs of CPU.
type Tier struct {
	// Base is that of a second in which something fires, without partitions; PerPartition of a second for each partition.
	Base         float64 `json:"base_us_per_second"`
	PerPartition float64 `json:"us_per_partition_and_second"`
	// PerFire is that of a one-shot of 256 bytes that succeeds; the others come on top: for each KB of payload, for a fire of a
	// recurring job, for an attempt that fails and is tried again.
	PerFire float64 `json:"us_per_fire"`
	// PerFullFire is that of such a one-shot when batches are full, as in a stampede.
	PerFullFire  float64 `json:"us_per_fire_in_a_stampede"`
	PerKB        float64 `json:"us_per_kb"`
	PerRecurring float64 `json:"us_per_recurring_fire"`
	PerRetry     float64 `json:"us_per_retry"`
	// MiB is the memory of one process under load; 0 where it follows from what is kept there.
	MiB float64 `json:"mib"`
}

// Bytes are what things take where they are kept, one replica.
type Bytes struct {
	RedisPerHotEntry  float64 `json:"redis_per_hot_entry"`
	RedisPerOutcome   float64 `json:"redis_per_outcome"`
	RedisPerClaim     float64 `json:"redis_per_claim"`
	CassandraPerJob   float64 `json:"cassandra_per_pending_job"`
	CassandraPerFire  float64 `json:"cassandra_per_fire"`
	CassandraPerKB    float64 `json:"cassandra_per_kb_of_a_pending_job"`
	KafkaPerFire      float64 `json:"kafka_per_fire"`
	KafkaPerKB        float64 `json:"kafka_per_kb"`
	S3PerFire         float64 `json:"s3_per_fire"`
	NetworkPerFire    float64 `json:"network_per_fire"`
	NetworkPerKB      float64 `json:"network_per_kb"`
	RedisNetworkShare float64 `json:"redis_share_of_network"`
}

// Check is a load that nothing was fitted to, with the CPU that the model says and what was measured, in cores.
type Check struct {
	Load     Load               `json:"load"`
	Says     map[string]float64 `json:"says_cores"`
	Measured map[string]float64 `json:"measured_cores"`
}

// Off returns by how much the model is off in all: 0.1 if it says a tenth too much.
func (c *Check) Off() float64 { return sum(c.Says)/sum(c.Measured) - 1 }

func sum(cores map[string]float64) (all float64) {
	for _, one := range cores {
		all += one
	}
	return all
}

// Measured returns the costs that this release was measured to have.
func Measured() (Costs, error) { return Parse(measured) }

// Parse reads costs.
func Parse(text []byte) (c Costs, err error) {
	if err = json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("costs: %w", err)
	}
	return c, nil
}

// Load is what an installation is to bear.
type Load struct {
	// FiresPerSecond are first attempts, PayloadKB the size of each.
	FiresPerSecond float64 `json:"fires_per_second"`
	PayloadKB      float64 `json:"payload_kb"`
	// Recurring and Retries are shares of the fires: of recurring jobs, and of those that fail and are tried once more.
	Recurring float64 `json:"recurring"`
	Retries   float64 `json:"retries"`
	// Pending are the jobs at rest; Retention is how long history is kept.
	Pending   float64       `json:"pending"`
	Retention time.Duration `json:"retention"`
	// LogRetention is how long Kafka keeps records.
	LogRetention time.Duration `json:"log_retention"`
	// Partitions of the installation.
	Partitions int `json:"partitions"`
}

// longest bounds retentions.
const longest = 100 * 365 * 24 * time.Hour

// Validate returns what is wrong with a load.
func (l *Load) Validate() error {
	switch {
	case !(l.FiresPerSecond >= 0) || !(l.Pending >= 0) || !(l.PayloadKB >= 0) || l.FiresPerSecond > 1e9 || l.Pending > 1e13 || l.PayloadKB > 1e6:
		return errors.New("rates, sizes and numbers must be at least 0, and within reason")
	case !(l.Recurring >= 0 && l.Recurring <= 1) || !(l.Retries >= 0 && l.Retries <= 1):
		return errors.New("shares must lie between 0 and 1")
	case l.Partitions < 1 || l.Partitions > 1<<20:
		return errors.New("there must be at least one partition")
	case l.Retention < 0 || l.Retention > longest || l.LogRetention < 0 || l.LogRetention > longest:
		return errors.New("a retention must be at least 0")
	}
	return nil
}

// cores returns what one tier uses for a load like those that were measured, one process of it.
func (t *Tier) cores(l *Load) float64 { return t.with(t.PerFire, l, 1) }

// full returns what a tier uses, if so many processes share a load under which batches are full.
func (t *Tier) full(l *Load, processes float64) float64 { return t.with(t.PerFullFire, l, processes) }

func (t *Tier) with(fire float64, l *Load, processes float64) float64 {
	fire += t.PerKB*l.PayloadKB + t.PerRecurring*l.Recurring + t.PerRetry*l.Retries
	return (t.Base*processes + t.PerPartition*float64(l.Partitions) + fire*l.FiresPerSecond) / 1e6
}

// Cores returns the cores that each tier uses with one process of each, as they were measured.
func (c *Costs) Cores(l Load) map[string]float64 {
	cores := map[string]float64{}
	for name, t := range c.Tiers {
		cores[name] = t.cores(&l)
	}
	return cores
}

const (
	// usable is how much of a core may be used, so that a lost zone of three leaves enough.
	usable = 0.6
	// perNode is how many cores a node of a server has, nodeMemory how many bytes.
	perNode    = 8
	nodeMemory = 32 << 30
	// copies is how often Cassandra, Kafka and Redis keep everything: three, three, and a master with a replica.
	copies, redisCopies = 3, 2
	// hotFor is how long an entry is in Redis before it is due, outcomeFor how long an outcome stays, and the claim of a recurring
	// job's instant.
	hotFor, outcomeFor = time.Hour, time.Hour
	// workingSet is the share of a Redis server's memory that is to be used.
	workingSet = 0.7
	// replicaWork is how much of a write's work each further replica does: it neither coordinates nor answers.
	replicaWork = 0.5
)

// Need is what one tier needs.
type Need struct {
	Tier string `json:"tier"`
	// Processes is how many are needed, of one core each for services and of eight for servers, Cores what they use together.
	Processes int     `json:"processes"`
	Cores     float64 `json:"cores"`
	// Memory, Disk in bytes; Network in bytes a second.
	Memory  float64 `json:"memory_bytes"`
	Disk    float64 `json:"disk_bytes"`
	Network float64 `json:"network_bytes_per_second"`
	// Basis says which of it was measured and what was extrapolated.
	Basis string `json:"basis"`
}

// Plan is what a load needs.
type Plan struct {
	Load  Load   `json:"load"`
	Needs []Need `json:"needs"`
	// Partitions and KafkaPartitions are the least that the numbers of processes need.
	Partitions      int `json:"partitions"`
	KafkaPartitions int `json:"kafka_partitions"`
	// Bottleneck says what becomes scarce first.
	Bottleneck string `json:"bottleneck"`
}

// Servers returns the names of the tiers that are servers; the others are services.
func Servers() []string { return []string{"Cassandra", "Kafka", "Redis", "ZooKeeper", "S3"} }

// Plan returns what a load needs, with replicas and room for the loss of a zone.
func (c *Costs) Plan(l Load) (Plan, error) {
	if err := l.Validate(); err != nil {
		return Plan{}, err
	}
	p := Plan{Load: l, Partitions: l.Partitions}
	records := l.FiresPerSecond * (1 + l.Retries)
	network := records * (c.Bytes.NetworkPerFire + c.Bytes.NetworkPerKB*l.PayloadKB)
	for _, name := range slices.Sorted(maps.Keys(c.Tiers)) {
		t := c.Tiers[name]
		n := Need{Tier: name, Basis: "cores: measured with one process, extrapolated to more"}
		switch name {
		case "Cassandra":
			n.Disk = copies * (l.Pending*(c.Bytes.CassandraPerJob+c.Bytes.CassandraPerKB*l.PayloadKB) + records*l.Retention.Seconds()*c.Bytes.CassandraPerFire)
			n.replicated(&t, &l, copies)
			n.Network = copies * records * (c.Bytes.CassandraPerFire + c.Bytes.CassandraPerKB*l.PayloadKB)
			n.Basis = "cores, disk: measured with one replica; two more at half of the work each are extrapolated"
		case "Kafka":
			n.Disk = copies * records * l.LogRetention.Seconds() * (c.Bytes.KafkaPerFire + c.Bytes.KafkaPerKB*l.PayloadKB)
			n.replicated(&t, &l, copies)
			n.Network = (copies + 2) * records * (c.Bytes.KafkaPerFire + c.Bytes.KafkaPerKB*l.PayloadKB)
			n.Basis = "as Cassandra"
		case "Redis":
			n.Memory = redisCopies * records * (hotFor.Seconds()*c.Bytes.RedisPerHotEntry + outcomeFor.Seconds()*(c.Bytes.RedisPerOutcome+l.Recurring*c.Bytes.RedisPerClaim))
			n.Cores = t.full(&l, 1)
			masters := max(1, math.Ceil(n.Cores/usable), math.Ceil(n.Memory/redisCopies/workingSet/nodeMemory))
			n.Processes, n.Cores = redisCopies*int(masters), n.Cores*(1+replicaWork)
			n.Network = network * c.Bytes.RedisNetworkShare
			n.Basis = "cores, bytes: measured with one server, which uses one core at most; masters and replicas are extrapolated; memory: with MINUTEHAND_REDIS_OUTCOMES_TOGETHER"
		case "ZooKeeper":
			n.Cores, n.Processes = t.full(&l, 1)*3, 3
			n.Memory = float64(n.Processes) * t.MiB * (1 << 20)
			n.Basis = "measured with one server"
		case "S3":
			n.Cores, n.Disk = t.full(&l, 1), records*365*24*3600*c.Bytes.S3PerFire
			n.Basis = "disk: a year of objects as small as those of the measurement; the cores are those of the server that stood in"
		default:
			n.spread(&t, &l)
			n.Network = network * (1 - c.Bytes.RedisNetworkShare) / 6
			n.Basis += "; network: a sixth of what is not Redis', an estimate"
		}
		p.Needs = append(p.Needs, n)
	}
	p.conclude()
	return p, nil
}

// spread gives a service as many processes, of a core each, as it needs, each with work of its own.
func (n *Need) spread(t *Tier, l *Load) {
	n.Processes = 2
	for range 20 {
		n.Cores = t.full(l, float64(n.Processes))
		want := max(2, int(math.Ceil(n.Cores/usable)))
		if want <= n.Processes {
			break
		}
		n.Processes = want
	}
	n.Memory = float64(n.Processes) * t.MiB * (1 << 20)
}

// replicated gives a server as many nodes as its copies need.
func (n *Need) replicated(t *Tier, l *Load, copies float64) {
	n.Cores = t.full(l, 1) * (1 + replicaWork*(copies-1))
	n.Processes = max(int(copies), int(math.Ceil(n.Cores/usable/perNode)))
	n.Memory = float64(n.Processes) * nodeMemory
}

// maxDiskPerNode is how much a node of Cassandra or Kafka is to hold.
const maxDiskPerNode = 4e12

// conclude finds how many partitions are needed, and what is scarce first.
func (p *Plan) conclude() {
	most, share := "", -1.0
	all := 0.0
	for i := range p.Needs {
		n := &p.Needs[i]
		if nodes := int(math.Ceil(n.Disk / maxDiskPerNode)); (n.Tier == "Cassandra" || n.Tier == "Kafka") && nodes > n.Processes {
			n.Processes = nodes
			n.Memory = float64(nodes) * nodeMemory
			n.Basis += "; as many nodes as the disk needs, 4 TB each"
		}
		switch n.Tier {
		case "executor", "retry-manager", "audit-writer":
			p.KafkaPartitions = max(p.KafkaPartitions, n.Processes)
		case "scheduler-worker", "bucket-loader":
			p.Partitions = max(p.Partitions, n.Processes)
		}
		if all += n.Cores; n.Cores > share {
			most, share = n.Tier, n.Cores
		}
	}
	p.Bottleneck = fmt.Sprintf("%s: %.0f %% of all cores", most, 100*share/max(all, 1e-9))
	if p.Partitions > p.Load.Partitions {
		p.Bottleneck = fmt.Sprintf("partitions: %d are too few for as many workers and loaders as are needed (%d), and their number is fixed when the installation is made",
			p.Load.Partitions, p.Partitions)
	}
}

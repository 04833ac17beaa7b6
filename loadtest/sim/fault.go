package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minutehand/minutehand/libs/attempts"
	"github.com/minutehand/minutehand/libs/clock"
	"github.com/minutehand/minutehand/libs/job"
)

// Kind is what goes wrong at a call to a port.
type Kind string

// The kinds of faults. All but the scheduled ones strike at a port call.
const (
	None        Kind = ""
	FailBefore  Kind = "fail before"  // an error, without effect
	FailAfter   Kind = "fail after"   // it takes effect, but the answer is lost
	FailPartly  Kind = "fail partly"  // it takes effect for some of the items, and returns an error
	FailLate    Kind = "fail late"    // an error, but it takes effect later
	Twice       Kind = "twice"        // it takes effect once more, later
	SlowBefore  Kind = "slow before"  // it takes effect late, and is answered
	SlowAfter   Kind = "slow after"   // it takes effect at once, and is answered late
	DieBefore   Kind = "die before"   // the process dies, without effect
	DieAfter    Kind = "die after"    // the process dies, it took effect
	StallBefore Kind = "stall before" // the process stalls, then it takes effect
	StallAfter  Kind = "stall after"  // it takes effect, then the process stalls
	Unseen      Kind = "unseen"       // it takes effect and returns an error; plain reads see it after the next serial one
	Redeliver   Kind = "redeliver"    // the consumer starts over at the committed position

	// Scheduled faults.
	LoseHot  Kind = "lose hot tier"                    // or one partition of it
	Replace  Kind = "replace a server of the hot tier" // a partition fails over, and some clients go on with the old server for a while
	FailOver Kind = "lose the hot tier's last second"
	Recreate Kind = "recreate a topic"
	Shorten  Kind = "lose a topic's last second"
	Forget   Kind = "forget what was committed of a topic"
	Lapse    Kind = "lapse" // a process is not heard from for a while, and goes on as an owner
	Outage   Kind = "outage"
	Hang     Kind = "hang"    // a server is unavailable as in an outage, and calls to it take as long as their callers wait
	Restart  Kind = "restart" // a process is told to stop, and started again once it has
	Cut      Kind = "cut off" // an owner can no longer reach one of the stores, and the other owners have to do its work
)

// Class says which faults make sense at a call.
type Class int

// The classes of calls.
const (
	Read Class = iota
	Write
	WriteMany   // of several items, which are not written at once
	WriteSerial // by a lightweight transaction
	Poll
	Call // to a target
)

func (c Class) kinds() []Kind {
	write := []Kind{FailBefore, FailAfter, FailLate, Twice, SlowBefore, SlowAfter, DieBefore, DieAfter, StallBefore, StallAfter}
	switch c {
	case Write:
		return write
	case WriteMany:
		return append(write, FailPartly)
	case WriteSerial:
		return append(write, Unseen)
	case Poll:
		return []Kind{FailBefore, Redeliver, DieBefore, DieAfter, StallBefore, StallAfter}
	case Call:
		return []Kind{SlowBefore, DieBefore, DieAfter, StallBefore, StallAfter}
	}
	return []Kind{FailBefore, SlowBefore, SlowAfter, DieBefore, StallBefore, StallAfter}
}

// Op names an operation of a port.
type Op struct {
	Port, Name string
	Class      Class
	// Weight scales the weather's rates: rare operations meet more faults, polling ones fewer.
	Weight float64
}

// Point is a call: the n-th of an operation with this key.
type Point struct {
	Port string `json:"port"`
	Op   string `json:"op"`
	Key  string `json:"key,omitempty"`
	N    int    `json:"n"`
}

// Fault is what strikes at a point, or at an instant of the run.
type Fault struct {
	Kind  Kind          `json:"kind"`
	For   time.Duration `json:"for,omitempty"`
	Point Point         `json:"point,omitzero"`
	// At is when it struck, or strikes.
	At time.Duration `json:"at"`
	// What is the target of a scheduled fault.
	What string `json:"what,omitempty"`
	// Aimed is set if the workload makes it strike, in a replay too.
	Aimed bool `json:"aimed,omitempty"`
}

// partitions returns those of the hot tier that a fault strikes.
func (f Fault) partitions() (list []int) {
	what, _, _ := strings.Cut(f.What, "/")
	for p := range partitions {
		if what == "" || what == strconv.Itoa(p) {
			list = append(list, p)
		}
	}
	return list
}

// lags reports whether a client goes on with a server that was replaced: half of the clients do, or those of the named kind
// of process.
func (f Fault) lags(d dice, client string) bool {
	if _, kind, ok := strings.Cut(f.What, "/"); ok {
		return strings.HasPrefix(client, kind)
	}
	return d.roll("lags/%s/%s/%s", f.What, f.At, client) < 0.5
}

// onlyOne reports whether only one kind of process goes on with a server that was replaced.
func (f Fault) onlyOne() bool { return f.Kind == Replace && strings.Contains(f.What, "/") }

// String returns a fault for people to read.
func (f Fault) String() string {
	s := string(f.Kind)
	if f.What != "" {
		s += " " + f.What
	}
	if f.For > 0 {
		s += " for " + f.For.String()
	}
	if f.Point != (Point{}) {
		s += fmt.Sprintf(" at %s.%s(%s) #%d", f.Point.Port, f.Point.Op, f.Point.Key, f.Point.N)
	}
	return s
}

// Faults decides what goes wrong: by the seed, or by a trace.
type Faults struct {
	dice    dice
	weather Weather
	// replay holds a trace's faults by their points without N, ordered by time; nil unless a trace is replayed.
	replay map[Point][]Fault

	// aimed is a death or a stall at a certain operation, from an instant on. Each run has one, so that every such point is
	// hit, however rarely the operation is called.
	aimed   Hit
	aimedAt time.Duration

	mu sync.Mutex
	// awaited holds the channels that are closed when an executor makes a job's next last check.
	awaited map[string]chan struct{}
	// until is when faults end; there are none before from.
	from, until time.Time
	calls       map[Point]int // with N = 0
	struck      []Fault
	hits        map[Hit]int
}

// aim assigns the next of the points to each seed whose weather has crashes.
func (f *Faults) aim(seed uint64) {
	kinds := uint64(len(weathers()))
	if !f.weather.Crash {
		return
	}
	var points []Hit
	for _, op := range ops {
		for _, k := range op.Class.kinds() {
			switch k {
			case DieBefore, DieAfter, StallBefore, StallAfter:
				seeds := 1
				if op == opDefer {
					seeds = 8 // most runs never reach it
				}
				for range seeds {
					points = append(points, Hit{op.Port, op.Name, k})
				}
			}
		}
	}
	f.aimed = points[(seed/kinds*(kinds-1)+seed%kinds)%uint64(len(points))]
	f.aimedAt = time.Duration(f.dice.roll("aim") * float64(4*time.Minute))
}

// Hit is a place in the code at which a fault of a kind struck.
type Hit struct {
	Port string `json:"port"`
	Op   string `json:"op"`
	Kind Kind   `json:"kind"`
}

func newFaults(seed uint64, w Weather, replay []Fault) *Faults {
	f := &Faults{dice: dice{seed}, weather: w, calls: map[Point]int{}, hits: map[Hit]int{}, awaited: map[string]chan struct{}{}}
	f.aim(seed)
	if replay != nil {
		f.replay = map[Point][]Fault{}
		for _, x := range replay {
			if x.Point != (Point{}) {
				p := x.Point
				p.N = 0
				f.replay[p] = append(f.replay[p], x)
			}
		}
	}
	return f
}

// At decides what happens to a call.
func (f *Faults) At(kind string, op *Op, key string) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := Point{Port: op.Port, Op: op.Name, Key: key}
	f.calls[p]++
	p.N = f.calls[p]
	now := time.Now()
	if now.Before(f.from) || !now.Before(f.until) {
		return Fault{}
	}
	var fault Fault
	switch late := f.comesLate(kind, op, key); {
	case f.replay != nil:
		fault = f.next(p, now.Sub(f.from))
	case f.aimed.Port == op.Port && f.aimed.Op == op.Name && now.Sub(f.from) >= f.aimedAt:
		fault = Fault{Kind: f.aimed.Kind, Point: p, For: f.length(f.aimed.Kind, p)}
		f.aimed = Hit{}
	case late:
		fault = Fault{Kind: SlowBefore, Point: p, For: lateCheck}
	default:
		fault = f.decide(op, p, eagerness(kind, op))
	}
	if fault.Kind != None {
		fault.At = now.Sub(f.from)
		f.struck = append(f.struck, fault)
		f.hits[Hit{op.Port, op.Name, fault.Kind}]++
	}
	return fault
}

// next returns the trace's next fault of such a call once its time has come: at the same call, or else at the next one.
// (How many calls came before is not a good measure alone: one additional call would shift everything that follows.)
func (f *Faults) next(p Point, at time.Duration) Fault {
	n := p.N
	p.N = 0
	list := f.replay[p]
	if len(list) == 0 {
		return Fault{}
	}
	if at < list[0].At+time.Millisecond && (n != list[0].Point.N || at < list[0].At-replayTolerance) {
		return Fault{}
	}
	f.replay[p] = list[1:]
	fault := list[0]
	fault.Point.N = n
	return fault
}

// replayTolerance is how much earlier than in the trace a call may come.
const replayTolerance = 100 * time.Millisecond

// clock returns a process's clock. In half of the runs each process has its own, so that two differ by up to what is
// allowed. Some of these clocks are set during the run, by up to as much, and all drift.
func (f *Faults) clock(process string) clock.Clock {
	if f.weather.Name == calm.Name || f.dice.roll("clocks") < 0.5 {
		return clock.Clock{}
	}
	const most = clock.MaxDifference / 2
	somewhere := func(name string) time.Duration {
		return time.Duration((2*f.dice.roll(name, process) - 1) * float64(most))
	}
	first, second := somewhere("clock/%s"), somewhere("clock again/%s")
	from, perSecond := f.from, time.Duration((f.dice.roll("drift/%s", process)-0.5)*float64(maxDrift))
	set := f.from.Add(time.Duration(f.dice.roll("set/%s", process) * float64(2*f.until.Sub(f.from)))) // half of them in the run
	return clock.Ahead(func() time.Duration {
		ahead := first
		if time.Now().After(set) {
			ahead = second
		}
		ahead += perSecond * (time.Since(from) / time.Second)
		return min(max(ahead, -most), most).Truncate(time.Millisecond)
	})
}

// maxDrift is how far a clock may drift from the others in a second: a quartz clock drifts by a tenth of that.
const maxDrift = time.Millisecond

// eagerness makes up for rare operations: what the API does for a client, and the steps between which an owner's stall
// matters most.
func eagerness(kind string, op *Op) float64 {
	switch {
	case kind == "job-api" && op == opSetStop: // a client's next change must overtake it
		return 15 * op.Weight
	case kind == "job-api":
		return 5 * op.Weight
	case kind == "scheduler-worker" && (op == opClaim || op == opPut || op == opDecide):
		return 3 * op.Weight
	}
	return op.Weight
}

// over returns when the last fault that struck ends.
func (f *Faults) over() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := f.until
	for _, x := range f.struck {
		end = job.Later(end, f.from.Add(x.At+x.For))
	}
	return end
}

func (f *Faults) decide(op *Op, p Point, weight float64) Fault {
	r := f.dice.roll("%s/%s/%s/%d", p.Port, p.Op, p.Key, p.N)
	for _, k := range op.Class.kinds() {
		rate := f.weather.Rates[k] * weight
		if r < rate {
			return Fault{Kind: k, Point: p, For: f.length(k, p)}
		}
		r -= rate
	}
	return Fault{}
}

// length returns how long a fault lasts. Without a crash nothing takes as long as a lease.
func (f *Faults) length(k Kind, p Point) time.Duration {
	r := f.dice.roll("for/%s/%s/%s/%d", p.Port, p.Op, p.Key, p.N)
	spread := func(lengths ...time.Duration) time.Duration {
		i := int(r * float64(len(lengths)))
		return lengths[i] + time.Duration(float64(lengths[i])*(r*float64(len(lengths))-float64(i))).Truncate(time.Millisecond)
	}
	switch k {
	case SlowBefore, SlowAfter, FailLate, Twice:
		if f.weather.Longer {
			return spread(3*time.Millisecond, 40*time.Millisecond, 600*time.Millisecond, 4*time.Second, 15*time.Second)
		}
		return spread(3*time.Millisecond, 40*time.Millisecond, 400*time.Millisecond)
	case StallBefore, StallAfter:
		return spread(1200*time.Millisecond, 4*time.Second, 12*time.Second, 35*time.Second, 100*time.Second)
	case DieBefore, DieAfter: // until it starts again
		return spread(500*time.Millisecond, 3*time.Second, 12*time.Second)
	}
	return 0
}

// Schedule returns the scheduled faults of the run. Owners are the processes that have partitions.
func (f *Faults) Schedule(replay []Fault, length time.Duration, processes, owners []string) []Fault {
	var list []Fault
	if f.replay != nil {
		for _, x := range replay {
			if x.Point == (Point{}) && !x.Aimed {
				list = append(list, x)
			}
		}
		slices.SortStableFunc(list, byTime)
		return list
	}
	for _, k := range slices.Sorted(maps.Keys(f.weather.Scheduled)) {
		for n := range f.weather.Scheduled[k] {
			at := time.Duration(f.dice.roll("%s/%d", k, n) * float64(length)).Truncate(time.Millisecond)
			x := Fault{Kind: k, At: at}
			switch k {
			case Forget, Recreate, Shorten:
				x.What = pick(f.dice, []string{"fires.default", "fires.default", "events"}, "what/%s/%d", k, n)
			case LoseHot:
				x.What = pick(f.dice, []string{"", "0", "1", "2", "3"}, "what/%s/%d", k, n)
			case Replace:
				x.What = pick(f.dice, []string{"0", "1", "2", "3"}, "what/%s/%d", k, n)
				x.For = pick(f.dice, []time.Duration{2 * time.Second, 8 * time.Second, attempts.ReplacedFor - time.Millisecond}, "for/%s/%d", k, n)
			case Lapse:
				x.What = pick(f.dice, processes, "what/%s/%d", k, n)
				x.For = pick(f.dice, []time.Duration{2 * time.Second, 9 * time.Second, 40 * time.Second}, "for/%s/%d", k, n)
			case Cut:
				x.What = pick(f.dice, owners, "what/%s/%d", k, n) + "/" + pick(f.dice, []string{"cold", "hot"}, "port/%s/%d", k, n)
			case Restart:
				x.What = pick(f.dice, processes, "what/%s/%d", k, n)
				x.For = pick(f.dice, []time.Duration{time.Second, 5 * time.Second, 20 * time.Second}, "for/%s/%d", k, n)
			case Outage, Hang:
				x.What = pick(f.dice, []string{"cold", "hot", "log", "coord", "archive"}, "what/%s/%d", k, n)
				x.For = pick(f.dice, []time.Duration{4 * time.Second, 15 * time.Second, 50 * time.Second}, "for/%s/%d", k, n)
			}
			list = append(list, x)
		}
	}
	slices.SortFunc(list, byTime)
	return list
}

func byTime(a, b Fault) int { return cmp.Compare(a.At, b.At) }

// forgets reports whether the hot tier is lost right after a cancel was acknowledged, when that matters most, in a replay
// too.
func (f *Faults) forgets(jobID string) bool {
	return f.weather.Scheduled[LoseHot] > 0 && time.Now().Before(f.until) && f.dice.roll("forgets/%s", jobID) < forgetful
}

// replaces reports whether the server of a job's part of the hot tier is replaced right before its n-th change. It returns
// who goes on with the old server then, as in [Fault.lags].
func (f *Faults) replaces(jobID string, n int) (who string, ok bool) {
	if f.weather.Scheduled[Replace] == 0 || !time.Now().Before(f.until) {
		return "", false
	}
	r := f.dice.roll("replaces/%s/%d", jobID, n)
	if r < forgetful/8 {
		return "", true
	}
	return "/job-api", r < forgetful
}

// forgetful is the share of cancels after which the hot tier is lost, and of changes before which one of its servers is
// replaced, in weathers that do this. As a rule only the API does not notice, which costs the others nothing.
const forgetful = 0.25

// scheduled records that a scheduled fault struck.
func (f *Faults) scheduled(x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.struck = append(f.struck, x)
	f.hits[Hit{"schedule", x.What, x.Kind}]++
}

// Trace is what is saved from a run that broke an invariant.
type Trace struct {
	Seed       uint64   `json:"seed"`
	Variant    string   `json:"variant,omitempty"`
	Violations []string `json:"violations"`
	Faults     []Fault  `json:"faults"`
}

func (t Trace) encode() ([]byte, error) { return json.MarshalIndent(t, "", " ") }

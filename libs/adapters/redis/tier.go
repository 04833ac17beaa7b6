// Package redis is the hot tier on a Redis server or a Redis Cluster: hot buckets, leases, outcomes and stop records.
// schemas/redis/KEYS.md describes the keys.
//
// Every read that is followed by a write is one script, so every call on one record is atomic. All keys of a partition and of its
// jobs have one hash tag, so in a cluster one server holds them. Each partition has an incarnation, which contains that server's
// run id: the first process that asks for it after a restart or a failover makes a new one.
package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/minutehand/minutehand/libs/bucket"
	"github.com/minutehand/minutehand/libs/certificates"
)

// Options say where the server is.
type Options struct {
	// Address of the server, host:port; for a cluster, those of one or more of its nodes, separated by commas.
	Address string
	// Cluster is set for a Redis Cluster.
	Cluster            bool
	Username, Password string
	// TLS makes the connections; nil for plain text.
	TLS *certificates.Client
	// Partitions is the store's partition count.
	Partitions int
	// Prefix of all keys, such as "minutehand:".
	Prefix string
	// OutcomesTogether keeps the first outcomes of a minute of a partition in one hash. Releases that do not have it do not find them there.
	OutcomesTogether bool
	// MaxEntries bounds the entries of one partition; 0 means 1,000,000.
	MaxEntries int
}

const (
	// maxBatch bounds the members that one script works on, so that none takes longer than a few milliseconds.
	maxBatch = 500
	// poolSize bounds the connections of a process to a server; above it calls wait, for poolTimeout at most.
	poolSize    = 64
	poolTimeout = 5 * time.Second
	callTimeout = 3 * time.Second
	// callLimit bounds a call, including all its redirections and reconnections.
	callLimit = 5 * time.Second
	// lookAgain is the maximum age of what is known about which server of a cluster holds what.
	lookAgain  = time.Second
	clientName = "minutehand"
	// protocol is RESP2. With RESP3 the driver looks for a server's notifications before each answer of a pipeline, and nobody here waits
	// for one.
	protocol = 2
)

// quiet keeps the driver from writing to standard error what its calls return anyhow.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Tier is a connection to the hot tier, which HotBuckets and Records share.
type Tier struct {
	o      Options
	client redis.UniversalClient
}

// Open returns a tier. It does not wait for the server; every call does, up to its time limit.
func Open(o Options) *Tier {
	if o.MaxEntries == 0 {
		o.MaxEntries = 1_000_000
	}
	quiet()
	if o.Cluster {
		// A call that is redirected is repeated elsewhere, and a call that a broken connection leaves unanswered is repeated too. So
		// every call may be made twice, as its callers do it after an error.
		return &Tier{o: o, client: redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: strings.Split(o.Address, ","), Username: o.Username, Password: o.Password, ClientName: clientName, OnConnect: loadScripts,
			Protocol:   protocol,
			MaxRetries: -1, DialTimeout: callTimeout, DialerRetries: 1, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
			PoolSize: poolSize, PoolTimeout: poolTimeout, ContextTimeoutEnabled: true, ClusterStateReloadInterval: lookAgain, Dialer: o.dialer(),
		})}
	}
	return &Tier{o: o, client: redis.NewClient(&redis.Options{
		Addr: o.Address, Username: o.Username, Password: o.Password, ClientName: clientName, OnConnect: loadScripts, Protocol: protocol,
		// Nothing is retried here, because only the caller knows what a second try means.
		MaxRetries: -1, DialTimeout: callTimeout, DialerRetries: 1, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		PoolSize: poolSize, PoolTimeout: poolTimeout, ContextTimeoutEnabled: true, Dialer: o.dialer(),
	})}
}

// dialer returns what makes the connections; nil for the driver's own way.
func (o *Options) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	if o.TLS == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return o.TLS.Dial(ctx, network, address)
	}
}

// Close closes the connections.
func (t *Tier) Close() error { return t.client.Close() }

// ErrEvicts means: a server may evict keys to make room. A stop record that was evicted stops nothing, and nobody would notice.
var ErrEvicts = errors.New("the server may evict keys, and with them the record that a job was cancelled: " +
	"set maxmemory-policy to noeviction (or maxmemory to 0)")

// Check returns nil when the server answers and evicts nothing; for a cluster, when every server that holds keys does.
func (t *Tier) Check(ctx context.Context) error {
	err := t.masters(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "memory").Result()
		if err == nil && evicts(info) {
			err = ErrEvicts
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("redis at %s: %w", t.o.Address, err)
	}
	return nil
}

// evicts reports whether keys may be evicted, from the memory section of INFO, which a managed server shows as well.
func evicts(info string) bool {
	limit := infoField(info, "maxmemory")
	return limit != "" && limit != "0" && infoField(info, "maxmemory_policy") != "noeviction"
}

func (t *Tier) key(name string) string { return t.o.Prefix + name }

// of returns a key of a partition. All keys of one partition have one hash tag.
func (t *Tier) of(partition int, name string) string {
	return t.key("{p" + strconv.Itoa(partition) + "}:" + name)
}

// ofJob returns a key of a job's partition.
func (t *Tier) ofJob(jobID, name string) string {
	return t.of(bucket.Partition(jobID, t.o.Partitions), name)
}

// incarnationLua returns a partition's incarnation, a new one if there is none of this reign of its server: the run id changes with
// a restart, the replication id with a restart and a promotion: a server that begins to accept writes draws a new one. So the latter
// alone is compared each time (a connection, and a server, may outlive two failovers, there and back). Half of each is enough. A name begins with its number, as in attempts.IncarnationName: the server's
// time in microseconds, or one more than the last number, if that is known. It ends in "p" where another server may have been in
// this one's place before: it was a replica, or belongs to a cluster and knows nothing.
const incarnationLua = `
local function reigns(name)
  return #name >= 55 and string.find(redis.call('INFO', 'replication'), 'master_replid:' .. string.sub(name, 36, 55), 1, true)
end
local function incarnation(key)
  local now = redis.call('GET', key)
  if now and reigns(now) then return now end
  local info = redis.call('INFO', 'server', 'replication')
  local reign = string.sub(string.match(info, 'run_id:(%w+)'), 1, 20) .. string.sub(string.match(info, 'master_replid:(%w+)'), 1, 20)
  if not now or string.sub(now, 15, 55) ~= '-' .. reign then
    local time = redis.call('TIME')
    local number = time[1] * 1000000 + time[2]
    local promoted = string.find(info, 'master_replid2:0*[^0%s]') or not now and string.find(info, 'redis_mode:cluster')
    if now then number = math.max(number, (tonumber(string.sub(now, 1, 14), 16) or 0) + 1) end
    now = string.format('%014x', number) .. '-' .. reign .. (promoted and 'p' or '')
    redis.call('SET', key, now)
  end
  return now
end
`

// In the name of an incarnation, the part of the replication id begins at reignFrom, and is reignLength long.
const reignFrom, reignLength = 35, 20

var incarnationScript = newScript(incarnationLua + `return incarnation(KEYS[1])`)

// script is a script with its text.
type script struct {
	*redis.Script
	text string
}

func newScript(text string) *script { return &script{redis.NewScript(text), text} }

// loadScripts sends the scripts to a server on a new connection, so that a server which has just started knows them before the
// first one is called. A script that it refuses, it later receives as text. A connection with unanswered requests is not used.
func loadScripts(ctx context.Context, c *redis.Conn) error {
	pipe := c.Pipeline()
	for _, s := range []*script{
		incarnationScript, addScript, dueScript, postponeScript, parkScript, removeScript, absentScript, claimScript, horizonScript, epochScript,
		acquireScript, beginScript, startScript, renewScript, releaseScript, finishScript, refuseScript, stopScript, postScript, boardScript,
		addTaskScript, noteScript, takeTasksScript, bindScript, removeTaskScript, forgetTaskScript, lapsedScript, seeScript,
	} {
		pipe.ScriptLoad(ctx, s.text) // the script's own Load would take the pipeline's missing reply for its hash
	}
	_, err := pipe.Exec(ctx)
	var refusal redis.Error
	if errors.As(err, &refusal) {
		return nil
	}
	return err
}

// bounded returns the context of a call.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callLimit)
}

// run runs a script by its hash, or by its text if the server does not know it yet.
func (t *Tier) run(ctx context.Context, s *script, keys []string, args ...any) *redis.Cmd {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return s.Run(ctx, t.client, keys, args...)
}

// call is a script with what it is to be run on.
type call struct {
	script *script
	keys   []string
	args   []any
}

// runAll runs scripts in one pipeline, by their hashes, and by their texts where a server does not know them yet. It returns the first
// error. In a cluster the servers that answer have done their part all the same, but their answers may be lost with it.
func (t *Tier) runAll(ctx context.Context, calls []call) ([]*redis.Cmd, error) {
	answers := make([]*redis.Cmd, len(calls))
	pipe := t.client.Pipeline()
	exec := func() error {
		ctx, cancel := bounded(ctx)
		defer cancel()
		_, err := pipe.Exec(ctx)
		return err
	}
	for i, c := range calls {
		answers[i] = c.script.EvalSha(ctx, pipe, c.keys, c.args...)
	}
	err := exec()
	pipe = t.client.Pipeline()
	for i, c := range calls { // in a cluster some servers may know the script, and have run it
		if redis.HasErrorPrefix(answers[i].Err(), "NOSCRIPT") {
			answers[i] = c.script.Eval(ctx, pipe, c.keys, c.args...)
		}
	}
	if pipe.Len() == 0 {
		return answers, err
	}
	_ = exec() // with its own time limit: the first may have used up its time waiting for another server
	for _, a := range answers {
		if a.Err() != nil {
			return answers, a.Err()
		}
	}
	return answers, nil
}

package executor

// callBytes is what a call takes while it runs over a connection of its own with TLS: 70 KB in make bench-calls.
const callBytes = 72 << 10

// Within limits invocations to the number of possible connections, and to half of the bytes that the process may use, if that is known: a
// quarter of the connections may be idle, no more than may be in use, and each of eight targets that hang may have its share.
func (c *Config) Within(connections int, bytes int64) {
	if c.MaxRunning = min(c.MaxRunning, connections*3/4); bytes > 0 {
		c.MaxRunning = min(c.MaxRunning, int(bytes/2/callBytes))
	}
	c.MaxIdle = min(c.MaxIdle, connections-c.MaxRunning, c.MaxRunning)
	c.HostConcurrency = min(c.HostConcurrency, max(c.MaxRunning/8, 1))
}

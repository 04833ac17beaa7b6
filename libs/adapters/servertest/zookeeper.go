package servertest

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// Nodes reads the nodes of ZooKeeper.
type Nodes struct{ conn *zk.Conn }

// ZooKeeper connects to it, for the duration of the test.
func ZooKeeper(t testing.TB) Nodes {
	t.Helper()
	conn, _, err := zk.Connect([]string{Address(t, "ZOOKEEPER")}, 6*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return Nodes{conn}
}

// Read returns what a node holds, and whether it exists.
func (n Nodes) Read(node string) (string, bool) {
	text, _, err := n.conn.Get(node)
	return string(text), err == nil
}

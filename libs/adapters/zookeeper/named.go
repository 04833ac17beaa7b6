package zookeeper

import (
	"fmt"

	"github.com/go-zookeeper/zk"
)

// named is an ensemble whose errors name the request.
type named struct{ of ensemble }

var _ ensemble = named{}

func (n named) SessionID() int64 { return n.of.SessionID() }

func (n named) State() zk.State { return n.of.State() }

func (n named) Close() { n.of.Close() }

func name(err error, operation, path string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("zookeeper: %s %s: %w", operation, path, err)
}

func (n named) Create(path string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	node, err := n.of.Create(path, data, flags, acl)
	return node, name(err, "create", path)
}

func (n named) CreateProtectedEphemeralSequential(path string, data []byte, acl []zk.ACL) (string, error) {
	node, err := n.of.CreateProtectedEphemeralSequential(path, data, acl)
	return node, name(err, "create", path)
}

func (n named) Get(path string) ([]byte, *zk.Stat, error) {
	data, stat, err := n.of.Get(path)
	return data, stat, name(err, "get", path)
}

func (n named) GetW(path string) ([]byte, *zk.Stat, <-chan zk.Event, error) {
	data, stat, events, err := n.of.GetW(path)
	return data, stat, events, name(err, "watch", path)
}

func (n named) Exists(path string) (bool, *zk.Stat, error) {
	there, stat, err := n.of.Exists(path)
	return there, stat, name(err, "look for", path)
}

func (n named) Set(path string, data []byte, version int32) (*zk.Stat, error) {
	stat, err := n.of.Set(path, data, version)
	return stat, name(err, "set", path)
}

func (n named) Delete(path string, version int32) error {
	return name(n.of.Delete(path, version), "delete", path)
}

func (n named) Children(path string) ([]string, *zk.Stat, error) {
	children, stat, err := n.of.Children(path)
	return children, stat, name(err, "list", path)
}

func (n named) ChildrenW(path string) ([]string, *zk.Stat, <-chan zk.Event, error) {
	children, stat, events, err := n.of.ChildrenW(path)
	return children, stat, events, name(err, "watch", path)
}

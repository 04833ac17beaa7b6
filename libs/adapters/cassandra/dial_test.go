package cassandra

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
)

// The driver leaves a connection behind that it makes while its session is closed, so nothing but the dialer can end it.
func TestAConnectionThatIsMadeWhileAStoreIsClosedIsClosed(t *testing.T) {
	node, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node.Close() }()
	asked, goes := make(chan struct{}, 3), make(chan struct{}, 3)
	d := newDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		asked <- struct{}{}
		<-goes
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	dial := func() (net.Conn, error) { return d.DialContext(t.Context(), "tcp", node.Addr().String()) }
	goes <- struct{}{}
	goes <- struct{}{}
	left, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	closed, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil || len(d.open) != 1 {
		t.Fatalf("a connection was closed: %v; %d are open", err, len(d.open))
	}
	<-asked
	<-asked
	late := make(chan error, 1)
	go func() {
		_, err := dial()
		late <- err
	}()
	<-asked
	d.close()
	goes <- struct{}{}
	if err := <-late; !errors.Is(err, net.ErrClosed) {
		t.Errorf("what was dialled after the end: %v", err)
	}
	if _, err := left.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("what was left open: %v", err)
	}
	for range 3 { // the node sees the end of each
		c, err := node.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the node reads: %v", err)
		}
		_ = c.Close()
	}
}

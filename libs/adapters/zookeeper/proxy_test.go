//go:build servers

package zookeeper_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands between a client and a server, and can cut them off.
type proxy struct {
	l      net.Listener
	server string

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, server: server}
	t.Cleanup(func() {
		_ = l.Close()
		p.off()
	})
	go p.serve()
	return p
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) serve() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		p.mu.Lock()
		if err != nil || p.cut {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
			}()
		}
	}
}

func (p *proxy) off() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) on() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

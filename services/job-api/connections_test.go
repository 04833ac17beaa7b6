package api

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// served answers requests to / at once, and to /hang when it is told.
func served(t *testing.T, most int) (address string, release chan struct{}) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limited := newConnections(l, most)
	limited.perAddress = most // all of them are from one
	release = make(chan struct{})
	server := &http.Server{ReadHeaderTimeout: time.Minute, ConnState: limited.changed, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-release
		}
		_, _ = io.WriteString(w, "answered")
	})}
	go server.Serve(limited) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String(), release
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// get makes a request on a connection of its own, and tells whether it was answered.
func get(t *testing.T, address, path string) bool {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return false
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return err == nil && string(text) == "answered"
}

func TestIdleConnectionsMakeRoomForNewOnes(t *testing.T) {
	const most = 8
	address, _ := served(t, most)
	var idle []net.Conn
	for range 5 * most {
		idle = append(idle, dial(t, address))
	}
	if !get(t, address, "/") {
		t.Error("a request was not answered beside connections that do nothing")
	}
	// The oldest were closed, not the latest.
	_ = idle[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := idle[0].Read(make([]byte, 1)); err == nil {
		t.Error("the oldest one is still open")
	}
}

func TestConnectionThatIsInUseIsNotClosedForANewOne(t *testing.T) {
	const most = 4
	address, release := served(t, most)
	hanging := make(chan bool, most)
	for range most {
		go func() { hanging <- get(t, address, "/hang") }()
	}
	for began := time.Now(); get(t, address, "/"); { // until all places are taken
		if time.Since(began) > 10*time.Second {
			t.Fatal("there is always room")
		}
	}
	close(release)
	for range most {
		if !<-hanging {
			t.Error("a request under way lost its connection")
		}
	}
	for began := time.Now(); !get(t, address, "/"); {
		if time.Since(began) > 10*time.Second {
			t.Fatal("there is no room again")
		}
	}
}

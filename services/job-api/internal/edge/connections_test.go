package edge

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// served answers requests to / at once. It reports requests to /hang on hangs, and answers them when they are released.
func served(t *testing.T, most int, silence time.Duration) (address string, hangs, release chan struct{}) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limited := newConnections(l, most)
	limited.perAddress, limited.silence = most, silence // all connections come from one address
	hangs, release = make(chan struct{}, most), make(chan struct{})
	server := &http.Server{ReadHeaderTimeout: time.Minute, ConnState: limited.changed, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			hangs <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "answered")
	})}
	go server.Serve(limited) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String(), hangs, release
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

// get makes a request on a connection of its own, and reports whether it was answered.
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
	address, _, _ := served(t, most, 0)
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
	address, hangs, release := served(t, most, time.Minute)
	answered := make(chan bool, most)
	for range most {
		go func() { answered <- get(t, address, "/hang") }()
	}
	for range most {
		<-hangs
	}
	if get(t, address, "/") {
		t.Error("there was room for one more")
	}
	close(release)
	for range most {
		if !<-answered {
			t.Error("a request under way lost its connection")
		}
	}
	for began := time.Now(); !get(t, address, "/"); {
		if time.Since(began) > 10*time.Second {
			t.Fatal("there is no room again")
		}
	}
}

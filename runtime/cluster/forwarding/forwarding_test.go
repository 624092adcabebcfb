package forwarding

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/go-hclog"
)

// startProxy returns a proxy's URL.
func startProxy(t *testing.T, c Config) string {
	t.Helper()
	c.Logger, c.Region = hclog.NewNullLogger(), "global"
	proxy := httptest.NewServer(New(c))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

func startServer(t *testing.T, h http.HandlerFunc) *url.URL {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestRequestIsForwarded(t *testing.T) {
	var got *http.Request
	server := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = r
		w.Header().Set("X-Nomad-Index", "7")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
	})
	server.Path = "/prefix"
	request, err := http.NewRequest("PUT", startProxy(t, Config{Address: server})+"/v1/job/a%2Fb/plan?namespace=x", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"X-Nomad-Token": "user", "Authorization": "Bearer other", "Cookie": "a=b", "Origin": "http://agent", "Referer": "http://agent/ui"} {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if want := "PUT /prefix/v1/job/a%2Fb/plan?namespace=x body"; string(text) != want || response.StatusCode != http.StatusConflict || response.Header.Get("X-Nomad-Index") != "7" {
		t.Errorf("got %d %v %s, want %s", response.StatusCode, response.Header, text, want)
	}
	if response.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("the server decides which web sites may read the reply")
	}
	h := got.Header
	if h.Get("X-Nomad-Token") != "user" || h.Get("Authorization")+h.Get("Cookie")+h.Get("Origin")+h.Get("Referer") != "" {
		t.Errorf("the server gets %v", h)
	}
}

func TestStreamsArriveAtOnceAndEndWithTheClient(t *testing.T) {
	ended := make(chan struct{})
	server := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "{}\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "GET", startProxy(t, Config{Address: server})+"/v1/event/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if line, err := bufio.NewReader(response.Body).ReadString('\n'); line != "{}\n" || err != nil {
		t.Errorf("got %q, %v", line, err)
	}
	cancel()
	<-ended
}

func TestWebsocketIsForwarded(t *testing.T) {
	server := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil) // checks the origin
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		_, text, err := conn.Read(r.Context())
		if err != nil {
			t.Error(err)
		}
		conn.Write(r.Context(), websocket.MessageText, append([]byte("echo "), text...))
	})
	conn, _, err := websocket.Dial(t.Context(), startProxy(t, Config{Address: server})+"/v1/client/allocation/x/exec", &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"http://agent"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := conn.Read(t.Context()); string(text) != "echo x" || err != nil {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestErrorNamesServersAndTheSetting(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	listener.Close()
	for _, c := range []struct {
		config Config
		want   []string
	}{
		{Config{Address: &url.URL{Scheme: "http", Host: closed}}, []string{"http://" + closed, "connection refused"}},
		{Config{ServerAddrs: func() []string { return nil }}, []string{"no servers are known"}},
	} {
		response, err := http.Get(startProxy(t, c.config) + "/v1/jobs")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		for _, want := range append(c.want, "Set server_http_addr in the client block") {
			if response.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), want) {
				t.Errorf("got %d %s, want %s", response.StatusCode, text, want)
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	known := func() []string { return []string{"10.0.0.1:4647", "[::1]:4000"} }
	for _, c := range []struct{ address, want string }{
		{"", "10.0.0.1:4646 [::1]:4646"}, {"https://nomad.example.com", "nomad.example.com:443"},
		{"http://nomad.example.com", "nomad.example.com:80"}, {"http://[::1]:4646/x", "[::1]:4646"},
	} {
		config := Config{ServerAddrs: known, Logger: hclog.NewNullLogger()}
		if c.address != "" {
			u, err := url.Parse(c.address)
			if err != nil {
				t.Fatal(err)
			}
			config.Address = u
		}
		if got := strings.Join(New(config).addrs(), " "); got != c.want {
			t.Errorf("%q: got %s, want %s", c.address, got, c.want)
		}
	}
}

// newServerCertificate returns a self-signed certificate, its own authority.
func newServerCertificate(t *testing.T, template x509.Certificate) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.Subject, template.NotAfter = big.NewInt(1), pkix.Name{CommonName: "x"}, time.Now().Add(time.Hour)
	template.IsCA, template.BasicConstraintsValid = true, true
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestServerShowsACertificateOfItsRegion(t *testing.T) {
	for name, want := range map[string]int{"server.global.nomad": 200, "client.global.nomad": http.StatusBadGateway, "server.other.nomad": http.StatusBadGateway} {
		certificate, authority := newServerCertificate(t, x509.Certificate{DNSNames: []string{name}})
		_, otherAuthority := newServerCertificate(t, x509.Certificate{DNSNames: []string{name}})
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
		server.Config.ErrorLog = hclog.NewNullLogger().StandardLogger(nil)
		server.StartTLS()
		defer server.Close()
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		for _, trusted := range []bool{true, false} {
			roots, want := authority, want
			if !trusted {
				roots, want = otherAuthority, http.StatusBadGateway
			}
			response, err := http.Get(startProxy(t, Config{Address: u, TLS: func() *tls.Config {
				return &tls.Config{RootCAs: roots, ServerName: "server.global.nomad"}
			}}) + "/v1/jobs")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s, trusted %v: got %d %s, want %d", name, trusted, response.StatusCode, text, want)
			}
		}
	}
}

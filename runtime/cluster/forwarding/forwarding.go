package forwarding

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

const (
	defaultHTTPPort = "4646"
	dialTimeout     = 5 * time.Second // for the connection to one server and its TLS handshake
	idleConnTimeout = time.Minute
)

// Config configures a Proxy.
type Config struct {
	// Address is the HTTP API URL of a server or a load balancer; nil means the hosts in ServerAddrs with the port 4646.
	Address *url.URL
	// ServerAddrs returns the servers' addresses, each with the port for nodes. The first one is used while it can be reached.
	ServerAddrs func() []string
	// UseTLS means servers without Address serve HTTPS. Otherwise Address's scheme counts.
	UseTLS bool
	// TLS returns the TLS settings for servers, which verify the name of a server in the region. It is called for each connection,
	// and its result is not changed. nil means the system's authorities and no client certificate.
	TLS func() *tls.Config
	// Region is the servers' region.
	Region string
	Logger hclog.Logger
}

// Proxy forwards requests to a server. It implements http.Handler.
type Proxy struct {
	config Config
	target *url.URL
	proxy  *httputil.ReverseProxy
}

// New returns a Proxy.
func New(c Config) *Proxy {
	p := &Proxy{config: c, target: c.Address}
	if p.target == nil {
		p.target = &url.URL{Scheme: "http", Host: "server." + c.Region + ".nomad"} // the connection goes to an address from ServerAddrs
		if c.UseTLS {
			p.target.Scheme = "https"
		}
	}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: p.rewrite,
		Transport: &http.Transport{
			DialContext:        p.dialAnyServer,
			DialTLSContext:     p.dialAnyServer,
			IdleConnTimeout:    idleConnTimeout,
			DisableCompression: true, // the client chooses
		},
		FlushInterval:  -1, // streams
		ModifyResponse: removeServerPolicy,
		ErrorHandler:   p.writeError,
		ErrorLog:       c.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	return p
}

// ServeHTTP forwards a request to a server, and its reply to the client. It removes the browser's credentials for this agent. The
// caller must have removed tokens that are not for servers from the header X-Nomad-Token; ServeHTTP removes other credentials. It
// returns when the reply is complete, or when the request's context ends.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.proxy.ServeHTTP(w, r) }

// rewrite makes the request for the server.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(p.target)
	// Origin and Referer name this agent, and a server would refuse a websocket from another origin.
	for _, name := range []string{"Authorization", "Cookie", "Origin", "Referer"} {
		r.Out.Header.Del(name)
	}
}

// removeServerPolicy removes the headers with which a server lets other web sites' pages read the reply: this agent decides that
// itself.
func removeServerPolicy(r *http.Response) error {
	for name := range r.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			r.Header.Del(name)
		}
	}
	r.Header.Del("X-Content-Type-Options") // the agent sets it
	return nil
}

// dialAnyServer connects to the first reachable server.
func (p *Proxy) dialAnyServer(ctx context.Context, _, _ string) (net.Conn, error) {
	addrs := p.addrs()
	if len(addrs) == 0 {
		return nil, errors.New("no servers are known")
	}
	var errs []error
	for _, addr := range addrs {
		conn, err := p.dial(ctx, addr)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("%s://%s: %w", p.target.Scheme, addr, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// addrs returns the addresses of the servers' HTTP APIs.
func (p *Proxy) addrs() (addrs []string) {
	if u := p.config.Address; u != nil {
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		return []string{net.JoinHostPort(u.Hostname(), port)}
	}
	for _, addr := range p.config.ServerAddrs() {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			addrs = append(addrs, net.JoinHostPort(host, defaultHTTPPort))
		}
	}
	return addrs
}

func (p *Proxy) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil || p.target.Scheme != "https" {
		return conn, err
	}
	tlsConn := tls.Client(conn, p.tlsConfig())
	if err := tlsConn.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return tlsConn, nil
}

// tlsConfig returns a connection's TLS settings. A server at a configured address shows a certificate for its host name, which a
// system authority may have signed, or the certificate of a server in the region.
func (p *Proxy) tlsConfig() *tls.Config {
	c := &tls.Config{}
	if p.config.TLS != nil {
		c = p.config.TLS().Clone()
	}
	c.NextProtos = []string{"http/1.1"}
	if p.config.Address == nil {
		return c
	}
	verifyRegion := func(tls.ConnectionState) error {
		return errors.New("no ca_file is configured for certificates of servers")
	}
	if p.config.TLS != nil {
		verifyRegion = regionVerifier(c)
	}
	host := p.config.Address.Hostname()
	c.ServerName = host
	c.InsecureSkipVerify = true // VerifyConnection verifies the certificate
	c.VerifyConnection = func(state tls.ConnectionState) error {
		err := wire.VerifyCertificate(state, nil, host)
		if err == nil {
			return nil
		}
		if regionErr := verifyRegion(state); regionErr != nil {
			return fmt.Errorf("%w; %w", err, regionErr)
		}
		return nil
	}
	return c
}

// regionVerifier returns a function that verifies a certificate with the settings for the region's servers.
func regionVerifier(c *tls.Config) func(tls.ConnectionState) error {
	if verify := c.VerifyConnection; verify != nil {
		return verify
	}
	roots, name := c.RootCAs, c.ServerName
	return func(state tls.ConnectionState) error { return wire.VerifyCertificate(state, roots, name) }
}

// writeError replies to a request that cannot be forwarded.
func (p *Proxy) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has disconnected, or the agent shuts down
	}
	p.config.Logger.Warn("request not forwarded to a server", "method", r.Method, "path", r.URL.Path, "error", err)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusBadGateway)
	fmt.Fprintf(w, "this agent is a node of a cluster, and cannot forward the request to the HTTP API of a server: %s. "+
		"Set server_http_addr in the client block of the agent's configuration to the URL of the HTTP API of a server",
		strings.ReplaceAll(err.Error(), "\n", "; "))
}

package apiclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentdial"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// Flags are Nomad's connection flags, which select the agent and the namespace of a command.
type Flags struct {
	address   string
	region    string
	Namespace string
	token     string
	tls       api.TLSConfig

	allowUnverified bool
}

// ConnectionFlagAnnotation annotates the connection flags of a command, which the help text lists after all other
// flags.
const ConnectionFlagAnnotation = "connection"

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "address", "", "`address` of the agent (NOMAD_ADDR); without it the unix socket of an agent on this machine, else http://127.0.0.1:4646 if the agent there proves that it knows the token")
	flags.BoolVar(&f.allowUnverified, "allow-unverified-agent", false, "send token and requests also to a listener on a loopback address that does not prove that it is the agent")
	flags.StringVar(&f.region, "region", "", "`region` to ask (NOMAD_REGION)")
	flags.StringVar(&f.Namespace, "namespace", "", "`namespace` to look in, or * for all (NOMAD_NAMESPACE)")
	flags.StringVar(&f.token, "token", "", "`token` to show (NOMAD_TOKEN)")
	flags.StringVar(&f.tls.CACert, "ca-cert", "", "PEM `file` of the authority that signed the certificate of the agent (NOMAD_CACERT)")
	flags.StringVar(&f.tls.CAPath, "ca-path", "", "`directory` with PEM files of such authorities (NOMAD_CAPATH)")
	flags.StringVar(&f.tls.ClientCert, "client-cert", "", "PEM `file` of the certificate to show (NOMAD_CLIENT_CERT)")
	flags.StringVar(&f.tls.ClientKey, "client-key", "", "PEM `file` of the key for it (NOMAD_CLIENT_KEY)")
	flags.StringVar(&f.tls.TLSServerName, "tls-server-name", "", "`name` that the certificate of the agent must bear (NOMAD_TLS_SERVER_NAME)")
	flags.BoolVar(&f.tls.Insecure, "tls-skip-verify", false, "believe any certificate of the agent (NOMAD_SKIP_VERIFY)")
	flags.BoolVar(&f.tls.Insecure, "insecure", false, "the same as -tls-skip-verify")
	_ = flags.MarkHidden("insecure") // MarkHidden fails only for an unknown flag
	for _, name := range []string{
		"address", "allow-unverified-agent", "region", "namespace", "token", "ca-cert", "ca-path", "client-cert", "client-key", "tls-server-name", "tls-skip-verify",
	} {
		_ = flags.SetAnnotation(name, ConnectionFlagAnnotation, nil) // SetAnnotation fails only for an unknown flag
	}
	cli.MustSetFlagCompletion(cmd, "namespace", f.CompleteNamespaces)
}

// ReadsAllNamespaces reports whether the command reads all namespaces.
func (f *Flags) ReadsAllNamespaces() bool { return f.ClientConfig().Namespace == "*" }

// Client returns a client of the selected agent. It does not connect yet.
func (f *Flags) Client() (*api.Client, error) {
	return f.NewClient(f.ClientConfig())
}

// NewClient returns a client with a configuration that ClientConfig has returned. Over plain HTTP, it checks the listener of each
// connection to a loopback address before it sends a request. It replaces a unix:// address in the configuration by an
// http:// address.
func (f *Flags) NewClient(config *api.Config) (*api.Client, error) {
	err := f.setHTTPClient(config)
	if err == nil {
		var client *api.Client
		if client, err = api.NewClient(config); err == nil {
			return client, nil
		}
	}
	return nil, fmt.Errorf("address %q: %w", config.Address, err)
}

// setHTTPClient sets the HTTP client of a configuration. It is the default client of package api with a transport that explains
// replies and, over plain HTTP, with another dialer. A connection to a proxy is not checked.
func (f *Flags) setHTTPClient(config *api.Config) error {
	address, err := url.Parse(config.Address)
	if err != nil || address.Scheme != "http" && address.Scheme != "https" && address.Scheme != "unix" {
		return nil // api.NewClient returns the error
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = runtime.GOMAXPROCS(0) + 1
	transport.ForceAttemptHTTP2 = false // websockets need HTTP/1.1
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if address.Scheme == "unix" {
		config.Address, transport.Proxy = "http://127.0.0.1", nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", address.Path)
		}
	} else if proxy, err := transport.Proxy(&http.Request{URL: address}); err != nil {
		return err
	} else if proxy == nil && address.Scheme == "http" {
		dialer := agentdial.Dialer{
			Token: config.SecretID, AddressIsGiven: f.HasAgentAddress(), AllowUnverified: f.allowUnverified, Dial: transport.DialContext,
		}
		transport.DialContext = dialer.DialContext
	}
	config.HttpClient = &http.Client{Transport: transport}
	if err := api.ConfigureTLS(config.HttpClient, config.TLSConfig); err != nil {
		return err
	}
	explain(transport)
	return nil
}

// CanFindAgent reports whether the flags or the environment name an agent, or an agent on this machine has a socket
// that this user can connect to.
func (f *Flags) CanFindAgent() bool {
	return f.HasAgentAddress() || agentsocket.FindConnectableSocket() != ""
}

// HasAgentAddress reports whether the flags or the environment name an agent.
func (f *Flags) HasAgentAddress() bool { return f.address != "" || os.Getenv("NOMAD_ADDR") != "" }

// AgentIsOnThisMachine reports whether the agent's address is a unix socket or a loopback address, which only this
// machine can reach.
func (f *Flags) AgentIsOnThisMachine() bool {
	address, err := url.Parse(f.ClientConfig().Address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(address.Hostname())
	return address.Scheme == "unix" || address.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// UseJobRegion sets the client's region to the region of a job, if the job names one and the
// command line does not.
func (f *Flags) UseJobRegion(c *api.Client, job *api.Job) {
	if region := pointer.Value(job.Region); region != "" && f.region == "" {
		c.SetRegion(region)
	}
}

// ClientConfig returns the configuration of an API client: from the flags, else from the environment. If neither names
// an address, the client connects to the socket of an agent on this machine, if there is one, even if no process listens there.
// NewClient makes the client.
func (f *Flags) ClientConfig() *api.Config {
	config := api.DefaultConfig()
	switch {
	case f.address != "":
		config.Address = f.address
	case os.Getenv("NOMAD_ADDR") == "":
		if socket := agentsocket.DefaultSocket(); socket != "" {
			config.Address = "unix://" + socket
		}
	}
	for _, flag := range []struct {
		value string
		field *string
	}{
		{f.region, &config.Region},
		{f.Namespace, &config.Namespace},
		{f.token, &config.SecretID},
		{f.tls.CACert, &config.TLSConfig.CACert},
		{f.tls.CAPath, &config.TLSConfig.CAPath},
		{f.tls.ClientCert, &config.TLSConfig.ClientCert},
		{f.tls.ClientKey, &config.TLSConfig.ClientKey},
		{f.tls.TLSServerName, &config.TLSConfig.TLSServerName},
	} {
		if flag.value != "" {
			*flag.field = flag.value
		}
	}
	config.TLSConfig.Insecure = config.TLSConfig.Insecure || f.tls.Insecure
	return config
}

// QueryOptions returns the options of a read request. An empty namespace means the client's namespace.
func QueryOptions(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

// WriteOptions returns the options of a write request. An empty namespace means the client's namespace.
func WriteOptions(ctx context.Context, namespace string) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
}

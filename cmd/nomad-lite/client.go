package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/plugins/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
)

// clientFlags select the agent of a command. They are Nomad's flags.
type clientFlags struct {
	address   string
	region    string
	namespace string
	token     string
	tls       api.TLSConfig
}

// connection annotates the connection flags, which help lists last.
const connection = "connection"

func (f *clientFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "address", "", "`address` of the agent (NOMAD_ADDR); without it the unix socket of an agent on this machine, else http://127.0.0.1:4646")
	flags.StringVar(&f.region, "region", "", "`region` to ask (NOMAD_REGION)")
	flags.StringVar(&f.namespace, "namespace", "", "`namespace` to look in, or * for all (NOMAD_NAMESPACE)")
	flags.StringVar(&f.token, "token", "", "`token` to show (NOMAD_TOKEN)")
	flags.StringVar(&f.tls.CACert, "ca-cert", "", "PEM `file` of the authority that signed the certificate of the agent (NOMAD_CACERT)")
	flags.StringVar(&f.tls.CAPath, "ca-path", "", "`directory` with PEM files of such authorities (NOMAD_CAPATH)")
	flags.StringVar(&f.tls.ClientCert, "client-cert", "", "PEM `file` of the certificate to show (NOMAD_CLIENT_CERT)")
	flags.StringVar(&f.tls.ClientKey, "client-key", "", "PEM `file` of the key for it (NOMAD_CLIENT_KEY)")
	flags.StringVar(&f.tls.TLSServerName, "tls-server-name", "", "`name` that the certificate of the agent must bear (NOMAD_TLS_SERVER_NAME)")
	flags.BoolVar(&f.tls.Insecure, "tls-skip-verify", false, "believe any certificate of the agent (NOMAD_SKIP_VERIFY)")
	flags.BoolVar(&f.tls.Insecure, "insecure", false, "the same as -tls-skip-verify")
	_ = flags.MarkHidden("insecure") // fails only without the flag
	for _, name := range []string{
		"address", "region", "namespace", "token", "ca-cert", "ca-path", "client-cert", "client-key", "tls-server-name", "tls-skip-verify",
	} {
		_ = flags.SetAnnotation(name, connection, nil) // fails only without the flag
	}
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.completeNamespaces)
}

func (f *clientFlags) client() (*api.Client, error) {
	config := f.config()
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", config.Address, err)
	}
	return client, nil
}

// goTo sets the client's region to the region of a job, if the job names one and the
// command line does not.
func (f *clientFlags) goTo(c *api.Client, job *api.Job) {
	if region := valueOf(job.Region); region != "" && f.region == "" {
		c.SetRegion(region)
	}
}

// config returns the client's configuration: from the flags, else from the environment,
// else for an agent found on this machine.
func (f *clientFlags) config() *api.Config {
	config := api.DefaultConfig()
	switch {
	case f.address != "":
		config.Address = f.address
	case os.Getenv("NOMAD_ADDR") == "":
		if socket := localSocket(); socket != "" {
			config.Address = "unix://" + socket
		}
	}
	for _, flag := range []struct {
		value string
		field *string
	}{
		{f.region, &config.Region},
		{f.namespace, &config.Namespace},
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

// localSocket returns the socket of an agent on this machine that accepts this user without
// a token.
func localSocket() string {
	for _, socket := range localSockets() {
		if !isTrusted(socket) {
			continue
		}
		// Only a connection attempt shows whether an agent listens there and accepts this
		// user.
		if c, err := net.DialTimeout("unix", socket, time.Second); err == nil {
			c.Close()
			return socket
		}
	}
	return ""
}

// localSockets returns the default sockets of an agent on this machine.
func localSockets() []string {
	sockets := []string{filepath.Join("/var/lib/nomad-lite", socketFile)}
	if dir, err := defaultDataDir(); err == nil && filepath.Join(dir, socketFile) != sockets[0] {
		sockets = slices.Insert(sockets, 0, filepath.Join(dir, socketFile))
	}
	return append(sockets, devSockets()...)
}

// devSockets returns the sockets of agents in development mode of this user and of root.
func devSockets() []string {
	sockets := []string{filepath.Join(agent.TemporaryDir(os.Geteuid()), socketFile)}
	if os.Geteuid() != 0 {
		sockets = append(sockets, filepath.Join(agent.TemporaryDir(0), socketFile))
	}
	return sockets
}

// isTrusted reports whether a socket belongs to this user or to root, and whether no other
// user can replace it: tokens, variables and jobs are sent there.
func isTrusted(socket string) bool {
	real, err := filepath.EvalSymlinks(socket)
	if err != nil {
		return false
	}
	info, err := os.Lstat(real)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	owned := ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
	return owned && safepath.CheckDir(filepath.Dir(real)) == nil && safepath.CheckParents(socket) == nil
}

// query returns the options of a read. An empty namespace means the namespace of the
// client.
func query(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

// write returns the options of a write. An empty namespace means the namespace of the
// client.
func write(ctx context.Context, namespace string) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
}

// failed adds to an error of the client the operation that failed, and advice.
func failed(what string, err error) error {
	if reason := new(url.Error); errors.As(err, &reason) {
		return fmt.Errorf("%s: %w\n%s", what, err, unreachable(err))
	}
	answer := new(api.UnexpectedResponseError)
	if !errors.As(err, answer) || answer.Body() == "" {
		if answer.StatusCode() == 404 {
			return fmt.Errorf("%s: %w\nThe agent does not know this request: is something else listening at its address, or is it an older one?", what, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	text := strings.TrimSpace(answer.Body())
	switch {
	case strings.Contains(text, "Permission denied"):
		text += "\nShow the token of the agent: export NOMAD_TOKEN=$(cat <data dir>/token)"
	case strings.Contains(text, " is in nonexistent namespace "):
		text += "\nMake the namespace: nomad-lite namespace apply NAME"
	case strings.Contains(text, "HTTP request to an HTTPS server"):
		text += "\nThe agent wants TLS: write https:// in -address or NOMAD_ADDR"
	}
	return fmt.Errorf("%s: %s", what, text)
}

// unknown reports whether an agent has answered that the object or the endpoint does not
// exist.
func unknown(err error) bool {
	answer := new(api.UnexpectedResponseError)
	return errors.As(err, answer) && answer.StatusCode() == http.StatusNotFound
}

// unreachable returns advice for an agent that does not answer.
func unreachable(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "certificate required"), strings.Contains(text, "bad certificate"):
		return "The agent wants a certificate: name one with -client-cert and -client-key"
	case strings.Contains(text, "unknown authority"):
		return "Name the authority that signed the certificate of the agent with -ca-cert"
	case strings.Contains(text, "x509"):
		return "Name what the certificate of the agent was made for with -tls-server-name"
	case strings.Contains(text, "unsupported protocol scheme"):
		return "Write the address with its scheme in -address or NOMAD_ADDR, such as http://127.0.0.1:4646"
	case strings.Contains(text, "HTTP response to HTTPS client"):
		return "The agent does not speak TLS: write http:// in -address or NOMAD_ADDR"
	}
	if socket := deniedBy(err); socket != "" {
		return adviceFor(socket)
	}
	if os.Getenv("NOMAD_ADDR") == "" && strings.Contains(text, api.DefaultConfig().Address) {
		// No address was given, and the search for a socket has skipped some.
		sockets := slices.DeleteFunc(localSockets(), func(socket string) bool { return safepath.CheckDir(filepath.Dir(socket)) != nil })
		if socket := deniedSocket(sockets); socket != "" {
			return adviceFor(socket)
		}
	}
	return "Is an agent running? Start one with 'nomad-lite agent', or name its address with -address or NOMAD_ADDR"
}

// adviceFor returns advice for a socket that this user has no permission to open.
func adviceFor(socket string) string {
	advice := fmt.Sprintf("An agent may be running: permission denied for its socket %s. Run the command as the user of the agent (root with sudo)", socket)
	if slices.Contains(devSockets(), socket) {
		return advice // the agent of that socket has no other address
	}
	return advice + ", or use its HTTP address: -address http://127.0.0.1:4646 and its token in NOMAD_TOKEN"
}

// deniedBy returns the unix socket for which permission was denied, "" if the error has
// another reason.
func deniedBy(err error) string {
	attempt := new(net.OpError)
	if errors.As(err, &attempt) && attempt.Net == "unix" && attempt.Addr != nil && errors.Is(err, fs.ErrPermission) {
		return attempt.Addr.String()
	}
	return ""
}

// deniedSocket returns the first of the sockets for which permission is denied.
func deniedSocket(sockets []string) string {
	for _, socket := range sockets {
		c, err := net.DialTimeout("unix", socket, time.Second)
		if err == nil {
			c.Close()
		} else if deniedBy(err) != "" {
			return socket
		}
	}
	return ""
}

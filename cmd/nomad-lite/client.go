package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// clientFlags say which agent a command talks to. They are Nomad's.
type clientFlags struct {
	address   string
	region    string
	namespace string
	token     string
}

func (f *clientFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.address, "address", "", "`address` of the agent (NOMAD_ADDR); without it the unix socket of an agent on this machine, else http://127.0.0.1:4646")
	flags.StringVar(&f.region, "region", "", "`region` of the agent (NOMAD_REGION)")
	flags.StringVar(&f.namespace, "namespace", "", "`namespace` of the job (NOMAD_NAMESPACE)")
	flags.StringVar(&f.token, "token", "", "`token` to show (NOMAD_TOKEN)")
}

func (f *clientFlags) client() (*api.Client, error) {
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
	}{{f.region, &config.Region}, {f.namespace, &config.Namespace}, {f.token, &config.SecretID}} {
		if flag.value != "" {
			*flag.field = flag.value
		}
	}
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", config.Address, err)
	}
	return client, nil
}

// localSocket finds an agent of this machine that lets us in without a token.
func localSocket() string {
	dirs := []string{"/var/lib/nomad-lite"}
	if dir, err := defaultDataDir(); err == nil && dir != dirs[0] {
		dirs = append([]string{dir}, dirs...)
	}
	for _, dir := range dirs {
		socket := filepath.Join(dir, socketFile)
		// Only an attempt tells whether somebody listens there, and to us.
		if c, err := net.DialTimeout("unix", socket, time.Second); err == nil {
			c.Close()
			return socket
		}
	}
	return ""
}

// failed explains an error of the client: what was tried, and what to do next.
func failed(what string, err error) error {
	var refused net.Error
	text := err.Error()
	switch {
	case strings.Contains(text, "Permission denied"):
		return fmt.Errorf("%s: %w\nShow the token of the agent: export NOMAD_TOKEN=$(cat <data dir>/token)", what, err)
	case errors.As(err, &refused), strings.Contains(text, "connection refused"), strings.Contains(text, "no such file"):
		return fmt.Errorf("%s: %w\nIs an agent running? Start one with 'nomad-lite agent', or name its address with -address or NOMAD_ADDR", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// short is the part of an id that people read.
func short(id string) string { return id[:min(8, len(id))] }

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/httpapi"
)

const tokenFile = "token"

// token returns what a client over TCP must show: an open port of an agent that
// runs as root gives root to every user of the machine, or of the network. It is
// empty where the operator wants none and the port is one of this machine only.
func (l *listeners) token(c *config.Config, dev bool, dataDir string, s *streams, logger hclog.Logger) (httpapi.Secret, error) {
	if (dev || c.NoTokens) && l.isLoopback() {
		if os.Geteuid() == 0 && l.tcp != nil {
			logger.Warn("the API asks for no token, and this agent is root: each account of this machine can become root through it", "address", l.tcp.Addr().String())
		}
		return "", nil
	}
	switch {
	case l.isLoopback():
	case c.NoTokens || dev:
		logger.Warn("clients must show the token all the same: the API listens on more than the loopback address", "address", l.tcp.Addr().String())
	case l.certificates == nil:
		logger.Warn("the token goes over the network in the clear: a tls block in the configuration encrypts it", "address", l.tcp.Addr().String())
	}
	path := filepath.Join(dataDir, tokenFile)
	text, err := os.ReadFile(path)
	switch token := strings.TrimSpace(string(text)); {
	case err == nil && token == "":
		return "", fmt.Errorf("%s is empty: remove it, and the next agent makes another", path)
	case err == nil:
		return httpapi.Secret(token), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read token: %w", err)
	}
	id, err := uuid.NewRandomFromReader(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	_, err = f.WriteString(id.String() + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("make token: %w", err), os.Remove(path))
	}
	// The token itself would get into the journal.
	fmt.Fprintf(s.err, "==> clients over TCP must show the token in %s:\n    export NOMAD_TOKEN=$(cat %s)\n", path, shellQuote(path))
	return httpapi.Secret(id.String()), nil
}

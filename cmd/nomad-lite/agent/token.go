package agent

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/runtime/agent/audit"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
)

// The names of the files with tokens in a data directory. Package httpapi has the table of the routes that the
// read-only token gives access to.
const (
	TokenFile         = "token"
	readOnlyTokenFile = "token-read"
)

// loadOrMakeTokens returns the operator's token and the read-only token, and creates their files if they are missing.
// A client over TCP must send one of them, because access to the API of an agent that runs as root gives root to
// every user of the machine, or of the network. Both are empty without a TCP listener, and if only this machine can connect and
// the operator has disabled tokens.
func (l *apiListeners) loadOrMakeTokens(c *config.Config, dataDir string, s *cli.Streams, logger hclog.Logger) (operatorToken, readOnlyToken httpapi.Secret, err error) {
	if l.tcpListener == nil || usesOwnAccessControl(c) {
		return "", "", nil
	}
	if c.DisableAccessControl && l.onlyLocalCanConnect() {
		logger.Warn("acl { enabled = false }: the API asks for no token, and everybody who reaches the address can run programs as the user of this agent: remove the setting", "source", c.AccessControlSource, "address", l.tcpListener.Addr().String(), "uid", os.Geteuid())
		return "", "", nil
	}
	switch {
	case l.onlyLocalCanConnect():
	case c.DisableAccessControl:
		logger.Warn("clients must show the token all the same: the API listens on more than the loopback address", "address", l.tcpListener.Addr().String())
	case l.certificates == nil:
		logger.Warn("the token goes over the network in the clear: a tls block in the configuration encrypts it", "address", l.tcpListener.Addr().String())
	}
	path := filepath.Join(dataDir, TokenFile)
	operatorToken, made, err := readOrMakeToken(path, logger)
	// The message has the name of the file and not the token, because the journal would store the token.
	switch {
	case made && c.LogJSON:
		logger.Info("clients over TCP must show the token in a new file", "path", path)
	case made:
		fmt.Fprintf(s.Err, "==> clients over TCP must show the token in %s:\n    export NOMAD_TOKEN=$(cat %s)\n", path, shellquote.Quote(path))
	}
	if err == nil {
		readOnlyToken, _, err = readOrMakeToken(filepath.Join(dataDir, readOnlyTokenFile), logger)
	}
	if err == nil && readOnlyToken == operatorToken {
		err = fmt.Errorf("%s and %s in %s have the same token: remove one, and the next agent makes another", TokenFile, readOnlyTokenFile, dataDir)
	}
	return operatorToken, readOnlyToken, err
}

// usesOwnAccessControl reports whether the ACL tokens in the state of the agent decide about requests.
func usesOwnAccessControl(c *config.Config) bool {
	return c.Cluster.AccessControl && !c.Cluster.IsNode()
}

// aclResetFile is the name of the file in a data directory that permits another bootstrap of access control.
const aclResetFile = "acl-bootstrap-reset"

// newAccessControl returns the access control of an agent, or nil if the configuration does not enable it.
func newAccessControl(c *config.Config, s *store.Store, dataDir string, logger hclog.Logger) *accesscontrol.Control {
	if !usesOwnAccessControl(c) {
		return nil
	}
	return accesscontrol.New(accesscontrol.Config{
		Store: s, Logger: logger, ResetFile: filepath.Join(dataDir, aclResetFile),
		MinExpirationTTL: cmp.Or(c.Tokens.MinExpirationTTL, accesscontrol.DefaultMinExpirationTTL),
		MaxExpirationTTL: cmp.Or(c.Tokens.MaxExpirationTTL, accesscontrol.DefaultMaxExpirationTTL),
		TokenGCThreshold: cmp.Or(c.Tokens.GCThreshold, accesscontrol.DefaultTokenGCThreshold),
	})
}

// openAuditLog opens the files of the audit log. It returns nil if the configuration does not enable it.
func openAuditLog(c *config.Config, dataDir string, logger hclog.Logger) (*audit.Log, error) {
	if !c.Audit.Enabled {
		return nil, nil
	}
	s := audit.Settings{Sinks: slices.Clone(c.Audit.Sinks), Filters: c.Audit.Filters}
	if len(s.Sinks) == 0 {
		s.Sinks = []audit.Sink{{}}
	}
	for i := range s.Sinks {
		if s.Sinks[i].Path == "" {
			s.Sinks[i].Path = filepath.Join(dataDir, "audit", "audit.log")
		}
	}
	return audit.Open(s, logger)
}

// readOrMakeToken returns the token in a file. A missing file is created with mode 0600; an existing file keeps its
// owner and mode. An empty file gets a new token: a power failure or a full disk can have emptied it, and the
// agent must start nevertheless. On a full disk the token is not stored, and fileHasNewToken is false.
func readOrMakeToken(path string, logger hclog.Logger) (token httpapi.Secret, fileHasNewToken bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("read token: %w", err)
	}
	if token := strings.Trim(string(text), " \t\r\n\x00"); token != "" { // after a power failure, a file can have zero bytes instead of its data
		return httpapi.Secret(token), false, nil
	}
	created := err != nil
	if !created {
		logger.Warn("the file of a token is empty and gets a new token, clients must show the new one", "path", path)
	}
	id, err := uuid.NewRandomFromReader(rand.Reader)
	if err == nil {
		err = writeToken(path, id.String()+"\n", created)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		logger.Error("token not stored, no client over TCP can show it until the agent is restarted with free space", "path", path, "error", err)
		return httpapi.Secret(id.String()), false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("make token: %w", err)
	}
	return httpapi.Secret(id.String()), true, nil
}

// writeToken writes a token to a file that must be created, or to an existing file.
func writeToken(path, text string, mustCreate bool) error {
	flags := os.O_WRONLY
	if mustCreate {
		flags |= os.O_CREATE | os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is not a regular file: remove it, and the next agent makes another", path))
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteString(text)
	}
	if err = errors.Join(err, f.Sync()); err != nil && mustCreate {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
)

// reloadableCertificates are the agent's certificate and the CA of client certificates. They can be
// loaded again while the listener is open.
type reloadableCertificates struct {
	currentTLSConfig atomic.Pointer[tls.Config]
	certificate      atomic.Pointer[conditions.Certificate]
}

// loadFiles reads the certificate files. After an error the earlier certificates stay in use.
//
// replacesToken means that a client certificate replaces the token.
func (c *reloadableCertificates) loadFiles(t config.TLS, replacesToken bool, logger hclog.Logger) error {
	if t.CertFile == "" || t.KeyFile == "" {
		return errors.New("tls: http = true needs cert_file and key_file")
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return fmt.Errorf("tls: load cert_file %s and key_file %s: %w", t.CertFile, t.KeyFile, err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) || now.Before(pair.Leaf.NotBefore) {
		logger.Warn("the certificate of the agent is not valid now: clients will refuse it", "file", t.CertFile,
			"from", pair.Leaf.NotBefore, "to", pair.Leaf.NotAfter)
	}
	loaded := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   max(t.MinVersion, tls.VersionTLS12),
		CipherSuites: t.CipherSuites,
		NextProtos:   []string{"http/1.1"},
		// A client with a certificate that is no longer accepted could otherwise resume its session.
		SessionTicketsDisabled: true,
	}
	switch {
	case t.CAFile != "":
		text, err := os.ReadFile(t.CAFile)
		if err != nil {
			return fmt.Errorf("tls: ca_file: %w", err)
		}
		loaded.ClientCAs = x509.NewCertPool()
		if !loaded.ClientCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("tls: ca_file %s: there is no certificate in it", t.CAFile)
		}
		if replacesToken {
			logger.Warn("a client certificate replaces the token: each client with a certificate of this CA may do everything", "ca_file", t.CAFile)
		}
		loaded.ClientAuth = tls.VerifyClientCertIfGiven
		if t.VerifyClient {
			loaded.ClientAuth = tls.RequireAndVerifyClientCert
		}
	case t.VerifyClient:
		return errors.New("tls: verify_https_client needs the ca_file that signs the certificates of clients")
	}
	c.currentTLSConfig.Store(loaded)
	c.certificate.Store(&conditions.Certificate{File: t.CertFile, KeyFile: t.KeyFile, Leaf: pair.Leaf})
	return nil
}

// current returns the agent's certificate.
func (c *reloadableCertificates) current() []conditions.Certificate {
	return []conditions.Certificate{*c.certificate.Load()}
}

// listenerTLSConfig returns the TLS configuration of a listener, which stays valid across reloads.
func (c *reloadableCertificates) listenerTLSConfig() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.currentTLSConfig.Load(), nil }}
}

package clustertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// Authority is a certificate authority for servers and nodes.
type Authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// NewAuthority returns a new authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	der, a.key = a.issue(template, template, nil)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.certificate, a.pem = certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue signs a certificate, with its own key if the authority has no key yet.
func (a *Authority) issue(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// certificateFor returns a certificate for a DNS name, and its key, in PEM format.
func (a *Authority) certificateFor(name string) (certificate, key []byte) {
	a.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, private := a.issue(template, a.certificate, a.key)
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

// ServerConfig returns the settings of servers of a region, which require a certificate of the authority. verifyHostname
// rejects certificates that are neither for client.<region>.nomad nor for server.<region>.nomad.
func (a *Authority) ServerConfig(region string, verifyHostname bool) *tls.Config {
	a.t.Helper()
	own, err := tls.X509KeyPair(a.certificateFor("server." + region + ".nomad"))
	if err != nil {
		a.t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AddCert(a.certificate)
	config := &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authorities, MinVersion: tls.VersionTLS12}
	if verifyHostname {
		config.VerifyConnection = func(state tls.ConnectionState) error {
			for _, role := range []string{"client.", "server."} {
				if slices.Contains(state.PeerCertificates[0].DNSNames, role+region+".nomad") {
					return nil
				}
			}
			return errors.New("invalid role or region for certificate")
		}
	}
	return config
}

// NodeFiles writes the files of a node, with a certificate for name, to dir, and returns the settings that name them.
func (a *Authority) NodeFiles(dir, name, region string) wire.TLSFiles {
	a.t.Helper()
	certificate, key := a.certificateFor(name)
	files := wire.TLSFiles{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, name+".pem"), KeyFile: filepath.Join(dir, name+"-key.pem"), Region: region,
	}
	for path, content := range map[string][]byte{files.CAFile: a.pem, files.CertFile: certificate, files.KeyFile: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			a.t.Fatal(fmt.Errorf("write the files of node %s: %w", name, err))
		}
	}
	return files
}

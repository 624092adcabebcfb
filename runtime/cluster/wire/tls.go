package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles are the settings in the block "tls" for connections to servers.
type TLSFiles struct {
	CAFile, CertFile, KeyFile string
	// Region is this node's region, for VerifyServerHostname.
	Region string
	// VerifyServerHostname requires that a server's certificate is for server.<region>.nomad. Without it, any certificate signed by
	// the authority is accepted.
	VerifyServerHostname bool
	MinVersion           uint16   // zero means TLS 1.2
	CipherSuites         []uint16 // suites for TLS 1.2; nil means Go's default
}

// Load reads the files and returns a client's TLS settings. Its errors name the setting and the file.
func (f TLSFiles) Load() (*tls.Config, error) {
	if f.CAFile == "" || f.CertFile == "" || f.KeyFile == "" {
		return nil, errors.New("tls: rpc = true needs ca_file, cert_file and key_file")
	}
	certificates, err := os.ReadFile(f.CAFile)
	if err != nil {
		return nil, fmt.Errorf("tls: ca_file: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(certificates) {
		return nil, fmt.Errorf("tls: ca_file %s has no certificate in PEM format", f.CAFile)
	}
	own, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls: load cert_file %s and key_file %s: %w", f.CertFile, f.KeyFile, err)
	}
	c := &tls.Config{
		RootCAs:      authorities,
		Certificates: []tls.Certificate{own},
		ServerName:   "server." + f.Region + ".nomad",
		MinVersion:   max(f.MinVersion, tls.VersionTLS12),
		CipherSuites: f.CipherSuites,
	}
	if !f.VerifyServerHostname {
		// crypto/tls cannot verify the chain without the name, so VerifyConnection verifies the chain.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(state tls.ConnectionState) error { return VerifyCertificate(state, authorities, "") }
	}
	return c, nil
}

// VerifyCertificate verifies the certificate a connection's peer has shown: its chain up to one of the authorities, nil for the
// system's, and, unless dnsName is empty, that it is for this name.
func VerifyCertificate(state tls.ConnectionState, authorities *x509.CertPool, dnsName string) error {
	options := x509.VerifyOptions{Roots: authorities, DNSName: dnsName, Intermediates: x509.NewCertPool()}
	for _, intermediate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err := state.PeerCertificates[0].Verify(options)
	return err
}

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"syscall"
	"time"
)

// The files in the secrets directory of a task.
const (
	keyFile  = "tls.key"
	certFile = "tls.crt"
	caFile   = "ca.crt"
	// changeFile exists while the other files are newer than those that the task has read.
	changeFile = ".tls-renewed"
)

// certificateFiles are the key and certificate files of one task. The task can write into their directory, so they are
// accessed through an os.Root, because symbolic links cannot lead out of it.
type certificateFiles struct {
	dir                *os.Root
	ownerUID, ownerGID int // owner of the directory, which is the user of the task
}

func openCertificateFiles(secretsDir string) (*certificateFiles, error) {
	dir, err := os.OpenRoot(secretsDir)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	owner := info.Sys().(*syscall.Stat_t)
	return &certificateFiles{dir: dir, ownerUID: int(owner.Uid), ownerGID: int(owner.Gid)}, nil
}

func (f *certificateFiles) Close() error { return f.dir.Close() }

// readValidCertificate returns the certificate of the task, or nil if a new certificate is needed: a file is missing, the key
// does not match, the CA or the names have changed, or the certificate has expired.
func (f *certificateFiles) readValidCertificate(c *pluginConfig, names []string) *x509.Certificate {
	key, keyErr := f.dir.ReadFile(keyFile)
	certificate, certErr := f.dir.ReadFile(certFile)
	ca, caErr := f.dir.ReadFile(caFile)
	trusted, trustErr := os.ReadFile(c.CACertPath)
	if errors.Join(keyErr, certErr, caErr, trustErr) != nil || !bytes.Equal(ca, trusted) {
		return nil
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		return nil
	}
	if len(pair.Leaf.DNSNames)+len(pair.Leaf.IPAddresses) != len(names) {
		return nil
	}
	for _, name := range names {
		if pair.Leaf.VerifyHostname(name) != nil {
			return nil
		}
	}
	return pair.Leaf
}

// renewAndWriteFiles writes a new key, a new certificate and the certificate of the CA.
func (f *certificateFiles) renewAndWriteFiles(c *pluginConfig, names []string, ttl time.Duration) (*x509.Certificate, error) {
	ca, err := tls.LoadX509KeyPair(c.CACertPath, c.CAKeyPath)
	if err != nil {
		return nil, fmt.Errorf("load the CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := newLeafTemplate(names, ttl, ca.Leaf.NotAfter)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	trusted, err := os.ReadFile(c.CACertPath)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		f.replaceFileAtomically(caFile, trusted, 0o644),
		f.replaceFileAtomically(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
		f.replaceFileAtomically(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
	)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newLeafTemplate returns the template of a certificate, which expires no later than the CA.
func newLeafTemplate(names []string, ttl time.Duration, caNotAfter time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	leaf := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: names[0]},
		NotBefore:    now.Add(-min(time.Minute, ttl/10)), // the clock of a client can be behind
		NotAfter:     now.Add(ttl),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if leaf.NotAfter.After(caNotAfter) {
		leaf.NotAfter = caNotAfter
	}
	if !leaf.NotAfter.After(now) {
		return nil, fmt.Errorf("the CA has expired on %s", caNotAfter.Format(time.RFC3339))
	}
	for _, name := range names {
		if isIP(name) {
			leaf.IPAddresses = append(leaf.IPAddresses, net.ParseIP(name))
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	return leaf, nil
}

// replaceFileAtomically replaces a file atomically: a reader sees the old or the new content. The new file is owned by
// the user of the task before it has content.
func (f *certificateFiles) replaceFileAtomically(name string, content []byte, mode fs.FileMode) error {
	temporary := "." + name + ".new"
	if err := f.dir.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := f.dir.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	err = errors.Join(file.Chown(f.ownerUID, f.ownerGID), file.Chmod(mode))
	if err == nil {
		_, err = file.Write(content)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, f.dir.Remove(temporary))
	}
	return f.dir.Rename(temporary, name)
}

// setTaskNotificationPending records whether the files are newer than those that the task has read.
func (f *certificateFiles) setTaskNotificationPending(pending bool) error {
	if pending {
		return f.replaceFileAtomically(changeFile, nil, 0o600)
	}
	if err := f.dir.Remove(changeFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f *certificateFiles) isTaskNotificationPending() bool {
	_, err := f.dir.Lstat(changeFile)
	return err == nil
}

package keyring

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// keyFile is a key file's content. A key has the same fields as in Nomad's API.
type keyFile struct {
	Keys []fileKey
}

type fileKey struct {
	KeyID      string
	Algorithm  api.EncryptionAlgorithm
	Key        []byte // base64 in the file
	CreateTime time.Time
	State      api.RootKeyState
	RSAKey     []byte `json:",omitempty"` // PKCS #1; base64 in the file
}

// maxFileSize is the size in bytes up to which LoadRing reads a key file.
const maxFileSize = 1 << 20

// maxRSAKeySize is the size up to which LoadRing reads an RSA key, in bytes of PKCS #1. Checking a key of 675 KB took half a
// minute.
const maxRSAKeySize = 4 << 10

// temporaryFileInfix is in the names of temporary files left by a crash in Save.
const temporaryFileInfix = ".new-"

// LoadRing reads a key file. The error is fs.ErrNotExist if there is none. The file must be a regular file owned by the current
// user or root. If its mode gives access to other users, LoadRing removes this access and returns wasAccessibleToOthers as
// true. LoadRing also removes temporary files left by a crash in Save.
func LoadRing(path string) (r *Ring, wasAccessibleToOthers bool, err error) {
	left, err := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(path)), escapeGlob(filepath.Base(path))+temporaryFileInfix+"*"))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	if err != nil {
		return nil, false, fmt.Errorf("remove unfinished key file: %w", err)
	}
	// Without O_NONBLOCK, the open call would block on a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, false, err
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, false, errors.New("it is not a regular file")
	case int(stat.Uid) != os.Geteuid() && stat.Uid != 0:
		return nil, false, fmt.Errorf("it belongs to user %d, who could replace the keys", stat.Uid)
	case stat.Size > maxFileSize:
		return nil, false, fmt.Errorf("it is larger than %d bytes", maxFileSize)
	case stat.Mode&0o077 != 0:
		if err := f.Chmod(0o600); err != nil {
			return nil, false, err
		}
		wasAccessibleToOthers = true
	}
	text := make([]byte, stat.Size)
	if _, err := f.ReadAt(text, 0); err != nil {
		return nil, wasAccessibleToOthers, err
	}
	r, err = parseKeyFile(text)
	return r, wasAccessibleToOthers, err
}

func parseKeyFile(text []byte) (*Ring, error) {
	var keyFileContent keyFile
	if err := json.Unmarshal(text, &keyFileContent); err != nil {
		// The decoder's error can quote the text, which has secrets.
		return nil, errors.New("it is not the JSON of a key file")
	}
	r := new(Ring)
	active := 0
	for i, k := range keyFileContent.Keys {
		id, err := uuid.Parse(k.KeyID)
		switch {
		case err != nil || id == uuid.Nil:
			return nil, fmt.Errorf("key %d has no valid id", i+1)
		case k.Algorithm != api.EncryptionAlgorithmAES256GCM:
			return nil, fmt.Errorf("key %s: the algorithm must be %s", id, api.EncryptionAlgorithmAES256GCM)
		case len(k.Key) != keySize:
			return nil, fmt.Errorf("key %s has %d bytes, want %d", id, len(k.Key), keySize)
		case len(k.RSAKey) > maxRSAKeySize:
			return nil, fmt.Errorf("the RSA key of key %s has %d bytes, and %d are permitted", id, len(k.RSAKey), maxRSAKeySize)
		}
		read, err := newKey(id, k.Key)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", id, err)
		}
		read.createTime, read.isActive = k.CreateTime, k.State == api.RootKeyStateActive
		if len(k.RSAKey) > 0 {
			if read.signingKey, err = x509.ParsePKCS1PrivateKey(k.RSAKey); err != nil {
				return nil, fmt.Errorf("key %s has no valid RSA key", id) // the parser's error could quote secrets
			}
		}
		if read.isActive {
			active++
		}
		r.keys = append(r.keys, read)
	}
	if active != 1 {
		return nil, fmt.Errorf("it has %d active keys, want 1", active)
	}
	return r, nil
}

// Encode returns the key file's content.
func (r *Ring) Encode() ([]byte, error) {
	var keyFileContent keyFile
	for i, meta := range r.KeyMetadata() {
		k := fileKey{
			KeyID: meta.KeyID, Algorithm: meta.Algorithm, Key: r.keys[i].aesKey, CreateTime: r.keys[i].createTime.UTC(), State: meta.State,
		}
		if signing := r.keys[i].signingKey; signing != nil {
			k.RSAKey = x509.MarshalPKCS1PrivateKey(signing)
		}
		keyFileContent.Keys = append(keyFileContent.Keys, k)
	}
	text, err := json.MarshalIndent(keyFileContent, "", "  ")
	return append(text, '\n'), err
}

// Save replaces the key file. When it returns without an error, the file and its name
// are on disk. After an error or a crash, the file has either its former content or the
// new content.
func (r *Ring) Save(path string) (err error) {
	text, err := r.Encode()
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+temporaryFileInfix+"*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(text)
	opcount.Count(opcount.Sync)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	opcount.Count(opcount.Sync)
	return errors.Join(d.Sync(), d.Close())
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(s)
}

package keyring

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

func TestSealedBytesOpenOnlyForSamePlace(t *testing.T) {
	r := NewRing()
	sealed := r.Seal([]byte("hunter2"), "variables\x00default\x00a")
	if bytes.Contains(sealed, []byte("hunter2")) {
		t.Error("the sealed bytes hold the secret")
	}
	if plain, err := r.Open(sealed, "variables\x00default\x00a"); err != nil || string(plain) != "hunter2" {
		t.Errorf("open: %q, %v", plain, err)
	}
	if _, err := r.Open(sealed, "variables\x00default\x00b"); !errors.Is(err, ErrDecrypt) {
		t.Errorf("open at another place: %v, want ErrChanged", err)
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if plain, err := r.Open(changed, "variables\x00default\x00a"); err == nil {
			t.Errorf("open with byte %d changed: %q", i, plain)
		}
		if plain, err := r.Open(sealed[:i], "variables\x00default\x00a"); err == nil {
			t.Errorf("open of the first %d bytes: %q", i, plain)
		}
	}
	var missingKeyErr *MissingKeyError
	if _, err := NewRing().Open(sealed, "variables\x00default\x00a"); !errors.As(err, &missingKeyErr) || missingKeyErr.KeyID != r.ActiveKeyMetadata().KeyID {
		t.Errorf("open without the key: %v", err)
	}
	if SealingKeyID(sealed) != r.ActiveKeyMetadata().KeyID {
		t.Errorf("KeyOf: %s, want %s", SealingKeyID(sealed), r.ActiveKeyMetadata().KeyID)
	}
}

func TestRotatedRingOpensWhatItsKeysHaveSealed(t *testing.T) {
	first := NewRing()
	sealed := first.Seal([]byte("x"), "p")
	second := first.WithNewKey()
	if plain, err := second.Open(sealed, "p"); err != nil || string(plain) != "x" {
		t.Errorf("open with the former key: %q, %v", plain, err)
	}
	if SealingKeyID(second.Seal(nil, "p")) == SealingKeyID(sealed) {
		t.Error("the new ring seals with the former key")
	}
	keys := second.KeyMetadata()
	if len(keys) != 2 || keys[0].State != api.RootKeyStateInactive || keys[1].State != api.RootKeyStateActive || keys[1].KeyID != second.ActiveKeyMetadata().KeyID {
		t.Errorf("keys %v %v", *keys[0], *keys[1])
	}
	if _, err := second.WithoutKey(second.ActiveKeyMetadata().KeyID); !errors.Is(err, ErrKeyActive) {
		t.Errorf("remove the active key: %v", err)
	}
	if _, err := second.WithoutKey("nope"); !errors.Is(err, ErrKeyUnknown) {
		t.Errorf("remove an unknown key: %v", err)
	}
	third, err := second.WithoutKey(first.ActiveKeyMetadata().KeyID)
	if err != nil || len(third.KeyMetadata()) != 1 {
		t.Errorf("remove: %v", err)
	}
	if _, err := third.Open(sealed, "p"); err == nil {
		t.Error("the removed key still opens")
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd [name]", "keyring.json")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadRing(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load without a file: %v", err)
	}
	r := NewRing().WithNewKey()
	sealed := r.Seal([]byte("x"), "p")
	old := unix.Umask(0)
	err := r.Save(path)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600: %v", info.Mode(), err)
	}
	if err := os.WriteFile(path+temporaryFileInfix+"1", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, opened, err := LoadRing(path)
	if err != nil || opened {
		t.Fatalf("load: %v, mode changed %t", err, opened)
	}
	if plain, err := again.Open(sealed, "p"); err != nil || string(plain) != "x" || again.ActiveKeyMetadata().KeyID != r.ActiveKeyMetadata().KeyID || again.ActiveKeyMetadata().CreateTime != r.ActiveKeyMetadata().CreateTime {
		t.Errorf("the loaded ring is another one: %q, %v", plain, err)
	}
	if _, err := os.Stat(path + temporaryFileInfix + "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unfinished file is still there: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, opened, err := LoadRing(path); err != nil || !opened {
		t.Errorf("load of a file that others can read: %v, %t", err, opened)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v after Load, want 0600: %v", info.Mode(), err)
	}
}

func TestKeyFileKeepsSigningKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k")
	signing, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	before := NewRing().WithActiveSigningKey(signing).WithNewKey()
	if _, of := before.SigningKey(); of != nil {
		t.Error("the new key has the RSA key of the former one")
	}
	if err := before.Save(path); err != nil {
		t.Fatal(err)
	}
	after, _, err := LoadRing(path)
	if err != nil {
		t.Fatal(err)
	}
	public := after.PublicKeys()
	if len(public) != 1 || public[0].KeyID != before.KeyMetadata()[0].KeyID || !public[0].Key.Equal(&signing.PublicKey) {
		t.Errorf("public keys %v", public)
	}
	if again, err := after.WithoutKey(public[0].KeyID); err != nil || len(again.PublicKeys()) != 0 {
		t.Errorf("public keys after the key was removed: %v, %v", again.PublicKeys(), err)
	}
}

func TestLoadRejectsInvalidFiles(t *testing.T) {
	secret := strings.Repeat("A", 43) + "="
	id := "11111111-1111-1111-1111-111111111111"
	active := `{"KeyID":"` + id + `","Algorithm":"aes256-gcm","Key":"` + secret + `","State":"active"}`
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", "not the JSON"},
		{"no keys", `{"Keys":[]}`, "0 active keys"},
		{"two active keys", `{"Keys":[` + active + `,` + active + `]}`, "2 active keys"},
		{"a short key", strings.Replace(`{"Keys":[`+active+`]}`, secret, "QUFB", 1), "3 bytes, want 32"},
		{"a damaged RSA key", strings.Replace(`{"Keys":[`+active+`]}`, `"State"`, `"RSAKey":"`+secret+`","State"`, 1), "no valid RSA key"},
		{"another algorithm", strings.Replace(`{"Keys":[`+active+`]}`, "gcm", "cbc", 1), "must be aes256-gcm"},
		{"no id", strings.Replace(`{"Keys":[`+active+`]}`, id, "", 1), "no valid id"},
		{"the id of plain bytes", strings.Replace(`{"Keys":[`+active+`]}`, id, strings.ReplaceAll(id, "1", "0"), 1), "no valid id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "k")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := LoadRing(path)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), secret[:8]) {
				t.Errorf("the error holds a part of the key: %v", err)
			}
		})
	}
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), NewRing().Save(filepath.Join(dir, "k")), os.Symlink("k", link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link} {
		if _, _, err := LoadRing(path); err == nil {
			t.Errorf("load %s: no error", path)
		}
	}
}

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// A record with a secret part has the payload
//
//	mark (1) · length of the box (uvarint) · box · open part
//
// The box is the encrypted secret part; the open part is not encrypted. No msgpack value starts with the mark, so a build that
// does not know envelopes quarantines the record. The box starts with its key's id. An id of 16 zero bytes means that the
// secret part is not encrypted, because a store without keys has written it.
const envelopeFirstByte = 0xc1

// plaintextBoxPrefix is the prefix of a box with an unencrypted secret part.
var plaintextBoxPrefix = make([]byte, 16)

var errEnvelopeLength = errors.New("the length of its sealed part is wrong")

func encodeEnvelope(secretBox, unencrypted []byte) []byte {
	b := make([]byte, 0, 1+binary.MaxVarintLen64+len(secretBox)+len(unencrypted))
	b = binary.AppendUvarint(append(b, envelopeFirstByte), uint64(len(secretBox)))
	return append(append(b, secretBox...), unencrypted...)
}

// decodeEnvelope returns a payload's secret box and unencrypted part. They share the payload's memory. secretBox is nil if the
// payload has no secret part.
func decodeEnvelope(payload []byte) (secretBox, unencrypted []byte, err error) {
	if len(payload) == 0 || payload[0] != envelopeFirstByte {
		return nil, payload, nil
	}
	n, width := binary.Uvarint(payload[1:])
	if width <= 0 || n < uint64(len(plaintextBoxPrefix)) || n > uint64(len(payload)-1-width) {
		return nil, nil, errEnvelopeLength
	}
	rest := payload[1+width:]
	return rest[:n:n], rest[n:], nil
}

// isUnencryptedSecretBox reports whether the secret part in a box is not encrypted.
func isUnencryptedSecretBox(box []byte) bool { return bytes.HasPrefix(box, plaintextBoxPrefix) }

// recordKindText returns the name in messages for a table's records.
func recordKindText(t Table) string {
	switch t {
	case Variables:
		return "variable"
	case ACLTokens:
		return "ACL token"
	case taskLocalsTable:
		return "record of task"
	case taskHandlesTable:
		return "handle of start"
	}
	return string(t) + " record"
}

// sealContext returns the context for sealing a record's box. It contains the table and the key, so a box that was moved to
// another record cannot be decrypted.
func sealContext(bucket, key string) string { return bucket + "\x00" + key }

// sealer encrypts (seals) the secret parts of records with a key file's keys, and decrypts (opens) them. Only Open and then the
// writer use it, except keyFileError, which may be called concurrently.
type sealer struct {
	logger        hclog.Logger
	keyFile       string // empty without a key file
	temporaryKeys bool   // Config.TemporaryKeys: the keys are lost when the store is closed

	keyring atomic.Pointer[keyring.Ring] // nil if there are no keys; only the writer replaces it

	// The next fields do not change after Open.
	undecryptedSecretByObject map[any]*undecryptedSecret // variables and tokens with a secret part that cannot be decrypted
	decryptErrors             []error                    // one error for each record that cannot be decrypted
	fileHasUnencryptedSecrets bool                       // the file has secrets that are not encrypted yet

	signingKeyCreationMu sync.Mutex // held while an RSA key is made, so that concurrent requests make only one

	keyFileErrMu sync.Mutex
	keyFileErr   error // [Store.KeyFileErr]'s result
}

func newSealer(c Config) *sealer {
	return &sealer{
		logger: c.Logger.Named("store"), keyFile: c.KeyFile, temporaryKeys: c.TemporaryKeys,
		undecryptedSecretByObject: make(map[any]*undecryptedSecret),
	}
}

// sealPayload returns the payload for a record with a secret part. If secret is empty, the payload is the unencrypted part.
func (s *sealer) sealPayload(bucket, key string, secret, unencrypted []byte) []byte {
	if len(secret) == 0 {
		return unencrypted
	}
	ring := s.keyring.Load()
	if ring == nil {
		return encodeEnvelope(append(bytes.Clone(plaintextBoxPrefix), secret...), unencrypted)
	}
	return encodeEnvelope(ring.Seal(secret, sealContext(bucket, key)), unencrypted)
}

// decryptSecretBox decrypts a secret box and returns a copy of the secret part.
func (s *sealer) decryptSecretBox(bucket, key string, secretBox []byte) (secret []byte, err error) {
	if plain, ok := bytes.CutPrefix(secretBox, plaintextBoxPrefix); ok {
		return bytes.Clone(plain), nil
	}
	ring := s.keyring.Load()
	if ring == nil {
		return nil, &keyring.MissingKeyError{KeyID: keyring.SealingKeyID(secretBox)}
	}
	return ring.Open(secretBox, sealContext(bucket, key))
}

// encodeVariableParts returns a variable's unencrypted and secret parts.
func encodeVariableParts(v *api.Variable) (unencrypted, secret []byte, err error) {
	bare := *v
	bare.Items = nil
	unencrypted, err = encodeMsgpack(&bare)
	if err == nil && len(v.Items) > 0 {
		secret, err = encodeMsgpack(map[string]string(v.Items))
	}
	return unencrypted, secret, err
}

// encodeSplittingSecrets returns a record's unencrypted and secret parts.
func encodeSplittingSecrets[S any](record interface{ SplitSecrets() *S }) (unencrypted, secret []byte, err error) {
	secrets := record.SplitSecrets()
	if unencrypted, err = encodeMsgpack(record); err == nil && secrets != nil {
		secret, err = encodeMsgpack(secrets)
	}
	return unencrypted, secret, err
}

// SecretDecryptError: a record's secret part cannot be decrypted.
type SecretDecryptError struct {
	RecordName string // the record's name in messages, like `variable "nomad/jobs/web"`
	KeyID      string
	KeyFile    string // KeyFile is the key file; empty for a store without keys
	Cause      error  // Cause is a *keyring.MissingKeyError or keyring.ErrDecrypt
}

func (e *SecretDecryptError) Error() string {
	var missingKeyErr *keyring.MissingKeyError
	if !errors.As(e.Cause, &missingKeyErr) {
		return fmt.Sprintf("%s cannot be opened with key %s: %v", e.RecordName, e.KeyID, e.Cause)
	}
	return fmt.Sprintf("%s is sealed with key %s, which is not in the key file %s: restore the file from a backup and restart the agent", e.RecordName, e.KeyID, e.KeyFile)
}

// Unwrap returns the cause.
func (e *SecretDecryptError) Unwrap() error { return e.Cause }

// undecryptedSecret is a record's sealed part that could not be decrypted. A later write of the record stores secretBox
// unchanged.
type undecryptedSecret struct {
	secretBox  []byte
	decryptErr error
}

func (s *sealer) addUndecryptedSecret(recordName string, secretBox []byte, cause error) *undecryptedSecret {
	err := &SecretDecryptError{RecordName: recordName, KeyID: keyring.SealingKeyID(secretBox), KeyFile: s.keyFile, Cause: cause}
	s.decryptErrors = append(s.decryptErrors, err)
	return &undecryptedSecret{bytes.Clone(secretBox), err}
}

// VariableDecryptErr returns a [SecretDecryptError] if a variable's items cannot be decrypted, otherwise nil.
func (r Reader) VariableDecryptErr(v *api.Variable) error {
	if c := r.undecryptedSecretByObject[v]; c != nil {
		return c.decryptErr
	}
	return nil
}

// tablesWithSecrets are the public tables with records that have a secret part.
var tablesWithSecrets = map[Table]bool{Variables: true, ACLTokens: true}

// encodeRecordWithSecret returns the payload for a record of one of tablesWithSecrets.
func (s *Store) encodeRecordWithSecret(t Table, key string, obj any) (payload []byte, err error) {
	var open, secret []byte
	switch o := obj.(type) {
	case *api.Variable:
		open, secret, err = encodeVariableParts(o)
	case *api.ACLToken:
		open, secret, err = encodeTokenParts(o)
	}
	if err == nil {
		open, err = s.keepUnknownFieldsOf(t, key, open)
	}
	if err != nil {
		return nil, err
	}
	if c := s.sealer.undecryptedSecretByObject[obj]; c != nil {
		return encodeEnvelope(c.secretBox, open), nil
	}
	return s.sealer.sealPayload(string(t), key, secret, open), nil
}

// encodeLocalRecord returns a local record's payload.
func (s *sealer) encodeLocalRecord(t Table, r *localRecord) []byte {
	if r.undecryptedSecret != nil {
		return encodeEnvelope(r.undecryptedSecret.secretBox, r.unencryptedPart)
	}
	return s.sealPayload(string(t), r.key, r.secretPart, r.unencryptedPart)
}

// decryptQuarantinedRecord decodes a quarantined record. If the key is missing, q has no value, and the error is a
// MissingKeyError.
func (s *sealer) decryptQuarantinedRecord(quarantineKey string, payload []byte) (q quarantinedRecord, err error) {
	box, open, err := decodeEnvelope(payload)
	if err == nil {
		err = decodeMsgpack(open, &q)
	}
	if err == nil && box != nil {
		q.Value, err = s.decryptSecretBox(quarantineBucket, quarantineKey, box)
	}
	return q, err
}

// encodeQuarantineRecord returns a quarantined record's payload. The value is sealed, because it can be a variable record
// written by a build without keys.
func (s *sealer) encodeQuarantineRecord(name string, q quarantinedRecord) ([]byte, error) {
	value := q.Value
	q.Value = nil
	open, err := encodeMsgpack(q)
	return s.sealPayload(quarantineBucket, name, value, open), err
}

// resealQuarantined decrypts a quarantine record and seals it again with the active key. If it cannot decrypt the record, it
// returns it unchanged.
func (s *sealer) resealQuarantined(name string, value []byte) []byte {
	r, err := decodeRecord(quarantineBucket, name, value)
	if err != nil {
		return value
	}
	q, err := s.decryptQuarantinedRecord(name, r.payload)
	if err != nil {
		return value
	}
	payload, err := s.encodeQuarantineRecord(name, q)
	if err != nil {
		return value
	}
	return encodeRecord(quarantineBucket, name, r.changeIndex, payload)
}

package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// allTablesRow is the tableIndexTable row with the whole state's index.
	allTablesRow Table = "everything"

	metaBucket       = "meta"
	indexKey         = "index"
	quarantineBucket = "quarantine"

	// lostIndexIncrement is the least increase for the index if its record is lost. Otherwise clients that have seen a higher
	// index would block until the index reaches it again.
	lostIndexIncrement = 1 << 20
)

// Damage describes an unreadable record, or an unreadable part of the state file.
type Damage struct {
	Table  Table  // empty if the damage concerns the whole file
	Key    string // empty if the damage concerns more than one record
	Cause  string
	KeptIn string // where the bytes are now: "quarantine" or a file name; empty if they are lost
	Time   time.Time
}

func (d Damage) String() string {
	if d.KeptIn != "" {
		return d.NameAndCause() + "; kept in " + d.KeptIn
	}
	return d.NameAndCause()
}

// NameAndCause returns a text with the name of the unreadable record or table, and the cause.
func (d Damage) NameAndCause() string {
	what := "state file"
	if d.Table != "" {
		what = string(d.Table)
	}
	if d.Key != "" {
		what = fmt.Sprintf("%s %q", d.Table, d.Key)
	}
	return fmt.Sprintf("%s: %s", what, d.Cause)
}

func (d Damage) nodeEvent() *api.NodeEvent {
	return &api.NodeEvent{
		Message:   "State could not be read: " + d.String(),
		Subsystem: "Storage",
		Details:   map[string]string{"table": string(d.Table), "key": d.Key},
		Timestamp: d.Time,
	}
}

// maxNodeEvents is the maximum number of Open's damage reports that become node events, and also the maximum for later reports.
// All reports are logged.
const maxNodeEvents = 8

// quarantinedRecord is an unreadable record's stored form.
type quarantinedRecord struct {
	Cause string    `store:"cause"`
	Time  time.Time `store:"time"`
	Value []byte    `store:"value,secret"`
}

// tableIndexRecord is the record with the index of the state and the last index of each table.
type tableIndexRecord struct {
	Index        uint64            `store:"index"`
	IndexByTable map[string]uint64 `store:"tables"`
}

// Open opens and reads a state file, or makes a new one if there is none. It does not fail if the file is damaged:
// [Store.Damage] then returns the damage. It fails if the file is in use ([LockedError]), if it cannot be opened for writing,
// or if this build cannot read its format ([UnsupportedFormatError]). It fails because of a full disk only if it must make a
// new file. When ctx ends, Open stops waiting for a file in use.
func Open(ctx context.Context, c Config) (*Store, error) {
	return openWithFormat(ctx, c, currentFormat)
}

func openWithFormat(ctx context.Context, c Config, format fileFormat) (*Store, error) {
	s, err := newStore(c, format)
	if err != nil {
		return nil, err
	}
	err = s.openOrCreateFile(ctx)
	for errors.Is(err, errCreatedConcurrently) {
		err = s.openOrCreateFile(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, d := range s.damagedParts {
		s.logger.Error("state could not be read", "table", d.Table, "key", d.Key, "error", d.Cause, "kept", d.KeptIn)
	}
	s.logDecryptErrors()
	s.reportAllUnknownParts()
	s.logUnquarantinedRecords()
	for _, d := range s.damagedParts[:min(len(s.damagedParts), maxNodeEvents)] {
		s.pendingNodeEvents = append(s.pendingNodeEvents, d.nodeEvent())
	}
	if n := len(s.damagedParts) - maxNodeEvents; n > 0 {
		s.pendingNodeEvents = append(s.pendingNodeEvents, Damage{Cause: fmt.Sprintf("%d more things, see the log", n), Time: s.damagedParts[0].Time}.nodeEvent())
	}
	go s.runWriter()
	return s, nil
}

// OpenMemory makes an empty store without a file. Its state is lost when it is closed.
// The store seals nothing: Path, KeyFile and TemporaryKeys have no effect.
func OpenMemory(c Config) (*Store, error) {
	c.StateFilePath, c.KeyFile, c.TemporaryKeys = "", "", false
	s, err := newStore(c, currentFormat)
	if err != nil {
		return nil, err
	}
	s.file = nil
	go s.runWriter()
	return s, nil
}

func newStore(c Config, format fileFormat) (*Store, error) {
	s := &Store{
		logger:                    c.Logger.Named("store"),
		currentFormat:             format,
		buildVersion:              c.BuildVersion,
		sealer:                    newSealer(c),
		feed:                      newEventFeed(cmp.Or(c.MaxFeedChanges, 100)),
		writerDone:                make(chan struct{}),
		queue:                     requestQueue{writerWake: make(chan struct{}, 1)},
		onWrite:                   c.OnWrite,
		continuesAtHigherIndex:    c.ContinueAtHigherIndex,
		file:                      &stateFile{path: c.StateFilePath, reservesSpace: c.ReserveDiskSpace},
		jobs:                      newJobTable(),
		quarantinedRecordByName:   make(map[string][]byte),
		recordCountByUnknownPart:  make(map[string]int),
		payloadsWithUnknownFields: make(map[recordKey][]byte),
	}
	s.formatRecord = s.formatToWrite(nil)
	var err error
	if s.memDB, err = memdb.NewMemDB(newMemdbSchema()); err != nil {
		return nil, fmt.Errorf("open state store: %w", err)
	}
	return s, nil
}

// errCreatedConcurrently: this process found no state file, and another process has made it since.
var errCreatedConcurrently = errors.New("state file has just been made")

func (s *Store) openOrCreateFile(ctx context.Context) error {
	handle, err := openAndLockStateFile(ctx, s.file.path, true)
	if errors.Is(err, fs.ErrNotExist) {
		s.sealer.loadKeyFileOrMakeKeys()
		s.sealer.createMissingKeyFile()
		if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
			if _, statErr := os.Lstat(s.file.path); statErr == nil {
				return errCreatedConcurrently
			}
			return fmt.Errorf("make state file %s: %w", s.file.path, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	s.file.openFile = handle
	if err := s.checkFormatAndNoteMigration(handle); err != nil {
		handle.Close()
		return err
	}
	if err := s.file.removeTemporaryFiles(); err != nil {
		s.logger.Warn("unfinished state file cannot be removed", "error", err)
	}
	s.sealer.loadKeyFileOrMakeKeys()
	faults, err := s.load(handle)
	if err != nil {
		handle.Close()
		return err
	}
	s.sealer.createMissingKeyFile()
	if len(s.damagedParts) == 0 {
		if s.file.migratesFromFormat != 0 {
			s.migrateFileOrLogError()
			return nil
		}
		err := s.file.openDatabase(handle)
		if err == nil {
			s.encryptPlainRecords()
			s.rebuildFileIfUnquarantined()
			return nil
		}
		faults = append(faults, unreadablePart{unreadableCause: err.Error()})
		s.addDamage(Damage{Cause: err.Error()})
	}
	s.rebuildDamagedFile(faults)
	s.warnOfUnencryptedDamagedFiles()
	return nil
}

// rebuildDamagedFile replaces a damaged file by a new file with all readable records, and keeps the damaged file under
// another name. If the new file cannot be written, each update tries it again.
func (s *Store) rebuildDamagedFile(unreadableParts []unreadablePart) {
	if len(unreadableParts) > 0 { // without unreadable pages, the quarantine has every unreadable record
		name, err := linkDamagedFileAndRemoveOldest(s.file.path, time.Now())
		if err != nil {
			s.logger.Error("damaged state file cannot be kept", "error", err)
		}
		for i := range s.damagedParts {
			s.damagedParts[i].KeptIn = cmp.Or(s.damagedParts[i].KeptIn, name)
		}
	}
	if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
		s.logger.Error("state file cannot be written anew, all updates fail until it can", "error", err)
	}
}

func (s *Store) addDamage(d Damage) {
	d.Time = time.Now()
	d.Key = readableKey(d.Key)
	s.damagedParts = append(s.damagedParts, d)
}

// stateLoader loads the state file's records into memory.
type stateLoader struct {
	store                  *Store
	memTxn                 *memdb.Txn
	jobsByHash             map[string]*api.Job
	allocationsByID        map[string]*loadedAllocation // allocation ID -> allocation; loadAllocations loads them after all other tables
	endedRecords           map[string]bool              // keys of records that loadAllocations merges with their allocations
	storedIndexes          *tableIndexRecord
	formatRecord           *formatRecord   // nil until the format record is read
	reportedUnknownBuckets map[string]bool // damaged table names that were already reported
	highestRecordIndex     uint64          // the highest index in any record
}

type loadedAllocation struct {
	allocationRecord
	taskEvents  taskEvents // if the allocation lacks them
	recordBytes []byte
}

// load reads all records in the locked file into memory, and returns the unreadable parts of the file.
func (s *Store) load(handle *os.File) ([]unreadablePart, error) {
	l := &stateLoader{
		store:                  s,
		memTxn:                 s.memDB.Txn(true),
		jobsByHash:             make(map[string]*api.Job),
		allocationsByID:        make(map[string]*loadedAllocation),
		endedRecords:           make(map[string]bool),
		reportedUnknownBuckets: make(map[string]bool),
	}
	faults, err := l.loadRecordsOfFile(handle)
	if err != nil {
		return nil, err
	}
	for _, f := range faults {
		s.addDamage(Damage{Table: Table(f.bucket), Cause: f.String()})
	}
	l.unquarantineReadableRecords()
	l.loadAllocations()
	l.loadTableIndexes(len(faults) == 0)
	s.formatRecord = s.formatToWrite(l.formatRecord)
	s.isFormatRecordOutdated = l.formatRecord == nil || *l.formatRecord != s.formatRecord
	l.memTxn.Commit()
	return faults, nil
}

// fileRecordDecoding decodes one record of the file. Its result does not depend on other records, so records are decoded
// concurrently.
type fileRecordDecoding struct {
	fileBucket, key string
	value           []byte

	// equalVersion is the job version record with the same bytes as this job record; nil if there is none. Both have the same
	// job object, as it was when they were written.
	equalVersion *fileRecordDecoding

	decoded chan struct{} // closed when the next fields are set
	bucket  string        // the record's bucket; the name in the file can be damaged
	record  fileRecord
	err     error // decodeRecordAndFindTable's result

	payload       []byte // the payload's unsealed part, in the current format; nil if there is no such record
	secretBox     []byte
	object        any        // nil for a record that the loader decodes itself
	taskEvents    taskEvents // of an allocation, if object lacks them
	unknownFields []string
	objectErr     error // why payload, secretBox or object could not be decoded
}

// loadRecordsOfFile loads the file's records in their order, and returns the unreadable parts of the file. It reads pages,
// decodes records and loads them at the same time.
func (l *stateLoader) loadRecordsOfFile(handle *os.File) (unreadable []unreadablePart, err error) {
	toDecode, toLoad := make(chan *fileRecordDecoding, maxConcurrentDecodings), make(chan *fileRecordDecoding, maxConcurrentDecodings)
	var decodersWG, loaderWG sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxDecoders) {
		decodersWG.Go(func() {
			var allocs allocationDecoder
			for d := range toDecode {
				l.store.decodeFileRecord(d, &allocs)
				close(d.decoded)
			}
		})
	}
	loaderWG.Go(func() {
		for d := range toLoad {
			<-d.decoded
			l.loadRecord(d)
		}
	})
	latestVersionByJob := make(map[string]*fileRecordDecoding) // the file has the versions before the jobs, and a job's latest version last
	unreadable, err = visitReadableRecords(handle, "", func(bucket string, key, value []byte) {
		d := &fileRecordDecoding{fileBucket: bucket, key: string(key), value: value, decoded: make(chan struct{})}
		switch Table(bucket) {
		case JobVersions:
			if job, _, ok := cutLast(d.key, "\x00"); ok {
				latestVersionByJob[job] = d
			}
		case Jobs:
			if v := latestVersionByJob[d.key]; v != nil && l.store.file.migratesFromFormat == 0 && haveSamePayload(v.value, value) {
				d.equalVersion = v
			}
			delete(latestVersionByJob, d.key)
		}
		toDecode <- d
		toLoad <- d
	})
	close(toDecode)
	close(toLoad)
	decodersWG.Wait()
	loaderWG.Wait()
	return unreadable, err
}

// cutLast is like strings.Cut, but cuts s around the last instance of separator.
func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}

// haveSamePayload reports whether two records differ only in their headers.
func haveSamePayload(a, b []byte) bool {
	return len(a) > headerSize && len(b) > headerSize && bytes.Equal(a[headerSize:], b[headerSize:])
}

// loadRecordsOfFile's limits: how many records in memory are not loaded yet, and how many goroutines decode.
const (
	maxConcurrentDecodings = 256
	maxDecoders            = 4
)

// decodeFileRecord sets d's results. It changes nothing else but allocs, and may be called concurrently if each caller has its
// own.
func (s *Store) decodeFileRecord(d *fileRecordDecoding, allocs *allocationDecoder) {
	d.bucket, d.record, d.err = decodeRecordAndFindTable(d.fileBucket, d.key, d.value)
	if d.err != nil {
		return
	}
	if v := d.equalVersion; v != nil && Table(d.bucket) == Jobs {
		if <-v.decoded; v.err == nil && Table(v.bucket) == JobVersions { // an earlier record, so a decoder has it already
			d.payload, d.secretBox, d.object, d.unknownFields, d.objectErr = v.payload, v.secretBox, v.object, v.unknownFields, v.objectErr
			return
		}
	}
	s.decodeObject(d, allocs)
}

// decodeObject sets the results that depend on d.record.
func (s *Store) decodeObject(d *fileRecordDecoding, allocs *allocationDecoder) {
	def := tableDefsByTable[Table(d.bucket)]
	switch {
	case d.bucket == jobBucket:
		d.payload, d.object = d.record.payload, new(api.Job)
	case def == nil:
		return
	case def.table == Allocations:
		d.payload, d.object = d.record.payload, new(allocationRecord)
	default:
		if d.secretBox, d.payload, d.objectErr = decodeEnvelope(d.record.payload); d.objectErr != nil {
			return
		}
		if !def.isReadByAgentOnly {
			d.object = def.newZeroRecord(d.key)
		}
	}
	if len(d.payload) > 0 { // a record of a local table can have only a sealed part
		d.payload, d.objectErr = s.migrateRecordPart(d.bucket, d.key, false, d.payload)
	}
	if d.objectErr != nil || d.payload == nil || d.object == nil {
		return
	}
	if r, ok := d.object.(*allocationRecord); ok {
		var err error
		if d.taskEvents, err = allocs.decodeKnownFields(d.payload, r); err == nil {
			return
		}
	}
	d.unknownFields, d.objectErr = decodeAndListUnknownFields(d.payload, d.object)
}

// loadRecord loads one record of the file. It moves an unreadable record into the quarantine. If this build does not know the
// table, it keeps the record's bytes.
func (l *stateLoader) loadRecord(d *fileRecordDecoding) {
	if d.bucket != d.fileBucket && !l.reportedUnknownBuckets[d.fileBucket] {
		l.reportedUnknownBuckets[d.fileBucket] = true
		l.store.addDamage(Damage{Table: Table(d.bucket), Cause: fmt.Sprintf("the file calls it %q", d.fileBucket)})
	}
	if !slices.Contains(bucketNames, d.bucket) && isRecordIntact(d.err) {
		l.store.countUnknownPart("table " + d.bucket)
		l.store.recordsInUnknownBuckets = append(l.store.recordsInUnknownBuckets, bucketWrite{d.bucket, d.key, slices.Clone(d.value)})
		return
	}
	err := d.err
	if err == nil {
		err = l.loadIntactRecord(d)
	}
	if err != nil {
		l.quarantineRecord(d.bucket, d.key, d.value, err)
		return
	}
	l.highestRecordIndex = max(l.highestRecordIndex, d.record.changeIndex)
}

// decodeRecordAndFindTable returns a record's table. A table name has no checksum, but the record's checksum includes the name:
// a record in an unknown table may belong to a table with a damaged name.
func decodeRecordAndFindTable(bucket, key string, value []byte) (tableName string, r fileRecord, err error) {
	r, err = decodeRecord(bucket, key, value)
	if isRecordIntact(err) || slices.Contains(bucketNames, bucket) {
		return bucket, r, err
	}
	for _, name := range bucketNames {
		if r, err := decodeRecord(name, key, value); isRecordIntact(err) {
			return name, r, err
		}
	}
	return bucket, r, err
}

// isRecordIntact reports whether [decodeRecord]'s error means that the record is undamaged. A newer build may have written such
// a record.
func isRecordIntact(decodeErr error) bool {
	var schemaErr *UnsupportedSchemaError
	return decodeErr == nil || errors.As(decodeErr, &schemaErr)
}

// loadIntactRecord loads a record with a valid checksum.
func (l *stateLoader) loadIntactRecord(d *fileRecordDecoding) error {
	bucket, key := d.bucket, d.key
	switch {
	case bucket == metaBucket && key == formatKey:
		var err error
		l.formatRecord, err = decodeFormatRecord(d.record.payload)
		return err
	case bucket == metaBucket:
		if key != indexKey {
			l.store.countUnknownPart(fmt.Sprintf("record %s of %s", readableKey(key), metaBucket))
			l.store.recordsInUnknownBuckets = append(l.store.recordsInUnknownBuckets, bucketWrite{bucket, key, slices.Clone(d.value)})
			return nil
		}
		x := new(tableIndexRecord)
		if err := decodeMsgpack(d.record.payload, x); err != nil {
			return err
		}
		l.storedIndexes = x
		return nil
	case bucket == quarantineBucket:
		box, _, err := decodeEnvelope(d.record.payload)
		if err != nil {
			return err
		}
		if isUnencryptedSecretBox(box) {
			l.store.sealer.fileHasUnencryptedSecrets = true
		} else if box != nil {
			if _, err := l.store.sealer.decryptSecretBox(bucket, key, box); err != nil {
				l.store.sealer.addUndecryptedSecret(fmt.Sprintf("quarantined record %q", readableKey(key)), box, err)
			}
		}
		l.store.quarantinedRecordByName[key] = slices.Clone(d.value)
		return nil
	}
	if d.objectErr != nil || d.payload == nil {
		return d.objectErr
	}
	l.store.keepPayloadWithUnknownFields(Table(bucket), key, d.payload, d.unknownFields)
	if bucket == jobBucket {
		l.jobsByHash[key] = d.object.(*api.Job)
		return nil
	}
	def := tableDefsByTable[Table(bucket)]
	if def.table == Allocations {
		a := d.object.(*allocationRecord)
		if a.Alloc == nil || a.Alloc.ID != key {
			return errRecordOfOtherKey
		}
		l.allocationsByID[key] = &loadedAllocation{*a, d.taskEvents, d.value}
		return nil
	}
	obj := d.object
	if def.isReadByAgentOnly {
		obj = &localRecord{key: key, unencryptedPart: bytes.Clone(d.payload)} // copied, because the record is used longer than the page
		if def.newZeroRecord(key) == nil {
			l.store.countUnknownPart(fmt.Sprintf("record %s of %s", readableKey(key), def.table))
		}
	}
	if def.keyOf(obj) != key {
		return errRecordOfOtherKey
	}
	if err := l.decryptSecretsInto(def.table, key, obj, d.secretBox); err != nil {
		return err
	}
	if r, ok := obj.(*localRecord); ok && def.table == agentMetaTable && r.isEndedRecord() {
		l.endedRecords[key] = true
		return nil
	}
	return l.memTxn.Insert(string(def.table), obj)
}

// decryptSecretsInto decrypts secretBox, a record's sealed part, and adds the secrets to obj, the decoded rest. If it cannot
// decrypt secretBox, it adds secretBox itself, and the record's later writes store it unchanged.
func (l *stateLoader) decryptSecretsInto(t Table, key string, obj any, secretBox []byte) error {
	s := l.store.sealer
	var secret []byte
	var unopened *undecryptedSecret
	if secretBox != nil {
		var err error
		if secret, err = s.decryptSecretBox(string(t), key, secretBox); err == nil {
			if secret, err = l.store.migrateRecordPart(string(t), key, true, secret); err != nil {
				return err
			}
		} else {
			unopened = s.addUndecryptedSecret(fmt.Sprintf("%s %q", recordKindText(t), readableKey(key)), secretBox, err)
		}
		s.fileHasUnencryptedSecrets = s.fileHasUnencryptedSecrets || isUnencryptedSecretBox(secretBox)
	}
	switch o := obj.(type) {
	case *api.Variable:
		switch {
		case unopened != nil:
			s.undecryptedSecretByObject[o] = unopened
		case secretBox != nil:
			var variableItems map[string]string
			if err := decodeMsgpack(secret, &variableItems); err != nil {
				return err
			}
			o.Items = variableItems
		}
	case *api.ACLToken:
		switch {
		case unopened != nil:
			s.undecryptedSecretByObject[o] = unopened
		case secretBox != nil:
			return decodeMsgpack(secret, &o.SecretID)
		}
	case *localRecord:
		o.secretPart, o.undecryptedSecret = secret, unopened
	default:
		if secretBox != nil {
			return errEnvelopeLength
		}
	}
	return nil
}

var errRecordOfOtherKey = errors.New("it is the record of another key")

// quarantineRecord moves an unreadable record into the quarantine bucket.
func (l *stateLoader) quarantineRecord(bucket, key string, value []byte, cause error) {
	d := Damage{Table: Table(bucket), Key: key, Cause: cause.Error()}
	if bucket != quarantineBucket && bucket != metaBucket {
		name := bucket + "\x00" + key
		if payload, err := l.store.sealer.encodeQuarantineRecord(name, quarantinedRecord{Cause: d.Cause, Time: time.Now(), Value: slices.Clone(value)}); err == nil {
			l.store.quarantinedRecordByName[name] = encodeRecord(quarantineBucket, name, l.highestRecordIndex, payload)
			d.KeptIn = "quarantine"
		}
	}
	l.store.addDamage(d)
}

// loadAllocations adds the collected allocations to the memory with their jobs. Allocations share equal jobs, resources and
// strings, to save memory.
func (l *stateLoader) loadAllocations() {
	loaded := Reader{beginRead: func() *memdb.Txn { return l.memTxn }}
	dedup := allocationInterner{internedStrings: make(map[string]string), internedEvents: make(map[*eventsOfTask]bool)}
	known := l.store.jobs
	for _, id := range slices.Sorted(maps.Keys(l.allocationsByID)) {
		r := l.allocationsByID[id]
		a := r.Alloc
		if r.JobHash != "" {
			a.Job = l.jobsByHash[r.JobHash]
			if a.Job == nil {
				v := l.findJobVersionOf(r.allocationRecord)
				if v == nil {
					l.quarantineRecord(string(Allocations), id, r.recordBytes, errors.New("its job does not read"))
					continue
				}
				l.store.addDamage(Damage{Table: Allocations, Key: id, Cause: fmt.Sprintf("the job that it runs does not read; version %d from the list of versions takes its place", r.JobVersion)})
				hash, _, err := encodeJob(v)
				if err != nil {
					l.quarantineRecord(string(Allocations), id, r.recordBytes, err)
					continue
				}
				a.Job, r.JobHash = v, hash
			}
			if known.entriesByHash[r.JobHash] == nil {
				known.entriesByHash[r.JobHash] = &jobEntry{job: a.Job}
				known.hashesByJob[a.Job] = r.JobHash
			}
			known.entriesByHash[r.JobHash].shareJobAndLastValues(a)
			known.entriesByHash[r.JobHash].refCount++
		}
		endedKey := state.EndedAllocPrefix + id
		hasEnded := l.endedRecords[endedKey]
		delete(l.endedRecords, endedKey)
		hasSeparateEvents := hasEnded && a.ClientTerminalStatus() && len(r.taskEvents.tasks) > 0
		if !hasSeparateEvents {
			r.taskEvents.addTo(a.TaskStates)
		}
		if !a.ClientTerminalStatus() {
			replaceTaskStatesFromRecords(a, loaded)
		}
		dedup.internAllocation(a, r.taskEvents)
		var row any = a
		switch {
		case hasSeparateEvents:
			row = &endedAllocation{a, r.taskEvents}
		case hasEnded:
			row = known.newEndedAllocation(a)
		}
		if err := l.memTxn.Insert(string(Allocations), row); err != nil {
			l.quarantineRecord(string(Allocations), id, r.recordBytes, err)
		}
	}
	for key := range l.endedRecords { // without an allocation
		if err := l.memTxn.Insert(string(agentMetaTable), newEndedRecord(strings.TrimPrefix(key, state.EndedAllocPrefix))); err != nil {
			l.store.addDamage(Damage{Table: agentMetaTable, Key: key, Cause: err.Error()})
		}
	}
}

// findJobVersionOf returns an allocation's job version from the table JobVersions, or nil if it is not there.
func (l *stateLoader) findJobVersionOf(r allocationRecord) *api.Job {
	loaded := Reader{beginRead: func() *memdb.Txn { return l.memTxn }}
	v := loaded.JobVersion(nil, r.Alloc.Namespace, r.Alloc.JobID, r.JobVersion)
	if v == nil || pointer.Value(v.CreateIndex) != r.JobCreateIndex {
		return nil
	}
	return v
}

// replaceTaskStatesFromRecords replaces an allocation's task states with the states in its task records. The agent restores the
// tasks from these records, which can be older than the allocation's record if the disk was full.
func replaceTaskStatesFromRecords(a *api.Allocation, from Reader) {
	for _, r := range listRows[localRecord](from, nil, taskStatesTable, "id_prefix", a.ID+"\x00") {
		status := new(api.TaskState)
		if decodeMsgpack(r.unencryptedPart, status) != nil {
			continue // the error is reported when the record is read
		}
		if a.TaskStates == nil {
			a.TaskStates = make(map[string]*api.TaskState)
		}
		_, name, _ := strings.Cut(r.key, "\x00")
		a.TaskStates[name] = status
	}
}

// loadTableIndexes sets the indexes of the state and each table to the stored ones. If damage makes these unreliable, it sets
// higher ones. isFileIntact is false if parts of the file cannot be read.
func (l *stateLoader) loadTableIndexes(isFileIntact bool) {
	s := l.store
	tables := make(map[Table]uint64)
	if isFileIntact && l.storedIndexes != nil && l.storedIndexes.Index >= l.highestRecordIndex && !s.continuesAtHigherIndex {
		s.lastIndex = l.storedIndexes.Index
		for name, index := range l.storedIndexes.IndexByTable {
			tables[Table(name)] = index
		}
	} else if !isFileIntact || l.highestRecordIndex > 0 || len(s.damagedParts) > 0 || s.continuesAtHigherIndex {
		// The time in microseconds is higher than any index from an agent with less than a million changes per second.
		s.lastIndex = max(l.highestRecordIndex+lostIndexIncrement, uint64(time.Now().UnixMicro()))
		for _, k := range tableDefs {
			if k.hasTableIndex {
				tables[k.table] = s.lastIndex
			}
		}
		if len(s.damagedParts) == 0 && !s.continuesAtHigherIndex {
			s.addDamage(Damage{Table: metaBucket, Key: indexKey, Cause: fmt.Sprintf("the record of the index is missing; the index continues at %d", s.lastIndex)})
		}
	}
	tables[allTablesRow] = s.lastIndex
	for table, index := range tables {
		if err := l.memTxn.Insert(tableIndexTable, &tableIndexRow{table, index}); err != nil {
			s.addDamage(Damage{Table: metaBucket, Cause: err.Error()})
		}
	}
}

// encodeIndexRecord returns the write for storing the indexes in mem, for the state and all tables, in one record.
func encodeIndexRecord(mem *memdb.Txn) (bucketWrite, error) {
	x := tableIndexRecord{IndexByTable: make(map[string]uint64)}
	for _, row := range listRows[tableIndexRow](Reader{beginRead: func() *memdb.Txn { return mem }}, nil, tableIndexTable, "id_prefix", "") {
		if row.table == allTablesRow {
			x.Index = row.index
		} else {
			x.IndexByTable[string(row.table)] = row.index
		}
	}
	payload, err := encodeMsgpack(x)
	if err != nil {
		return bucketWrite{}, fmt.Errorf("encode indexes: %w", err)
	}
	return bucketWrite{metaBucket, indexKey, encodeRecord(metaBucket, indexKey, x.Index, payload)}, nil
}

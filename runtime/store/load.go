package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"
)

const (
	// allTablesRow is the row of tableIndexTable that has the index of the whole state.
	allTablesRow Table = "everything"

	metaBucket       = "meta"
	indexKey         = "index"
	quarantineBucket = "quarantine"

	// lostIndexIncrement is the minimum by which the index increases when the record of the index is lost: clients
	// that have seen a higher index would block forever.
	lostIndexIncrement = 1 << 20
)

// Damage describes a part of the state that could not be read.
type Damage struct {
	Table  Table  // empty if the damage concerns the whole file
	Key    string // empty if the damage concerns more than one record
	Cause  string
	KeptIn string // where the bytes are now: "quarantine" or a file name; empty if they are lost
	Time   time.Time
}

func (d Damage) String() string {
	if d.KeptIn != "" {
		return d.RecordName() + "; kept in " + d.KeptIn
	}
	return d.RecordName()
}

// RecordName returns the name of the part that could not be read, and the cause.
func (d Damage) RecordName() string {
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

// maxNodeEvents is the maximum number of damage reports that become node events: once for the reports of Open
// and once for later reports. All reports are logged.
const maxNodeEvents = 8

// quarantinedRecord is the stored form of a record that could not be read.
type quarantinedRecord struct {
	Cause string    `store:"cause"`
	Time  time.Time `store:"time"`
	Value []byte    `store:"value,secret"`
}

// tableIndexRecord is the record that holds all indexes.
type tableIndexRecord struct {
	Index  uint64            `store:"index"`
	Tables map[string]uint64 `store:"tables"`
}

// Open opens and reads a state file, or makes a new one. It does not fail because of
// damage: see [Store.Damage]. It fails if the file is in use ([LockedError]) or cannot be
// opened for writing, or if this build cannot read its format ([FormatError]). A full disk is an error only when a new
// file must be made.
func Open(c Config) (*Store, error) { return openWithFormat(c, currentFormat) }

func openWithFormat(c Config, format fileFormat) (*Store, error) {
	s, err := newStore(c, format)
	if err != nil {
		return nil, err
	}
	err = s.open()
	for errors.Is(err, errCreatedConcurrently) {
		err = s.open()
	}
	if err != nil {
		return nil, err
	}
	for _, d := range s.damagedParts {
		s.logger.Error("state could not be read", "table", d.Table, "key", d.Key, "error", d.Cause, "kept", d.KeptIn)
	}
	s.logSealedErrors()
	s.logUnknownParts()
	s.reportReleased()
	for _, d := range s.damagedParts[:min(len(s.damagedParts), maxNodeEvents)] {
		s.nodeEvents = append(s.nodeEvents, d.nodeEvent())
	}
	if n := len(s.damagedParts) - maxNodeEvents; n > 0 {
		s.nodeEvents = append(s.nodeEvents, Damage{Cause: fmt.Sprintf("%d more things, see the log", n), Time: s.damagedParts[0].Time}.nodeEvent())
	}
	go s.run()
	return s, nil
}

// OpenMemory makes an empty store without a file. Its state is lost when it is closed.
// The store seals nothing: Path, KeyFile and TemporaryKeys have no effect.
func OpenMemory(c Config) (*Store, error) {
	c.Path, c.KeyFile, c.TemporaryKeys = "", "", false
	s, err := newStore(c, currentFormat)
	if err != nil {
		return nil, err
	}
	s.file = nil
	go s.run()
	return s, nil
}

func newStore(c Config, format fileFormat) (*Store, error) {
	s := &Store{
		logger:             c.Logger.Named("store"),
		format:             format,
		version:            c.Version,
		sealer:             newSealer(c),
		feed:               newEventFeed(cmp.Or(c.FeedSize, 100)),
		done:               make(chan struct{}),
		queue:              requestQueue{wake: make(chan struct{}, 1)},
		onWrite:            c.OnWrite,
		file:               &stateFile{path: c.Path, reserves: c.ReserveSpace},
		jobs:               newJobTable(),
		quarantinedRecords: make(map[string][]byte),
		unknownParts:       make(map[string]int),
		unknownFields:      make(map[recordKey][]byte),
	}
	s.formatRecord = s.formatToWrite(nil)
	var err error
	if s.mem, err = memdb.NewMemDB(memdbSchema()); err != nil {
		return nil, fmt.Errorf("open state store: %w", err)
	}
	return s, nil
}

// errCreatedConcurrently means that another process has made the file at the same time.
var errCreatedConcurrently = errors.New("state file has just been made")

func (s *Store) open() error {
	handle, err := openLocked(s.file.path, true)
	if errors.Is(err, fs.ErrNotExist) {
		s.sealer.loadKeys()
		s.sealer.createKeys()
		if err := s.file.rebuild(s.allRecords(s.mem.Txn(false))); err != nil {
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
	if err := s.checkFormat(handle); err != nil {
		handle.Close()
		return err
	}
	if err := s.file.removeTemporaryFiles(); err != nil {
		s.logger.Warn("unfinished state file cannot be removed", "error", err)
	}
	s.sealer.loadKeys()
	faults, err := s.load(handle)
	if err != nil {
		handle.Close()
		return err
	}
	s.sealer.createKeys()
	if len(s.damagedParts) == 0 {
		if s.file.migratesFrom != 0 {
			s.migrateFile()
			return nil
		}
		err := s.file.openDatabase(handle)
		if err == nil {
			s.encryptPlainRecords()
			s.storeReleased()
			return nil
		}
		faults = append(faults, unreadablePart{cause: err.Error()})
		s.addDamage(Damage{Cause: err.Error()})
	}
	s.rebuildDamaged(faults)
	s.warnUnencryptedCopies()
	return nil
}

// rebuildDamaged writes a new file with all readable records. If the write fails,
// each update writes the file again.
func (s *Store) rebuildDamaged(faults []unreadablePart) {
	if len(faults) > 0 { // if the pages have no faults, the quarantine has every unreadable record
		name, err := keepDamagedFile(s.file.path, time.Now())
		if err != nil {
			s.logger.Error("damaged state file cannot be kept", "error", err)
		}
		for i := range s.damagedParts {
			s.damagedParts[i].KeptIn = cmp.Or(s.damagedParts[i].KeptIn, name)
		}
	}
	if err := s.file.rebuild(s.allRecords(s.mem.Txn(false))); err != nil {
		s.logger.Error("state file cannot be written anew, all updates fail until it can", "error", err)
	}
}

func (s *Store) addDamage(d Damage) {
	d.Time = time.Now()
	d.Key = readableKey(d.Key)
	s.damagedParts = append(s.damagedParts, d)
}

// stateLoader reads the records of the file into memory.
type stateLoader struct {
	store         *Store
	mem           *memdb.Txn
	jobs          map[string]*api.Job
	allocations   map[string]loadedAllocation // collected to be loaded after all other tables
	storedIndexes *tableIndexRecord
	format        *formatRecord   // nil until the record of the format is read
	reportedNames map[string]bool // unknown table names in the file that were already reported
	highestIndex  uint64          // the highest index in any record
}

type loadedAllocation struct {
	allocationRecord
	fileValue []byte
}

// load reads the file into memory.
func (s *Store) load(handle *os.File) ([]unreadablePart, error) {
	l := &stateLoader{
		store:         s,
		mem:           s.mem.Txn(true),
		jobs:          make(map[string]*api.Job),
		allocations:   make(map[string]loadedAllocation),
		reportedNames: make(map[string]bool),
	}
	faults, err := scanFile(handle, l.loadRecord)
	if err != nil {
		return nil, err
	}
	for _, f := range faults {
		s.addDamage(Damage{Table: Table(f.bucket), Cause: f.String()})
	}
	l.releaseQuarantined()
	l.loadAllocations()
	l.setIndexes(len(faults) == 0)
	if l.format == nil && len(s.damagedParts) == 0 {
		l.mem.Abort()
		return nil, fmt.Errorf("open state file %s: %w", s.file.path, errNoFormat)
	}
	s.formatRecord = s.formatToWrite(l.format)
	s.writeFormat = l.format == nil || *l.format != s.formatRecord
	l.mem.Commit()
	return faults, nil
}

// loadRecord loads one record of the file.
func (l *stateLoader) loadRecord(bucket string, k, value []byte) {
	key := string(k)
	home, r, err := tableOfRecord(bucket, key, value)
	if home != bucket && !l.reportedNames[bucket] {
		l.reportedNames[bucket] = true
		l.store.addDamage(Damage{Table: Table(home), Cause: fmt.Sprintf("the file calls it %q", bucket)})
	}
	bucket = home
	if !slices.Contains(bucketNames, bucket) && isRecordIntact(err) {
		l.store.addUnknown("table " + bucket)
		l.store.unknownRecords = append(l.store.unknownRecords, bucketWrite{bucket, key, slices.Clone(value)})
		return
	}
	if err == nil {
		err = l.loadIntactRecord(bucket, key, tableDefsByTable[Table(bucket)], r, value)
	}
	if err != nil {
		l.quarantineRecord(bucket, key, value, err)
		return
	}
	l.highestIndex = max(l.highestIndex, r.index)
}

// tableOfRecord returns the table that a record belongs to. A table name has no checksum, but the checksum of
// a record includes the name: a record in an unknown table may belong to a table whose name is damaged.
func tableOfRecord(bucket, key string, value []byte) (home string, r fileRecord, err error) {
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

// isRecordIntact reports whether the error of [decodeRecord] means that the record is undamaged. Such a record may
// have been written by a newer build.
func isRecordIntact(err error) bool {
	var schemaErr *SchemaError
	return err == nil || errors.As(err, &schemaErr)
}

// loadIntactRecord loads a record whose checksum is valid.
func (l *stateLoader) loadIntactRecord(bucket, key string, k *tableDef, r fileRecord, value []byte) error {
	switch {
	case bucket == metaBucket && key == formatKey:
		var err error
		l.format, err = decodeFormatRecord(r.payload)
		return err
	case bucket == metaBucket:
		if key != indexKey {
			l.store.addUnknown(fmt.Sprintf("record %s of %s", readableKey(key), metaBucket))
			l.store.unknownRecords = append(l.store.unknownRecords, bucketWrite{bucket, key, slices.Clone(value)})
			return nil
		}
		x := new(tableIndexRecord)
		if err := decode(r.payload, x); err != nil {
			return err
		}
		l.storedIndexes = x
		return nil
	case bucket == quarantineBucket:
		box, _, err := decodeEnvelope(r.payload)
		if err != nil {
			return err
		}
		if isPlaintextBox(box) {
			l.store.sealer.hasPlainSecrets = true
		} else if box != nil {
			if _, err := l.store.sealer.openBox(bucket, key, box); err != nil {
				l.store.sealer.recordUnopenedSecret(fmt.Sprintf("quarantined record %q", readableKey(key)), box, err)
			}
		}
		l.store.quarantinedRecords[key] = slices.Clone(value)
		return nil
	case bucket == jobBucket:
		payload, err := l.store.migratePart(bucket, key, false, r.payload)
		if err != nil || payload == nil {
			return err
		}
		job := new(api.Job)
		if err := l.store.decodePublic(jobBucket, key, payload, job); err != nil {
			return err
		}
		l.jobs[key] = job
		return nil
	case k.table == Allocations:
		payload, err := l.store.migratePart(bucket, key, false, r.payload)
		if err != nil || payload == nil {
			return err
		}
		var a allocationRecord
		if err := l.store.decodePublic(Allocations, key, payload, &a); err != nil {
			return err
		}
		if a.Alloc == nil || a.Alloc.ID != key {
			return errRecordOfOtherKey
		}
		l.allocations[key] = loadedAllocation{a, value}
		return nil
	}
	box, open, err := decodeEnvelope(r.payload)
	if err == nil && len(open) > 0 {
		open, err = l.store.migratePart(bucket, key, false, open)
	}
	if err != nil || open == nil {
		return err
	}
	var obj any = &localRecord{key: key, payload: bytes.Clone(open)} // copied, because the record is used longer than the page
	if !k.isLocal {
		obj = k.newRecord(key)
		if err := l.store.decodePublic(k.table, key, open, obj); err != nil {
			return err
		}
	} else if k.newRecord(key) == nil {
		l.store.addUnknown(fmt.Sprintf("record %s of %s", readableKey(key), k.table))
	}
	if k.key(obj) != key {
		return errRecordOfOtherKey
	}
	if err := l.openSecrets(k.table, key, obj, box); err != nil {
		return err
	}
	return l.mem.Insert(string(k.table), obj)
}

// openSecrets decrypts the box (the sealed part) of a record, and adds the secrets to the record's object. A
// box that cannot be opened is kept.
func (l *stateLoader) openSecrets(t Table, key string, obj any, box []byte) error {
	s := l.store.sealer
	var secret []byte
	var unopened *unopenedSecret
	if box != nil {
		var err error
		if secret, err = s.openBox(string(t), key, box); err == nil {
			if secret, err = l.store.migratePart(string(t), key, true, secret); err != nil {
				return err
			}
		} else {
			unopened = s.recordUnopenedSecret(fmt.Sprintf("%s %q", recordName(t), readableKey(key)), box, err)
		}
		s.hasPlainSecrets = s.hasPlainSecrets || isPlaintextBox(box)
	}
	switch o := obj.(type) {
	case *api.Variable:
		switch {
		case unopened != nil:
			s.unopenedVariables[o] = unopened
		case box != nil:
			var variableItems map[string]string
			if err := decode(secret, &variableItems); err != nil {
				return err
			}
			o.Items = variableItems
		}
	case *localRecord:
		o.secret, o.unopenedSecret = secret, unopened
	default:
		if box != nil {
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
			l.store.quarantinedRecords[name] = encodeRecord(quarantineBucket, name, l.highestIndex, payload)
			d.KeptIn = "quarantine"
		}
	}
	l.store.addDamage(d)
}

// loadAllocations loads the allocations with their jobs, and lets them share equal values.
func (l *stateLoader) loadAllocations() {
	loaded := Reader{beginRead: func() *memdb.Txn { return l.mem }}
	dedup := interner{strings: make(map[string]string)}
	known := l.store.jobs
	for _, id := range slices.Sorted(maps.Keys(l.allocations)) {
		r := l.allocations[id]
		a := r.Alloc
		if r.Spec != "" {
			a.Job = l.jobs[r.Spec]
			if a.Job == nil {
				v := l.jobVersion(r.allocationRecord)
				if v == nil {
					l.quarantineRecord(string(Allocations), id, r.fileValue, errors.New("its job does not read"))
					continue
				}
				l.store.addDamage(Damage{Table: Allocations, Key: id, Cause: fmt.Sprintf("the job that it runs does not read; version %d from the list of versions takes its place", r.JobVersion)})
				hash, _, err := encodeJob(v)
				if err != nil {
					l.quarantineRecord(string(Allocations), id, r.fileValue, err)
					continue
				}
				a.Job, r.Spec = v, hash
			}
			if known.byHash[r.Spec] == nil {
				known.byHash[r.Spec] = &jobEntry{job: a.Job}
				known.byJob[a.Job] = r.Spec
			}
			known.byHash[r.Spec].shareValues(a)
			known.byHash[r.Spec].refCount++
		}
		if !a.ClientTerminalStatus() {
			addTaskStates(a, loaded)
		}
		dedup.internAllocation(a)
		if err := l.mem.Insert(string(Allocations), a); err != nil {
			l.quarantineRecord(string(Allocations), id, r.fileValue, err)
		}
	}
}

// jobVersion returns the version of an allocation's job in the list of versions, nil if there is none.
func (l *stateLoader) jobVersion(r allocationRecord) *api.Job {
	loaded := Reader{beginRead: func() *memdb.Txn { return l.mem }}
	v := loaded.JobVersion(nil, r.Alloc.Namespace, r.Alloc.JobID, r.JobVersion)
	if v == nil || uint64OrZero(v.CreateIndex) != r.JobCreateIndex {
		return nil
	}
	return v
}

// addTaskStates replaces the task states of an allocation by the states in the records
// of its tasks, which the agent restores. If the disk is full, the record of a task may
// be older than the state in the record of its allocation.
func addTaskStates(a *api.Allocation, from Reader) {
	for _, r := range listRows[localRecord](from, nil, taskStatesTable, "id_prefix", a.ID+"\x00") {
		state := new(api.TaskState)
		if decode(r.payload, state) != nil {
			continue // the error is reported when the record is read
		}
		if a.TaskStates == nil {
			a.TaskStates = make(map[string]*api.TaskState)
		}
		_, name, _ := strings.Cut(r.key, "\x00")
		a.TaskStates[name] = state
	}
}

// setIndexes sets the indexes to the stored ones, or to higher ones if the stored indexes are not reliable.
func (l *stateLoader) setIndexes(isSound bool) {
	s := l.store
	tables := make(map[Table]uint64)
	if isSound && l.storedIndexes != nil && l.storedIndexes.Index >= l.highestIndex {
		s.index = l.storedIndexes.Index
		for name, index := range l.storedIndexes.Tables {
			tables[Table(name)] = index
		}
	} else if !isSound || l.highestIndex > 0 || len(s.damagedParts) > 0 {
		// The time in microseconds is higher than any index of an agent that makes less than a million
		// changes per second.
		s.index = max(l.highestIndex+lostIndexIncrement, uint64(time.Now().UnixMicro()))
		for _, k := range tableDefs {
			if k.hasIndex {
				tables[k.table] = s.index
			}
		}
		if len(s.damagedParts) == 0 {
			s.addDamage(Damage{Table: metaBucket, Key: indexKey, Cause: fmt.Sprintf("the record of the index is missing; the index continues at %d", s.index)})
		}
	}
	tables[allTablesRow] = s.index
	for table, index := range tables {
		if err := l.mem.Insert(tableIndexTable, &tableIndexRow{table, index}); err != nil {
			s.addDamage(Damage{Table: metaBucket, Cause: err.Error()})
		}
	}
}

// encodeIndexRecord returns the write operation that stores all indexes of mem in one record.
func encodeIndexRecord(mem *memdb.Txn) (bucketWrite, error) {
	x := tableIndexRecord{Tables: make(map[string]uint64)}
	for _, row := range listRows[tableIndexRow](Reader{beginRead: func() *memdb.Txn { return mem }}, nil, tableIndexTable, "id_prefix", "") {
		if row.table == allTablesRow {
			x.Index = row.index
		} else {
			x.Tables[string(row.table)] = row.index
		}
	}
	payload, err := encode(x)
	if err != nil {
		return bucketWrite{}, fmt.Errorf("encode indexes: %w", err)
	}
	return bucketWrite{metaBucket, indexKey, encodeRecord(metaBucket, indexKey, x.Index, payload)}, nil
}

package store

import (
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
	// allTables is the row of tableIndexes for the whole state.
	allTables Table = "everything"

	metaBucket       = "meta"
	indexKey         = "index"
	quarantineBucket = "quarantine"

	// lostIndex is the minimum by which the index jumps when its record is lost: clients
	// that have seen a higher index would wait forever.
	lostIndex = 1 << 20
)

// Damage is a part of the state that could not be read.
type Damage struct {
	Table Table  // Table is empty if the damage concerns the file
	Key   string // Key is empty if the damage concerns more than one record
	Cause string
	Kept  string // Kept is where the bytes are now: "quarantine" or a file name; empty if they are lost
	Time  time.Time
}

func (d Damage) String() string {
	if d.Kept != "" {
		return d.What() + "; kept in " + d.Kept
	}
	return d.What()
}

// What returns which part could not be read, and why.
func (d Damage) What() string {
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

// maxNodeEvents limits the damage reports that become node events, at Open and again
// since then. All reports are logged.
const maxNodeEvents = 8

// quarantined is the record of an unreadable record.
type quarantined struct {
	Cause string
	Time  time.Time
	Value []byte
}

// indexes is the record that holds all indexes.
type indexes struct {
	Index  uint64
	Tables map[string]uint64
}

// Open opens and reads a state file, or makes a new one. It does not fail because of
// damage: see [Store.Damage]. It fails if the file is in use ([LockedError]) or cannot be
// opened for writing. A full disk is an error only when a new file must be made.
func Open(c Config) (*Store, error) {
	s, err := newStore(c)
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
	for _, d := range s.damage {
		s.logger.Error("state could not be read", "table", d.Table, "key", d.Key, "error", d.Cause, "kept", d.Kept)
	}
	s.reportSealed()
	for _, d := range s.damage[:min(len(s.damage), maxNodeEvents)] {
		s.nodeEvents = append(s.nodeEvents, d.nodeEvent())
	}
	if n := len(s.damage) - maxNodeEvents; n > 0 {
		s.nodeEvents = append(s.nodeEvents, Damage{Cause: fmt.Sprintf("%d more things, see the log", n), Time: s.damage[0].Time}.nodeEvent())
	}
	go s.run()
	return s, nil
}

// OpenMemory makes an empty store without a file. Its state is lost when it is closed.
// The store seals nothing: Path, KeyFile and TemporaryKeys have no effect.
func OpenMemory(c Config) (*Store, error) {
	c.Path, c.KeyFile, c.TemporaryKeys = "", "", false
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	s.file = nil
	go s.run()
	return s, nil
}

func newStore(c Config) (*Store, error) {
	s := &Store{
		logger:     c.Logger.Named("store"),
		sealer:     newSealer(c),
		feed:       newFeed(cmp.Or(c.Events, 100)),
		done:       make(chan struct{}),
		queue:      requestQueue{wake: make(chan struct{}, 1)},
		file:       &file{path: c.Path},
		jobs:       newJobTable(),
		quarantine: make(map[string][]byte),
	}
	var err error
	if s.mem, err = memdb.NewMemDB(schema()); err != nil {
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
		s.sealer.makeKeys()
		if err := s.file.rebuild(s.allRecords(s.mem.Txn(false))); err != nil {
			if _, there := os.Lstat(s.file.path); there == nil {
				return errCreatedConcurrently
			}
			return fmt.Errorf("make state file %s: %w", s.file.path, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	s.file.handle = handle
	if err := s.file.removeUnfinished(); err != nil {
		s.logger.Warn("unfinished state file cannot be removed", "error", err)
	}
	s.sealer.loadKeys()
	faults, err := s.load(handle)
	if err != nil {
		handle.Close()
		return err
	}
	s.sealer.makeKeys()
	if len(s.damage) == 0 {
		err := s.file.use(handle)
		if err == nil {
			s.sealPlain()
			return nil
		}
		faults = append(faults, fault{cause: err.Error()})
		s.addDamage(Damage{Cause: err.Error()})
	}
	s.repair(faults)
	s.warnPlainCopies()
	return nil
}

// repair writes a new file with all readable records. If that fails, each update retries
// it.
func (s *Store) repair(faults []fault) {
	if len(faults) > 0 { // without faults, the quarantine has every unreadable record
		name, err := keepDamaged(s.file.path, time.Now())
		if err != nil {
			s.logger.Error("damaged state file cannot be kept", "error", err)
		}
		for i := range s.damage {
			s.damage[i].Kept = cmp.Or(s.damage[i].Kept, name)
		}
	}
	if err := s.file.rebuild(s.allRecords(s.mem.Txn(false))); err != nil {
		s.logger.Error("state file cannot be written anew, all updates fail until it can", "error", err)
	}
}

func (s *Store) addDamage(d Damage) {
	d.Time = time.Now()
	d.Key = readable(d.Key)
	s.damage = append(s.damage, d)
}

// loader reads the records of the file into memory.
type loader struct {
	store   *Store
	mem     *memdb.Txn
	jobs    map[string]*api.Job
	rows    map[string]row // rows are the allocations, which are loaded after all other tables
	indexes *indexes
	renamed map[string]bool // renamed are the unknown table names in the file that were reported
	highest uint64          // highest is the highest index in any record
}

type row struct {
	allocRow
	sealed []byte
}

// load reads the file into memory.
func (s *Store) load(handle *os.File) ([]fault, error) {
	l := &loader{
		store:   s,
		mem:     s.mem.Txn(true),
		jobs:    make(map[string]*api.Job),
		rows:    make(map[string]row),
		renamed: make(map[string]bool),
	}
	faults, err := scanFile(handle, l.record)
	if err != nil {
		return nil, err
	}
	for _, f := range faults {
		s.addDamage(Damage{Table: Table(f.bucket), Cause: f.String()})
	}
	l.allocations()
	l.setIndexes(len(faults) == 0)
	l.mem.Commit()
	return faults, nil
}

// record loads one record of the file.
func (l *loader) record(bucket string, k, value []byte) {
	key := string(k)
	home, r, err := locate(bucket, key, value)
	if home != bucket && !l.renamed[bucket] {
		l.renamed[bucket] = true
		l.store.addDamage(Damage{Table: Table(home), Cause: fmt.Sprintf("the file calls it %q", bucket)})
	}
	bucket = home
	if !slices.Contains(buckets, bucket) && isIntact(err) {
		l.store.foreign = append(l.store.foreign, op{bucket, key, slices.Clone(value)})
		return
	}
	if err == nil {
		err = l.load(bucket, key, tableDefOf[Table(bucket)], r, value)
	}
	if err != nil {
		l.quarantine(bucket, key, value, err)
		return
	}
	l.highest = max(l.highest, r.index)
}

// locate returns the table of a record. A table name has no checksum, but the checksums of
// its records include the name: a record in an unknown table may belong to a table whose
// name is damaged.
func locate(bucket, key string, value []byte) (home string, r record, err error) {
	r, err = decodeRecord(bucket, key, value)
	if isIntact(err) || slices.Contains(buckets, bucket) {
		return bucket, r, err
	}
	for _, name := range buckets {
		if r, err := decodeRecord(name, key, value); isIntact(err) {
			return name, r, err
		}
	}
	return bucket, r, err
}

// isIntact reports whether err, a result of [decodeRecord], means that the record is
// undamaged. A newer build may have written it.
func isIntact(err error) bool {
	var other *SchemaError
	return err == nil || errors.As(err, &other)
}

// load loads a record with a valid checksum.
func (l *loader) load(bucket, key string, k *tableDef, r record, value []byte) error {
	switch {
	case bucket == metaBucket:
		if key != indexKey {
			return fmt.Errorf("unknown key")
		}
		x := new(indexes)
		if err := decode(r.payload, x); err != nil {
			return err
		}
		l.indexes = x
		return nil
	case bucket == quarantineBucket:
		box, _, err := unwrap(r.payload)
		if err != nil {
			return err
		}
		if box == nil || isPlain(box) {
			l.store.sealer.plain = true
		} else if _, err := l.store.sealer.openBox(bucket, key, box); err != nil {
			l.store.sealer.lock(fmt.Sprintf("quarantined record %q", readable(key)), box, err)
		}
		l.store.quarantine[key] = slices.Clone(value)
		return nil
	case bucket == jobBucket:
		job := new(api.Job)
		if err := decode(r.payload, job); err != nil {
			return err
		}
		l.jobs[key] = job
		return nil
	case k.table == Allocations:
		var a allocRow
		if err := decode(r.payload, &a); err != nil {
			return err
		}
		if a.Alloc == nil || a.Alloc.ID != key {
			return errOtherKey
		}
		l.rows[key] = row{a, value}
		return nil
	}
	box, open, err := unwrap(r.payload)
	if err != nil {
		return err
	}
	obj, err := k.decode(key, open)
	if err != nil {
		return err
	}
	if k.key(obj) != key {
		return errOtherKey
	}
	if err := l.openSecrets(k.table, key, obj, box); err != nil {
		return err
	}
	return l.mem.Insert(string(k.table), obj)
}

// openSecrets adds the secret part of a record to its object. A box that cannot be opened is
// kept.
func (l *loader) openSecrets(t Table, key string, obj any, box []byte) error {
	s := l.store.sealer
	var secret []byte
	var locked *lockedBox
	if box != nil {
		var err error
		if secret, err = s.openBox(string(t), key, box); err != nil {
			locked = s.lock(fmt.Sprintf("%s %q", recordName(t), readable(key)), box, err)
		}
		s.plain = s.plain || isPlain(box)
	}
	switch o := obj.(type) {
	case *api.Variable:
		switch {
		case locked != nil:
			s.lockedVariables[o] = locked
		case box != nil:
			var items map[string]string
			if err := decode(secret, &items); err != nil {
				return err
			}
			o.Items = items
		case len(o.Items) > 0:
			s.plain = true
		}
	case *localRecord:
		o.secret, o.locked = secret, locked
		if box == nil && s.splitRecord(t, o) {
			s.plain = true
		}
	default:
		if box != nil {
			return errEnvelope
		}
	}
	return nil
}

var errOtherKey = errors.New("it is the record of another key")

// quarantine moves an unreadable record into the quarantine bucket.
func (l *loader) quarantine(bucket, key string, value []byte, cause error) {
	d := Damage{Table: Table(bucket), Key: key, Cause: cause.Error()}
	if bucket != quarantineBucket && bucket != metaBucket {
		name := bucket + "\x00" + key
		if payload, err := l.store.sealer.quarantinePayload(name, quarantined{Cause: d.Cause, Time: time.Now(), Value: slices.Clone(value)}); err == nil {
			l.store.quarantine[name] = encodeRecord(quarantineBucket, name, l.highest, payload)
			d.Kept = "quarantine"
		}
	}
	l.store.addDamage(d)
}

// allocations loads the allocations with their jobs, and deduplicates equal values.
func (l *loader) allocations() {
	loaded := Reader{begin: func() *memdb.Txn { return l.mem }}
	dedup := interner{strings: make(map[string]string)}
	known := l.store.jobs
	for _, id := range slices.Sorted(maps.Keys(l.rows)) {
		r := l.rows[id]
		a := r.Alloc
		if r.Spec != "" {
			a.Job = l.jobs[r.Spec]
			if a.Job == nil {
				v := loaded.JobVersion(nil, a.Namespace, a.JobID, r.JobVersion)
				if v == nil || num(v.CreateIndex) != r.JobCreateIndex {
					l.quarantine(string(Allocations), id, r.sealed, errors.New("its job does not read"))
					continue
				}
				l.store.addDamage(Damage{Table: Allocations, Key: id, Cause: fmt.Sprintf("the job that it runs does not read; version %d from the list of versions takes its place", r.JobVersion)})
				hash, _, err := encodeJob(v)
				if err != nil {
					l.quarantine(string(Allocations), id, r.sealed, err)
					continue
				}
				a.Job, r.Spec = v, hash
			}
			if known.byHash[r.Spec] == nil {
				known.byHash[r.Spec] = &jobEntry{job: a.Job}
				known.byJob[a.Job] = r.Spec
			}
			known.byHash[r.Spec].share(a)
			known.byHash[r.Spec].refs++
		}
		if !a.ClientTerminalStatus() {
			takeTaskStates(a, loaded)
		}
		dedup.share(a)
		if err := l.mem.Insert(string(Allocations), a); err != nil {
			l.quarantine(string(Allocations), id, r.sealed, err)
		}
	}
}

// takeTaskStates replaces the task states of an allocation by the states in the records
// of its tasks, which the agent restores. If the disk is full, the record of a task may
// be older than the state in the record of its allocation.
func takeTaskStates(a *api.Allocation, from Reader) {
	for _, r := range list[localRecord](from, nil, taskStates, "id_prefix", a.ID+"\x00") {
		state := new(api.TaskState)
		if decode(r.payload, state) != nil {
			continue // the reader of the record reports the error
		}
		if a.TaskStates == nil {
			a.TaskStates = make(map[string]*api.TaskState)
		}
		_, name, _ := strings.Cut(r.key, "\x00")
		a.TaskStates[name] = state
	}
}

// setIndexes continues with the stored indexes, or with higher ones if the stored indexes
// are not reliable.
func (l *loader) setIndexes(sound bool) {
	s := l.store
	tables := make(map[Table]uint64)
	if sound && l.indexes != nil && l.indexes.Index >= l.highest {
		s.index = l.indexes.Index
		for name, index := range l.indexes.Tables {
			tables[Table(name)] = index
		}
	} else if !sound || l.highest > 0 || len(s.damage) > 0 {
		// No agent makes a million changes per second for fifty years.
		s.index = max(l.highest+lostIndex, uint64(time.Now().UnixMicro()))
		for _, k := range tableDefs {
			if k.visible {
				tables[k.table] = s.index
			}
		}
		if len(s.damage) == 0 {
			s.addDamage(Damage{Table: metaBucket, Key: indexKey, Cause: fmt.Sprintf("the record of the index is missing; it goes on at %d", s.index)})
		}
	}
	tables[allTables] = s.index
	for table, index := range tables {
		if err := l.mem.Insert(tableIndexes, &indexRow{table, index}); err != nil {
			s.addDamage(Damage{Table: metaBucket, Cause: err.Error()})
		}
	}
}

// indexRecord returns the write of the record of all indexes in mem.
func indexRecord(mem *memdb.Txn) (op, error) {
	x := indexes{Tables: make(map[string]uint64)}
	for _, row := range list[indexRow](Reader{begin: func() *memdb.Txn { return mem }}, nil, tableIndexes, "id_prefix", "") {
		if row.table == allTables {
			x.Index = row.index
		} else {
			x.Tables[string(row.table)] = row.index
		}
	}
	payload, err := encode(x)
	if err != nil {
		return op{}, fmt.Errorf("encode indexes: %w", err)
	}
	return op{metaBucket, indexKey, encodeRecord(metaBucket, indexKey, x.Index, payload)}, nil
}

package history

import (
	"slices"
	"time"
)

// Series is one object's usage over time, in steps with the same duration. A step without a sample is missing. All lists have the
// same length.
type Series struct {
	Interval time.Duration // nanoseconds per step
	Times    []int64       // each step's start, in milliseconds since 1970
	CPU      []*float64    // MHz, step mean; null if unknown
	Memory   []*uint64     // bytes, step maximum; null if unknown
	Disk     []*uint64     // bytes, step maximum; null if unknown
	Restarts []uint32      // task restarts since their allocations started
}

// Period is a time divided into steps.
type Period struct {
	Since, Now time.Time
	Step       time.Duration
}

// NewPeriod returns the period with the given duration that ends now. A step is a multiple of Interval, and there are no more
// steps than maxSteps.
func NewPeriod(now time.Time, duration time.Duration, maxSteps int) Period {
	step := Interval
	for duration > step*time.Duration(maxSteps-1) { // one step less, because the period can start within a step
		step += Interval
	}
	return Period{now.Add(-duration), now, step}
}

// stepStart returns the start of the step with the time t.
func (p Period) stepStart(t time.Time) int64 {
	step := p.Step.Milliseconds()
	return t.UnixMilli() / step * step
}

// total is the summed usage in an object's entries in one sample, or in a step's samples.
type total struct {
	entries            int // entry count; 0 if the object has none
	cpuMHz             float64
	cpuSamples         int // samples with a CPU usage
	memory, disk       uint64
	hasMemory, hasDisk bool
	restarts           uint32
}

func (u *total) addEntry(e *Entry) {
	u.entries++
	if e.CPUMHz >= 0 {
		u.cpuMHz, u.cpuSamples = u.cpuMHz+float64(e.CPUMHz), 1
	}
	if e.MemoryKiB != UnknownSize {
		u.memory, u.hasMemory = u.memory+uint64(e.MemoryKiB)<<10, true
	}
	if e.DiskKiB != UnknownSize {
		u.disk, u.hasDisk = u.disk+uint64(e.DiskKiB)<<10, true
	}
	u.restarts += e.Restarts
}

// addSample adds a later sample in the same step.
func (u *total) addSample(s total) {
	u.cpuMHz, u.cpuSamples = u.cpuMHz+s.cpuMHz, u.cpuSamples+s.cpuSamples
	u.memory, u.hasMemory = max(u.memory, s.memory), u.hasMemory || s.hasMemory
	u.disk, u.hasDisk = max(u.disk, s.disk), u.hasDisk || s.hasDisk
	u.restarts = s.restarts
}

// seriesBuilder makes a Series from samples.
type seriesBuilder struct {
	Series
	sample total // sum of the current sample's entries
	step   total // usage in the last step of Times
}

// endSample adds the current sample to the step that starts at stepStart.
func (b *seriesBuilder) endSample(stepStart int64) {
	sample := b.sample
	b.sample = total{}
	if sample.entries == 0 {
		return
	}
	if n := len(b.Times); n > 0 && b.Times[n-1] == stepStart {
		b.step.addSample(sample)
	} else {
		b.endStep()
		b.Times, b.step = append(b.Times, stepStart), sample
	}
}

// endStep adds the last step's usage, if there is one.
func (b *seriesBuilder) endStep() {
	if len(b.Times) == len(b.Restarts) {
		return
	}
	u := b.step
	b.CPU, b.Memory, b.Disk, b.Restarts = append(b.CPU, nil), append(b.Memory, nil), append(b.Disk, nil), append(b.Restarts, u.restarts)
	last := len(b.Restarts) - 1
	if u.cpuSamples > 0 {
		b.CPU[last] = new(u.cpuMHz / float64(u.cpuSamples))
	}
	if u.hasMemory {
		b.Memory[last] = &u.memory
	}
	if u.hasDisk {
		b.Disk[last] = &u.disk
	}
}

// builderSet has the builders by the keys that they add up.
type builderSet struct {
	keys     []Key              // distinct keys, if there are few
	builders [][]*seriesBuilder // builders for each of keys
	byKey    map[Key][]*seriesBuilder
}

// maxSearchedKeys is the key count up to which a search through all keys is faster than a map.
const maxSearchedKeys = 8

func newBuilderSet(byKey map[Key][]*seriesBuilder) *builderSet {
	s := &builderSet{byKey: byKey}
	if len(byKey) <= maxSearchedKeys {
		for k, list := range byKey {
			s.keys, s.builders = append(s.keys, k), append(s.builders, list)
		}
	}
	return s
}

func (s *builderSet) find(k Key) []*seriesBuilder {
	if s.keys == nil {
		return s.byKey[k]
	}
	if i := slices.Index(s.keys, k); i >= 0 {
		return s.builders[i]
	}
	return nil
}

// ReadSeries returns the summed usage of each object group, by group name. The objects are tasks, the node, or jobs: a job's
// usage is the sum of its tasks. Groups without a sample in the period are missing.
func (f *File) ReadSeries(p Period, keysByGroup map[string][]Key) (map[string]*Series, error) {
	builders := make(map[string]*seriesBuilder, len(keysByGroup))
	byKey := make(map[Key][]*seriesBuilder)
	for name, keys := range keysByGroup {
		b := &seriesBuilder{Series: Series{
			Interval: p.Step, Times: []int64{}, CPU: []*float64{}, Memory: []*uint64{}, Disk: []*uint64{}, Restarts: []uint32{},
		}}
		builders[name] = b
		for _, k := range keys {
			byKey[k] = append(byKey[k], b)
		}
	}
	set := newBuilderSet(byKey)
	err := f.Read(p.Since, p.Now, func(t time.Time, entries []Entry) {
		stepStart := p.stepStart(t)
		for i := range entries {
			for _, b := range set.find(entries[i].Key) {
				b.sample.addEntry(&entries[i])
			}
			for _, b := range set.find(entries[i].Job) {
				b.sample.addEntry(&entries[i])
			}
		}
		for _, b := range builders {
			b.endSample(stepStart)
		}
	})
	if err != nil {
		return nil, err
	}
	all := make(map[string]*Series, len(builders))
	for name, b := range builders {
		if b.endStep(); len(b.Times) > 0 {
			all[name] = &b.Series
		}
	}
	return all, nil
}

// Steps returns each step's start in the period, in milliseconds since 1970.
func (p Period) Steps() []int64 {
	var all []int64
	for t := p.stepStart(p.Since); t <= p.Now.UnixMilli(); t += p.Step.Milliseconds() {
		all = append(all, t)
	}
	return all
}
